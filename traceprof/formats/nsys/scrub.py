"""Removing secrets from an nsys export, in place: whole environments, and parts of texts."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from traceprof.errors import TraceError
from traceprof.formats.sqlite.cut_strings import codec_of
from traceprof.formats.sqlite.table_names import quoted

__all__ = ["remove_environments", "rename_events", "replace_system_texts"]

_REMOVED: Final = "[environment removed by traceprof]"
_ENVIRONMENTS: Final = (
    (
        "StringIds",
        "UPDATE StringIds SET value = ? WHERE instr(CAST(value AS BLOB), x'00') > 0"
        " AND instr(CAST(value AS BLOB), CAST('=' AS BLOB)) > 0",
    ),
    (
        "TARGET_INFO_SYSTEM_ENV",
        "UPDATE TARGET_INFO_SYSTEM_ENV SET value = ? WHERE name = 'DeviceEnvironment'",
    ),
    (
        "META_DATA_CAPTURE",
        "UPDATE META_DATA_CAPTURE SET value = ? WHERE name LIKE '%ENVIRONMENT%'",
    ),
)
_NAMES: Final = (("NVTX_EVENTS", "text"), ("StringIds", "value"))
_IS_THERE: Final = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
_SYSTEM_TABLES: Final = (
    *("StringIds", "META_DATA_", "TARGET_INFO_", "PROCESSES", "ThreadNames", "EXPORT_META_DATA"),
    *("DIAGNOSTIC_EVENT", "ANALYSIS_"),
)


def remove_environments(path: Path) -> int:
    """Remove the environments from the nsys export at ``path``, in place; return how many.

    nsys keeps whole environments, of other users' processes too, as strings with NULs between
    the variables: ``length`` and ``LIKE`` of SQLite stop at the first NUL, so the rows are found
    by their bytes. The space is overwritten.

    Raises:
        TraceError: the export cannot be changed.
    """
    with _overwriting(path) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        return sum(
            connection.execute(sql, (_REMOVED,)).rowcount
            for table, sql in _ENVIRONMENTS
            if table in tables
        )


def replace_system_texts(
    path: Path, whole: Sequence[tuple[str, str]], parts: Sequence[tuple[str, str]]
) -> None:
    """Replace texts about machine and processes in the nsys export at ``path``, in place.

    From 2023 on nsys keeps each argument of the program as a row; a name of a process or a
    diagnosis may hold some, too. Names of ranges and kernels stay as they are (see
    `rename_events`), except that they share their table of strings with the others.

    Args:
        path: the export. The space of what is replaced is overwritten.
        whole: (text, replacement) for values that are equal to the text.
        parts: (text, replacement) for every place where the text stands within a value.

    Raises:
        TraceError: the export cannot be changed.
    """
    with _overwriting(path) as connection:
        for table, column in list(_text_columns(connection)):
            for pair in whole:
                connection.execute(f"UPDATE {table} SET {column} = ?2 WHERE {column} = ?1", pair)
            for pair in parts:
                connection.execute(
                    f"UPDATE {table} SET {column} = replace({column}, ?1, ?2)"
                    f" WHERE instr({column}, ?1)",
                    pair,
                )


def rename_events(path: Path, shown: Callable[[str], str]) -> None:
    """Have the events of the nsys export at ``path`` bear their names as ``shown`` has them.

    Raises:
        TraceError: the export cannot be changed.
    """
    try:
        with closing(sqlite3.connect(path)) as connection:
            changes = list(_changed_names(connection, shown))
    except sqlite3.Error as error:
        raise TraceError(f"{path}: cannot be cleaned of secrets ({error})") from error
    if changes:
        with _overwriting(path) as connection:
            for update, names in changes:
                connection.execute(update, names)


def _changed_names(
    connection: sqlite3.Connection, shown: Callable[[str], str]
) -> Iterator[tuple[str, tuple[bytes, str]]]:
    """Yield the SQL that changes a name, and what it takes, of each that is shown otherwise."""
    codec = codec_of(connection)
    for table, column in _NAMES:
        if not connection.execute(_IS_THERE, (table,)).fetchone():
            continue
        update = f"UPDATE {table} SET {column} = ?2 WHERE CAST({column} AS BLOB) = ?1"
        for (raw,) in connection.execute(
            f"SELECT DISTINCT CAST({column} AS BLOB) FROM {table} WHERE typeof({column}) = 'text'"
        ):
            before = raw.decode(codec, "replace")
            after = shown(before)
            if after != before:
                yield update, (raw, after)


def _text_columns(connection: sqlite3.Connection) -> Iterator[tuple[str, str]]:
    """Yield (table, column), quoted, of the texts about machine and processes."""
    tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    for (table,) in tables:
        if table.startswith(_SYSTEM_TABLES):
            for _, column, kind, *_ in connection.execute(f"PRAGMA table_info({quoted(table)})"):
                if kind.upper() == "TEXT":
                    yield quoted(table), quoted(column)


@contextmanager
def _overwriting(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a database so that nothing of what is changed stays in its free pages."""
    try:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA secure_delete = ON")
            with connection:
                yield connection
            connection.execute("VACUUM")
    except sqlite3.Error as error:
        raise TraceError(f"{path}: cannot be cleaned of secrets ({error})") from error
