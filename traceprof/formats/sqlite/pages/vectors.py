"""The rows in some leaves, decoded by vectors of numpy: what works wherever numpy does."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.formats.sqlite.columns import NULL, ColumnType
from traceprof.formats.sqlite.pages.block import LEAST_CELL, Decode, counted, has_rows
from traceprof.formats.sqlite.pages.file import NotPlainError, PageFile, Pages
from traceprof.formats.sqlite.pages.headers import ODD, Field, Headers
from traceprof.formats.sqlite.pages.layout import Layout
from traceprof.formats.sqlite.pages.tree import Leaves
from traceprof.formats.sqlite.pages.varints import (
    Words,
    two_lengths,
    varint,
    varint_length,
    windows,
)
from traceprof.values import dataclass

__all__ = ["VectorBlock", "decoder_of"]

_THREE: Final = np.uint64(3)
_BITS: Final = np.uint64(64)
_LONGEST_ROW: Final = 1 << 27


@dataclass(frozen=True)
class VectorBlock:
    """Rows in their order: row ``i`` starts at ``at[i]`` of ``data``, under header ``ids[i]``.

    ``n_rows`` counts those of each leaf. ``cells`` is where the lengths before each row stand.
    """

    data: npt.NDArray[np.uint8]
    cells: npt.NDArray[np.int64]
    at: npt.NDArray[np.int64]
    ids: npt.NDArray[np.int64]
    n_rows: npt.NDArray[np.int64]
    headers: Headers

    def __len__(self) -> int:
        return len(self.at)

    def only(self, rows: npt.NDArray[np.int64]) -> VectorBlock:
        """Return some of the rows; of leaves it tells no more."""
        return VectorBlock(
            self.data, self.cells[rows], self.at[rows], self.ids[rows], self.n_rows, self.headers
        )

    @property
    def odd(self) -> npt.NDArray[np.int64]:
        """The rows that SQLite has to read; what is decoded of them is NULL."""
        return np.flatnonzero(self.ids == ODD)

    def row_ids(self) -> npt.NDArray[np.int64]:
        """Return the row ids."""
        return _row_ids(windows(self.data, "<u8")[self.cells])

    def check_row_ids(self) -> None:
        """Raise `NotPlainError` unless SQLite finds every row by its id."""
        ids = self.row_ids()
        if (ids[1:] <= ids[:-1]).any():
            raise NotPlainError("row ids that are out of order")

    def integers(self, place: int) -> npt.NDArray[np.int64]:
        """Return a column of whole numbers, with `NULL`."""
        field = self.headers.fields[place]
        used = self.used
        if field.is_given[used].all():
            return self._told(field.value, used)
        values = self._eight_bytes(field, used)
        values >>= self._told(field.shift, used)
        self._put_given(field, used, values)
        return values

    def certain(self, place: int) -> npt.NDArray[np.int64]:
        """Return a column of whole numbers in which `NULL` stands for nothing but NULL.

        Raises:
            NotPlainError: it is a value, too.
        """
        values = self.integers(place)
        if (values == NULL).any():
            field = self.headers.fields[place]
            if (~field.is_given.take(self.ids) & (values == NULL)).any():
                raise NotPlainError("the smallest number")
        return values

    def reals(self, place: int) -> npt.NDArray[np.float64]:
        """Return a column of numbers as reals, with NaN for NULL."""
        field = self.headers.fields[place]
        used = self.used
        is_null = field.is_given[used] & (field.value[used] == NULL)
        if is_null.all():
            return np.full(len(self), np.nan)
        if field.is_real[used].all():
            return self._eight_bytes(field, used).view(np.float64)
        raw = self._eight_bytes(field, used)
        numbers = raw >> self._told(field.shift, used)
        self._put_given(field, used, numbers)
        values = numbers.astype(np.float64)
        if is_null.any():
            values[(field.is_given & (field.value == NULL)).take(self.ids)] = np.nan
        if field.is_real[used].any():
            real = field.is_real.take(self.ids)
            values[real] = raw.view(np.float64)[real]
        return values

    def spans(self, place: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return where the texts of a column start in ``data``, and how many bytes they have."""
        field = self.headers.fields[place]
        used = self.used
        return self.at + self._told(field.offset, used), self._told(field.length, used)

    @cached_property
    def used(self) -> npt.NDArray[np.int64]:
        """The headers that the rows have."""
        return np.flatnonzero(np.bincount(self.ids))

    def _eight_bytes(self, field: Field, used: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the eight bytes from where the values of a column start, as numbers."""
        offsets = field.offset[used[~field.is_given[used]]]
        is_even = len(offsets) and (offsets == offsets[0]).all()
        offset = offsets[0] if is_even else field.offset.take(self.ids)
        return windows(self.data, ">i8")[self.at + offset].astype(np.int64)

    def _told(
        self, by_header: npt.NDArray[np.int64], used: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Return what the header of each row says."""
        told = by_header[used]
        if len(told) and (told == told[0]).all():
            return np.full(len(self), told[0])
        return by_header.take(self.ids)

    def _put_given(
        self, field: Field, used: npt.NDArray[np.int64], values: npt.NDArray[np.int64]
    ) -> None:
        if field.is_given[used].any():
            given = np.flatnonzero(field.is_given.take(self.ids))
            values[given] = field.value.take(self.ids[given])


def decoder_of(file: PageFile, layout: Layout, kinds: Mapping[str, ColumnType]) -> Decode:
    """Return what decodes leaves of a table of which these columns are wanted.

    Raises:
        NotPlainError: they are too many.
    """
    headers = Headers(layout, kinds)
    buffer: npt.NDArray[np.uint8] | None = None

    def decode(leaves: Leaves) -> VectorBlock:
        nonlocal buffer
        pages = file.read(leaves.pages, buffer)
        buffer = pages.whole
        return _block_of(pages, file.page_bytes, headers, leaves)

    return decode


def _block_of(pages: Pages, page_bytes: int, headers: Headers, leaves: Leaves) -> VectorBlock:
    cells, n_rows = _cells(pages, page_bytes)
    if not has_rows(n_rows, leaves):
        nothing = np.zeros(0, np.int64)
        return VectorBlock(pages.data, nothing, nothing, nothing, n_rows, headers)
    records = np.dtype(f"V{8 * (headers.n_words + 2)}")
    window = windows(pages.data, records.str)[cells].view("<u8").reshape(len(cells), -1)
    lead = np.ascontiguousarray(window[:, 0])
    first, both = two_lengths(lead)
    if int(both.max()) > 8:
        raise NotPlainError("row ids that are negative or huge")
    shift = both << _THREE
    words = _shifted(window, shift, headers.n_words)
    at = cells + both.view(np.int64)
    ids = headers.of(words)
    sizes = varint(lead, first)
    if int(sizes.max()) > _LONGEST_ROW:
        raise NotPlainError("a damaged row")
    local = _local(sizes, page_bytes)
    ids[headers.least.take(ids) > local] = ODD  # it goes on in other pages
    fits = (sizes >= headers.least.take(ids)) & (sizes <= headers.most.take(ids))
    fits &= at + local <= np.repeat(pages.starts + page_bytes, n_rows)
    if not (fits | (ids == ODD)).all():
        raise NotPlainError("a damaged row")
    _check_row_ids(lead, n_rows, leaves)
    return VectorBlock(pages.data, cells, at, ids, n_rows, headers)


def _cells(pages: Pages, page_bytes: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return where each row starts, with the lengths before it, and how many each page has."""
    n_rows = counted(pages, page_bytes)
    most = int(n_rows.max())
    table = windows(pages.data, f"V{max(2 * most, 2)}")[pages.starts + 8]
    pointers = table.view(">u2").reshape(len(n_rows), -1).astype(np.int64)
    if most != int(n_rows.min()):
        pointers = pointers[np.arange(pointers.shape[1]) < n_rows[:, None]]
    pointers = pointers.reshape(-1)[: int(n_rows.sum())]
    after = np.repeat(8 + 2 * n_rows, n_rows)
    if ((pointers < after) | (pointers > page_bytes - LEAST_CELL)).any():
        raise NotPlainError("a damaged page")
    return pointers + np.repeat(pages.starts, n_rows), n_rows


def _local(sizes: npt.NDArray[np.int64], page_bytes: int) -> npt.NDArray[np.int64]:
    """Return how many bytes of each row stand in its page at least."""
    if int(sizes.max()) <= page_bytes - 35:
        return sizes
    return np.where(sizes <= page_bytes - 35, sizes, (page_bytes - 12) * 32 // 255 - 23)


def _shifted(window: Words, shift: Words, n_words: int) -> list[Words]:
    """Return the first words of each row, which starts ``shift`` bits into its window."""
    words = []
    rest = _BITS - shift
    low = window[:, 0] >> shift
    for number in range(n_words):
        # A shift by 64 bits gives 0.
        high = window[:, number + 1]
        words.append(low | (high << rest))
        low = high >> shift
    return words


def _row_ids(lead: Words) -> npt.NDArray[np.int64]:
    first = varint_length(lead)
    rest = lead >> (first << _THREE)
    length = varint_length(rest)
    return varint(rest, length)


def _check_row_ids(lead: Words, n_rows: npt.NDArray[np.int64], leaves: Leaves) -> None:
    """Check the first and the last row id of each leaf against those that the tree tells."""
    ends = np.cumsum(n_rows)
    first, last = _row_ids(lead[ends - n_rows]), _row_ids(lead[ends - 1])
    is_ordered = (first > leaves.lows) & (last <= leaves.highs) & (last - first >= n_rows - 1)
    if not is_ordered.all():
        raise NotPlainError("row ids that are out of order")
