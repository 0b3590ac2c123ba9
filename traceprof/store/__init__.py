"""Run database: summaries of runs in plain SQLite tables."""

from traceprof.store.database import VARIABLE, default_path
from traceprof.store.declared import sqlite_type
from traceprof.store.runs import Kept, Measure, Store, as_name, check_name
from traceprof.store.summaries import exported_runs, is_exported, read_exported

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
