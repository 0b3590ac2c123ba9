"""A part of a SQLite file as a new SQLite file: rows are copied by SQLite, none comes to Python.

Tables and columns are copied as they are, whatever they are called. What must not be in the copy
is never written to it, so that no free page holds it; pages are written in the order of the rows.
The copy says what it was cut from: it covers that window, though no event may be there.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from traceprof.errors import TraceError, UsageError
from traceprof.formats.sqlite.database import NOTE, cut_note_in
from traceprof.formats.sqlite.schema import plain_table, quoted
from traceprof.model.cutting import CutProgress, CutRequest
from traceprof.model.tables import TABLES
from traceprof.model.timing import TimeWindow
from traceprof.version import __version__

_CHUNK_ROWS: Final = 500_000
_CACHE_KIB: Final = 32_768
_LAST_ROW: Final = 1 << 32


@dataclass(frozen=True, slots=True)
class SourceTable:
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
    tables: Mapping[str, SourceTable]
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
                f"unknown table {unknown[0]!r}; choose {', '.join(TABLES)}, or a table in the file"
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
                n_rows = sum(one.last_row or 0 for one in self.tables.values())
                self.progress(self._n_done, n_rows, "rows")
        self.n_copied[name] = total
        return total

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
            rows = connection.execute("SELECT sql FROM source.sqlite_master WHERE type = 'view'")
            views = [sql for (sql,) in rows]
            connection.execute("BEGIN")
            yield DatabaseCopy(connection, progress, tables, views, left_out)
            connection.execute("COMMIT")
    except sqlite3.Error as error:
        if "disk" in str(error) and "full" in str(error):
            raise UsageError(f"{target}: cannot be written ({error})") from error
        raise TraceError(f"{source}: cannot be cut ({error})") from error


def _check_names(source: Path, tables: Iterable[str]) -> None:
    """Check that the tables of a profiler bear their names as it writes them."""
    for name in tables:
        if plain_table(name) != name:
            raise TraceError(
                f"{source}: cannot be cut because its table {name} should be named "
                f"{plain_table(name)}; export the trace again"
            )


def _tables(connection: sqlite3.Connection) -> tuple[dict[str, SourceTable], tuple[str, ...]]:
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
    tables: dict[str, SourceTable] = {}
    left_out: list[str] = []
    for name, sql in rows:
        kind, has_no_rowid = kinds.get(name, ("table", 0))
        if kind == "virtual":
            left_out.append(name)
        elif kind == "table":
            columns = connection.execute(f"PRAGMA source.table_xinfo({quoted(name)})")
            types = {row[1]: str(row[2]).upper() for row in columns if not row[6]}
            last = None if has_no_rowid else _last_row(connection, name)
            tables[name] = SourceTable(name, sql, types, last)
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


_NOTE_TABLE: Final = """
    source TEXT, windowStart INTEGER, windowEnd INTEGER, windowText TEXT, isClipped INTEGER,
    devices TEXT, processes TEXT, tables TEXT, traceprofVersion TEXT, recordedTables TEXT,
    usedDevices TEXT"""
_NOTE_COLUMNS: Final[Mapping[str, str]] = dict(map(str.split, _NOTE_TABLE.split(",")))


def note_cut(
    copy: DatabaseCopy,
    request: CutRequest,
    window: TimeWindow,
    recorded: Collection[str],
    devices: Collection[int],
) -> None:
    """Write down what the copy was cut from; what a cut file says of itself is kept.

    ``window`` is that of the request, in times of the file; ``recorded`` are the tables that the
    source has, and ``devices`` those that worked in it, as far as they are kept.
    """
    if not request.is_noted:
        return
    if NOTE not in copy.tables:
        columns = ", ".join(f"{name} {kind}" for name, kind in _NOTE_COLUMNS.items())
        copy.execute(f"CREATE TABLE {NOTE} ({columns})")
    else:
        cursor = copy.execute(f"SELECT * FROM source.{NOTE}")
        before = cut_note_in([column[0] for column in cursor.description], cursor.fetchall())
        recorded = {*recorded, *before.recorded}
        kept = before.devices if request.devices is None else before.devices & request.devices
        devices = {*devices, *kept}
        for name in _NOTE_COLUMNS.keys() - copy.tables[NOTE].types.keys():
            copy.execute(f"ALTER TABLE {NOTE} ADD COLUMN {name} {_NOTE_COLUMNS[name]}")
    row: Mapping[str, object] = {
        "source": request.source,
        "windowStart": window.start_ns,
        "windowEnd": window.end_ns,
        "windowText": request.label,
        "isClipped": int(request.clip),
        "devices": _listed(request.devices),
        "processes": _listed(request.processes),
        "tables": _listed(request.tables),
        "traceprofVersion": __version__,
        "recordedTables": _listed(recorded),
        "usedDevices": _listed(devices),
    }
    marks = ", ".join("?" * len(row))
    copy.execute(f"INSERT INTO {NOTE} ({', '.join(row)}) VALUES ({marks})", list(row.values()))


def filled_tables(copy: DatabaseCopy) -> list[str]:
    """Return the tables of the source that have rows."""
    return [
        name
        for name in copy.tables
        if copy.execute(f"SELECT EXISTS (SELECT 1 FROM source.{quoted(name)})").fetchone()[0]
    ]


def _listed(chosen: Collection[int] | Collection[str] | None) -> str | None:
    return None if chosen is None else json.dumps(sorted(chosen))


_REFERS: Final = re.compile(r"StringId", re.IGNORECASE)


def string_columns(table: SourceTable, known: Collection[str], *, is_known: bool) -> list[str]:
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
    """Copy those of the table ``strings``, with ids in ``key``, that what was copied refers to.

    ``references`` are table, column and kind of each; the first of several kinds counts. ``shown``
    gives the SQL that stands in place of the value, by the kind.
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


_FOREIGN_STARTS: Final = ("start", "timestamp", "start_ns", "startns", "timestamp_ns", "ts", "time")
_FOREIGN_ENDS: Final = ("end", "end_ns", "endns")
_LOOKED_AT: Final = 1000


@dataclass(frozen=True, slots=True)
class Times:
    """The columns of a table's times, in ns; ``end`` is "" where rows are instants."""

    start: str
    end: str = ""

    @property
    def names(self) -> str:
        """The columns, as one reads them."""
        return ", ".join(filter(None, (self.start, self.end)))

    def overlap(self, window: TimeWindow) -> str:
        """Return the condition on rows of which a part is in the window."""
        start = f"t.{quoted(self.start)}"
        inside = f"{start} >= {window.start_ns}"
        if self.end:
            inside = f"({inside} OR t.{quoted(self.end)} > {window.start_ns})"
        return f"({start} < {window.end_ns} AND {inside})"

    def clipped(self, window: TimeWindow, first_ns: int | None = None) -> dict[str, str]:
        """Return the SQL of the times of what crosses a border: only its part inside.

        What lies wholly outside stays as it is. ``first_ns`` is the lower border where launches
        before the window are kept, too.
        """
        if not self.end:
            return {}
        lower = window.start_ns if first_ns is None else min(first_ns, window.start_ns)
        start, end = quoted(self.start), quoted(self.end)
        return {
            self.start: f"CASE WHEN {end} > {lower} THEN max({start}, {lower}) ELSE {start} END",
            self.end: f"CASE WHEN {start} < {window.end_ns} THEN min({end}, {window.end_ns})"
            f" ELSE {end} END",
        }

    def is_on_clock(self, copy: DatabaseCopy, table: SourceTable, span: TimeWindow | None) -> bool:
        """Return whether the first rows lie where the trace does, give or take its length."""
        start = quoted(self.start)
        first, last, n_rows, n_whole = copy.execute(
            f"SELECT min({start}), max({start}), count(*), total(typeof({start}) = 'integer')"
            f" FROM (SELECT {start} FROM source.{quoted(table.name)} LIMIT {_LOOKED_AT})"
        ).fetchone()
        if not n_rows or n_whole < n_rows:
            return not n_rows
        if span is None:
            return True
        reach = span.duration_ns
        return bool(span.start_ns - reach <= first and last <= span.end_ns + reach)


def times_of(table: SourceTable, *, foreign: bool = False) -> Times | None:
    """Return the columns of a table's times, None where it has none.

    ``foreign``: of a table that nobody knows, by more names.
    """
    if not foreign and table.has("start"):
        return Times("start", "end" if table.has("end") else "")
    if not foreign:
        return Times("timestamp") if table.has("timestamp") else None
    names = {column.lower(): column for column in table.types}
    start = next((names[name] for name in _FOREIGN_STARTS if name in names), None)
    end = next((names[name] for name in _FOREIGN_ENDS if name in names), "")
    return None if start is None else Times(start, end)


def timed_tables(
    copy: DatabaseCopy,
    is_cut: Callable[[str], bool],
    is_known: Callable[[str], bool],
    span: TimeWindow | None,
) -> tuple[dict[str, Times], dict[str, str]]:
    """Return the time columns of the tables that are cut by them, and what is said of some.

    ``is_cut``: whether a table is to be cut by times, if it has any. ``is_known``: whether the
    profiler has such a table; of others the times must lie in ``span``, in times of the file.
    """
    found: dict[str, Times] = {}
    unknown: dict[str, str] = {}
    for name, table in copy.tables.items():
        times = times_of(table, foreign=not is_known(name)) if is_cut(name) else None
        if times is not None and (is_known(name) or times.is_on_clock(copy, table, span)):
            found[name] = times
            if not is_known(name):
                unknown[name] = f"cut by {times.names}"
    return found, unknown
