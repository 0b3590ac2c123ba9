"""What programs print while they train, read as what is kept of a run."""

from traceprof.logs.reading import read_log as read_log
from traceprof.logs.reading import source_names as source_names
from traceprof.logs.tables import read_table as read_table
