"""Warm-up: the leading steps that are slower than the rest."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["count_warmup"]

_MAD_TO_DEVIATION: Final = 1.4826
"""Times the median absolute deviation: the standard deviation, if durations are normal."""
_FLOOR_RATIO: Final = 0.05
_FEWEST_KEPT: Final = 3


def count_warmup(durations_ns: npt.NDArray[np.int64]) -> int:
    """Return how many leading steps are warm-up.

    A leading step is warm-up while it is longer than median + 3 · 1.4826 · MAD of the steps after
    it, and by more than 5 % of the median; one that is shorter than the rest is none. At least
    half of the steps are kept, and at least three.
    """
    n_dropped = 0
    durations: list[float] = durations_ns.astype(np.float64).tolist()
    most = len(durations) - max(_FEWEST_KEPT, len(durations) / 2)
    rest = sorted(durations)
    while n_dropped < most:
        own = durations[n_dropped]
        del rest[bisect_left(rest, own)]
        median = _middle(len(rest), rest.__getitem__)
        spread = 3 * _MAD_TO_DEVIATION * _middle(len(rest), partial(_deviation, rest, median))
        if own - median <= max(spread, _FLOOR_RATIO * median):
            break
        n_dropped += 1
    return n_dropped


def _middle(size: int, ranked: Callable[[int], float]) -> float:
    """Return the median of ``size`` values; ``ranked`` returns the one of each rank."""
    return (ranked((size - 1) // 2) + ranked(size // 2)) / 2


def _deviation(values: Sequence[float], median: float, rank: int) -> float:
    """Return the ``rank``-th smallest distance of the sorted ``values`` from their median.

    The values that are nearest lie side by side: O(log n) finds the first of them.
    """

    def distance(first: int) -> float:
        return max(abs(values[first] - median), abs(values[first + rank] - median))

    def is_right_of_middle(first: int) -> bool:
        return values[first + rank] - median >= median - values[first]

    last = len(values) - 1 - rank
    first = bisect_left(range(last), True, key=is_right_of_middle)
    return min(distance(first), distance(max(first - 1, 0)))
