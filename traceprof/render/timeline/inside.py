"""The part of a trace that a page shows: rows stay whole, so that a hover shows real times."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd

from traceprof.model.tables import TABLES
from traceprof.model.trace import Trace
from traceprof.model.window import TimeWindow

__all__ = ["rows_inside"]


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


def _inside(frame: pd.DataFrame, window: TimeWindow) -> pd.DataFrame:
    starts = frame["start_ns"].to_numpy()
    if "end_ns" in frame:
        inside = window.overlaps(starts, frame["end_ns"].to_numpy())
    else:
        inside = window.holds(starts)
    return frame[inside]
