"""Files before it is known what they are: what to know them by, and what gzip packed."""

from __future__ import annotations

import os
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Final

from traceprof.errors import TraceError
from traceprof.files import kind_of_no_file
from traceprof.formats.contract import Candidate
from traceprof.formats.sqlite.database import Database, reporting_undecodable_names
from traceprof.formats.sqlite.pages.tree import SQLITE_MAGIC

TABLE_FILES: Final = (".parquet", ".arrow")
"""The suffixes of files that hold one table of a trace."""
GZIP_MAGIC: Final = b"\x1f\x8b"
_GZIP_WINDOW: Final = zlib.MAX_WBITS | 16
_PACKED_BYTES: Final = 1 << 18
_UNPACKED_BYTES: Final = 1 << 22
_MOST_UNPACKED: Final = 1 << 28
_MOST_TIMES: Final = 100
_LIMIT: Final = "TRACEPROF_UNPACKED_BYTES"
"""The variable that allows more than 256 MiB and 100 times what a gzip file has itself."""


def examine(path: Path) -> Candidate:
    """Return what there is to know a file by: its first bytes and, if it is SQLite, its tables.

    Of a folder that holds tables as files it is what these are called.

    Raises:
        TraceError: no file, an empty one, or a damaged database.
    """
    if kind := kind_of_no_file(path):
        raise TraceError(f"{path}: {kind}, expected a file; write the data to a file first")
    try:
        if path.is_dir():
            names = frozenset(one.name for one in path.iterdir() if one.is_file())
            if any(Path(name).suffix in TABLE_FILES for name in names):
                return Candidate(path, b"", files=names)
        with path.open("rb") as file:
            head, state = file.read(4096), os.fstat(file.fileno())
    except IsADirectoryError as error:
        raise TraceError(f"{path}: a directory; give the trace file inside it") from error
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from error
    if not head:
        raise TraceError(f"{path}: empty file, because the recording did not finish; record again")
    if not head.startswith(SQLITE_MAGIC):
        return Candidate(path, head)
    known = state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns
    with reporting_undecodable_names(path):
        return Candidate(path, head, _tables_in(path, *known))


@lru_cache(maxsize=1 << 12)  # files of a run are examined when it is put together, and to be read
def _tables_in(path: Path, *_state: int) -> frozenset[str]:
    with Database(path, only_names=True) as database:
        return database.tables


def is_packed_database(candidate: Candidate) -> bool:
    """Return whether the file is a gzipped SQLite database."""
    is_packed = candidate.head.startswith(GZIP_MAGIC)
    return is_packed and unpacked_head(candidate.path, len(SQLITE_MAGIC)) == SQLITE_MAGIC


@contextmanager
def unpacked(path: Path) -> Iterator[Candidate]:
    """Give the file ``path`` or, of a gzipped database, what is in it.

    The database stands in a temporary folder for as long as the context lasts. JSON is not
    unpacked: it is read as a stream.

    Raises:
        TraceError: there is no room to unpack it, or it was cut off.
    """
    candidate = examine(path)
    if not is_packed_database(candidate):
        yield candidate
        return
    with tempfile.TemporaryDirectory(prefix="traceprof-") as folder:
        database = Path(folder, path.stem)
        try:
            with path.open("rb") as packed, database.open("wb") as file:
                source = GzipSource(packed)
                while data := source.read(_UNPACKED_BYTES):
                    file.write(data)
        except OSError as error:
            raise TraceError(f"{path}: cannot be unpacked ({error.strerror})") from error
        try:
            yield examine(database)
        except TraceError as error:  # it is the user's file that is damaged, by its name
            raise type(error)(str(error).replace(str(database), str(path))) from error


def _new_member() -> Any:
    return zlib.decompressobj(_GZIP_WINDOW)


@dataclass(slots=True)
class GzipSource:
    """Unpacks a gzip file; it ends where the file was cut off, or ``is_damaged``.

    `gzip.GzipFile` raises instead and loses what it had unpacked. A file that unpacks to far more
    than traces do is refused: a few hundred kilobytes can hold gigabytes.
    """

    file: BinaryIO
    is_damaged: bool = False
    _member: Any = field(default_factory=_new_member)
    _rest: bytes = b""
    _n_unpacked: int = 0

    def read(self, _size: int, /) -> bytes:
        """Return the next bytes, as many as one piece of the file unpacks to; b"" at the end.

        Raises:
            TraceError: it is more than `_LIMIT` allows.
        """
        data = self._next()
        self._n_unpacked += len(data)
        if self._n_unpacked > _MOST_UNPACKED:
            self._check_size()
        return data

    def _next(self) -> bytes:
        while True:
            packed = self._rest or self.file.read(_PACKED_BYTES)
            before = self._member.copy()
            try:
                data: bytes = self._member.decompress(packed, _UNPACKED_BYTES)
            except zlib.error:
                return self._last_of(before, packed)
            self._rest = self._member.unconsumed_tail or self._member.unused_data
            if self._member.eof:
                self._member = _new_member()
                self._rest = self._rest.lstrip(b"\0")  # padding, as tapes and block devices need
            if data or not packed:
                return data

    def _check_size(self) -> None:
        most = max(_MOST_UNPACKED, _MOST_TIMES * os.fstat(self.file.fileno()).st_size)
        told = os.environ.get(_LIMIT, "")
        most = int(told) if told.isdecimal() and len(told) < 20 else most
        if self._n_unpacked > most:
            raise TraceError(
                f"{self.file.name}: unpacks to more than {most} bytes, more than any trace needs; "
                f"set {_LIMIT}=BYTES to raise the limit"
            )

    def _last_of(self, member: Any, packed: bytes) -> bytes:
        """Return what the sound beginning of ``packed`` holds; nothing more is read."""
        data, step = b"", len(packed)
        while step:
            step //= 2
            before = member.copy()
            try:
                data += member.decompress(packed[:step])
                packed = packed[step:]
            except zlib.error:
                member = before
        self.is_damaged = True
        self.file.seek(0, os.SEEK_END)
        self._rest = b""
        return data


def unpacked_head(path: Path, n_bytes: int) -> bytes:
    """Return the first bytes of what the gzip file ``path`` holds."""
    head = b""
    with path.open("rb") as file:
        source = GzipSource(file)
        while len(head) < n_bytes and (more := source.read(n_bytes)):
            head += more
    return head[:n_bytes]
