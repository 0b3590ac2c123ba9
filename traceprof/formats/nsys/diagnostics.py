"""What nsys itself says went wrong: its diagnostics that bear on the numbers, as warnings."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

from traceprof.formats.sqlite.database import Database

__all__ = ["read_diagnostics"]

_WARNING: Final = 2
_ERROR: Final = 3
_MOST: Final = 5
_MATTERS: Final = re.compile(
    r"not all (CUDA|NVTX|MPI|NCCL)|lost|dropped|discarded|overflow|out of memory|too many"
    r"|clock|timestamp|graph",
    re.IGNORECASE,
)
_CPU_SAMPLING: Final = re.compile(r"\bCPU\b|perf event|event source Perf|backtrace", re.IGNORECASE)


def read_diagnostics(database: Database) -> list[str]:
    """Return the errors and the warnings about lost data, each once, the most frequent first.

    nsys warns for every process that does not use CUDA or NVTX, and where it may not sample
    the CPU; these say nothing about what was recorded.
    """
    if not {"severity", "text"} <= database.columns("DIAGNOSTIC_EVENT"):
        return []
    rows = database.rows(
        f"SELECT severity, text FROM DIAGNOSTIC_EVENT WHERE severity IN ({_WARNING}, {_ERROR})"
    )
    texts = Counter(
        str(text).strip().splitlines()[0]
        for severity, text in rows
        if str(text).strip() and _is_relevant(severity, str(text))
    )
    told = [
        f"nsys: {text}" + (f" ({count} times)" if count > 1 else "")
        for text, count in texts.most_common(_MOST)
    ]
    if len(texts) > _MOST:
        told.append(f"nsys: {len(texts) - _MOST} more errors and warnings")
    return told


def _is_relevant(severity: int, text: str) -> bool:
    if _CPU_SAMPLING.search(text):
        return False
    return severity == _ERROR or bool(_MATTERS.search(text))
