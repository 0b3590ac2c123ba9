"""A rank against the other ranks: its value beyond the median of the others' values."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

__all__ = ["beyond_others"]


def beyond_others(values: pd.Series, key: pd.Series) -> npt.NDArray[np.float64]:
    """Return each value less the median of the other values with the same key.

    The value itself is left out: of two ranks, one that comes 10 ms late is 10 ms late and not
    5 ms. NaN where a key has one value only. The values are integers; differences are taken
    before anything is rounded to float, so that they are exact whatever the clock.
    """
    order = np.lexsort((values.to_numpy(), key.to_numpy()))
    ordered = values.to_numpy()[order]
    group = pd.factorize(key.to_numpy()[order])[0]
    sizes = np.bincount(group) if len(group) else np.zeros(0, np.int64)
    size = sizes[group]
    first = (np.cumsum(sizes) - sizes)[group]
    place = np.arange(len(ordered)) - first
    middle = np.zeros(len(ordered), np.float64)
    for rank in ((size - 2) // 2, (size - 1) // 2):
        # Element `rank` of the others: one further on where the value itself comes before.
        there = np.clip(first + rank + (place <= rank), 0, max(0, len(ordered) - 1))
        middle += (ordered - ordered[there]) / 2
    found = np.empty(len(ordered), np.float64)
    found[order] = np.where(size > 1, middle, np.nan)
    return found
