"""The database of experiments: what is kept of runs, in plain tables of SQLite."""

from traceprof.store.exported import exported_runs, is_exported, read_exported
from traceprof.store.location import VARIABLE, default_path
from traceprof.store.names import as_name, check_name
from traceprof.store.runs import Kept, Measure, Store
from traceprof.store.values import sqlite_type

__all__ = [
    "VARIABLE",
    "Kept",
    "Measure",
    "Store",
    "as_name",
    "check_name",
    "default_path",
    "exported_runs",
    "is_exported",
    "read_exported",
    "sqlite_type",
]
