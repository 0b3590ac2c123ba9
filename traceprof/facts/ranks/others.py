"""A rank against the other ranks: its value beyond the median of the others' values."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

__all__ = ["beyond_others"]

_AT_ONCE: Final = 200_000


def beyond_others(values: pd.Series, key: pd.Series) -> npt.NDArray[np.float64]:
    """Return each value less the median of the other values with the same key.

    The value itself is left out: of two ranks, one that comes 10 ms late is 10 ms late and not
    5 ms. NaN where a key has one value only. The values are integers; differences are taken
    before anything is rounded to float, so that they are exact whatever the clock.
    """
    numbers, keys = values.to_numpy(), key.to_numpy()
    found = np.empty(len(numbers), np.float64)
    order = np.lexsort((numbers, keys))
    is_first = np.ones(len(order), np.bool_)
    ordered_keys = keys[order]
    is_first[1:] = ordered_keys[1:] != ordered_keys[:-1]
    del ordered_keys
    firsts = np.flatnonzero(is_first)
    # Some keys after the others: what is laid out for every value takes ten times its memory.
    cuts = np.unique(np.searchsorted(firsts, np.arange(0, len(order), _AT_ONCE)))
    begins = firsts[cuts[cuts < len(firsts)]].tolist()
    for begin, end in pairwise([*begins, len(order)]):
        rows = order[begin:end]
        found[rows] = _beyond(numbers[rows], is_first[begin:end])
    return found


def _beyond(ordered: npt.NDArray[Any], is_first: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """Return the same of values in the order of key and value."""
    firsts = np.flatnonzero(is_first)
    group = np.cumsum(is_first) - 1
    size, first = np.diff(np.append(firsts, len(ordered)))[group], firsts[group]
    place = np.arange(len(ordered)) - first
    middle = np.zeros(len(ordered), np.float64)
    for rank in ((size - 2) // 2, (size - 1) // 2):
        # Element `rank` of the others: one further on where the value itself comes before.
        there = np.clip(first + rank + (place <= rank), 0, len(ordered) - 1)
        middle += (ordered - ordered[there]) / 2
    return np.where(size > 1, middle, np.nan)
