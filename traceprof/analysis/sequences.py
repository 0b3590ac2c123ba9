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


def find_shift(
    reference: tuple[_Int64Array, _Int64Array], other: tuple[_Int64Array, _Int64Array]
) -> int:
    """Return k such that element i of ``other`` is element i + k of ``reference``.

    Both are (ends in ns, sizes). What is the same has the same size and ends at the same time,
    up to a difference of clocks that stays the same: the shift with the fewest unequal sizes
    wins, then the one with the steadiest difference of ends, then the smallest difference.
    """
    n_reference, n_other = len(reference[0]), len(other[0])
    least = max(1, int(_LEAST_OVERLAP * min(n_reference, n_other)))
    lowest = max(-_FARTHEST, least - n_other)
    highest = min(_FARTHEST + max(0, n_reference - n_other), n_reference - least)
    shifts = sorted(range(lowest, highest + 1), key=abs)
    return min(shifts, key=lambda shift: _cost(reference, other, shift))


def _cost(
    reference: tuple[_Int64Array, _Int64Array],
    other: tuple[_Int64Array, _Int64Array],
    shift: int,
) -> tuple[float, float]:
    first, last = max(0, shift), min(len(reference[0]), len(other[0]) + shift)
    there, here = slice(first, last), slice(first - shift, last - shift)
    unequal = float(np.mean(reference[1][there] != other[1][here]))
    difference = (other[0][here] - reference[0][there]).astype(np.float64)
    median = float(np.median(difference))
    unsteady = float(np.median(np.abs(difference - median)))
    return unequal, unsteady + _WEIGHT_OF_OFFSET * abs(median)
