"""Recognize SQLite files of nvprof and the Visual Profiler."""

from __future__ import annotations

from functools import partial
from typing import Final

from traceprof.formats.contract import Candidate, TraceFormat, loaded_late

PREFIX: Final = "CUPTI_ACTIVITY_KIND_"
"""Prefix of the activity tables; the kind of activity follows."""


def recognises(candidate: Candidate) -> bool:
    """Return whether the file has the tables of nvprof."""
    return {"StringTable", "Version"} <= candidate.tables and any(
        table.startswith(PREFIX) for table in candidate.tables
    )


FORMAT: Final = TraceFormat(
    name="nvprof",
    summary="nvprof or Visual Profiler SQLite file (.nvprof, .sql, .nvvp)",
    recognises=recognises,
    read=partial(loaded_late, "traceprof.formats.nvprof.reader", "read"),
    outline=partial(loaded_late, "traceprof.formats.nvprof.reader", "outline"),
    cut=partial(loaded_late, "traceprof.formats.nvprof.cut", "cut"),
)
