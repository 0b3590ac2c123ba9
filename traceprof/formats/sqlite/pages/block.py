"""The rows in some leaves, decoded together: what they tell, however they were decoded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from traceprof.formats.sqlite.pages.file import NotPlainError, Pages
from traceprof.formats.sqlite.pages.tree import LEAF, Leaves
from traceprof.formats.sqlite.pages.varints import windows

__all__ = ["LEAST_CELL", "Block", "Decode", "counted", "has_rows"]

LEAST_CELL: Final = 4
"""Bytes of a row in its page, at least."""


class Block(Protocol):
    """Rows in their order; places are those of columns in the table."""

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """The bytes in which texts stand."""
        ...

    @property
    def n_rows(self) -> npt.NDArray[np.int64]:
        """How many rows each leaf has; of some of the rows it tells no more than before."""
        ...

    @property
    def odd(self) -> npt.NDArray[np.int64]:
        """The rows that SQLite has to read; what is decoded of them is NULL."""
        ...

    def __len__(self) -> int:
        """Return how many rows there are."""
        ...

    def only(self, rows: npt.NDArray[np.int64]) -> Self:
        """Return some of the rows."""
        ...

    def row_ids(self) -> npt.NDArray[np.int64]:
        """Return the row ids."""
        ...

    def check_row_ids(self) -> None:
        """Raise `NotPlainError` unless SQLite finds every row by its id."""
        ...

    def integers(self, place: int) -> npt.NDArray[np.int64]:
        """Return a column of whole numbers, with `NULL`."""
        ...

    def certain(self, place: int) -> npt.NDArray[np.int64]:
        """Return a column of whole numbers in which `NULL` stands for nothing but NULL.

        Raises:
            NotPlainError: it is a value, too.
        """
        ...

    def reals(self, place: int) -> npt.NDArray[np.float64]:
        """Return a column of numbers as reals, with NaN for NULL."""
        ...

    def spans(self, place: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return where the texts of a column start in ``data``, and how many bytes they have."""
        ...


Decode: TypeAlias = Callable[[Leaves], Block]
"""Makes a block of the rows in some leaves, valid until the next one is made.

It raises `NotPlainError` where something is wrong with a page or a row. It belongs to one thread.
"""


def counted(pages: Pages, page_bytes: int) -> npt.NDArray[np.int64]:
    """Return how many rows each leaf says that it has.

    Raises:
        NotPlainError: a page is no leaf, or says that it has more rows than can be in it.
    """
    heads = windows(pages.data, "<u8")[pages.starts].view(np.uint8).reshape(-1, 8)
    n_rows: npt.NDArray[np.int64] = heads[:, 3].astype(np.int64) << 8 | heads[:, 4]
    if (heads[:, 0] != LEAF).any() or int(n_rows.max()) > (page_bytes - 8) // (2 + LEAST_CELL):
        raise NotPlainError("a damaged page")
    return n_rows


def has_rows(n_rows: npt.NDArray[np.int64], leaves: Leaves) -> bool:
    """Return whether there are rows: in every leaf, or in none of a table without rows.

    Raises:
        NotPlainError: a leaf among others has none.
    """
    if n_rows.all():
        return True
    if len(n_rows) > 1 or leaves.highs[0] != ~leaves.lows[0]:
        raise NotPlainError("a page without rows")
    return False
