"""Recognize databases of rocprofv3 (rocpd) by their tables, whose names end in a unique id."""

from __future__ import annotations

from functools import partial
from typing import Final

from traceprof.formats.contract import Candidate, TraceFormat, loaded_late

PREFIX: Final = "rocpd_"
KERNELS: Final = "kernel_dispatch"
REGIONS: Final = "region"
_MARKS: Final = (f"{PREFIX}info_process", f"{PREFIX}{KERNELS}")


def recognises(candidate: Candidate) -> bool:
    """Return whether the file has the tables of rocpd; those of rocmProfileData differ."""
    return all(any(table.startswith(mark) for table in candidate.tables) for mark in _MARKS)


FORMAT: Final = TraceFormat(
    name="rocpd",
    summary="rocprofv3 or rocprof-sys database (rocpd, *_results.db)",
    recognises=recognises,
    read=partial(loaded_late, "traceprof.formats.rocpd.reader", "read"),
    secrets=partial(loaded_late, "traceprof.formats.rocpd.file", "told_secrets"),
)
