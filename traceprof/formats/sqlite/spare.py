"""Optional columns and tables that traceprof ignores if they do not contain whole numbers.

The other tables of the file are correct without them. traceprof adds a warning and behaves as if
the file did not contain them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from traceprof.errors import TraceError
from traceprof.model.trace import Trace

_SPARE_TABLES: Final = (
    *("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "CUPTI_ACTIVITY_KIND_OVERHEAD", "PROFILER_OVERHEAD"),
    *("OSRT_API", "CUDNN_EVENTS", "CUBLAS_EVENTS", "MPI_", "UCP_", "TRACEPROF_HOST_OPS"),
)


class MistypedColumnError(TraceError):
    """A column of whole numbers contains other values."""

    def __init__(self, path: Path, table: str, column: str, kind: str = "") -> None:
        found = f" ({kind})" if kind else ""
        super().__init__(f"{path}: column {table}.{column} contains non-integer values{found}")
        self.table, self.column = table, column


class SpareColumnError(Exception):
    """A column must be ignored, or its whole table if `is_spare` says so."""

    def __init__(self, table: str, column: str) -> None:
        super().__init__(f"{table}.{column}")
        self.table, self.column = table, column


def is_spare(table: str) -> bool:
    """Return whether the other tables of a file are correct without ``table``."""
    return table == "ThreadNames" or table.startswith(_SPARE_TABLES)


def without_ignored_tables(
    trace: Trace, spared: Mapping[str, str], made_of: Mapping[str, Sequence[str]]
) -> Trace:
    """Return ``trace`` with a warning for each ignored column or table, which it does not record.

    Args:
        trace: what was read.
        spared: ignored table, or table.column → a sentence about it.
        made_of: table of the trace → the tables, or columns, of the file that it uses.
    """
    lost = {name for name, sources in made_of.items() if not spared.keys().isdisjoint(sources)}
    new = [text for text in spared.values() if text not in trace.info.warnings]
    return replace(trace, recorded=trace.recorded - lost).with_warnings(*new)
