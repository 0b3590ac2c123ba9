"""What programs print while they train, read as what is kept of a run."""

from __future__ import annotations

from traceprof.logs.rates import read_table as read_table
from traceprof.logs.reading import read_log as read_log
from traceprof.logs.reading import source_names as source_names
