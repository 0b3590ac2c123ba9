"""The file of the database: opened, checked, brought up to date, written in one piece.

It keeps a rollback journal and no write-ahead log: users' folders often lie on network file
systems, where the latter fails, one file is what people copy and back up, and a run is written in
milliseconds, so that readers hardly wait.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sqlite_utils import Database

from traceprof.errors import StoreError
from traceprof.files import kind_of_no_file
from traceprof.store.schema import APPLICATION_ID, MIGRATIONS, migrate

__all__ = ["reading", "writing"]

_BUSY_S: Final = 60.0
"""How long to wait for other writers: each needs milliseconds."""
_MAGIC: Final = b"SQLite format 3\x00"


@contextmanager
def reading(path: Path) -> Iterator[Database | None]:
    """Give the database in ``path``, as it is at one moment; None where there is no file.

    Raises:
        StoreError: the file is none of ours, newer than this program, or cannot be read.
    """
    if not path.exists():
        yield None
        return
    with _opened(path) as database:
        database.execute("BEGIN")
        try:
            yield database
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise StoreError(f"{path}: damaged: {_shortly(error)}") from error
        database.execute("COMMIT")


@contextmanager
def writing(path: Path) -> Iterator[Database]:
    """Give the database in ``path``, which is made where there is none; all is written or nothing.

    Raises:
        StoreError: as for `reading`, or it cannot be written.
    """
    with _opened(path, is_made=True) as database:
        database.execute("BEGIN IMMEDIATE")
        yield database
        database.execute("COMMIT")


@contextmanager
def _opened(path: Path, *, is_made: bool = False) -> Iterator[Database]:
    if is_made:
        _make(path)
    _check_file(path)
    connection: sqlite3.Connection | None = None
    try:
        # What begins a transaction is said here, never guessed from a statement.
        connection = sqlite3.connect(
            f"{path.resolve().as_uri()}?mode=rw", uri=True, timeout=_BUSY_S, isolation_level=None
        )
        database = Database(connection, execute_plugins=False)
        database.execute("PRAGMA foreign_keys = ON")
        _bring_up_to_date(path, database)
        yield database
    except sqlite3.Error as error:
        raise StoreError(f"{path}: {_reason(error)}") from error
    except UnicodeDecodeError as error:
        raise StoreError(f"{path}: damaged: {_shortly(error)}") from error
    finally:
        if connection is not None:
            connection.close()  # what was not committed is undone


def _make(path: Path) -> None:
    """Make an empty file that only its owner can read: commands and paths are nobody else's."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        return
    except OSError as error:
        raise StoreError(f"{path}: cannot be made: {error.strerror or error}") from error


def _check_file(path: Path) -> None:
    if kind := kind_of_no_file(path):
        raise StoreError(f"{path}: {kind}, no database of runs: choose another file with --db")
    try:
        with path.open("rb") as file:
            head = file.read(len(_MAGIC))
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}") from error
    if head and head != _MAGIC:
        raise StoreError(f"{path}: no database of runs: choose another file with --db")


def _bring_up_to_date(path: Path, database: Database) -> None:
    database.execute("BEGIN")  # one moment: another process may be making the file
    version = _version(path, database)
    database.execute("COMMIT")
    if version == len(MIGRATIONS):
        return
    database.execute("BEGIN IMMEDIATE")
    # Whoever else opened it at the same time may have done it meanwhile.
    migrate(database, _version(path, database))
    database.execute("COMMIT")


def _version(path: Path, database: Database) -> int:
    """Return the version of the schema, 0 of an empty file.

    Raises:
        StoreError: the file is none of ours, or of a version that only newer programs know.
    """
    ((owner,),) = database.execute("PRAGMA application_id").fetchall()
    ((version,),) = database.execute("PRAGMA user_version").fetchall()
    if owner != APPLICATION_ID:
        ((n_tables,),) = database.execute("SELECT count(*) FROM sqlite_master").fetchall()
        if n_tables or owner:
            raise StoreError(
                f"{path}: a SQLite file, but no database of runs: choose another one with --db"
            )
        return 0
    if version > len(MIGRATIONS):
        raise StoreError(
            f"{path}: of version {version}, and this traceprof knows {len(MIGRATIONS)}: "
            "update traceprof, or choose another file with --db"
        )
    return int(version)


def _shortly(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "a text that is not UTF-8"
    return f"{type(error).__name__}: {error}"


def _reason(error: sqlite3.Error) -> str:
    text = str(error)
    if "locked" in text:
        return f"others kept it locked for {_BUSY_S:.0f} s"
    if "readonly" in text:
        return "cannot be written: the file, or its folder, is read-only"
    return text
