"""Lining up the same sequence as several ranks recorded it, from different beginnings."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["find_shift"]

_Int64Array = npt.NDArray[np.int64]

_FARTHEST: Final = 64
_LEAST_OVERLAP: Final = 0.5
_WEIGHT_OF_OFFSET: Final = 0.01
_TIED_NS: Final = 1_000_000_000
_ABOUT: Final = 2.0


def find_shift(
    reference: tuple[_Int64Array, _Int64Array], other: tuple[_Int64Array, _Int64Array]
) -> int:
    """Return k such that element i of ``other`` is element i + k of ``reference``.

    Both are (ends in ns, sizes). What is the same has the same size and ends at the same time,
    up to a difference of clocks that stays the same: the shift with the fewest unequal sizes
    wins, then the one with the steadiest difference of ends. A hundredth of the difference counts
    as unsteadiness, too, unless the clocks have nothing to do with each other (more than a second
    apart at every shift); then the smallest shift wins that is about as steady as any.
    """
    n_reference, n_other = len(reference[0]), len(other[0])
    least = max(1, int(_LEAST_OVERLAP * min(n_reference, n_other)))
    lowest = max(-_FARTHEST, least - n_other)
    highest = min(_FARTHEST + max(0, n_reference - n_other), n_reference - least)
    shifts = sorted(range(lowest, highest + 1), key=abs)
    costs = {shift: _cost(reference, other, shift) for shift in shifts}
    fewest = min(cost[0] for cost in costs.values())
    likely = [shift for shift in shifts if costs[shift][0] == fewest]
    if min(costs[shift][2] for shift in likely) <= _TIED_NS:
        return min(likely, key=lambda s: costs[s][1] + _WEIGHT_OF_OFFSET * costs[s][2])
    steadiest = min(costs[shift][1] for shift in likely)
    return next(s for s in likely if costs[s][1] <= _ABOUT * steadiest)


def _cost(
    reference: tuple[_Int64Array, _Int64Array],
    other: tuple[_Int64Array, _Int64Array],
    shift: int,
) -> tuple[float, float, float]:
    """Return the share of unequal sizes, the unsteadiness and the size of the difference (ns)."""
    first, last = max(0, shift), min(len(reference[0]), len(other[0]) + shift)
    there, here = slice(first, last), slice(first - shift, last - shift)
    unequal = float(np.mean(reference[1][there] != other[1][here]))
    difference = (other[0][here] - reference[0][there]).astype(np.float64)
    median = float(np.median(difference))
    return unequal, float(np.median(np.abs(difference - median))), abs(median)
