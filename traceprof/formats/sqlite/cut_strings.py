"""The strings that a copy of a part refers to."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Collection, Iterable
from typing import Final

from traceprof.formats.sqlite.copying import DatabaseCopy, StoredTable
from traceprof.formats.sqlite.table_names import quoted

__all__ = ["codec_of", "copy_strings", "string_columns", "text_by"]

_REFERS: Final = re.compile(r"StringId", re.IGNORECASE)


def codec_of(connection: sqlite3.Connection) -> str:
    """Return how a database writes texts, as Python calls it."""
    ((encoding,),) = connection.execute("PRAGMA encoding")
    return {"UTF-16le": "utf-16-le", "UTF-16be": "utf-16-be"}.get(encoding, "utf-8")


def text_by(function: str, column: str) -> str:
    """Return the SQL of a text that a ``function`` of and to bytes changes; others stay."""
    return (
        f"CASE WHEN typeof({column}) = 'text' THEN"
        f" CAST({function}(CAST({column} AS BLOB)) AS TEXT) ELSE {column} END"
    )


def string_columns(table: StoredTable, known: Collection[str], *, is_known: bool) -> list[str]:
    """Return the columns of ``table`` that refer to strings.

    Those called as in ``known`` do, those of which the table itself says so, and of a table that
    nobody knows every column of whole numbers may.
    """
    said = {
        words[0].strip('"[]`')
        for line in table.sql.splitlines()
        if _REFERS.search(line) and (words := line.replace("(", " ").split())
    }
    return [
        column
        for column, kind in table.types.items()
        if column in known or column in said or (not is_known and not kind.startswith("TEXT"))
    ]


def copy_strings(
    copy: DatabaseCopy,
    strings: str,
    key: str,
    references: Iterable[tuple[str, str, int]],
    shown: Callable[[int], str],
) -> None:
    """Copy those strings that what was copied refers to.

    Args:
        copy: where all other tables are copied already.
        strings: the table of strings.
        key: its column of ids.
        references: table, column and kind of the reference; the first of several kinds counts.
        shown: gives the SQL that stands in place of the value, by the kind.
    """
    copy.execute("CREATE TEMP TABLE wanted_string (id INTEGER PRIMARY KEY, kind INTEGER)")
    for name, column, kind in sorted(references, key=lambda reference: reference[2]):
        copy.execute(
            f"INSERT OR IGNORE INTO wanted_string SELECT DISTINCT {quoted(column)}, {kind}"
            f" FROM main.{quoted(name)} WHERE typeof({quoted(column)}) = 'integer'"
        )
    table = copy.tables[strings]
    copy.execute(table.sql)
    names = ", ".join(map(quoted, table.types))
    for (kind,) in copy.execute("SELECT DISTINCT kind FROM wanted_string").fetchall():
        values = ", ".join(
            shown(kind) if column == "value" else f"t.{quoted(column)}" for column in table.types
        )
        copy.execute(
            f"INSERT INTO main.{quoted(strings)} ({names}) SELECT {values} FROM"
            f" wanted_string AS w CROSS JOIN source.{quoted(strings)} AS t"
            f" ON t.{quoted(key)} = w.id WHERE w.kind = {int(kind)} ORDER BY w.id"
        )
