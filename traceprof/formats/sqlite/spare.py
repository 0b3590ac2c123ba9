"""What other tables of a file are right without: columns and tables that are not of whole numbers.

They are left out with a warning, as if the file did not have them: what does not need them answers.
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
    """A column holds something else than whole numbers."""

    def __init__(self, path: Path, table: str, column: str, kind: str = "") -> None:
        found = f" ({kind})" if kind else ""
        super().__init__(f"{path}: column {table}.{column} contains non-integer values{found}")
        self.table, self.column = table, column


class SpareColumnError(Exception):
    """A column is to be left out, or its table if that is one of `is_spare`."""

    def __init__(self, table: str, column: str) -> None:
        super().__init__(f"{table}.{column}")
        self.table, self.column = table, column


def is_spare(table: str) -> bool:
    """Return whether the other tables of a file are right without ``table``."""
    return table == "ThreadNames" or table.startswith(_SPARE_TABLES)


def without_spared(
    trace: Trace, spared: Mapping[str, str], made_of: Mapping[str, Sequence[str]]
) -> Trace:
    """Return ``trace`` with a warning of what is left out of the file, whose tables it lacks.

    Args:
        trace: what was read.
        spared: table, or table.column, that is left out → a sentence of that.
        made_of: table of the trace → the tables, or columns, of the file that it takes.
    """
    lost = {name for name, sources in made_of.items() if not spared.keys().isdisjoint(sources)}
    new = [text for text in spared.values() if text not in trace.info.warnings]
    return replace(trace, recorded=trace.recorded - lost).with_warnings(*new)
