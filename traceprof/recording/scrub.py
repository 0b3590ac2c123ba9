"""Removing what nsys copies from the environments of this and of other processes."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from traceprof.errors import RecordingError

__all__ = ["scrub_environments"]

_REMOVED: Final = "[environment removed by traceprof]"


def scrub_environments(path: Path) -> int:
    """Remove the environments from the nsys export at ``path``, in place; return how many.

    nsys keeps whole environments, of other users' processes too, as strings with NULs between
    the variables: ``length`` and ``LIKE`` of SQLite stop at the first NUL, so the rows are found
    by their bytes. The space is overwritten.

    Raises:
        RecordingError: the export cannot be changed.
    """
    try:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA secure_delete = ON")
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
            with connection:
                n_removed = sum(
                    connection.execute(sql, (_REMOVED,)).rowcount
                    for table, sql in _STATEMENTS
                    if table in tables
                )
            connection.execute("VACUUM")
    except sqlite3.Error as error:
        raise RecordingError(f"{path}: cannot be cleaned of environments ({error})") from error
    return n_removed


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
