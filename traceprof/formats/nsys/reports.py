"""Reports of Nsight Systems (.nsys-rep, .qdrep, .qdstrm), read through nsys's own export."""

from __future__ import annotations

from typing import Final

from traceprof.formats.base import Candidate, TraceFormat, loaded_late
from traceprof.formats.nsys.format import FORMAT as NSYS

__all__ = ["FORMAT", "MAGIC_WITHIN", "STREAM"]

_REPORT: Final = b"NVIDIA Tegra Profiler Report"
STREAM: Final = b"NVIDIA Nsight Systems Stream"
"""What a report begins with that is not finished."""
MAGIC_WITHIN: Final = 64


def recognises(candidate: Candidate) -> bool:
    """Return whether the file is a report of nsys, or a stream not yet made into one."""
    return any(magic in candidate.head[:MAGIC_WITHIN] for magic in (_REPORT, STREAM))


FORMAT: Final = TraceFormat(
    name="nsys-report",
    summary="Nsight Systems report (.nsys-rep, .qdrep, .qdstrm), where nsys is installed",
    recognises=recognises,
    read=NSYS.read,
    outline=NSYS.outline,
    export=loaded_late("traceprof.formats.nsys.report_export", "exported_report"),
    cut=NSYS.cut,
    secrets=NSYS.secrets,
)
