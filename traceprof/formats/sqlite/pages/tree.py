"""The pages of a SQLite file: reading them, which hold the rows of a table, and how.

See https://www.sqlite.org/fileformat2.html. What is not plain is SQLite's to read, or to refuse.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from traceprof.formats.sqlite.schema import Query, quoted

SQLITE_MAGIC: Final = b"SQLite format 3\x00"
_LOCK_AT: Final = 0x4000_0000
_INTERIOR: Final = 5
_MOST_LEVELS: Final = 20
_FIRST, _LAST = np.iinfo(np.int64).min, np.iinfo(np.int64).max

Numbers: TypeAlias = "npt.NDArray[np.int64]"


class NotPlainError(Exception):
    """What only SQLite itself can read, or must say what is wrong with."""


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """What changes when a file does, and what its header says of itself.

    ``encoding`` is how texts are written: 1 is UTF-8, 2 UTF-16LE, 3 UTF-16BE.
    """

    device: int
    inode: int
    n_bytes: int
    modified_ns: int
    head: bytes
    is_sqlite: bool
    page_bytes: int
    n_pages: int
    encoding: int

    def is_of(self, status: os.stat_result, head: bytes) -> bool:
        """Return whether a file of this ``status`` that begins with ``head`` is the same still."""
        told = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, head
        return told == (self.device, self.inode, self.n_bytes, self.modified_ns, self.head)


def identity_of(path: Path) -> FileIdentity:
    """Return what identifies the content of a file.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        head = _read_at(file.fileno(), 100, 0)
    size, n_pages, encoding = (
        int.from_bytes(head[first:end], "big") for first, end in ((16, 18), (28, 32), (56, 60))
    )
    return FileIdentity(
        *(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, head),
        is_sqlite=len(head) == 100 and head.startswith(SQLITE_MAGIC),
        page_bytes=65_536 if size == 1 else size,
        n_pages=n_pages,
        encoding=encoding,
    )


def _read_at(descriptor: int, n_bytes: int, at: int) -> bytes:
    """Return so many bytes from ``at`` on, fewer where the file ends: network disks give some."""
    found = b""
    while (more := n_bytes - len(found)) and (part := os.pread(descriptor, more, at + len(found))):
        found += part
    return found


@dataclass(frozen=True, slots=True)
class PageFile:
    """An open SQLite file whose pages are read."""

    descriptor: int
    page_bytes: int
    n_pages: int

    def check_numbers(self, numbers: Numbers) -> None:
        """Raise `NotPlainError` unless there are pages with all these numbers."""
        first, last = int(numbers.min()), int(numbers.max())
        is_lock = numbers == _LOCK_AT // self.page_bytes + 1
        if first < 1 or last > self.n_pages or bool(is_lock.any()):
            raise NotPlainError("no such page")

    def read(self, number: int) -> npt.NDArray[np.uint8]:
        """Return the page with this number (from 1 on), and 8 bytes more.

        Raises:
            NotPlainError: there is no such page.
        """
        self.check_numbers(np.array([number]))
        try:
            at = (number - 1) * self.page_bytes
            found = _read_at(self.descriptor, self.page_bytes, at)
        except OSError as error:
            raise NotPlainError(str(error)) from error
        if len(found) < self.page_bytes:
            raise NotPlainError("the file ends early")
        return np.frombuffer(found + bytes(8), np.uint8)


@contextmanager
def open_pages(path: Path, expected: FileIdentity) -> Iterator[PageFile]:
    """Give a SQLite file whose pages are read; ``expected`` is what it was when its schema was.

    Raises:
        NotPlainError: it has changed since, or until the end; is being written, or is not plain:
            text in UTF-16, bytes reserved in pages, or a header that does not fit the file.
    """
    head, size, n_pages = expected.head, expected.page_bytes, expected.n_pages
    # Version of the format (2: WAL, harmless where there is none), reserved bytes, fractions.
    is_usual = {*head[18:20]} <= {1, 2} and head[20:24] == b"\x00\x40\x20\x20"
    is_fitting = head[24:28] == head[92:96] and 0 < n_pages * size <= expected.n_bytes
    for is_so, fault in (
        (expected.is_sqlite, "not a SQLite file"),
        (size >= 512 and not size & (size - 1), "an impossible size of pages"),
        (is_usual, "an unusual header"),
        (expected.encoding == 1, "text that is not UTF-8"),
        (is_fitting, "a header that does not fit the file"),
        (not path.with_name(path.name + "-journal").exists(), "is being written"),
    ):
        if not is_so:
            raise NotPlainError(fault)
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            yield PageFile(descriptor, size, n_pages)
            is_same = expected.is_of(path.stat(), _read_at(descriptor, len(head), 0))
        finally:
            os.close(descriptor)
    except OSError as error:
        raise NotPlainError(str(error)) from error
    if not is_same:
        raise NotPlainError("the file changed")


@dataclass(frozen=True, slots=True)
class Leaves:
    """The pages with the rows of a table, in the order of the rows.

    The row ids in page ``i`` are above ``lows[i]`` and not above ``highs[i]``. The root of a table
    without rows is an empty leaf.
    """

    pages: Numbers
    lows: Numbers
    highs: Numbers

    def only(self, wanted: npt.NDArray[np.bool_] | slice) -> Leaves:
        """Return some of them."""
        return Leaves(self.pages[wanted], self.lows[wanted], self.highs[wanted])


def leaves_of(file: PageFile, root: int) -> Leaves:
    """Return the leaves of the table whose tree starts at page ``root``.

    Raises:
        NotPlainError: it is no table, or its tree is damaged.
    """
    level, bounds = np.array([root], np.int64), np.array([_FIRST, _LAST])
    levels = [level]
    for _ in range(_MOST_LEVELS):
        if file.read(int(level[0]))[0] != _INTERIOR:
            break
        level, bounds = _below(file, level, bounds)
        levels.append(level)
    everything = np.sort(np.concatenate(levels))
    if bool((everything[1:] == everything[:-1]).any()) or int(everything[0]) < 2:
        raise NotPlainError("pages that belong to more than one")
    return Leaves(level, bounds[:-1], bounds[1:])


def _below(file: PageFile, level: Numbers, bounds: Numbers) -> tuple[Numbers, Numbers]:
    """Return the pages under those of ``level``, and between which row ids they stand."""
    children, keys = [], [bounds[:1]]
    for number, page in enumerate(map(file.read, level.tolist()), 1):
        n_cells = int(page[3]) << 8 | int(page[4])
        after = 12 + 2 * n_cells
        if page[0] != _INTERIOR or not n_cells or after + 5 * n_cells > file.page_bytes:
            raise NotPlainError("a damaged tree")
        cells = page[12:after].view(">u2").astype(np.int64)
        if int(cells.min()) < after or int(cells.max()) > file.page_bytes - 5:
            raise NotPlainError("a damaged tree")
        # Of all but the last page the greatest row id stands beside its number.
        children += [windows(page, ">u4")[cells], page[8:12].view(">u4")]
        keys += [_varints(windows(page, ">u8")[cells + 4].astype(np.uint64))]
        keys += [bounds[number : number + 1]]
    between = np.concatenate(keys)
    if bool((between[1:] <= between[:-1]).any()):
        raise NotPlainError("row ids that are out of order")
    return np.concatenate(children).astype(np.int64), between


def windows(data: npt.NDArray[np.uint8], dtype: str) -> npt.NDArray[Any]:
    """Return ``data`` seen as values of ``dtype`` that start at each byte."""
    kind = np.dtype(dtype)
    return np.ndarray((len(data) - kind.itemsize + 1,), kind, data, 0, (1,))


def _varints(words: npt.NDArray[np.uint64]) -> Numbers:
    """Return the numbers of variable length with which each word of eight bytes begins."""
    found, goes_on = np.zeros(len(words), np.int64), np.ones(len(words), np.bool_)
    for shift in range(56, -1, -8):
        byte = (words >> np.uint64(shift)).astype(np.int64) & 0xFF
        found = np.where(goes_on, found << 7 | byte & 0x7F, found)
        goes_on &= byte >= 0x80
        if not goes_on.any():
            return found
    raise NotPlainError("row ids that are negative or huge")


_ROW_IDS: Final = ("rowid", "_rowid_", "oid")
_IS_REAL: Final = re.compile("REAL|FLOA|DOUB")
_IS_OTHER: Final = re.compile("INT|CHAR|CLOB|TEXT|BLOB")


@dataclass(frozen=True, slots=True)
class Layout:
    """A table of rows with row ids: its root page, and where each column stands.

    ``row_id`` is a name that means the row id; ``alias`` the column that is the row id itself,
    ``as_real`` those in which SQLite makes reals of whole numbers.
    """

    table: str
    root: int
    places: dict[str, int]
    as_real: frozenset[str]
    alias: str | None
    row_id: str


def layout_of(query: Query, table: str, root: int, columns: Sequence[tuple[Any, ...]]) -> Layout:
    """Return the layout of ``table``, whose tree starts at page ``root``.

    ``columns`` are what ``PRAGMA table_xinfo`` says of it.

    Raises:
        NotPlainError: a view, a virtual table, or one with columns that are computed.
    """
    if not root or not columns:
        raise NotPlainError("not a table with rows")
    if any(hidden for *_, hidden in columns):
        raise NotPlainError("columns that are computed")
    names = [str(column[1]) for column in columns]
    free = [name for name in _ROW_IDS if name not in map(str.lower, names)]
    if not free:
        raise NotPlainError("a column in the place of the row id")
    declared = [str(column[2]).upper() for column in columns]
    reals = [
        name
        for name, kind in zip(names, declared, strict=True)
        if _IS_REAL.search(kind) and not _IS_OTHER.search(kind)
    ]
    keys = [place for place, column in enumerate(columns) if column[5]]
    alias = None
    if len(keys) == 1 and declared[keys[0]] == "INTEGER":
        # The row id is a primary key for which there is no index.
        indexes = query(f"PRAGMA index_list({quoted(table)})")
        alias = None if any(index[3] == "pk" for index in indexes) else names[keys[0]]
    places = {name: place for place, name in enumerate(names)}
    return Layout(table, root, places, frozenset(reals), alias, free[0])
