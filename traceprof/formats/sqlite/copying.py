"""A part of a SQLite file as a new SQLite file: rows are copied by SQLite, none comes to Python.

Tables and columns are copied as they are, whatever they are called. What must not be in the copy
is never written to it, so that no free page holds it; pages are written in the order of the rows.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import field
from pathlib import Path
from typing import Any, Final

from traceprof.errors import TraceError, UsageError
from traceprof.formats.sqlite.table_names import plain_table, quoted
from traceprof.model.cutting import CutProgress
from traceprof.model.tables import TABLES
from traceprof.values import dataclass

__all__ = ["DatabaseCopy", "StoredTable", "copying"]

_CHUNK_ROWS: Final = 500_000
_CACHE_KIB: Final = 32_768
_LAST_ROW: Final = 1 << 32


@dataclass(frozen=True, slots=True)
class StoredTable:
    """A table of the source: its name, how it was made, its columns and their declared types."""

    name: str
    sql: str
    types: Mapping[str, str]
    last_row: int | None

    def has(self, *columns: str) -> bool:
        """Return whether it has all these columns."""
        return all(column in self.types for column in columns)


@dataclass(slots=True)
class DatabaseCopy:
    """A new database, the one that it is copied from (as ``source`` in SQL), and their tables.

    ``left_out`` names what the source has and no copy can: tables of a module of SQLite.
    """

    connection: sqlite3.Connection
    progress: CutProgress
    tables: Mapping[str, StoredTable]
    views: Sequence[str]
    left_out: tuple[str, ...]
    n_copied: dict[str, int] = field(default_factory=dict)
    _n_done: int = 0

    def check_names(self, tables: Collection[str] | None) -> None:
        """Check that each name is one of a table of the file or of a Trace.

        Raises:
            UsageError: one is neither.
        """
        unknown = sorted(set(tables or ()) - TABLES.keys() - self.tables.keys())
        if unknown:
            raise UsageError(
                f"no table {unknown[0]!r}: expected {', '.join(TABLES)}, or a name in the file"
            )

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> sqlite3.Cursor:
        """Run one statement."""
        return self.connection.execute(sql, parameters)

    def copy(self, name: str, condition: str = "1", shown: Mapping[str, str] | None = None) -> int:
        """Copy the rows of a table that meet ``condition``; return how many.

        ``shown`` is the SQL that stands in the copy in place of a column.
        """
        table, shown = self.tables[name], shown or {}
        self.execute(table.sql)
        hides_numbers = "_rowid_" in map(str.lower, table.types)
        columns = ", ".join(map(quoted, table.types))
        values = ", ".join(shown.get(column, quoted(column)) for column in table.types)
        sql = (
            f"INSERT INTO main.{quoted(name)} ({columns}) SELECT {values}"
            f" FROM source.{quoted(name)} AS t WHERE ({condition})"
        )
        total = 0
        if table.last_row is None or hides_numbers:
            total = self.execute(sql).rowcount
        else:
            for first in range(0, table.last_row, _CHUNK_ROWS):
                last = min(first + _CHUNK_ROWS, table.last_row)
                reach = f"t._rowid_ > {first}" if first else "1"
                total += self.execute(f"{sql} AND {reach} AND t._rowid_ <= {last}").rowcount
                self._n_done += last - first
                self.progress(self._n_done, self.n_rows, "rows")
        self.n_copied[name] = total
        return total

    @property
    def n_rows(self) -> int:
        """About how many rows the source has."""
        return sum(table.last_row or 0 for table in self.tables.values())

    def make_views(self) -> None:
        """Make the views of the source."""
        for sql in self.views:
            self.execute(sql)


@contextmanager
def copying(source: Path, target: Path, progress: CutProgress) -> Iterator[DatabaseCopy]:
    """Give the empty file ``target`` as a copy of ``source`` that has nothing in it yet.

    Raises:
        TraceError: ``source`` cannot be read, or ``target`` not be written.
    """
    address = f"{source.resolve().as_uri()}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(address, uri=True)) as opened:
            ((encoding,),) = opened.execute("PRAGMA encoding")
        new = f"{target.resolve().as_uri()}"
        with closing(sqlite3.connect(new, uri=True, isolation_level=None)) as connection:
            connection.execute(f"PRAGMA encoding = '{encoding}'")
            for pragma in ("journal_mode = OFF", "synchronous = OFF", "locking_mode = EXCLUSIVE"):
                connection.execute(f"PRAGMA {pragma}")
            connection.execute("PRAGMA temp_store = FILE")
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("ATTACH ? AS source", (address,))
            connection.execute(f"PRAGMA source.cache_size = -{_CACHE_KIB}")
            tables, left_out = _tables(connection)
            _check_names(source, tables)
            views = [
                sql
                for (sql,) in connection.execute(
                    "SELECT sql FROM source.sqlite_master WHERE type = 'view'"
                )
            ]
            connection.execute("BEGIN")
            yield DatabaseCopy(connection, progress, tables, views, left_out)
            connection.execute("COMMIT")
    except sqlite3.OperationalError as error:
        if "disk" in str(error) and "full" in str(error):
            raise UsageError(f"{target}: cannot be written ({error})") from error
        raise TraceError(f"{source}: cannot be cut ({error})") from error
    except sqlite3.Error as error:
        raise TraceError(f"{source}: cannot be cut ({error})") from error


def _check_names(source: Path, tables: Iterable[str]) -> None:
    """Check that the tables of a profiler bear their names as it writes them."""
    for name in tables:
        if plain_table(name) != name:
            raise TraceError(
                f"{source}: its table {name} should be called {plain_table(name)}: such a file can "
                "be read, but not cut; export it again"
            )


def _tables(connection: sqlite3.Connection) -> tuple[dict[str, StoredTable], tuple[str, ...]]:
    """Return the tables of the source, and the names of those that no copy can have."""
    kinds = {
        name: (kind, has_no_rowid)
        for schema, name, kind, _, has_no_rowid, *_ in connection.execute("PRAGMA table_list")
        if schema == "source"
    }
    rows = connection.execute(
        "SELECT name, sql FROM source.sqlite_master"
        " WHERE type = 'table' AND substr(name, 1, 7) <> 'sqlite_' ORDER BY rowid"
    ).fetchall()
    tables: dict[str, StoredTable] = {}
    left_out: list[str] = []
    for name, sql in rows:
        kind, has_no_rowid = kinds.get(name, ("table", 0))
        if kind == "virtual":
            left_out.append(name)
        elif kind == "table":
            columns = connection.execute(f"PRAGMA source.table_xinfo({quoted(name)})")
            types = {row[1]: str(row[2]).upper() for row in columns if not row[6]}
            last = None if has_no_rowid else _last_row(connection, name)
            tables[name] = StoredTable(name, sql, types, last)
    return tables, tuple(left_out)


def _last_row(connection: sqlite3.Connection, name: str) -> int | None:
    """Return the number of the last row; None where rows are numbered in a way of their own."""
    # Each alone is found at the edge of the tree, both together by a scan.
    edges = (f"SELECT {edge}(_rowid_) FROM source.{quoted(name)}" for edge in ("min", "max"))
    try:
        (first,), (last,) = (connection.execute(sql).fetchone() for sql in edges)
    except sqlite3.Error:
        return None
    if last is None:
        return 0
    # A column of that name hides the numbers, and ids that are hashes make no chunks.
    is_sound = type(first) is int and type(last) is int and first > 0 and last < _LAST_ROW
    return last if is_sound else None
