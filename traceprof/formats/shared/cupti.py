"""Codes of CUPTI, which nsys and nvprof write as they are; and how deep ranges are nested."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.formats.sqlite.columns import Column, categorical, distinct
from traceprof.model.grouping import rows_by_values
from traceprof.model.intervals import nesting_depth
from traceprof.model.tables import ABSENT, TABLES, sort_rows

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
_ABI_SUFFIX: Final = re.compile(r"(_v\d+)?(_ptsz|_ptds)?(_v\d+)?$")
SYNC_KINDS: Final = {0: "unknown", 1: "event", 2: "stream_wait", 3: "stream", 4: "context"}


def decode(codes: Column, meanings: dict[int, str]) -> pd.Categorical:
    """Return the names of ``codes``; a code without a name is "unknown"."""
    numbers, place = distinct(codes)
    return categorical(place, [meanings.get(int(code), "unknown") for code in numbers])


def plain_api_name(name: str) -> str:
    """Return the name of an API call without the version of its binary interface."""
    return _ABI_SUFFIX.sub("", name)


def with_shared_bytes(
    shape: Mapping[str, npt.NDArray[np.int64]],
) -> dict[str, npt.NDArray[np.int64]]:
    """Return columns of `kernel_shapes`, with static and dynamic shared memory together.

    Where that is in ``shape`` already, it stays where the two are not known.
    """
    static, dynamic = shape["static_shared_bytes"], shape["dynamic_shared_bytes"]
    told = shape.get("shared_bytes", np.full(len(static), ABSENT))
    are_known = (static >= 0) & (dynamic >= 0)
    return {**shape, "shared_bytes": np.where(are_known, static + dynamic, told)}


def with_depth(ranges: pd.DataFrame) -> pd.DataFrame:
    """Return ``ranges`` with their depth: the number of ranges open around each on its thread."""
    ranges = sort_rows(ranges, TABLES["ranges"])
    depth = np.zeros(len(ranges), np.int64)
    groups = rows_by_values(ranges["process"], ranges["thread"], ranges["kind"].cat.codes)
    starts, ends = ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy()
    for rows in groups.values():
        depth[rows] = nesting_depth(starts[rows], ends[rows])
    return ranges.assign(depth=depth)
