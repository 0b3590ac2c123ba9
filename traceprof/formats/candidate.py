"""Looking at a file before it is known what it is."""

from __future__ import annotations

from pathlib import Path

from traceprof.errors import TraceError
from traceprof.formats.base import Candidate
from traceprof.formats.sqlite.database import SQLITE_MAGIC, Database

__all__ = ["examine"]


def examine(path: Path) -> Candidate:
    """Return what there is to know a file by: its first bytes and, if it is SQLite, its tables.

    Raises:
        TraceError: no file, an empty one, or a damaged database.
    """
    try:
        with path.open("rb") as file:
            head = file.read(4096)
    except IsADirectoryError as error:
        raise TraceError(f"{path}: a directory: give the trace file inside it") from error
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from error
    if not head:
        raise TraceError(f"{path}: an empty file: the recording did not finish; record again")
    if not head.startswith(SQLITE_MAGIC):
        return Candidate(path, head)
    with Database(path) as database:
        return Candidate(path, head, database.tables)
