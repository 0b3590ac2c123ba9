"""The rows in some leaves, decoded by vectors of numpy: what works wherever numpy does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.formats.sqlite.columns import NULL, ColumnType
from traceprof.formats.sqlite.pages.blocks import LEAST_CELL, Decode, counted, has_rows
from traceprof.formats.sqlite.pages.tree import (
    Layout,
    Leaves,
    NotPlainError,
    PageFile,
    Pages,
    Words,
    two_lengths,
    varint,
    varint_length,
    windows,
)

ODD: Final = 0
"""The header of rows that SQLite itself has to read."""

_MOST: Final = 16_384
_MOST_WORDS: Final = 32
_MOST_BYTES: Final = 1 << 31
_SLOT_BITS: Final = 16
_SHIFT: Final = np.uint64(64 - _SLOT_BITS)
_FACTORS: Final = np.random.default_rng(0).integers(1, 2**63, 64, np.uint64) * np.uint64(
    2
) + np.uint64(1)
_KEPT: Final = np.array([(1 << 8 * n) - 1 for n in range(9)], np.uint64)
_WIDTHS: Final = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0)
_REAL: Final = 7
_RESERVED: Final = (10, 11)


class Field:
    """What each header says of one column: element ``i`` of an array is of header ``i``.

    ``offset`` counts from the start of the row. Of a number, ``shift`` is what the eight bytes
    there, as a big-endian number, are shifted by; where ``is_given`` it is ``value``. Of a text,
    ``length`` is that in bytes.
    """

    def __init__(self, kind: ColumnType) -> None:
        self.kind = kind
        self.offset = np.zeros(_MOST, np.int64)
        self.shift = np.zeros(_MOST, np.int64)
        self.length = np.zeros(_MOST, np.int64)
        self.is_given = np.zeros(_MOST, np.bool_)
        self.is_real = np.zeros(_MOST, np.bool_)
        self.value = np.full(_MOST, NULL, np.int64)
        self.is_given[ODD] = True

    def put(self, header: int, kind: int, offset: int) -> bool:
        """Note the type of the column under a header; False where it is not of this kind."""
        is_text = kind >= 12
        if kind and is_text is not (self.kind is ColumnType.TEXT):
            return False
        if kind in _RESERVED or (kind == _REAL and self.kind is not ColumnType.REAL):
            return False
        self.offset[header] = offset
        if is_text:
            self.length[header] = _width(kind)
        elif _width(kind):
            self.shift[header] = 64 - 8 * _width(kind)
            self.is_real[header] = kind == _REAL
        else:
            self.is_given[header] = True
            self.value[header] = NULL if kind == 0 else kind - 8
        return True


@dataclass(frozen=True, slots=True)
class _Types:
    """Types and offsets of the columns that a header tells, as far as one looked."""

    types: list[int]
    offsets: list[int]
    n_bytes: int
    is_whole: bool


class Headers:
    """The headers that were seen so far in a table of which these columns are wanted.

    It belongs to one thread.
    """

    def __init__(self, layout: Layout, kinds: Mapping[str, ColumnType]) -> None:
        wanted = {layout.places[name]: kind for name, kind in kinds.items() if name != layout.alias}
        self.fields = {place: Field(kind) for place, kind in wanted.items()}
        self._n_columns = max(wanted, default=-1) + 1
        self.n_words = -(-(1 + sum(layout.n_bytes[: self._n_columns])) // 8)
        if self.n_words > _MOST_WORDS:
            raise NotPlainError("too many columns")
        self._ids: dict[bytes, int] = {}
        self._n = 1
        self._words = np.zeros((self.n_words, _MOST), np.uint64)
        self._slots = np.zeros(1 << _SLOT_BITS, np.int64)
        self.least = np.zeros(_MOST, np.int64)
        """How many bytes a row has at least, and at most: rows that have not are damaged."""
        self.most = np.full(_MOST, 1 << 62, np.int64)

    def of(self, words: Sequence[Words]) -> npt.NDArray[np.int64]:
        """Return which header each row has, whose first bytes are these words."""
        words = self._cut(words)
        mixed = words[0] * _FACTORS[0]
        for word, factor in zip(words[1:], _FACTORS[1:], strict=False):
            mixed ^= word * factor
        mixed *= _FACTORS[-1]
        found: npt.NDArray[np.int64] = self._slots.take((mixed >> _SHIFT).view(np.int64))
        unknown = np.flatnonzero(self._differs(words, found))
        if len(unknown):
            found[unknown] = self._learn([word[unknown] for word in words], mixed[unknown])
        return found

    def _cut(self, words: Sequence[Words]) -> list[Words]:
        """Return the words without what follows the header."""
        length = (words[0] & np.uint64(0xFF)).view(np.int64)
        whole = 8 * self.n_words
        if int(length.min()) >= whole:
            return list(words)
        return [
            word & _KEPT.take(np.clip(length - 8 * number, 0, 8))
            for number, word in enumerate(words)
        ]

    def _differs(
        self, words: Sequence[Words], found: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        differs: npt.NDArray[np.bool_] = found == ODD
        for known, word in zip(self._words, words, strict=True):
            differs |= known.take(found) != word
        return differs

    def _learn(self, words: Sequence[Words], mixed: Words) -> npt.NDArray[np.int64]:
        _, first, place = np.unique(mixed, return_index=True, return_inverse=True)
        ids = [self._id_of([int(word[row]) for word in words]) for row in first.tolist()]
        self._slots[(mixed[first] >> _SHIFT).view(np.int64)] = ids
        found = np.array(ids, np.int64)[place]
        # Rows whose hash alone is that of another header are left to SQLite.
        found[self._differs(words, found)] = ODD
        return found

    def _id_of(self, words: Sequence[int]) -> int:
        """Return the number of a header, which is understood now if it is new."""
        head = b"".join(word.to_bytes(8, "little") for word in words)
        if head not in self._ids:
            if self._n == _MOST:
                raise NotPlainError("too many kinds of rows")
            self._ids[head] = self._put(self._n, head)
            self._words[:, self._n] = words
            self._n += 1
        return self._ids[head]

    def _put(self, number: int, head: bytes) -> int:
        found = _parsed(head, self._n_columns)
        if found.n_bytes > _MOST_BYTES:
            raise NotPlainError("a damaged row")
        if len(found.types) < self._n_columns:
            return ODD
        self.least[number] = found.n_bytes
        if found.is_whole:
            self.most[number] = found.n_bytes
        kinds = [
            field.put(number, found.types[place], found.offsets[place])
            for place, field in self.fields.items()
        ]
        return number if all(kinds) else ODD


def _parsed(head: bytes, n_columns: int) -> _Types:
    """Return the first columns that a header tells; fewer where it has fewer, or is too long."""
    end = head[0]
    types: list[int] = []
    offsets: list[int] = []
    place, offset = 1, end
    if end < 0x80:
        while place < end and len(types) < n_columns:
            kind = 0
            while place < min(end, len(head)) and head[place] >= 0x80:
                kind, place = kind << 7 | head[place] & 0x7F, place + 1
            if place >= min(end, len(head)):
                return _Types(types, offsets, offset, is_whole=False)
            kind, place = kind << 7 | head[place], place + 1
            types.append(kind)
            offsets.append(offset)
            offset += _width(kind)
    return _Types(types, offsets, offset, is_whole=place == end)


def _width(kind: int) -> int:
    """Return how many bytes a value of this type takes."""
    if kind >= 12:
        return (kind - 12) // 2
    return _WIDTHS[kind] if kind < len(_WIDTHS) else 0


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
