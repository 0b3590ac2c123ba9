"""Recognize SQLite files of nvprof and the Visual Profiler."""

from __future__ import annotations

from functools import partial
from typing import Final

from traceprof.formats.contract import Candidate, TraceFormat, import_and_call

PREFIX: Final = "CUPTI_ACTIVITY_KIND_"
"""Prefix of the activity tables; the kind of activity follows."""


def recognizes(candidate: Candidate) -> bool:
    """Return whether the file has the tables of nvprof."""
    return {"StringTable", "Version"} <= candidate.tables and any(
        table.startswith(PREFIX) for table in candidate.tables
    )


FORMAT: Final = TraceFormat(
    name="nvprof",
    summary="nvprof or Visual Profiler SQLite file (.nvprof, .sql, .nvvp)",
    recognizes=recognizes,
    read=partial(import_and_call, "traceprof.formats.nvprof.reader", "read"),
    outline=partial(import_and_call, "traceprof.formats.nvprof.reader", "outline"),
    cut=partial(import_and_call, "traceprof.formats.nvprof.cut", "cut"),
)
