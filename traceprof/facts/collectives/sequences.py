"""Lining up the same sequence as several ranks recorded it, from different beginnings."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["LinedUp", "find_shift", "line_up", "overlap_of"]

_Int64Array = npt.NDArray[np.int64]

_FARTHEST: Final = 64
_LEAST_OVERLAP: Final = 0.5
_WEIGHT_OF_OFFSET: Final = 0.01
_TIED_NS: Final = 1_000_000_000
_ABOUT: Final = 2.0
_CLEAR_NS: Final = 1000


class LinedUp(NamedTuple):
    """A shift, and whether no other does about as well."""

    shift: int
    is_clear: bool


def find_shift(
    reference: tuple[_Int64Array, _Int64Array],
    other: tuple[_Int64Array, _Int64Array],
    one_clock: bool = False,
) -> int:
    """Return the shift of `line_up`."""
    return line_up(reference, other, one_clock).shift


def line_up(
    reference: tuple[_Int64Array, _Int64Array],
    other: tuple[_Int64Array, _Int64Array],
    one_clock: bool = False,
) -> LinedUp:
    """Return k such that element i of ``other`` is element i + k of ``reference``.

    Both are (ends in ns, sizes). What is the same has the same size and ends at the same time,
    up to a difference of clocks that stays the same: the shift with the fewest unequal sizes
    wins, then the one with the steadiest difference of ends. A hundredth of the difference counts
    as unsteadiness, too, unless the clocks have nothing to do with each other (more than a second
    apart at every shift); then the smallest shift wins that is about as steady as any. With
    ``one_clock`` there is no difference of clocks: the whole of it counts.
    """
    n_reference, n_other = len(reference[0]), len(other[0])
    least = max(1, int(_LEAST_OVERLAP * min(n_reference, n_other)))
    lowest = max(-_FARTHEST, least - n_other)
    highest = min(_FARTHEST + max(0, n_reference - n_other), n_reference - least)
    shifts = sorted(range(lowest, highest + 1), key=abs)
    costs = {shift: _cost(reference, other, shift) for shift in shifts}
    fewest = min(cost[0] for cost in costs.values())
    likely = [shift for shift in shifts if costs[shift][0] == fewest]
    if one_clock or min(costs[shift][2] for shift in likely) <= _TIED_NS:
        weight = 1.0 if one_clock else _WEIGHT_OF_OFFSET
        total = {s: costs[s][1] + weight * costs[s][2] for s in likely}
        best = min(likely, key=lambda s: total[s])
    else:
        total = {s: costs[s][1] for s in likely}
        limit = _ABOUT * min(total.values())
        best = next(s for s in likely if total[s] <= limit)
    rivals = [cost for s, cost in total.items() if s != best]
    limit = _ABOUT * total[best] + (0 if one_clock else _CLEAR_NS)
    return LinedUp(best, not rivals or min(rivals) > limit)


def overlap_of(n_reference: int, n_other: int, shift: int) -> tuple[slice, slice]:
    """Return which elements of two sequences belong together at this shift."""
    first = max(0, shift)
    last = max(first, min(n_reference, n_other + shift))
    return slice(first, last), slice(first - shift, last - shift)


def _cost(
    reference: tuple[_Int64Array, _Int64Array],
    other: tuple[_Int64Array, _Int64Array],
    shift: int,
) -> tuple[float, float, float]:
    """Return the share of unequal sizes, the unsteadiness and the size of the difference (ns)."""
    there, here = overlap_of(len(reference[0]), len(other[0]), shift)
    unequal = float(np.mean(reference[1][there] != other[1][here]))
    difference = (other[0][here] - reference[0][there]).astype(np.float64)
    median = _median(difference)
    return unequal, _median(np.abs(difference - median)), abs(median)


def _median(values: npt.NDArray[np.float64]) -> float:
    """Return the median of at least one value, as np.median, which takes longer to begin."""
    half, is_odd = divmod(len(values), 2)
    if is_odd:
        return float(np.partition(values, half)[half])
    middle = np.partition(values, (half - 1, half))
    return float((middle[half - 1] + middle[half]) / 2)
