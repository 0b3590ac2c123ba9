"""The tables of an open database by the names that profilers give them.

What stands under another name, in another case, or with rows that cannot be is read through a
SELECT of its own: temporary views show it to this connection, `Catalogue.source` to others.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

from traceprof.errors import TraceError
from traceprof.formats.sqlite.connection import Connection
from traceprof.formats.sqlite.soundness import Soundness, soundness_of
from traceprof.formats.sqlite.table_names import (
    is_of_profiler,
    plain_column,
    plain_table,
    quoted,
    versioned_tables,
)

__all__ = ["Catalogue"]

_ROW_IDS: Final = ("_rowid_", "rowid", "oid")
_HIDDEN: Final = 1  # a column of a virtual table that is no column; 2 and 3 are computed


class Catalogue:
    """The tables of one file, their columns, and the rows that are left out of them.

    Raises:
        TraceError: a view stands where a profiler's table is expected.
        sqlite3.Error: the database is damaged.
    """

    def __init__(self, path: Path, connection: Connection) -> None:
        self._path = path
        self._connection = connection
        kinds = dict(
            connection.rows("SELECT name, type FROM sqlite_master WHERE type IN ('table', 'view')")
        )
        views = sorted(n for n, kind in kinds.items() if kind == "view" and is_of_profiler(n))
        if views:
            raise TraceError(
                f"{path}: {views[0]} is a view, where a table is expected: make it a table "
                "(CREATE TABLE … AS SELECT …), or export again"
            )
        names = [str(name) for name, kind in kinds.items() if kind == "table"]
        self._stored = {plain_table(name): name for name in names}
        versioned = versioned_tables(self._stored)
        self._stored |= {plain: self._stored[name] for plain, name in versioned.items()}
        self.tables = frozenset(self._stored)
        self.left_out: dict[str, dict[str, int]] = {}
        """Table → what is wrong with rows that are left out → how many; none: it was looked for."""
        self.zero_is_lost = False
        self._selects: dict[str, str] = {}
        self._columns: dict[str, frozenset[str]] = {}
        for table, name in self._stored.items():
            self._name_plainly(table, name, set(names))

    def _name_plainly(self, table: str, name: str, names: set[str]) -> None:
        """Show a table and its columns under the names that are asked for."""
        if not is_of_profiler(table) and table == name:
            return
        found = self._columns_of(name)
        if is_of_profiler(table) and any(plain_column(one) != one for one in found):
            told = ", ".join(f"{quoted(one)} AS {quoted(plain_column(one))}" for one in found)
            self._show(table, f"SELECT {told} FROM main.{quoted(name)}")
        elif table not in names and table.lower() != name.lower():
            self._connection.rows(
                f"CREATE TEMP VIEW {quoted(table)} AS SELECT * FROM main.{quoted(name)}"
            )

    def _columns_of(self, name: str) -> list[str]:
        rows = self._connection.rows(f"PRAGMA table_xinfo({quoted(name)})")
        return [str(row[1]) for row in rows if row[6] != _HIDDEN]

    def columns(self, table: str) -> frozenset[str]:
        """Return the names of the columns of ``table``; none where there is no such table."""
        if table not in self._columns:
            found = self._columns_of(self._stored[table]) if table in self.tables else []
            is_known = is_of_profiler(table)
            self._columns[table] = frozenset(map(plain_column, found) if is_known else found)
        return self._columns[table]

    def stored(self, table: str) -> str | None:
        """Return the name of the table that holds the rows; None where a SELECT gives them."""
        return None if table in self._selects else self._stored.get(table, table)

    def source(self, table: str) -> str:
        """Return what stands behind FROM for ``table``, in any connection to the file."""
        select = self._selects.get(table)
        return f"({select})" if select else quoted(self._stored.get(table, table))

    def row_id(self, table: str) -> str | None:
        """Return a name of the row id; None where there is none, or every one is a column's."""
        name = self.stored(table)
        taken = {one.lower() for one in self.columns(table)}
        free = next((one for one in _ROW_IDS if one not in taken), None)
        if name is None or free is None:
            return None
        try:
            self._connection.rows(f"SELECT {free} FROM main.{quoted(name)} LIMIT 0")
        except sqlite3.Error:  # a table without row ids
            return None
        return free

    def soundness(self, table: str) -> Soundness | None:
        """Return which rows of ``table`` can be; None where that needs no look (any more)."""
        if table not in self.tables or table in self.left_out or not is_of_profiler(table):
            return None
        return soundness_of(table, self.columns(table), zero_is_lost=self.zero_is_lost)

    def is_sound(self, table: str) -> None:
        """Take note that all rows of ``table`` can be."""
        self.left_out.setdefault(table, {})

    def leave_out(self, table: str) -> None:
        """Leave the rows that cannot be out of ``table`` from now on, and count them.

        Raises:
            TraceError: its times are no whole numbers at all.
        """
        sound = self.soundness(table)
        self.left_out[table] = {}
        if sound is None:
            return
        self._check_types(table, sound)
        counts, before = [], "1"
        for sql in sound.faults().values():
            counts.append(f"total({before} AND ({sql}))")
            before += f" AND NOT ({sql})"
        (found,) = self._connection.rows(f"SELECT {', '.join(counts)} FROM {self.source(table)}")
        if any(found):
            faults = zip(sound.faults(), map(int, found), strict=True)
            self.left_out[table] = {words: n for words, n in faults if n}
            self._show(table, f"SELECT * FROM {self._from_main(table)} WHERE {sound.sql()}")

    def _from_main(self, table: str) -> str:
        select = self._selects.get(table)
        return f"({select})" if select else f"main.{quoted(self._stored[table])}"

    def _check_types(self, table: str, sound: Soundness) -> None:
        """Check that what tells of rows is numbers: a text is greater than all of them."""
        if sound.zero_is_lost:  # and what is no number is read as 0
            return
        for column in sound.columns:
            rows = self._connection.rows(
                f"SELECT typeof({quoted(column)}) FROM {self.source(table)} "
                f"WHERE typeof({quoted(column)}) NOT IN ('integer', 'null') LIMIT 1"
            )
            if rows:
                raise TraceError(
                    f"{self._path}: column {table}.{column} is not of whole numbers ({rows[0][0]})"
                )

    def _show(self, table: str, select: str) -> None:
        self._connection.rows(f"DROP VIEW IF EXISTS temp.{quoted(table)}")
        self._connection.rows(f"CREATE TEMP VIEW {quoted(table)} AS {select}")
        self._selects[table] = select

    def warnings(self) -> list[str]:
        """Return a sentence about each table of which rows are left out."""
        told = []
        for table, faults in self.left_out.items():
            if faults:
                n_rows = sum(faults.values())
                rows = f"1 row of {table} is" if n_rows == 1 else f"{n_rows} rows of {table} are"
                reasons = ", ".join(f"{words}: {n}" for words, n in faults.items())
                told.append(f"{rows} damaged and left out of all numbers ({reasons})")
        return told
