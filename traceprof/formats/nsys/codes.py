"""Codes of the nsys SQLite schema, which its own ENUM_ tables often lack or leave empty."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.formats.sqlite.database import NULL, Column
from traceprof.model.tables import ABSENT

__all__ = [
    "NVTX_DOMAIN",
    "NVTX_MARK",
    "NVTX_PUSH_POP",
    "NVTX_START_END",
    "process_of",
    "thread_of",
]

NVTX_MARK: Final = 34
NVTX_PUSH_POP: Final = 59
NVTX_START_END: Final = 60
NVTX_DOMAIN: Final = 75


def process_of(global_ids: Column) -> npt.NDArray[np.int64]:
    """Return the process id in serialised global ids: hardware 8, VM 8, pid 24, tid 24 bits."""
    ids = np.asarray(global_ids, np.int64)
    return np.where(ids == NULL, ABSENT, (ids >> 24) & 0xFFFFFF)


def thread_of(global_ids: Column) -> npt.NDArray[np.int64]:
    """Return the thread id in serialised global ids."""
    ids = np.asarray(global_ids, np.int64)
    return np.where(ids == NULL, ABSENT, ids & 0xFFFFFF)
