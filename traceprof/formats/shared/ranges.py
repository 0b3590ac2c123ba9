"""How deep ranges are nested."""

from __future__ import annotations

import numpy as np
import pandas as pd

from traceprof.model.grouping import rows_by_values
from traceprof.model.intervals import nesting_depth
from traceprof.model.tables import TABLES, sort_rows

__all__ = ["with_depth"]


def with_depth(ranges: pd.DataFrame) -> pd.DataFrame:
    """Return ``ranges`` with their depth: the number of ranges open around each on its thread."""
    ranges = sort_rows(ranges, TABLES["ranges"])
    depth = np.zeros(len(ranges), np.int64)
    groups = rows_by_values(ranges["process"], ranges["thread"], ranges["kind"].cat.codes)
    starts, ends = ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy()
    for rows in groups.values():
        depth[rows] = nesting_depth(starts[rows], ends[rows])
    return ranges.assign(depth=depth)
