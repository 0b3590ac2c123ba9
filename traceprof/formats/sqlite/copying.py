"""Copy a part of a SQLite file to a new SQLite file; SQLite copies the rows, not Python.

Tables and columns are copied unchanged, whatever their names. Rows and texts that must not be in
the copy are never written to it, so that no free page can contain them. Pages are written in the
order of the rows. The copy records which window it was cut from, because the window may be longer
than the time from its first to its last event.
"""

from __future__ import annotations

import errno
import json
import os
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
_MAX_ROW_ID: Final = 1 << 32


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table of the source: its name, its CREATE statement, and the declared types of its columns.

    ``last_row`` is its largest row ID, or None if the rows cannot be copied in ranges of row IDs.
    """

    name: str
    sql: str
    types: Mapping[str, str]
    last_row: int | None

    def has(self, *columns: str) -> bool:
        """Return whether the table has all these columns."""
        return all(column in self.types for column in columns)


@dataclass(slots=True)
class DatabaseCopy:
    """A new database, its source (attached as ``source`` in SQL), and the source's tables.

    ``left_out`` names the tables of the source that cannot be copied: virtual tables, which need a
    module of SQLite. ``n_copied`` counts the copied rows by table.
    """

    connection: sqlite3.Connection
    progress: CutProgress
    tables: Mapping[str, SourceTable]
    views: Sequence[str]
    left_out: tuple[str, ...]
    n_copied: dict[str, int] = field(default_factory=dict)
    _n_done: int = 0

    def check_names(self, tables: Collection[str] | None) -> None:
        """Check that each name is a table of the file or of a Trace.

        Raises:
            UsageError: a name is neither.
        """
        unknown = sorted(set(tables or ()) - TABLES.keys() - self.tables.keys())
        if unknown:
            raise UsageError(
                f"unknown table {unknown[0]!r}; choose {', '.join(TABLES)}, or a table in the file"
            )

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> sqlite3.Cursor:
        """Run one SQL statement."""
        return self.connection.execute(sql, parameters)

    def copy(self, name: str, condition: str = "1", shown: Mapping[str, str] | None = None) -> int:
        """Copy the rows of a table that satisfy ``condition``; return their number.

        ``shown`` maps a column to the SQL expression that replaces it in the copy.
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
                n_rows = sum(source_table.last_row or 0 for source_table in self.tables.values())
                self.progress(self._n_done, n_rows, "rows")
        self.n_copied[name] = total
        return total

    def make_views(self) -> None:
        """Create the views of the source in the copy."""
        for sql in self.views:
            self.execute(sql)


@contextmanager
def copying(source: Path, target: Path, progress: CutProgress) -> Iterator[DatabaseCopy]:
    """Open the empty file ``target`` as a copy of ``source`` without any tables yet.

    Raises:
        TraceError: ``source`` cannot be read.
        OSError: the disk of ``target`` is full.
    """
    address = f"{source.resolve().as_uri()}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(address, uri=True)) as original:
            ((encoding,),) = original.execute("PRAGMA encoding")
        new = target.resolve().as_uri()
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
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target)) from error
        raise TraceError(f"{source}: cannot be cut ({error})") from error


def _check_names(source: Path, tables: Iterable[str]) -> None:
    """Check that the tables of a profiler have the names that the profiler gives them."""
    for name in tables:
        if plain_table(name) != name:
            raise TraceError(
                f"{source}: cannot be cut because its table {name} should be named "
                f"{plain_table(name)}; export the trace again"
            )


def _tables(connection: sqlite3.Connection) -> tuple[dict[str, SourceTable], tuple[str, ...]]:
    """Return the tables of the source, and the names of those that cannot be copied."""
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
    """Return the largest row ID; None if the table's row IDs are not suitable for ranges."""
    # SQLite finds each edge at once if it is queried alone, but scans the table for both.
    edges = (f"SELECT {edge}(_rowid_) FROM source.{quoted(name)}" for edge in ("min", "max"))
    try:
        (first,), (last,) = (connection.execute(sql).fetchone() for sql in edges)
    except sqlite3.Error:
        return None
    if last is None:
        return 0
    # A column named _rowid_ hides the row IDs, and IDs that are hashes cannot be split in ranges.
    is_sound = type(first) is int and type(last) is int and first > 0 and last < _MAX_ROW_ID
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
    """Record in the copy what it was cut from; keep the records of earlier cuts.

    ``window`` is the window of the request, in times of the file. ``recorded`` are the tables that
    the source has. ``devices`` are the GPUs with activity in the source, as far as they are kept.
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


_STRING_ID: Final = re.compile(r"StringId", re.IGNORECASE)


def string_columns(table: SourceTable, known: Collection[str], *, is_known: bool) -> list[str]:
    """Return the columns of ``table`` that contain IDs of strings.

    These are columns whose names are in ``known``, and columns whose declaration mentions a string
    ID. In an unknown table (not ``is_known``) every column of whole numbers may contain string IDs.
    """
    declared = {
        words[0].strip('"[]`')
        for line in table.sql.splitlines()
        if _STRING_ID.search(line) and (words := line.replace("(", " ").split())
    }
    return [
        column
        for column, kind in table.types.items()
        if column in known or column in declared or (not is_known and not kind.startswith("TEXT"))
    ]


def copy_strings(
    copy: DatabaseCopy,
    strings: str,
    key: str,
    references: Iterable[tuple[str, str, int]],
    shown: Callable[[int], str],
) -> None:
    """Copy the rows of the table ``strings`` that the copied rows refer to.

    ``key`` is its ID column. ``references`` are tuples of table, column and kind. If a string
    is referenced with several kinds, the smallest kind counts. ``shown`` returns the SQL
    expression that replaces the string's value, for each kind.
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
_SAMPLE_ROWS: Final = 1000


@dataclass(frozen=True, slots=True)
class Times:
    """The time columns of a table, in ns; ``end`` is "" if its rows are instants."""

    start: str
    end: str = ""

    @property
    def names(self) -> str:
        """The column names, separated by commas."""
        return ", ".join(filter(None, (self.start, self.end)))

    def overlap(self, window: TimeWindow) -> str:
        """Return the SQL condition that a row overlaps the window."""
        start = f"t.{quoted(self.start)}"
        is_after_start = f"{start} >= {window.start_ns}"
        if self.end:
            is_after_start = f"({is_after_start} OR t.{quoted(self.end)} > {window.start_ns})"
        return f"({start} < {window.end_ns} AND {is_after_start})"

    def clipped(self, window: TimeWindow, first_ns: int | None = None) -> dict[str, str]:
        """Return SQL for the times of rows, clipped to the window.

        Rows entirely outside the window keep their times. ``first_ns`` is the lower limit if
        launches before the window are kept, too.
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
        """Return whether the first rows are within one trace length of the trace's time span."""
        start = quoted(self.start)
        first, last, n_rows, n_whole = copy.execute(
            f"SELECT min({start}), max({start}), count(*), total(typeof({start}) = 'integer')"
            f" FROM (SELECT {start} FROM source.{quoted(table.name)} LIMIT {_SAMPLE_ROWS})"
        ).fetchone()
        if not n_rows or n_whole < n_rows:
            return not n_rows
        if span is None:
            return True
        reach = span.duration_ns
        return bool(span.start_ns - reach <= first and last <= span.end_ns + reach)


def times_of(table: SourceTable, *, foreign: bool = False) -> Times | None:
    """Return the time columns of a table; None if it has none.

    ``foreign``: the table is not a profiler's, so search for more column names.
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
    """Return the time columns of the tables that are cut by time, and remarks about unknown tables.

    ``is_cut`` decides whether a table is to be cut by time if it has any. ``is_known`` decides
    whether a profiler writes this table. Times of unknown tables must be in ``span``, in times of
    the file.
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
