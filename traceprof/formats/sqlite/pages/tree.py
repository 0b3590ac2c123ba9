"""Read the pages of a SQLite file, and find the leaf pages that contain a table's rows.

See https://www.sqlite.org/fileformat2.html. SQLite itself reads, or rejects, unusual files.
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
_LOCK_OFFSET_BYTES: Final = 0x4000_0000
_INTERIOR_PAGE: Final = 5
_MAX_LEVELS: Final = 20
_FIRST, _LAST = np.iinfo(np.int64).min, np.iinfo(np.int64).max

Numbers: TypeAlias = "npt.NDArray[np.int64]"


class NotPlainError(Exception):
    """Only SQLite itself can read these data, or report what is wrong with them."""


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """Properties of a file that change when its content changes, and values of its header.

    ``encoding`` is the encoding of its texts: 1 UTF-8, 2 UTF-16LE, 3 UTF-16BE.
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
        """Return whether a file with this ``status`` that begins with ``head`` is unchanged."""
        current = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, head
        return current == (self.device, self.inode, self.n_bytes, self.modified_ns, self.head)


def identity_of(path: Path) -> FileIdentity:
    """Return the identity of a file's content.

    Raises:
        OSError: the file cannot be read.
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
    """Return ``n_bytes`` bytes from offset ``at``, or fewer at the end of the file.

    It reads repeatedly, because network disks may return fewer bytes than requested.
    """
    found = b""
    while (n_missing := n_bytes - len(found)) and (
        part := os.pread(descriptor, n_missing, at + len(found))
    ):
        found += part
    return found


@dataclass(frozen=True, slots=True)
class PageFile:
    """An open SQLite file whose pages are read."""

    descriptor: int
    page_bytes: int
    n_pages: int

    def check_numbers(self, numbers: Numbers) -> None:
        """Raise `NotPlainError` unless the file has pages with all these numbers."""
        first, last = int(numbers.min()), int(numbers.max())
        is_lock = numbers == _LOCK_OFFSET_BYTES // self.page_bytes + 1
        if first < 1 or last > self.n_pages or bool(is_lock.any()):
            raise NotPlainError("no such page")

    def read(self, number: int) -> npt.NDArray[np.uint8]:
        """Return the page with this number (from 1), followed by 8 zero bytes.

        Raises:
            NotPlainError: the file has no such page.
        """
        self.check_numbers(np.array([number]))
        try:
            found = _read_at(self.descriptor, self.page_bytes, (number - 1) * self.page_bytes)
        except OSError as error:
            raise NotPlainError(str(error)) from error
        if len(found) < self.page_bytes:
            raise NotPlainError("the file ends early")
        return np.frombuffer(found + bytes(8), np.uint8)


@contextmanager
def open_pages(path: Path, expected: FileIdentity) -> Iterator[PageFile]:
    """Open a SQLite file to read its pages; ``expected`` is its identity when its schema was read.

    Raises:
        NotPlainError: the file changed, is being written, or is unusual: text in UTF-16, reserved
            bytes in pages, or a header that does not match the file.
    """
    head, size, n_pages = expected.head, expected.page_bytes, expected.n_pages
    # Format version (2: WAL, harmless without a WAL file), reserved bytes, payload fractions.
    is_usual = {*head[18:20]} <= {1, 2} and head[20:24] == b"\x00\x40\x20\x20"
    is_fitting = head[24:28] == head[92:96] and 0 < n_pages * size <= expected.n_bytes
    for is_met, fault in (
        (expected.is_sqlite, "not a SQLite file"),
        (size >= 512 and not size & (size - 1), "an impossible size of pages"),
        (is_usual, "an unusual header"),
        (expected.encoding == 1, "text that is not UTF-8"),
        (is_fitting, "a header that does not fit the file"),
        (not path.with_name(path.name + "-journal").exists(), "is being written"),
    ):
        if not is_met:
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
    """The leaf pages that contain a table's rows, in the order of the rows.

    The row IDs in page ``i`` are larger than ``lows[i]`` and at most ``highs[i]``. A table without
    rows has an empty leaf as its root.
    """

    pages: Numbers
    lows: Numbers
    highs: Numbers

    def only(self, chosen: npt.NDArray[np.bool_] | slice) -> Leaves:
        """Return only these leaves."""
        return Leaves(self.pages[chosen], self.lows[chosen], self.highs[chosen])


def leaves_of(file: PageFile, root: int) -> Leaves:
    """Return the leaves of the table whose tree starts at page ``root``.

    Raises:
        NotPlainError: the page is not the root of a table, or the tree is damaged.
    """
    level, bounds = np.array([root], np.int64), np.array([_FIRST, _LAST])
    levels = [level]
    for _ in range(_MAX_LEVELS):
        if file.read(int(level[0]))[0] != _INTERIOR_PAGE:
            break
        level, bounds = _children_of(file, level, bounds)
        levels.append(level)
    everything = np.sort(np.concatenate(levels))
    if bool((everything[1:] == everything[:-1]).any()) or int(everything[0]) < 2:
        raise NotPlainError("pages that belong to more than one")
    return Leaves(level, bounds[:-1], bounds[1:])


def _children_of(file: PageFile, level: Numbers, bounds: Numbers) -> tuple[Numbers, Numbers]:
    """Return the child pages of the pages of ``level``, and the row IDs that separate them."""
    children, keys = [], [bounds[:1]]
    for number, page in enumerate(map(file.read, level.tolist()), 1):
        n_cells = int(page[3]) << 8 | int(page[4])
        after = 12 + 2 * n_cells
        if page[0] != _INTERIOR_PAGE or not n_cells or after + 5 * n_cells > file.page_bytes:
            raise NotPlainError("a damaged tree")
        cells = page[12:after].view(">u2").astype(np.int64)
        if int(cells.min()) < after or int(cells.max()) > file.page_bytes - 5:
            raise NotPlainError("a damaged tree")
        # Each cell contains a child page and its largest row ID; the last child has no cell.
        children += [windows(page, ">u4")[cells], page[8:12].view(">u4")]
        keys += [_varints(windows(page, ">u8")[cells + 4].astype(np.uint64))]
        keys += [bounds[number : number + 1]]
    between = np.concatenate(keys)
    if bool((between[1:] <= between[:-1]).any()):
        raise NotPlainError("row ids that are out of order")
    return np.concatenate(children).astype(np.int64), between


def windows(data: npt.NDArray[np.uint8], dtype: str) -> npt.NDArray[Any]:
    """Return ``data`` viewed as one value of ``dtype`` starting at each byte."""
    kind = np.dtype(dtype)
    return np.ndarray((len(data) - kind.itemsize + 1,), kind, data, 0, (1,))


def _varints(words: npt.NDArray[np.uint64]) -> Numbers:
    """Return the variable-length number at the start of each 8-byte word (SQLite varint)."""
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
    """A table with row IDs: its root page, and the index of each column in a row.

    ``row_id`` is an SQL name of the row ID. ``alias`` is the column that is the row ID itself.
    ``as_real`` are the columns in which SQLite stores whole numbers as reals.
    """

    table: str
    root: int
    places: dict[str, int]
    as_real: frozenset[str]
    alias: str | None
    row_id: str


def layout_of(query: Query, table: str, root: int, columns: Sequence[tuple[Any, ...]]) -> Layout:
    """Return the layout of ``table``, whose tree starts at page ``root``.

    ``columns`` are the rows of ``PRAGMA table_xinfo``.

    Raises:
        NotPlainError: a view, a virtual table, or a table with computed columns.
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
        # An INTEGER PRIMARY KEY is the row ID unless it has an index of its own.
        indexes = query(f"PRAGMA index_list({quoted(table)})")
        alias = None if any(index[3] == "pk" for index in indexes) else names[keys[0]]
    places = {name: place for place, name in enumerate(names)}
    return Layout(table, root, places, frozenset(reals), alias, free[0])
