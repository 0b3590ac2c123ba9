"""A rank against the other ranks: its value beyond the median of the others' values."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

__all__ = ["beyond_others", "pieces_of"]

_AT_ONCE: Final = 200_000


def beyond_others(values: pd.Series, key: pd.Series) -> npt.NDArray[np.float64]:
    """Return each value less the median of the other values with the same key.

    The value itself is left out: of two ranks, one that comes 10 ms late is 10 ms late and not
    5 ms. NaN where a key has one value only. The values are integers; differences are taken
    before anything is rounded to float, so that they are exact whatever the clock.
    """
    numbers, keys = values.to_numpy(), key.to_numpy()
    found = np.empty(len(numbers), np.float64)
    for some in pieces_of(keys):
        rows = some[np.lexsort((numbers[some], keys[some]))]
        found[rows] = _beyond(numbers[rows], _are_first(keys[rows]))
    return found


def pieces_of(keys: npt.NDArray[Any]) -> Iterator[npt.NDArray[np.int32]]:
    """Yield the rows of some keys after those of others, all of one key together.

    What is laid out for every row takes ten times its memory.
    """
    order = np.argsort(keys, kind="stable").astype(np.int32)
    firsts = np.flatnonzero(_are_first(keys[order]))
    cuts = np.unique(np.searchsorted(firsts, np.arange(0, len(order), _AT_ONCE)))
    begins = firsts[cuts[cuts < len(firsts)]].tolist()
    for begin, end in pairwise([*begins, len(order)]):
        yield order[begin:end]


def _are_first(ordered: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return which of some keys, which are in order, differ from the one before."""
    is_first = np.ones(len(ordered), np.bool_)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return is_first


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
