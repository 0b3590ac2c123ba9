"""Self time: the part of a nested span that none of its children covers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from traceprof.model.grouping import parents_of, rows_by_values
from traceprof.model.intervals import nesting_depth

__all__ = ["self_time_ns"]


def self_time_ns(frame: pd.DataFrame, lane: Sequence[str]) -> pd.Series:
    """Return the self time of each row of ``frame`` (sorted as tables are).

    ``lane`` names the columns within whose values rows nest (the thread, say). Where rows of a
    lane overlap without nesting, the later one counts with its part inside the earlier.
    """
    own = (frame["end_ns"] - frame["start_ns"]).to_numpy().copy()
    starts, ends = frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy()
    for rows in rows_by_values(*(_numbers(frame[name]) for name in lane)).values():
        parents = parents_of(nesting_depth(starts[rows], ends[rows]))
        children = parents >= 0
        outer = rows[parents[children]]
        inside = np.minimum(ends[rows[children]], ends[outer]) - starts[rows[children]]
        np.subtract.at(own, outer, np.maximum(inside, 0))
    return pd.Series(np.maximum(own, 0), index=frame.index)


def _numbers(column: pd.Series) -> pd.Series:
    return column.cat.codes if isinstance(column.dtype, pd.CategoricalDtype) else column
