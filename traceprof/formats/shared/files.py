"""Examine files before their format is known, and unpack gzip files."""

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
from traceprof.files import special_file_kind
from traceprof.formats.contract import Candidate
from traceprof.formats.sqlite.database import Database, reporting_undecodable_names
from traceprof.formats.sqlite.pages.tree import SQLITE_MAGIC

TABLE_FILES: Final = (".parquet", ".arrow")
"""Suffixes of files that contain one table of a trace."""
GZIP_MAGIC: Final = b"\x1f\x8b"
_GZIP_WINDOW: Final = zlib.MAX_WBITS | 16
_PACKED_BYTES: Final = 1 << 18
_UNPACKED_BYTES: Final = 1 << 22
_MAX_UNPACKED_BYTES: Final = 1 << 28
_MAX_UNPACKED_RATIO: Final = 100
_LIMIT_VARIABLE: Final = "TRACEPROF_UNPACKED_BYTES"
"""Environment variable that raises the limit: 256 MiB, or 100 times the size of the gzip file."""


_MAX_CHECKED_BYTES: Final = 1 << 20


def examine(path: Path) -> Candidate:
    """Return the properties that identify a format: first bytes and, of SQLite, the table names.

    For a folder that contains tables as files, return the names of its files.

    Raises:
        TraceError: the file does not exist, is empty, or is a damaged database.
    """
    if kind := special_file_kind(path):
        raise TraceError(f"{path}: {kind}, expected a file; write the data to a file first")
    try:
        if path.is_dir():
            names = frozenset(entry.name for entry in path.iterdir() if entry.is_file())
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


@lru_cache(maxsize=1 << 12)  # files are examined once to find the run, and again to be read
def _tables_in(path: Path, *_state: int) -> frozenset[str]:
    """Return the table names of a database; ``_state`` changes when the file does."""
    with Database(path, only_names=True) as database:
        return database.tables


def is_packed_database(candidate: Candidate) -> bool:
    """Return whether the file is a gzipped SQLite database."""
    is_packed = candidate.head.startswith(GZIP_MAGIC)
    return is_packed and unpacked_head(candidate.path, len(SQLITE_MAGIC)) == SQLITE_MAGIC


@contextmanager
def unpacked(path: Path) -> Iterator[Candidate]:
    """Give the file ``path`` or, if it is a gzipped database, an unpacked copy.

    The copy is in a temporary folder and exists as long as the context. JSON is not unpacked,
    because it is read as a stream.

    Raises:
        TraceError: the file is truncated, or the disk is full.
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
        except TraceError as error:  # report the name of the user's file
            raise type(error)(str(error).replace(str(database), str(path))) from error


def _new_member() -> Any:
    return zlib.decompressobj(_GZIP_WINDOW)


@dataclass(slots=True)
class GzipSource:
    """Unpacks a gzip file; it ends where the file is truncated or damaged (``is_damaged``).

    `gzip.GzipFile` raises an error instead and loses the data that it had unpacked. Files that
    unpack to far more than any trace are rejected, because a few hundred kilobytes can contain
    gigabytes.
    """

    file: BinaryIO
    is_damaged: bool = False
    _member: Any = field(default_factory=_new_member)
    _unread: bytes = b""
    _n_unpacked: int = 0

    def read(self, _size: int, /) -> bytes:
        """Return the next bytes, as many as one piece of the file unpacks to; b"" at the end.

        Raises:
            TraceError: the file unpacks to more than the limit.
        """
        data = self._next()
        self._n_unpacked += len(data)
        if self._n_unpacked > _MAX_UNPACKED_BYTES:
            self._check_size()
        return data

    def _next(self) -> bytes:
        while True:
            packed = self._unread or self.file.read(_PACKED_BYTES)
            before = self._member.copy()
            try:
                data: bytes = self._member.decompress(packed, _UNPACKED_BYTES)
            except zlib.error:
                return self._last_of(before, packed)
            self._unread = self._member.unconsumed_tail or self._member.unused_data
            if self._member.eof:
                self._member = _new_member()
                self._unread = self._unread.lstrip(b"\0")  # padding of tapes and block devices
            if data or not packed:
                return data

    def _check_size(self) -> None:
        max_bytes = max(
            _MAX_UNPACKED_BYTES, _MAX_UNPACKED_RATIO * os.fstat(self.file.fileno()).st_size
        )
        setting = os.environ.get(_LIMIT_VARIABLE, "")
        max_bytes = int(setting) if setting.isdecimal() and len(setting) < 20 else max_bytes
        if self._n_unpacked > max_bytes:
            raise TraceError(
                f"{self.file.name}: unpacks to more than {max_bytes} bytes, more than any trace "
                f"needs; set {_LIMIT_VARIABLE}=BYTES to raise the limit"
            )

    def _last_of(self, member: Any, packed: bytes) -> bytes:
        """Return the data of the undamaged beginning of ``packed``, and stop reading."""
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
        self._unread = b""
        return data


def unpacking_source(file: BinaryIO) -> BinaryIO | GzipSource:
    """Return a source of the content of ``file``, which is unpacked if it is gzip."""
    is_packed = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
    file.seek(0)
    return GzipSource(file) if is_packed else file


def is_truncated_gzip(path: Path) -> bool:
    """Return whether a gzip file of up to 1 MiB ends early or is damaged."""
    with path.open("rb") as file:
        packed = file.read(_MAX_CHECKED_BYTES + 1)
    member = _new_member()
    try:
        while packed and not member.eof and len(packed) <= _MAX_CHECKED_BYTES:
            member.decompress(packed, _UNPACKED_BYTES)
            packed = member.unconsumed_tail
    except zlib.error:
        return True
    return not packed and not member.eof


def unpacked_head(path: Path, n_bytes: int) -> bytes:
    """Return the first bytes of the content of the gzip file ``path``."""
    head = b""
    with path.open("rb") as file:
        source = GzipSource(file)
        while len(head) < n_bytes and (data := source.read(n_bytes)):
            head += data
    return head[:n_bytes]
