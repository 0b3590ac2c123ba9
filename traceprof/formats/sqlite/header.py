"""What can be told of a SQLite file without opening it as one."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

from traceprof.errors import TraceError

__all__ = ["SQLITE_MAGIC", "check_encoding", "check_sqlite_file"]

SQLITE_MAGIC: Final = b"SQLite format 3\x00"
_OTHER_ENCODINGS: Final = {2: "UTF-16LE", 3: "UTF-16BE"}
_JOURNAL_MAGIC: Final = bytes.fromhex("d9d505f920a163d7")


def check_sqlite_file(path: Path) -> None:
    """Check that a file is a whole SQLite database with nothing pending beside it.

    Raises:
        TraceError: it is not.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(100)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from error
    if not head.startswith(SQLITE_MAGIC) or len(head) < 100:
        raise TraceError(f"{path}: not a SQLite database")
    page_size, n_pages = struct.unpack(">H", head[16:18])[0], struct.unpack(">I", head[28:32])[0]
    expected = (65_536 if page_size == 1 else page_size) * n_pages
    if size < expected:
        raise TraceError(f"{path}: cut off: {size} bytes of {expected}; copy or export it again")
    _check_beside(path)


def check_encoding(path: Path) -> None:
    """Check that the texts of a SQLite database are in UTF-8, as every profiler writes them.

    Raises:
        TraceError: they are in UTF-16.
    """
    with path.open("rb") as file:
        encoding = struct.unpack(">I", file.read(60)[56:])[0]
    if encoding in _OTHER_ENCODINGS:
        raise TraceError(
            f"{path}: a SQLite database of texts in {_OTHER_ENCODINGS[encoding]}, where UTF-8 is "
            "expected: convert it (sqlite3 OLD .dump | sqlite3 NEW)"
        )


def _check_beside(path: Path) -> None:
    """Check that neither a log nor a journal beside the file says that it is not as it stands.

    SQLite keeps them beside the file itself, not beside a link to it. A journal that was ended
    is gone, empty, or begins with zeros.
    """
    real = path.resolve()
    log = real.with_name(real.name + "-wal")
    if _first_bytes(log, 1):
        raise TraceError(
            f"{path}: has unmerged changes in {log.name}: close the program that writes it first"
        )
    journal = real.with_name(real.name + "-journal")
    if _first_bytes(journal, len(_JOURNAL_MAGIC)) == _JOURNAL_MAGIC:
        raise TraceError(
            f"{path}: was left in the middle of a change, {journal.name} has what was before: "
            "open it once with sqlite3, which takes the change back, or export it again"
        )


def _first_bytes(path: Path, n_bytes: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(n_bytes)
    except OSError:
        return b""
