"""Removing what nsys copies from command lines and from the environments of all processes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from traceprof.errors import RecordingError
from traceprof.recording.environment import MASK, Secret

__all__ = ["mask_secrets", "scrub_environments"]

_TELLING: Final = 6
_TOLD_BY_THE_SYSTEM: Final = (
    *("StringIds", "META_DATA_", "TARGET_INFO_", "PROCESSES", "ThreadNames", "EXPORT_META_DATA"),
    *("DIAGNOSTIC_EVENT", "ANALYSIS_"),
)
_REMOVED: Final = "[environment removed by traceprof]"


def scrub_environments(path: Path) -> int:
    """Remove the environments from the nsys export at ``path``, in place; return how many.

    nsys keeps whole environments, of other users' processes too, as strings with NULs between
    the variables: ``length`` and ``LIKE`` of SQLite stop at the first NUL, so the rows are found
    by their bytes. The space is overwritten.

    Raises:
        RecordingError: the export cannot be changed.
    """
    with _overwriting(path) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        return sum(
            connection.execute(sql, (_REMOVED,)).rowcount
            for table, sql in _STATEMENTS
            if table in tables
        )


def mask_secrets(path: Path, secrets: Sequence[Secret]) -> None:
    """Mask the secrets of a command line in the nsys export at ``path``, in place.

    From 2023 on nsys keeps each argument of the program as a row; a name of a process or a
    diagnosis may hold them, too. A short one is masked only as a whole argument: every 0 would be
    lost with a secret "0".

    Raises:
        RecordingError: the export cannot be changed.
    """
    if not secrets:
        return
    with _overwriting(path) as connection:
        for table, column in list(_columns_of_text(connection)):
            for argument, shown, hidden in secrets:
                connection.execute(
                    f'UPDATE "{table}" SET "{column}" = ?2 WHERE "{column}" = ?1',
                    (argument, shown),
                )
                if len(hidden) >= _TELLING:
                    connection.execute(
                        f'UPDATE "{table}" SET "{column}" = replace("{column}", ?1, ?2)'
                        f' WHERE instr("{column}", ?1)',
                        (hidden, MASK),
                    )


def _columns_of_text(connection: sqlite3.Connection) -> Iterator[tuple[str, str]]:
    tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    for (table,) in tables:
        if table.startswith(_TOLD_BY_THE_SYSTEM):
            for _, column, kind, *_ in connection.execute(f'PRAGMA table_info("{table}")'):
                if kind.upper() == "TEXT":
                    yield table, column


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
        raise RecordingError(f"{path}: cannot be cleaned of secrets ({error})") from error


_STATEMENTS: Final = (
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
