"""Decode the rows of several leaf pages together with ``pages.c``."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from traceprof.formats.compiled import address, addresses, loaded
from traceprof.formats.sqlite.columns import ColumnType
from traceprof.formats.sqlite.pages import tree
from traceprof.model.grouping import leaders_of, numbered

_KINDS: Final = {ColumnType.INTEGER: 0, ColumnType.REAL: 1, ColumnType.TEXT: 2}
_FAULTS: Final = {
    -1: "a damaged page or row",
    -2: "row ids that are out of order",
    -3: "row ids that are negative or huge",
    -4: "the file ends early",
}
_MIN_CELL_BYTES: Final = 4
"""Minimum size of a row in its page."""
_PAGES_PER_READ: Final = 16
_PADDING_BYTES: Final = 1 << 10
"""Bytes after the pages in the buffer: bulk comparisons of texts read beyond their ends."""
_MAX_OWNERS: Final = 64
_MAX_HASHED_BYTES: Final = 256
"""Longer texts are not grouped by hash; each is treated as distinct at first."""
_RANDOM: Final = random.Random(1)
_FACTORS: Final = np.array(
    [1 + _RANDOM.getrandbits(63) for _ in range(_MAX_HASHED_BYTES // 8 + 1)], np.uint64
)
_BYTE_MASKS: Final = np.array([(1 << 8 * n) - 1 for n in range(9)], np.uint64)

Mask: TypeAlias = "npt.NDArray[np.bool_]"


@dataclass(frozen=True, slots=True)
class Texts:
    """The text of each row is ``distinct[codes]``."""

    codes: tree.Numbers
    distinct: list[bytes]


@dataclass(frozen=True)
class RowBlock:
    """Decoded rows in order: for each requested column, by name, one value per row.

    ``values`` of a text column are offsets into ``data``; ``lengths`` are in bytes. ``n_rows``
    counts the rows of each leaf; after `only` it still counts all of them. ``odd`` are the rows
    that SQLite has to read; all their values are NULL.
    """

    data: npt.NDArray[np.uint8]
    n_rows: tree.Numbers
    ids: tree.Numbers
    odd: tree.Numbers
    values: Mapping[str, tree.Numbers]
    lengths: Mapping[str, tree.Numbers]

    def only(self, rows: tree.Numbers) -> RowBlock:
        """Return the block with only these rows."""
        odd = np.flatnonzero(np.isin(rows, self.odd))
        values, lengths = (
            {name: column[rows] for name, column in columns.items()}
            for columns in (self.values, self.lengths)
        )
        return RowBlock(self.data, self.n_rows, self.ids[rows], odd, values, lengths)

    def column(self, name: str, kind: ColumnType) -> Any:
        """Return a column of this kind. In reals NaN replaces NULL.

        A text column is returned as `Texts`; NULL and rows that SQLite has to read are "".
        """
        starts = self.values[name]
        if kind is not ColumnType.TEXT:
            return starts if kind is ColumnType.INTEGER else starts.view(np.float64)
        lengths = self.lengths[name]
        codes = np.zeros(len(self.ids), np.int64)
        rows = np.zeros(0, np.int64)  # a row with each distinct text
        short = np.flatnonzero((lengths > 0) & (lengths <= _MAX_HASHED_BYTES))
        if len(short):
            codes[short], first = _grouped(self.data, starts[short], lengths[short])
            codes[short] += 1
            rows = short[first]
        long = np.flatnonzero(lengths > _MAX_HASHED_BYTES)
        codes[long] = np.arange(len(rows) + 1, len(rows) + 1 + len(long))
        rows = np.append(rows, long)
        data, ends = self.data.tobytes() if len(rows) else b"", starts + lengths
        places = zip(starts[rows].tolist(), ends[rows].tolist(), strict=True)
        return Texts(codes, [b"", *(data[start:end] for start, end in places)])

    def contains(self, name: str, words: Sequence[bytes]) -> Mask:
        """Return which texts contain one of ``words`` (lower-case ASCII letters), ignoring case.

        As in LIKE, a text ends at its first zero byte.

        Raises:
            tree.NotPlainError: the compiled library is too old to search texts.
        """
        if not hasattr(loaded(), "traceprof_contains"):
            raise tree.NotPlainError("words in texts")
        found = np.zeros(len(self.ids), np.bool_)
        text_arrays = [
            np.ascontiguousarray(columns[name]) for columns in (self.values, self.lengths)
        ]
        searched = b"".join(word + b"\0" for word in words)
        loaded().traceprof_contains(
            *(len(found), address(self.data), *map(address, text_arrays), searched, address(found))
        )
        return found

    def starts_with(self, name: str, prefixes: Sequence[bytes]) -> Mask:
        """Return which texts start with one of ``prefixes``, of up to eight bytes."""
        words = tree.windows(self.data, "<u8")[self.values[name]]
        found = np.zeros(len(self.ids), np.bool_)
        for prefix in prefixes:
            mask = np.uint64((1 << 8 * len(prefix)) - 1)
            prefix_word = np.uint64(int.from_bytes(prefix, "little"))
            found |= ((words & mask) == prefix_word) & (self.lengths[name] >= len(prefix))
        return found


Decode: TypeAlias = Callable[[tree.Leaves], RowBlock]
"""Decodes the rows of some leaves to a block, which is valid until the next call.

It raises `NotPlainError` if a page or a row is damaged or unusual. Only one thread may call it.
"""


def decoder_of(file: tree.PageFile, layout: tree.Layout, kinds: Mapping[str, ColumnType]) -> Decode:
    """Return a function that decodes these columns of a table's leaves."""
    names = sorted(kinds.keys() - {layout.alias}, key=layout.places.__getitem__)
    texts = [name for name in names if kinds[name] is ColumnType.TEXT]
    places = [layout.places[name] for name in names]
    n_columns = max(places, default=-1) + 1
    slots = np.full(n_columns + 1, -1, np.int16)
    slots[places] = np.arange(len(places))
    kind_of = np.array([_KINDS[kinds[name]] for name in names], np.int8)
    buffer = np.zeros(0, np.uint8)
    decode_pages = loaded().traceprof_decode

    def decode(leaves: tree.Leaves) -> RowBlock:
        nonlocal buffer
        file.check_numbers(leaves.pages)
        n_kept = len(leaves.pages) if texts else _PAGES_PER_READ
        if len(buffer) < n_kept * file.page_bytes + _PADDING_BYTES:
            buffer = np.zeros(n_kept * file.page_bytes + _PADDING_BYTES, np.uint8)
        # No more rows than row IDs, and than fit a page; the outermost row IDs are unbounded.
        n_ids = leaves.highs.astype(np.float64) - leaves.lows
        capacity = int(np.minimum(n_ids, (file.page_bytes - 8) // (2 + _MIN_CELL_BYTES)).sum())
        values = {name: np.empty(capacity, np.int64) for name in names}
        lengths = {name: np.empty(capacity, np.int64) for name in texts}
        ids, is_odd = np.empty(capacity, np.int64), np.empty(capacity, np.bool_)
        n_rows = np.zeros(len(leaves.pages), np.int64)
        arrays = [
            np.ascontiguousarray(array) for array in (leaves.pages, leaves.lows, leaves.highs)
        ]
        pages, lows, highs = map(address, arrays)
        n = decode_pages(
            *(file.descriptor, pages, len(n_rows), file.page_bytes, lows, highs),
            *(address(buffer), n_kept, n_columns, address(slots)),
            *(len(names), address(kind_of), addresses(list(values.values()))),
            addresses([lengths.get(name) for name in names]),
            *(address(ids), address(is_odd), capacity, address(n_rows)),
        )
        if n < 0:
            raise tree.NotPlainError(_FAULTS[n])
        is_empty_table = len(n_rows) == 1 and leaves.highs[0] == ~leaves.lows[0]
        if not n_rows.all() and not is_empty_table:
            raise tree.NotPlainError("a page without rows")
        columns = {name: column[:n] for name, column in values.items()}
        if layout.alias is not None:
            columns[layout.alias] = ids[:n]
        return RowBlock(
            buffer,
            n_rows,
            ids[:n],
            np.flatnonzero(is_odd[:n]),
            columns,
            {name: column[:n] for name, column in lengths.items()},
        )

    return decode


def owners_of(
    numbers: tree.Numbers, bits: int, devices: tree.Numbers | None
) -> tuple[tree.Numbers, tree.Numbers]:
    """Return the first row of each owner, and the number of rows of each owner.

    An owner is a number without its lowest ``bits`` and, if ``devices`` are given, a device.
    """
    firsts, counts = np.empty(_MAX_OWNERS, np.int64), np.empty(_MAX_OWNERS, np.int64)
    numbers = np.ascontiguousarray(numbers)
    devices = None if devices is None else np.ascontiguousarray(devices)
    n = loaded().traceprof_owners(
        *(len(numbers), address(numbers), bits, address(devices)),
        *(_MAX_OWNERS, address(firsts), address(counts)),
    )
    if n >= 0:
        return firsts[:n], counts[:n]
    number, firsts = numbered(numbers >> bits, *(() if devices is None else (devices,)))
    return firsts, np.bincount(number)


def joined_texts(parts: Sequence[Texts]) -> Texts:
    """Return the texts of all parts, concatenated; the distinct texts are sorted.

    For millions of texts a dictionary is slow, so texts with equal hashes are compared instead.
    """
    texts = [text for part in parts for text in part.distinct]
    leader = leaders_of(np.fromiter(map(hash, texts), np.int64, len(texts)))
    for text_index in np.flatnonzero(leader != np.arange(len(texts))).tolist():
        if texts[text_index] != texts[leader[text_index]]:
            leader[text_index] = text_index  # the text may be listed twice, which is harmless
    distinct_rows = np.flatnonzero(leader == np.arange(len(texts))).tolist()
    distinct_rows.sort(key=texts.__getitem__)
    place = np.empty(len(texts), np.int64)
    place[distinct_rows] = np.arange(len(distinct_rows))
    place = place[leader]
    first_text_of_part = np.cumsum([0, *(len(part.distinct) for part in parts)]).tolist()
    codes = [
        place[part.codes + begin]
        for part, begin in zip(parts, first_text_of_part[:-1], strict=True)
    ]
    return Texts(
        np.concatenate(codes) if codes else np.zeros(0, np.int64),
        [texts[row] for row in distinct_rows],
    )


def _grouped(
    data: npt.NDArray[np.uint8], starts: tree.Numbers, lengths: tree.Numbers
) -> tuple[tree.Numbers, tree.Numbers]:
    """Return for each row the number of its group of equal texts, and each group's first row."""
    n_words = -(-int(lengths.max()) // 8)
    table = tree.windows(data, f"V{8 * n_words}")[starts].view("<u8").reshape(len(starts), -1)
    words = []
    mixed = lengths.view(np.uint64) * _FACTORS[-1]
    for number in range(n_words):
        word = table[:, number] & _BYTE_MASKS.take(np.clip(lengths - 8 * number, 0, 8))
        mixed ^= (word ^ (word >> np.uint64(29))) * _FACTORS[number]
        words.append(word)
    mixed ^= mixed >> np.uint64(32)
    rows, leader = np.arange(len(mixed)), leaders_of(mixed)
    differs = lengths != lengths[leader]
    for word in words:
        differs |= word != word[leader]
    leader = np.where(differs, rows, leader)  # equal hashes of different texts
    first = np.flatnonzero(leader == rows)
    codes = np.empty(len(rows), np.int64)
    codes[first] = np.arange(len(first))
    return codes[leader], first
