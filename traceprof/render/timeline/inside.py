"""The part of a trace that a page shows: rows stay whole, so that a hover shows real times."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.model.tables import TABLES
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace

__all__ = ["count_inside", "rows_inside"]


def rows_inside(trace: Trace, window: TimeWindow) -> Trace:
    """Return ``trace`` with only the rows that have a part inside ``window``, not clipped."""
    if window == trace.span:
        return trace
    kept: dict[str, Any] = {
        name: _inside(trace.table(name), window)
        for name, table in TABLES.items()
        if table.has_times
    }
    return replace(trace, **kept)


def count_inside(frame: pd.DataFrame, window: TimeWindow) -> int:
    """Return how many rows of ``frame`` have a part inside ``window``."""
    before, first, last = _places_inside(frame, window)
    return len(before) + last - first


def _inside(frame: pd.DataFrame, window: TimeWindow) -> pd.DataFrame:
    before, first, last = _places_inside(frame, window)
    if not len(before) or before[0] == first - len(before):
        return frame.iloc[first - len(before) : last]
    return frame.iloc[np.append(before, np.arange(first, last))]


def _places_inside(
    frame: pd.DataFrame, window: TimeWindow
) -> tuple[npt.NDArray[np.int64], int, int]:
    """Return the rows that begin before the window and reach into it, and those that begin in it.

    The latter stand together: rows come by start.
    """
    starts = frame["start_ns"].to_numpy()
    first, last = np.searchsorted(starts, [window.start_ns, window.end_ns]).tolist()
    if "end_ns" not in frame or not window.duration_ns:
        return np.empty(0, np.int64), first, last
    return np.flatnonzero(frame["end_ns"].to_numpy()[:first] > window.start_ns), first, last
