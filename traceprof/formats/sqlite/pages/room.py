"""Memory for whole columns, which every block fills at its place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.formats.sqlite.columns import ColumnType
from traceprof.formats.sqlite.pages.block import Block
from traceprof.formats.sqlite.pages.tree import Leaves

__all__ = ["GapsError", "Room", "room_for"]

_LEAST_ROW_BYTES: Final = 6
_TYPES: Final = {ColumnType.INTEGER: np.int64, ColumnType.REAL: np.float64}


class GapsError(Exception):
    """Row ids have gaps: how many rows there are in a leaf is known when it was decoded."""


class Room:
    """Memory for columns of numbers of a table whose row ids count from 1 on.

    Parts that are put together later are held twice, in pieces that are not given back.
    """

    def __init__(self, first_rows: npt.NDArray[np.int64], columns: Mapping[str, ColumnType]):
        self._first_rows = first_rows
        self._n_rows = 0
        self._columns: dict[str, npt.NDArray[Any]] = {
            name: np.empty(int(first_rows[-1]), _TYPES[kind])
            for name, kind in columns.items()
            if kind in _TYPES
        }

    def holds(self, name: str) -> bool:
        """Return whether there is memory for this column."""
        return name in self._columns

    def rows_of(self, block: Block, first_leaf: int) -> slice:
        """Return where the rows of a block belong.

        Raises:
            GapsError: they are fewer than there is place for before the next.
        """
        last_leaf = first_leaf + len(block.n_rows)
        first = int(self._first_rows[first_leaf])
        is_last = last_leaf == len(self._first_rows) - 1
        if is_last:
            self._n_rows = first + len(block)
        elif first + len(block) != self._first_rows[last_leaf]:
            raise GapsError
        return slice(first, first + len(block))

    def put(self, name: str, rows: slice, values: npt.NDArray[Any]) -> None:
        """Put a part of a column at its place."""
        self._columns[name][rows] = values

    def take(self, name: str) -> npt.NDArray[Any]:
        """Return a column of which every part was put."""
        return self._columns.pop(name)[: self._n_rows]


def room_for(leaves: Leaves, page_bytes: int, columns: Mapping[str, ColumnType]) -> Room | None:
    """Return memory for all rows of these leaves; None where their number cannot be foreseen."""
    most = page_bytes // _LEAST_ROW_BYTES
    if len(leaves) == 1:
        return Room(np.array([0, most]), columns)
    n_rows = leaves.highs[:-1] - np.append(0, leaves.lows[1:-1])
    if int(n_rows.min()) < 1 or int(n_rows.max()) > most:
        return None
    return Room(np.cumsum([0, *n_rows.tolist(), most]), columns)
