"""The tree of pages under which the rows of a table stand."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.formats.sqlite.pages.file import NotPlainError, PageFile
from traceprof.formats.sqlite.pages.varints import varint, varint_length, windows
from traceprof.values import dataclass

__all__ = ["LEAF", "Leaves", "leaves_of"]

LEAF: Final = 13
_INTERIOR: Final = 5
_MOST_LEVELS: Final = 20
_AT_ONCE: Final = 256
_FIRST, _LAST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Leaves:
    """The pages with the rows of a table, in the order of the rows.

    The row ids in page ``i`` are above ``lows[i]`` and not above ``highs[i]``. The root of a table
    without rows is an empty leaf.
    """

    pages: npt.NDArray[np.int64]
    lows: npt.NDArray[np.int64]
    highs: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.pages)

    def only(self, wanted: npt.NDArray[np.bool_]) -> Leaves:
        """Return some of them."""
        return Leaves(self.pages[wanted], self.lows[wanted], self.highs[wanted])

    def part(self, first: int, n_leaves: int) -> Leaves:
        """Return at most so many of them, from one on."""
        rows = slice(first, first + n_leaves)
        return Leaves(self.pages[rows], self.lows[rows], self.highs[rows])


def leaves_of(file: PageFile, root: int) -> Leaves:
    """Return the leaves of the table whose tree starts at page ``root``.

    Raises:
        NotPlainError: it is no table, or its tree is damaged.
    """
    level, bounds = np.array([root], np.int64), np.array([_FIRST, _LAST])
    levels = [level]
    for _ in range(_MOST_LEVELS):
        if _kind(file, int(level[0])) != _INTERIOR:
            break
        level, bounds = _below(file, level, bounds)
        levels.append(level)
    everything = np.concatenate(levels)
    if len(np.unique(everything)) != len(everything) or int(everything.min()) < 2:
        raise NotPlainError("pages that belong to more than one")
    return Leaves(level, bounds[:-1], bounds[1:])


def _kind(file: PageFile, page: int) -> int:
    return int(file.read(np.array([page], np.int64)).data[0])


def _below(
    file: PageFile, level: npt.NDArray[np.int64], bounds: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the pages under those of ``level``, and between which row ids they stand."""
    children, keys = [], [bounds[:1]]
    for first in range(0, len(level), _AT_ONCE):
        pages = file.read(level[first : first + _AT_ONCE])
        for number, start in enumerate(pages.starts.tolist(), first):
            page = pages.data[start : start + file.page_bytes + 8]
            below, between = _entries(page, file.page_bytes)
            children.append(below)
            keys += [between, bounds[number + 1 : number + 2]]
    between = np.concatenate(keys)
    if bool((between[1:] <= between[:-1]).any()):
        raise NotPlainError("row ids that are out of order")
    return np.concatenate(children), between


def _entries(
    page: npt.NDArray[np.uint8], page_bytes: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the pages under an interior page, and the greatest row ids of all but the last."""
    n_cells = int(page[3]) << 8 | int(page[4])
    after = 12 + 2 * n_cells
    if page[0] != _INTERIOR or not n_cells or after + 5 * n_cells > page_bytes:
        raise NotPlainError("a damaged tree")
    cells = page[12:after].view(">u2").astype(np.int64)
    if int(cells.min()) < after or int(cells.max()) > page_bytes - 5:
        raise NotPlainError("a damaged tree")
    below = windows(page, ">u4")[cells].astype(np.int64)
    words = windows(page, "<u8")[cells + 4]
    length = varint_length(words)
    if int(length.max()) > 8:
        raise NotPlainError("row ids that are negative or huge")
    last = int(page[8:12].view(">u4")[0])
    return np.append(below, last), varint(words, length)
