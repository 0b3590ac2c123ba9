"""The pages of a SQLite file: reading them, which hold the rows of a table, and how."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from traceprof.formats.sqlite.schema import quoted

SQLITE_MAGIC: Final = b"SQLite format 3\x00"


PADDING: Final = 1 << 17
"""Bytes after the pages that were read: what is decoded in bulk may reach beyond a row."""

_LOCK_AT: Final = 0x4000_0000
_SPARSE: Final = 3
"""Pages that lie closer than this are read with what lies between them: that costs less."""


class NotPlainError(Exception):
    """What only SQLite itself can read, or must say what is wrong with."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What changes when a file does."""

    device: int
    inode: int
    n_bytes: int
    modified_ns: int
    head: bytes


@dataclass(frozen=True, slots=True)
class Pages:
    """Some pages of a file.

    ``data`` holds them and perhaps others, and `PADDING` bytes; page ``i`` of those that were
    asked for starts at ``starts[i]``. ``whole`` is the memory that others may be read into.
    """

    data: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    whole: npt.NDArray[np.uint8]


def identity_of(path: Path) -> Identity:
    """Return what identifies the content of a file.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        head = file.read(100)
    return Identity(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, head)


class PageFile:
    """A SQLite file whose pages are read; a context manager.

    Args:
        path: the file.
        expected: what it was when its schema was read.

    Raises:
        NotPlainError: it has changed since, is being written, or is not plain: text in UTF-16,
            bytes reserved in pages, or a header that does not fit the file.
    """

    def __init__(self, path: Path, expected: Identity) -> None:
        self._path = path
        self._expected = expected
        self.page_bytes, self.n_pages = _checked(expected)
        journal = path.with_name(path.name + "-journal")
        if not hasattr(os, "preadv") or journal.exists():
            raise NotPlainError("cannot be read page by page")
        try:
            self._file = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise NotPlainError(str(error)) from error

    def __enter__(self) -> PageFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    @property
    def descriptor(self) -> int:
        """The number of the open file."""
        return self._file

    def check_numbers(self, numbers: npt.NDArray[np.int64]) -> None:
        """Raise `NotPlainError` unless there are pages with all these numbers."""
        first, last = int(numbers.min()), int(numbers.max())
        is_lock = numbers == _LOCK_AT // self.page_bytes + 1
        if first < 1 or last > self.n_pages or bool(is_lock.any()):
            raise NotPlainError("no such page")

    def check_unchanged(self) -> None:
        """Raise `NotPlainError` if the file is not what it was."""
        try:
            found = identity_of(self._path)
        except OSError as error:
            raise NotPlainError(str(error)) from error
        if found != self._expected:
            raise NotPlainError("the file changed")

    def read(
        self, numbers: npt.NDArray[np.int64], into: npt.NDArray[np.uint8] | None = None
    ) -> Pages:
        """Return the pages with these numbers (from 1 on), in ``into`` where it is large enough.

        Raises:
            NotPlainError: there are no such pages.
        """
        self.check_numbers(numbers)
        size, first, last = self.page_bytes, int(numbers.min()), int(numbers.max())
        if last - first < _SPARSE * len(numbers):
            starts = (numbers - first) * size
            runs = [(first, 0, last - first + 1)]
        else:
            starts = np.arange(len(numbers)) * size
            edges = [0, *(np.flatnonzero(np.diff(numbers) != 1) + 1).tolist(), len(numbers)]
            runs = [(int(numbers[a]), a, b - a) for a, b in pairwise(edges)]
        n_bytes = max(place + length for _, place, length in runs) * size
        if into is None or len(into) < n_bytes + PADDING:
            into = np.zeros(n_bytes + PADDING, np.uint8)
        view = into.data
        for page, place, length in runs:
            part, offset = view[place * size : (place + length) * size], (page - 1) * size
            try:
                got = os.preadv(self._file, [part], offset)
                while got < len(part):
                    more = os.preadv(self._file, [part[got:]], offset + got)
                    if not more:
                        raise NotPlainError("the file ends early")
                    got += more
            except OSError as error:
                raise NotPlainError(str(error)) from error
        return Pages(into[: n_bytes + PADDING], starts, into)


def page_bytes_of(identity: Identity) -> int:
    """Return how many bytes a page of a file has.

    Raises:
        NotPlainError: the file is unusual.
    """
    return _checked(identity)[0]


def _checked(identity: Identity) -> tuple[int, int]:
    """Return the size of a page and how many there are, of a file with nothing unusual."""
    head = identity.head
    if len(head) < 100 or not head.startswith(SQLITE_MAGIC):
        raise NotPlainError("not a SQLite file")
    size = struct.unpack(">H", head[16:18])[0]
    size = 65_536 if size == 1 else size
    if size < 512 or size & (size - 1):
        raise NotPlainError("an impossible size of pages")
    # Version of the format (2: WAL, harmless where there is none), reserved bytes, fractions.
    if head[18] not in (1, 2) or head[19] not in (1, 2) or head[20:24] != b"\x00\x40\x20\x20":
        raise NotPlainError("an unusual header")
    (n_pages,), (encoding,) = struct.unpack(">I", head[28:32]), struct.unpack(">I", head[56:60])
    if encoding != 1:
        raise NotPlainError("text that is not UTF-8")
    if head[24:28] != head[92:96] or n_pages * size > identity.n_bytes or not n_pages:
        raise NotPlainError("a header that does not fit the file")
    return size, n_pages


Words: TypeAlias = "npt.NDArray[np.uint64]"
"""Eight bytes each, the first of the file in the lowest byte."""

_ONE: Final = np.uint64(1)
_THREE: Final = np.uint64(3)
_CONTINUES: Final = np.uint64(0x8080_8080_8080_8080)
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
    ends = ~words & _CONTINUES
    first = (np.bitwise_count((ends & (~ends + _ONE)) - _ONE) >> 3) + 1
    ends &= ends - _ONE
    both = (np.bitwise_count((ends & (~ends + _ONE)) - _ONE) >> 3) + 1
    return first.astype(np.uint64), both.astype(np.uint64)


def varint_length(words: Words) -> Words:
    """Return how many bytes the varint at the start of each word has; 9 where it is longer."""
    ends = ~words & _CONTINUES
    return ((np.bitwise_count((ends & (~ends + _ONE)) - _ONE) >> 3) + 1).astype(np.uint64)


def varint(words: Words, length: Words) -> npt.NDArray[np.int64]:
    """Return the varints of up to 8 bytes at the start of each word."""
    value = words.byteswap() >> (np.uint64(64) - (length << _THREE))
    value &= ~_CONTINUES
    for low, high, shift in _STEPS:
        value = (value & low) | ((value & high) >> shift)
    return value.view(np.int64)


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


Query: TypeAlias = Callable[..., "list[tuple[Any, ...]]"]
"""Runs SQL with parameters."""

_ROW_IDS: Final = ("rowid", "_rowid_", "oid")
_IS_REAL: Final = re.compile("REAL|FLOA|DOUB")
_IS_OTHER: Final = re.compile("INT|CHAR|CLOB|TEXT|BLOB")


@dataclass(frozen=True, slots=True)
class Layout:
    """A table of rows with row ids: its root page, and where each column stands.

    ``row_id`` is a name that means the row id; ``alias`` the column that is the row id itself,
    ``as_real`` those in which SQLite makes reals of whole numbers, ``n_bytes`` how many bytes the
    type of each column takes in the header of most rows.
    """

    table: str
    root: int
    places: dict[str, int]
    n_bytes: tuple[int, ...]
    as_real: frozenset[str]
    alias: str | None
    row_id: str


def layout_of(query: Query, table: str) -> Layout:
    """Return the layout of ``table``.

    Raises:
        NotPlainError: a view, a virtual table, or one with columns that are computed.
    """
    found = query("SELECT rootpage FROM sqlite_master WHERE type = 'table' AND name = ?", (table,))
    columns = query(f"PRAGMA table_xinfo({quoted(table)})")
    if len(found) != 1 or not found[0][0] or not columns:
        raise NotPlainError("not a table with rows")
    if any(hidden for *_, hidden in columns):
        raise NotPlainError("columns that are computed")
    names = {str(column[1]) for column in columns}
    taken = {name.lower() for name in names}
    free = [name for name in _ROW_IDS if name not in taken]
    if not free:
        raise NotPlainError("a column in the place of the row id")
    types = [str(column[2]).upper() for column in columns]
    return Layout(
        table,
        int(found[0][0]),
        {str(column[1]): place for place, column in enumerate(columns)},
        tuple(1 if "INT" in kind or _is_real(kind) else 2 for kind in types),
        frozenset(
            str(column[1]) for column, kind in zip(columns, types, strict=True) if _is_real(kind)
        ),
        _alias(query, table, columns),
        free[0],
    )


def _is_real(declared: str) -> bool:
    return bool(_IS_REAL.search(declared)) and not _IS_OTHER.search(declared)


def _alias(query: Query, table: str, columns: Sequence[tuple[Any, ...]]) -> str | None:
    """Return the column that is the row id: a primary key for which there is no index."""
    keys = [column for column in columns if column[5]]
    if len(keys) != 1 or str(keys[0][2]).upper() != "INTEGER":
        return None
    indexes = query(f"PRAGMA index_list({quoted(table)})")
    return None if any(index[3] == "pk" for index in indexes) else str(keys[0][1])
