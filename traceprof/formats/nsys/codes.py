"""Codes of the nsys SQLite schema, which its own ENUM_ tables often lack or leave empty."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.formats.sqlite.database import NULL, Column, categorical, distinct
from traceprof.model.tables import ABSENT

__all__ = [
    "COPY_DIRECTIONS",
    "MANAGED",
    "MEMORY_KINDS",
    "NVTX_DOMAIN",
    "NVTX_MARK",
    "NVTX_PUSH_POP",
    "NVTX_START_END",
    "SYNC_KINDS",
    "UNIFIED_MEMORY_COPIES",
    "decode",
    "process_of",
    "thread_of",
]

COPY_DIRECTIONS: Final = {
    0: "unknown",
    1: "h2d",
    2: "d2h",
    3: "h2d",  # to an array
    4: "d2h",  # from an array
    5: "d2d",
    6: "d2d",
    7: "d2d",
    8: "d2d",
    9: "h2h",
    10: "p2p",
    11: "h2d",
    12: "d2h",
    13: "p2p",
}
UNIFIED_MEMORY_COPIES: Final = (11, 12, 13)
"""Copies that the driver makes on its own, to migrate pages of unified memory."""

MANAGED: Final = 4
MEMORY_KINDS: Final = {
    0: "pageable",
    1: "pinned",
    2: "device",
    3: "array",
    MANAGED: "managed",
    5: "device_static",
    6: "managed_static",
    7: "unknown",
}
SYNC_KINDS: Final = {0: "unknown", 1: "event", 2: "stream_wait", 3: "stream", 4: "context"}

NVTX_MARK: Final = 34
NVTX_PUSH_POP: Final = 59
NVTX_START_END: Final = 60
NVTX_DOMAIN: Final = 75


def decode(codes: Column, meanings: dict[int, str]) -> pd.Categorical:
    """Return the names of ``codes``; a code without a name is "unknown"."""
    numbers, place = distinct(codes)
    return categorical(place, [meanings.get(int(code), "unknown") for code in numbers])


def process_of(global_ids: Column) -> npt.NDArray[np.int64]:
    """Return the process id in serialised global ids: hardware 8, VM 8, pid 24, tid 24 bits."""
    ids = np.asarray(global_ids, np.int64)
    return np.where(ids == NULL, ABSENT, (ids >> 24) & 0xFFFFFF)


def thread_of(global_ids: Column) -> npt.NDArray[np.int64]:
    """Return the thread id in serialised global ids."""
    ids = np.asarray(global_ids, np.int64)
    return np.where(ids == NULL, ABSENT, ids & 0xFFFFFF)
