"""SQLite's numbers of variable length, many at once."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Words", "two_lengths", "varint", "varint_length", "windows"]

Words: TypeAlias = "npt.NDArray[np.uint64]"
"""Eight bytes each, the first of the file in the lowest byte."""

_ONE: Final = np.uint64(1)
_THREE: Final = np.uint64(3)
_LAST: Final = np.uint64(0x8080_8080_8080_8080)
_STEPS: Final = tuple(
    (np.uint64(low), np.uint64(high), np.uint64(shift))
    for low, high, shift in (
        (0x007F_007F_007F_007F, 0x7F00_7F00_7F00_7F00, 1),
        (0x0000_3FFF_0000_3FFF, 0x3FFF_0000_3FFF_0000, 2),
        (0x0000_0000_0FFF_FFFF, 0x0FFF_FFFF_0000_0000, 4),
    )
)


def windows(data: npt.NDArray[np.uint8], dtype: str) -> npt.NDArray[Any]:
    """Return ``data`` seen as values of ``dtype`` that start at each byte."""
    kind = np.dtype(dtype)
    return np.ndarray((len(data) - kind.itemsize + 1,), kind, data, 0, (1,))


def two_lengths(words: Words) -> tuple[Words, Words]:
    """Return how many bytes the first varint has, and the first and second together.

    More than 8 bytes come out as 9 or more.
    """
    ends = ~words & _LAST
    first = (np.bitwise_count((ends & (~ends + _ONE)) - _ONE) >> 3) + 1
    ends &= ends - _ONE
    both = (np.bitwise_count((ends & (~ends + _ONE)) - _ONE) >> 3) + 1
    return first.astype(np.uint64), both.astype(np.uint64)


def varint_length(words: Words) -> Words:
    """Return how many bytes the varint at the start of each word has; 9 where it is longer."""
    ends = ~words & _LAST
    return ((np.bitwise_count((ends & (~ends + _ONE)) - _ONE) >> 3) + 1).astype(np.uint64)


def varint(words: Words, length: Words) -> npt.NDArray[np.int64]:
    """Return the varints of up to 8 bytes at the start of each word."""
    value = words.byteswap() >> (np.uint64(64) - (length << _THREE))
    value &= ~_LAST
    for low, high, shift in _STEPS:
        value = (value & low) | ((value & high) >> shift)
    return value.view(np.int64)
