"""The database of experiments: what is kept of runs, in plain tables of SQLite."""

from traceprof.store.exported import exported_runs, is_exported, read_exported
from traceprof.store.location import VARIABLE, default_path
from traceprof.store.runs import Store

__all__ = ["VARIABLE", "Store", "default_path", "exported_runs", "is_exported", "read_exported"]
