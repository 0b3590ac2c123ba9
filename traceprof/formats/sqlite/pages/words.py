"""Which texts contain a word, found in the bytes of pages as they are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from traceprof.formats.sqlite.pages.file import NotPlainError
from traceprof.formats.sqlite.pages.varints import windows

__all__ = ["containing", "starting"]

_TO_LOWER = np.uint8(0x20)


def containing(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    words: Sequence[bytes],
) -> npt.NDArray[np.bool_]:
    """Return which texts contain one of ``words`` (ASCII letters in lower case) in any case.

    As for LIKE, a text ends at its first zero byte.

    Raises:
        NotPlainError: texts overlap.
    """
    found = np.zeros(len(starts), np.bool_)
    rows = np.flatnonzero(lengths)
    if not len(rows):
        return found
    order = rows[np.argsort(starts[rows])]
    ends = starts[order] + lengths[order]
    if (starts[order[1:]] < ends[:-1]).any():
        raise NotPlainError("rows that overlap")
    first, last = int(starts[order[0]]), int(ends[-1])
    lower = data[first:last] | _TO_LOWER
    for word in words:
        places = _places(lower, word) + first
        rank = np.searchsorted(starts[order], places, "right") - 1
        row = order[rank]
        inside = places + len(word) <= starts[row] + lengths[row]
        for place, one in zip(places[inside].tolist(), row[inside].tolist(), strict=True):
            if not found[one]:
                found[one] = 0 not in data[starts[one] : place]
    return found


def starting(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    prefixes: Sequence[bytes],
) -> npt.NDArray[np.bool_]:
    """Return which texts start with one of ``prefixes``, of up to eight bytes."""
    words = windows(data, "<u8")[starts]
    found = np.zeros(len(starts), np.bool_)
    for prefix in prefixes:
        mask = np.uint64((1 << 8 * len(prefix)) - 1)
        wanted = np.uint64(int.from_bytes(prefix, "little"))
        found |= ((words & mask) == wanted) & (lengths >= len(prefix))
    return found


def _places(lower: npt.NDArray[np.uint8], word: bytes) -> npt.NDArray[np.int64]:
    """Return where ``word`` starts."""
    n_starts = len(lower) - len(word) + 1
    if n_starts <= 0:
        return np.zeros(0, np.int64)
    places = np.flatnonzero(lower[:n_starts] == word[0])
    for offset, letter in enumerate(word[1:], 1):
        places = places[lower[places + offset] == letter]
    return places
