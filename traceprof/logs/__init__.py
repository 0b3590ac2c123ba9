"""Read training logs and tables of runs, and convert them into summaries of runs."""

from __future__ import annotations

from traceprof.logs.rates import read_table as read_table
from traceprof.logs.reading import read_log as read_log
from traceprof.logs.reading import source_names as source_names
