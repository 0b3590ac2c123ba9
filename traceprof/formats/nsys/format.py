"""How SQLite exports of Nsight Systems, and recordings of traceprof, are recognised."""

from __future__ import annotations

from typing import Final

from traceprof.formats.base import Candidate, TraceFormat, loaded_late

__all__ = ["FORMAT"]

_MARKS_OF_NSYS: Final = (
    "CUPTI_ACTIVITY_KIND_",
    "TARGET_INFO_",
    "NVTX_EVENTS",
    "OSRT_API",
    "META_DATA_EXPORT",
    "EXPORT_META_DATA",
)


def recognises(candidate: Candidate) -> bool:
    """Return whether the file has the tables of an nsys export."""
    return "StringIds" in candidate.tables and any(
        table.startswith(_MARKS_OF_NSYS) for table in candidate.tables
    )


FORMAT: Final = TraceFormat(
    name="nsys",
    summary="Nsight Systems SQLite export, and recordings of traceprof",
    recognises=recognises,
    read=loaded_late("traceprof.formats.nsys.reader", "read"),
    outline=loaded_late("traceprof.formats.nsys.reader", "outline"),
    cut=loaded_late("traceprof.formats.nsys.cut", "cut"),
    secrets=loaded_late("traceprof.formats.nsys.secrets", "told_secrets"),
)
