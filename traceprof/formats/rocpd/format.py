"""Recognize databases of rocprofv3 (rocpd) by their tables, whose names end in a unique id."""

from __future__ import annotations

from functools import partial
from typing import Final

from traceprof.formats.contract import Candidate, TraceFormat, import_and_call

PREFIX: Final = "rocpd_"
KERNELS: Final = "kernel_dispatch"
REGIONS: Final = "region"
_MARKS: Final = (f"{PREFIX}info_process", f"{PREFIX}{KERNELS}")


def recognizes(candidate: Candidate) -> bool:
    """Return whether the file has the tables of rocpd; those of rocmProfileData differ."""
    return all(any(table.startswith(mark) for table in candidate.tables) for mark in _MARKS)


FORMAT: Final = TraceFormat(
    name="rocpd",
    summary="rocprofv3 or rocprof-sys database (rocpd, *_results.db)",
    recognizes=recognizes,
    read=partial(import_and_call, "traceprof.formats.rocpd.reader", "read"),
    secrets=partial(import_and_call, "traceprof.formats.rocpd.file", "find_secrets"),
)
