"""The rows in some leaves, decoded together: their numbers, texts, and words in texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.formats.compiled.library import address, addresses, loaded
from traceprof.formats.sqlite.columns import ColumnType
from traceprof.formats.sqlite.pages.tree import (
    LEAF,
    PADDING,
    Layout,
    Leaves,
    NotPlainError,
    PageFile,
    Pages,
    windows,
)

LEAST_CELL: Final = 4
"""Bytes of a row in its page, at least."""


class RowBlock(Protocol):
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


Decode: TypeAlias = Callable[[Leaves], RowBlock]
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


_KINDS: Final = {ColumnType.INTEGER: 0, ColumnType.REAL: 1, ColumnType.TEXT: 2}
_FAULTS: Final = {
    -1: "a damaged page or row",
    -2: "row ids that are out of order",
    -3: "row ids that are negative or huge",
    -4: "the file ends early",
}
_PAGES_AT_ONCE: Final = 16
_MOST_OWNERS: Final = 64


@dataclass(frozen=True)
class CompiledBlock:
    """Rows in their order; of each column that was wanted a value a row, by its place.

    Of texts ``values`` are where they start in ``data``, and ``lengths`` are in bytes.
    """

    data: npt.NDArray[np.uint8]
    n_rows: npt.NDArray[np.int64]
    ids: npt.NDArray[np.int64]
    odd: npt.NDArray[np.int64]
    values: Mapping[int, npt.NDArray[np.int64]]
    lengths: Mapping[int, npt.NDArray[np.int64]]

    def __len__(self) -> int:
        return len(self.ids)

    def only(self, rows: npt.NDArray[np.int64]) -> CompiledBlock:
        """Return some of the rows; of leaves it tells no more."""
        return CompiledBlock(
            self.data,
            self.n_rows,
            self.ids[rows],
            np.flatnonzero(np.isin(rows, self.odd)),
            {place: values[rows] for place, values in self.values.items()},
            {place: lengths[rows] for place, lengths in self.lengths.items()},
        )

    def row_ids(self) -> npt.NDArray[np.int64]:
        """Return the row ids."""
        return self.ids

    def check_row_ids(self) -> None:
        """Do nothing: each was held against the one before and against the tree."""

    def integers(self, place: int) -> npt.NDArray[np.int64]:
        """Return a column of whole numbers, with `NULL`."""
        return self.values[place]

    def certain(self, place: int) -> npt.NDArray[np.int64]:
        """Return the same: rows with the number that stands for NULL are odd."""
        return self.values[place]

    def reals(self, place: int) -> npt.NDArray[np.float64]:
        """Return a column of numbers as reals, with NaN for NULL."""
        return self.values[place].view(np.float64)

    def spans(self, place: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return where the texts of a column start in ``data``, and how many bytes they have."""
        return self.values[place], self.lengths[place]


def decoder_of(file: PageFile, layout: Layout, kinds: Mapping[str, ColumnType]) -> Decode:
    """Return what decodes leaves of a table of which these columns are wanted."""
    wanted = {layout.places[name]: kind for name, kind in kinds.items() if name != layout.alias}
    places = sorted(wanted)
    n_columns = max(places, default=-1) + 1
    slots = np.full(n_columns + 1, -1, np.int16)
    slots[places] = np.arange(len(places))
    kind_of = np.array([_KINDS[wanted[place]] for place in places], np.int8)
    texts = [place for place in places if wanted[place] is ColumnType.TEXT]
    buffer = np.zeros(0, np.uint8)
    decode_pages = loaded().traceprof_decode

    def decode(leaves: Leaves) -> CompiledBlock:
        nonlocal buffer
        file.check_numbers(leaves.pages)
        n_kept = len(leaves) if texts else _PAGES_AT_ONCE
        if len(buffer) < n_kept * file.page_bytes + PADDING:
            buffer = np.zeros(n_kept * file.page_bytes + PADDING, np.uint8)
        room = _most_rows(leaves, file.page_bytes)
        values = {place: np.empty(room, np.int64) for place in places}
        lengths = {place: np.empty(room, np.int64) for place in texts}
        ids, is_odd = np.empty(room, np.int64), np.empty(room, np.bool_)
        n_rows = np.zeros(len(leaves), np.int64)
        told = [np.ascontiguousarray(one) for one in (leaves.pages, leaves.lows, leaves.highs)]
        pages, lows, highs = map(address, told)
        n = decode_pages(
            *(file.descriptor, pages, len(leaves), file.page_bytes, lows, highs),
            *(address(buffer), n_kept, n_columns, address(slots)),
            *(len(places), address(kind_of), addresses([values[place] for place in places])),
            addresses([lengths.get(place) for place in places]),
            *(address(ids), address(is_odd), room, address(n_rows)),
        )
        if n < 0:
            raise NotPlainError(_FAULTS[n])
        has_rows(n_rows, leaves)
        return CompiledBlock(
            buffer,
            n_rows,
            ids[:n],
            np.flatnonzero(is_odd[:n]),
            {place: column[:n] for place, column in values.items()},
            {place: column[:n] for place, column in lengths.items()},
        )

    return decode


def owners(
    numbers: npt.NDArray[np.int64], bits: int, devices: npt.NDArray[np.int64] | None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None:
    """Return the first row of each owner, and how many rows each has; None where they are many.

    An owner is a number without its lowest ``bits`` and, where there are devices, a device.
    """
    firsts, counts = np.empty(_MOST_OWNERS, np.int64), np.empty(_MOST_OWNERS, np.int64)
    numbers = np.ascontiguousarray(numbers)
    devices = None if devices is None else np.ascontiguousarray(devices)
    n = loaded().traceprof_owners(
        *(len(numbers), address(numbers), bits, address(devices)),
        *(_MOST_OWNERS, address(firsts), address(counts)),
    )
    return None if n < 0 else (firsts[:n], counts[:n])


def _most_rows(leaves: Leaves, page_bytes: int) -> int:
    """Return how many rows the leaves can have: as many as there are row ids and places."""
    places = (page_bytes - 8) // (2 + LEAST_CELL)
    n_ids = leaves.highs.astype(np.float64) - leaves.lows  # the first and the last are unbounded
    return int(np.minimum(n_ids, places).sum())


_LONGEST: Final = 256
"""Texts of more bytes are looked at one by one."""
_FACTORS: Final = np.random.default_rng(1).integers(1, 2**63, _LONGEST // 8 + 1, np.uint64)
_KEPT: Final = np.array([(1 << 8 * n) - 1 for n in range(9)], np.uint64)


@dataclass(frozen=True, slots=True)
class Texts:
    """The text of each row: ``distinct[codes]``."""

    codes: npt.NDArray[np.int64]
    distinct: list[bytes]


def texts_of(block: RowBlock, place: int) -> Texts:
    """Return the texts of a column; "" for NULL, and of rows that SQLite has to read."""
    starts, lengths = block.spans(place)
    short = np.flatnonzero((lengths > 0) & (lengths <= _LONGEST))
    codes = np.zeros(len(block), np.int64)
    distinct = [b""]
    if len(short):
        codes[short], first = _grouped(block.data, starts[short], lengths[short])
        codes[short] += 1
        rows = short[first]
        distinct += _bytes(block, starts[rows], lengths[rows])
    long = np.flatnonzero(lengths > _LONGEST)
    if len(long):
        codes[long] = np.arange(len(distinct), len(distinct) + len(long))
        distinct += _bytes(block, starts[long], lengths[long])
    return Texts(codes, distinct)


def joined_texts(parts: Sequence[Texts]) -> Texts:
    """Return the texts of all parts one after another; the distinct ones are sorted.

    Of millions of texts a dictionary is slow: those of the same hash are compared instead.
    """
    every = [text for part in parts for text in part.distinct]
    hashes = np.fromiter(map(hash, every), np.int64, len(every))
    order = np.argsort(hashes, kind="stable")
    opens = np.append(True, hashes[order[1:]] != hashes[order[:-1]])[: len(every)]
    leader = np.empty(len(every), np.int64)
    leader[order] = order[opens][np.cumsum(opens) - 1]
    for one in np.flatnonzero(leader != np.arange(len(every))).tolist():
        if every[one] != every[leader[one]]:
            leader[one] = one  # it may stand there twice: that does no harm
    rows = np.flatnonzero(leader == np.arange(len(every))).tolist()
    rows.sort(key=every.__getitem__)
    place = np.empty(len(every), np.int64)
    place[rows] = np.arange(len(rows))
    place = place[leader]
    first = np.cumsum([0, *(len(part.distinct) for part in parts)]).tolist()
    codes = [place[part.codes + begin] for part, begin in zip(parts, first[:-1], strict=True)]
    distinct = [every[row] for row in rows]
    return Texts(np.concatenate(codes) if codes else np.zeros(0, np.int64), distinct)


def _bytes(
    block: RowBlock, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> list[bytes]:
    data = block.data.tobytes()
    ends = starts + lengths
    return [data[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]


def _grouped(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the group of rows with the same text that each row is in, and the first of each."""
    n_words = -(-int(lengths.max()) // 8)
    table = windows(data, f"V{8 * n_words}")[starts].view("<u8").reshape(len(starts), -1)
    words = []
    mixed = lengths.view(np.uint64) * _FACTORS[-1]
    for number in range(n_words):
        word = table[:, number] & _KEPT.take(np.clip(lengths - 8 * number, 0, 8))
        mixed ^= (word ^ (word >> np.uint64(29))) * _FACTORS[number]
        words.append(word)
    mixed ^= mixed >> np.uint64(32)
    codes, _ = pd.factorize(mixed)
    first = np.full(int(codes.max()) + 1, len(codes))
    np.minimum.at(first, codes, np.arange(len(codes)))
    leader = first[codes]
    differs = lengths != lengths[leader]
    for word in words:
        differs |= word != word[leader]
    others = np.flatnonzero(differs)
    if len(others):  # the same hash, another text
        codes[others] = np.arange(len(first), len(first) + len(others))
        first = np.append(first, others)
    return codes, first


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


@dataclass(frozen=True, slots=True)
class BlockRows:
    """The rows of a block; of those that SQLite has to read every value is NULL."""

    block: RowBlock
    layout: Layout

    def integers(self, name: str) -> npt.NDArray[np.int64]:
        """Return a column of whole numbers, with `NULL`."""
        if name == self.layout.alias:
            return self.block.row_ids()
        return self.block.integers(self.layout.places[name])

    def reals(self, name: str) -> npt.NDArray[np.float64]:
        """Return a column as reals, with NaN for NULL."""
        return self.block.reals(self.layout.places[name])

    def texts(self, name: str) -> Texts:
        """Return a column of texts."""
        return texts_of(self.block, self.layout.places[name])

    def contains(self, name: str, words: Sequence[bytes]) -> npt.NDArray[np.bool_]:
        """Return in which rows a text contains one of these words, as LIKE finds them."""
        return containing(self.block.data, *self.block.spans(self.layout.places[name]), words)

    def starts_with(self, name: str, prefixes: Sequence[bytes]) -> npt.NDArray[np.bool_]:
        """Return in which rows a text starts with one of these."""
        return starting(self.block.data, *self.block.spans(self.layout.places[name]), prefixes)

    def certain(self, name: str) -> npt.NDArray[np.int64]:
        """Return a column of whole numbers in which `NULL` stands for nothing but NULL.

        Raises:
            NotPlainError: it is a value, too.
        """
        if name == self.layout.alias:
            return self.block.row_ids()
        return self.block.certain(self.layout.places[name])
