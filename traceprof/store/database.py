"""The file of the database: opened, checked, brought up to date, written in one piece.

It keeps a rollback journal and no write-ahead log: users' folders often lie on network file
systems, where the latter fails, one file is what people copy and back up, and a run is written in
milliseconds, so that readers hardly wait. What has a row per run, label, variable and file is
written here and changed by `MIGRATIONS` only; the tables of results follow from what is declared
(`traceprof.store.declared`): a new column needs no migration, one that is renamed does.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from traceprof.errors import StoreError
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
    """Return the file that ``TRACEPROF_RUNS`` names, else one in the user's folder of data.

    That folder is the platform's: ``XDG_DATA_HOME`` or ``~/.local/share``, on macOS
    ``~/Library/Application Support``, on Windows ``%LOCALAPPDATA%``.
    """
    said = os.environ if environment is None else environment
    if said.get(VARIABLE):
        return Path(said[VARIABLE]).expanduser()
    home = Path(said["HOME"]) if said.get("HOME") else Path.home()
    if platform == "win32":
        folder = Path(said.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif platform == "darwin":
        folder = home / "Library" / "Application Support"
    else:
        given = Path(said.get("XDG_DATA_HOME") or "")
        # The convention: a path that is not absolute is ignored.
        folder = given if given.is_absolute() else home / ".local" / "share"
    return folder.joinpath(*_FILE)


APPLICATION_ID: Final = 0x74707266
"""What the header of our files says ("tprf"), as SQLite foresees it."""

FIXED: Final = (
    *("runs", "labels", "environment", "sources", "notes"),
    *("results", "declarations", "contents", "scalars"),
)
"""The tables that are no declared ones."""

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
"""What people read first: made anew with every version."""


def _first(database: Any) -> None:
    for statement in filter(str.strip, _TABLES_1.split(";")):
        database.execute(statement)


MIGRATIONS: Final[tuple[Callable[[Any], None], ...]] = (_first,)
"""What makes version n + 1 of version n, in order; version 0 is an empty file.

One that changes a declared table finds it in older files only: `rename_column` knows that.
"""


def migrate(database: Any, version: int) -> None:
    """Bring a file of ``version`` up to date; who calls does it in one transaction."""
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
            raise StoreError(f"{path}: corrupt database: {_shortly(error)}") from error
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
    from sqlite_utils import Database  # noqa: PLC0415 (it imports pandas)

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
        raise StoreError(f"{path}: corrupt database: {_shortly(error)}") from error
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
        raise StoreError(f"{path}: cannot create the file: {error.strerror or error}") from error


def _check_file(path: Path) -> None:
    if kind := special_file_kind(path):
        raise StoreError(f"{path}: {kind}, not a run database; choose another file with --db")
    real = path.resolve()
    for beside in (real.with_name(f"{real.name}-{end}") for end in ("journal", "wal", "shm")):
        if kind := special_file_kind(beside):
            raise StoreError(f"{beside}: {kind}, but SQLite needs a file with this name; remove it")
    try:
        with path.open("rb") as file:
            head = file.read(len(_MAGIC))
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}") from error
    if head and head != _MAGIC:
        raise StoreError(f"{path}: not a run database; choose another file with --db")


def _bring_up_to_date(path: Path, database: Database) -> None:
    database.execute("BEGIN")  # one moment: another process may be making the file
    version = _version(path, database)
    _check_tables(path, database)
    database.execute("COMMIT")
    if version == len(MIGRATIONS):
        return
    database.execute("BEGIN IMMEDIATE")
    # Whoever else opened it at the same time may have done it meanwhile.
    migrate(database, _version(path, database))
    database.execute("COMMIT")


def _check_tables(path: Path, database: Database) -> None:
    """Refuse what may compute for ever where a table of ours is expected, or rows are changed.

    Views of others stay: nothing of ours reads them.
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
    """Return the version of the schema, 0 of an empty file."""
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


def _shortly(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "text that is not UTF-8"
    return f"{type(error).__name__}: {error}"


def _reason(error: sqlite3.Error) -> str:
    text = str(error)
    if "locked" in text:
        return f"locked for {_BUSY_S:.0f} s by another program, or the file system has no locks"
    if "readonly" in text:
        return "cannot write: the file or its folder is read-only"
    return text
