"""Open, check, and migrate the database file, and write to it in transactions.

The database uses a rollback journal instead of a write-ahead log. User folders are often on network
file systems, where a write-ahead log fails, and a single file is easy to copy and back up. Writing
a run takes milliseconds, so readers hardly wait.

Tables with a row per run, label, variable, or source file are defined here and change only by
`MIGRATIONS`. Result tables follow from their declarations (`traceprof.store.declared`): a new
column needs no migration, a renamed column does.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from traceprof.errors import StoreError, WritingError
from traceprof.files import special_file_kind
from traceprof.model.summary import SUMMARY
from traceprof.store.declared import OF_RUN, ensure_table, is_declared

if TYPE_CHECKING:
    from sqlite_utils import Database

VARIABLE: Final = "TRACEPROF_RUNS"
_FILE: Final = ("traceprof", "runs.db")


def default_path(
    environment: Mapping[str, str] | None = None, platform: str = sys.platform
) -> Path:
    """Return the file that ``TRACEPROF_RUNS`` names, or a file in the user's data folder.

    The data folder depends on the platform: ``XDG_DATA_HOME`` or ``~/.local/share``, on macOS
    ``~/Library/Application Support``, on Windows ``%LOCALAPPDATA%``.
    """
    variables = os.environ if environment is None else environment
    if variables.get(VARIABLE):
        return Path(variables[VARIABLE]).expanduser()
    home = Path(variables["HOME"]) if variables.get("HOME") else Path.home()
    if platform == "win32":
        folder = Path(variables.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif platform == "darwin":
        folder = home / "Library" / "Application Support"
    else:
        given = Path(variables.get("XDG_DATA_HOME") or "")
        # The XDG specification: ignore a path that is not absolute.
        folder = given if given.is_absolute() else home / ".local" / "share"
    return folder.joinpath(*_FILE)


APPLICATION_ID: Final = 0x74707266
"""Application ID in the SQLite header of our files ("tprf")."""

FIXED: Final = (
    *("runs", "labels", "environment", "sources", "notes"),
    *("results", "declarations", "contents", "scalars"),
)
"""The tables that are not declared."""

_TABLES_1: Final = f"""
CREATE TABLE runs (
    id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, added TEXT NOT NULL,
    traceprof TEXT NOT NULL, origin TEXT NOT NULL, command TEXT NOT NULL, workload TEXT NOT NULL,
    started_utc_ns INTEGER, "window" TEXT NOT NULL, window_ns INTEGER, steps_count INTEGER,
    devices_count INTEGER
);
CREATE TABLE labels (
    {OF_RUN}, label TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (run_id, label)
) WITHOUT ROWID;
CREATE INDEX labels_by_value ON labels(label, value);
CREATE TABLE environment (
    {OF_RUN}, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (run_id, name)
) WITHOUT ROWID;
CREATE TABLE sources (
    {OF_RUN}, "row" INTEGER NOT NULL, path TEXT NOT NULL, format TEXT NOT NULL, n_bytes INTEGER,
    ranks TEXT NOT NULL, PRIMARY KEY (run_id, "row")
) WITHOUT ROWID;
CREATE TABLE notes (
    {OF_RUN}, result TEXT NOT NULL, "row" INTEGER NOT NULL, template TEXT NOT NULL,
    "values" TEXT NOT NULL, PRIMARY KEY (run_id, result, "row")
) WITHOUT ROWID;
CREATE TABLE declarations (
    id INTEGER PRIMARY KEY, result TEXT NOT NULL, declaration TEXT NOT NULL UNIQUE
);
CREATE TABLE results (
    {OF_RUN}, result TEXT NOT NULL, "row" INTEGER NOT NULL,
    declaration_id INTEGER NOT NULL REFERENCES declarations(id), PRIMARY KEY (run_id, result)
) WITHOUT ROWID;
CREATE TABLE contents (
    {OF_RUN}, result TEXT NOT NULL, name TEXT NOT NULL, "table" TEXT NOT NULL,
    n_rows INTEGER NOT NULL, columns TEXT NOT NULL, PRIMARY KEY (run_id, result, name)
) WITHOUT ROWID;
CREATE TABLE scalars (
    {OF_RUN}, result TEXT NOT NULL, scalar TEXT NOT NULL, value,
    PRIMARY KEY (run_id, result, scalar)
) WITHOUT ROWID;
"""

VIEWS: Final = {
    "runs_overview": """
        SELECT runs.id, runs.name, runs.added,
            datetime(runs.started_utc_ns / 1000000000, 'unixepoch') AS started,
            runs.origin,
            (SELECT group_concat(label || '=' || value, ' ')
                FROM labels WHERE run_id = runs.id) AS labels,
            (SELECT value FROM measures
                WHERE run_id = runs.id AND measure = 'world_size') AS world_size,
            runs.devices_count,
            (SELECT value FROM environment WHERE run_id = runs.id AND name = 'gpu') AS gpu,
            (SELECT value FROM measures
                WHERE run_id = runs.id AND measure = 'samples_per_s') AS samples_per_s,
            (SELECT value / 1e6 FROM measures
                WHERE run_id = runs.id AND measure = 'step_period_ns') AS step_period_ms,
            runs.steps_count,
            runs.command
        FROM runs""",
    "runs_measures": """
        SELECT runs.name, measures.measure, measures.value, measures.unit, measures.low,
            measures.high, measures.scope, measures.source
        FROM measures JOIN runs ON runs.id = measures.run_id""",
    "runs_environment": """
        SELECT runs.name AS run, environment.name, environment.value
        FROM environment JOIN runs ON runs.id = environment.run_id""",
}
"""Views for people; each migration creates them again."""


def _first(database: Any) -> None:
    for statement in filter(str.strip, _TABLES_1.split(";")):
        database.execute(statement)


MIGRATIONS: Final[tuple[Callable[[Any], None], ...]] = (_first,)
"""Function n converts a file of version n to version n + 1. Version 0 is an empty file.

A migration that changes a declared table must allow for files that lack it; `rename_column` does.
"""


def migrate(database: Any, version: int) -> None:
    """Migrate a database of ``version``; the caller starts and commits the transaction."""
    for name in VIEWS:
        database.execute(f"DROP VIEW IF EXISTS {name}")
    for change in MIGRATIONS[version:]:
        change(database)
    for table in SUMMARY.tables:
        ensure_table(database, table.name, tuple(table))
    for name, query in VIEWS.items():
        database.create_view(name, query)
    database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    database.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")


_LOCK_WAIT_S: Final = 60.0
"""Maximum time to wait for other writers; each needs milliseconds."""
_MAGIC: Final = b"SQLite format 3\x00"


@contextmanager
def reading(path: Path) -> Iterator[Database | None]:
    """Yield a consistent view of the database in ``path``, or None if there is no file.

    Raises:
        StoreError: the file is not a run database, is newer than this program, or cannot be read.
    """
    if not path.exists():
        yield None
        return
    with _opened(path) as database:
        database.execute("BEGIN")
        try:
            yield database
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise StoreError(f"{path}: corrupt database: {_describe_error(error)}") from error
        database.execute("COMMIT")


@contextmanager
def writing(path: Path) -> Iterator[Database]:
    """Yield the database in ``path`` in a transaction: all changes are written, or none.

    Creates the file if it is missing.

    Raises:
        StoreError: as for `reading`, or the database cannot be written.
        WritingError: the disk is full.
    """
    with _opened(path, is_created=True) as database:
        database.execute("BEGIN IMMEDIATE")
        yield database
        database.execute("COMMIT")


@contextmanager
def _opened(path: Path, *, is_created: bool = False) -> Iterator[Database]:
    """Yield an open, migrated database; with ``is_created`` create a missing file."""
    from sqlite_utils import Database  # noqa: PLC0415 (it imports pandas)

    if is_created:
        _create_file(path)
    _check_file(path)
    connection: sqlite3.Connection | None = None
    try:
        # Transactions are explicit here; sqlite3 must not infer them from statements.
        connection = sqlite3.connect(
            f"{path.resolve().as_uri()}?mode=rw",
            uri=True,
            timeout=_LOCK_WAIT_S,
            isolation_level=None,
        )
        database = Database(connection, execute_plugins=False)
        database.execute("PRAGMA foreign_keys = ON")
        _migrate_if_needed(path, database)
        yield database
    except sqlite3.Error as error:
        if "is full" in str(error):
            raise WritingError(f"{path}: the disk is full; nothing was stored") from error
        raise StoreError(f"{path}: {_describe_sqlite_error(error)}") from error
    except UnicodeDecodeError as error:
        raise StoreError(f"{path}: corrupt database: {_describe_error(error)}") from error
    finally:
        if connection is not None:
            connection.close()  # rolls back uncommitted changes


def _create_file(path: Path) -> None:
    """Create an empty file that only its owner can read, because commands and paths are private."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        return
    except OSError as error:
        kind = WritingError if error.errno in (errno.ENOSPC, errno.EDQUOT) else StoreError
        raise kind(f"{path}: cannot create the file: {error.strerror or error}") from error


def _check_file(path: Path) -> None:
    """Reject a path that is no SQLite file, and special files in place of SQLite's side files."""
    if kind := special_file_kind(path):
        raise StoreError(f"{path}: {kind}, not a run database; choose another file with --db")
    real = path.resolve()
    for side_file in (real.with_name(f"{real.name}-{end}") for end in ("journal", "wal", "shm")):
        if kind := special_file_kind(side_file):
            raise StoreError(
                f"{side_file}: {kind}, but SQLite needs a file with this name; remove it"
            )
    try:
        with path.open("rb") as file:
            head = file.read(len(_MAGIC))
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}") from error
    if head and head != _MAGIC:
        raise StoreError(f"{path}: not a run database; choose another file with --db")


def _migrate_if_needed(path: Path, database: Database) -> None:
    """Check the database, and migrate it if its version is old."""
    database.execute("BEGIN")  # one snapshot: another process may be creating the file
    version = _version(path, database)
    _check_tables(path, database)
    database.execute("COMMIT")
    if version == len(MIGRATIONS):
        return
    database.execute("BEGIN IMMEDIATE")
    # Another process may have migrated the file in the meantime.
    migrate(database, _version(path, database))
    database.execute("COMMIT")


def _check_tables(path: Path, database: Database) -> None:
    """Reject triggers, and views or virtual tables with names of our tables.

    Triggers could change rows; views and virtual tables could compute without end. Views with other
    names are accepted, because traceprof does not read them.
    """
    others = database.execute(
        "SELECT type, name FROM sqlite_master"
        " WHERE type IN ('view', 'trigger') OR sql LIKE 'CREATE VIRTUAL%'"
    )
    for kind, name in others.fetchall():
        if kind == "trigger" or name.lower() in FIXED or is_declared(name):
            raise StoreError(
                f"{path}: {name} is not a plain table; choose another file with --db, or import "
                "the output of `traceprof runs export`"
            )


def _version(path: Path, database: Database) -> int:
    """Return the schema version; 0 for an empty file."""
    ((owner,),) = database.execute("PRAGMA application_id").fetchall()
    ((version,),) = database.execute("PRAGMA user_version").fetchall()
    if owner != APPLICATION_ID:
        ((n_tables,),) = database.execute("SELECT count(*) FROM sqlite_master").fetchall()
        if n_tables or owner:
            raise StoreError(
                f"{path}: an SQLite file, but not a run database; choose another file with --db"
            )
        return 0
    if version > len(MIGRATIONS):
        raise StoreError(
            f"{path}: database version {version}, but this traceprof supports {len(MIGRATIONS)}; "
            "update traceprof, or choose another file with --db"
        )
    return int(version)


def _describe_error(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "text that is not UTF-8"
    return f"{type(error).__name__}: {error}"


def _describe_sqlite_error(error: sqlite3.Error) -> str:
    text = str(error)
    if "locked" in text:
        seconds = f"{_LOCK_WAIT_S:.0f} s"
        return f"locked for {seconds} by another program, or the file system has no locks"
    if "readonly" in text:
        return "cannot write: the file or its folder is read-only"
    return text
