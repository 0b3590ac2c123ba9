"""The pages of a SQLite file: what its header says, and reading some of them."""

from __future__ import annotations

import os
import struct
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.formats.sqlite.header import SQLITE_MAGIC
from traceprof.values import dataclass

__all__ = [
    "PADDING",
    "Identity",
    "NotPlainError",
    "PageFile",
    "Pages",
    "identity_of",
    "page_bytes_of",
]

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
