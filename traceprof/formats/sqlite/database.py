"""Access to SQLite files: opened read-only and immutable, read by column.

All readers get bulk data from `Database.read_columns`: numpy arrays, decoded from the pages of
plain tables where C does that, otherwise read by Python's sqlite3. Small queries use
`Database.rows`.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import reduce
from pathlib import Path
from threading import RLock
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from traceprof.errors import TraceError
from traceprof.files import special_file_kind
from traceprof.formats import compiled
from traceprof.formats.sqlite.columns import (
    NULL,
    ColumnType,
    all_null,
    columns_of_rows,
    decoded,
    expression,
)
from traceprof.formats.sqlite.conditions import Condition, all_of, any_of, between
from traceprof.formats.sqlite.pages.columns import PageTable, read_pages
from traceprof.formats.sqlite.pages.totals import bounds_of, known_bounds
from traceprof.formats.sqlite.pages.tree import FileIdentity, NotPlainError, identity_of, layout_of
from traceprof.formats.sqlite.schema import Catalogue, UnsoundRowsError, quoted
from traceprof.formats.sqlite.spare import MistypedColumnError, SpareColumnError, is_spare
from traceprof.model.cutting import WHOLE, CutNote, noted_names, noted_numbers
from traceprof.model.table import Column, Opened, spill_to_disk
from traceprof.model.timing import TimeWindow
from traceprof.processes import map_in_threads

_OTHER_ENCODINGS: Final = {2: "UTF-16LE", 3: "UTF-16BE"}
_JOURNAL_MAGIC: Final = bytes.fromhex("d9d505f920a163d7")


def _checked_identity(path: Path) -> FileIdentity:
    """Return the identity of a complete SQLite database without pending changes.

    Raises:
        TraceError: the file is not SQLite, is truncated, or has pending changes.
    """
    try:
        identity = identity_of(path)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from error
    if not identity.is_sqlite:
        raise TraceError(f"{path}: not a SQLite database")
    expected = identity.page_bytes * identity.n_pages
    if identity.n_bytes < expected:
        raise TraceError(
            f"{path}: truncated ({identity.n_bytes} of {expected} bytes); copy or export it again"
        )
    # SQLite keeps WAL and journal next to the file itself, not next to a link to it. A finished
    # journal is deleted, empty, or begins with zeros.
    resolved, heads = path.resolve(), {"-wal": b"", "-journal": b""}
    for suffix in heads:
        companion = resolved.with_name(resolved.name + suffix)
        if kind := special_file_kind(companion):
            raise TraceError(f"{companion}: {kind}, but SQLite needs this file name; remove it")
        with suppress(OSError), companion.open("rb") as file:
            heads[suffix] = file.read(len(_JOURNAL_MAGIC))
    if heads["-wal"]:
        raise TraceError(
            f"{path}: has unmerged changes in {resolved.name}-wal; close the program that writes "
            "the file first"
        )
    if heads["-journal"] == _JOURNAL_MAGIC:
        raise TraceError(
            f"{path}: a change was interrupted ({resolved.name}-journal exists); open the file "
            "once with sqlite3, which undoes the change, or export the trace again"
        )
    return identity


_N_SCANS: Final = 2
_MANY_LEAVES: Final = 64
"""With at most this many leaf pages, traceprof reads all of them to find the rows of a window."""


T = TypeVar("T")


def reading(path: Path, read: Callable[[Database], T], *, any_encoding: bool = False) -> T:
    """Return the result of ``read`` for a file, without impossible rows.

    Impossible rows are found in columns that ``read`` reads anyway. ``read`` is then called again.
    ``any_encoding``: accept texts that are not UTF-8.

    Raises:
        TraceError: the file cannot be read.
    """
    with Database(path) as database:
        encoding = _OTHER_ENCODINGS.get(database.identity.encoding)
        if encoding is not None and not any_encoding:
            raise TraceError(
                f"{path}: text encoding {encoding}, expected UTF-8; convert the SQLite database "
                "(sqlite3 OLD .dump | sqlite3 NEW)"
            )
        while True:
            try:
                return read(database)
            except UnsoundRowsError as found:
                database.leave_out(found.table)
            except SpareColumnError as found:
                database.spare(found.table, found.column)
            except (ArithmeticError, LookupError, TypeError, ValueError) as error:
                # SQLite returns arbitrary values if the file is truncated or overwritten meanwhile.
                if _checked_identity(path) != database.identity:
                    raise TraceError(f"{path}: changed during reading; try again") from error
                raise


class Database(AbstractContextManager["Database"]):
    """A SQLite file that is only read, never written.

    The file is opened as immutable, so that SQLite does not create a lock file. A file with a
    pending write-ahead log is rejected, because its latest rows would be missing.
    ``only_names``: the caller needs only the names of the tables.

    Raises:
        TraceError: the file does not exist, is not SQLite, is truncated, or is damaged.
    """

    def __init__(self, path: Path, *, only_names: bool = False) -> None:
        self.identity = _checked_identity(path)
        self.n_bytes = self.identity.n_bytes
        self.path = path
        self._uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
        try:
            connection = sqlite3.connect(self._uri, uri=True, check_same_thread=False)
        except sqlite3.Error as error:
            raise TraceError(f"{path}: cannot be opened ({error})") from error
        connection.text_factory = decoded
        self._connection, self._lock = connection, RLock()
        try:
            self.rows("PRAGMA trusted_schema = OFF")
            self.catalogue = Catalogue(path, self.rows)
            if not only_names:
                self.catalogue.show_profiler_names()
        except TraceError as error:
            connection.close()
            if (cause := error.__cause__) is None:
                raise
            raise TraceError(f"{path}: damaged SQLite database ({cause})") from cause
        self.tables = self.catalogue.tables
        self.columns = self.catalogue.columns
        self.stored_name = self.catalogue.source
        """Returns the SQL to put after FROM for a table, independent of its name in the file."""
        self._pages: dict[str, PageTable | None] = {}
        self.found: dict[tuple[Any, ...], Any] = {}
        """Results of scans of tables, cached while the file is open."""

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def has_rows(self, table: str) -> bool:
        """Return whether ``table`` exists and is not empty."""
        return table in self.tables and bool(self.rows(f"SELECT 1 FROM {quoted(table)} LIMIT 1"))

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a small query."""
        try:
            with self._lock:  # one statement at a time, from any thread
                return self._connection.execute(sql, parameters).fetchall()
        except sqlite3.Error as error:
            raise TraceError(f"{self.path}: cannot be read ({error})") from error

    def some_rows(self, sql: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query one by one, so that the caller can stop the scan early.

        The query must use `stored_name` for its tables.
        """
        try:
            with closing(sqlite3.connect(self._uri, uri=True)) as connection:
                connection.text_factory = decoded
                yield from connection.execute(sql)
        except sqlite3.Error as error:
            raise TraceError(f"{self.path}: cannot be read ({error})") from error

    def rows_of_each(self, queries: Iterable[str]) -> list[list[tuple[Any, ...]]]:
        """Return the rows of each query. The queries may scan big tables and run in parallel.

        The queries must use `stored_name` for their tables.
        """
        return map_in_threads(lambda sql: list(self.some_rows(sql)), queries, _N_SCANS)

    def settings(self, table: str) -> dict[str, str]:
        """Return a (name, value) table as a dictionary; empty if the table does not exist."""
        if not {"name", "value"} <= self.columns(table):
            return {}
        return {
            str(name): "" if value is None else str(value)
            for name, value in self.rows(f"SELECT name, value FROM {quoted(table)}")
        }

    def read_columns(
        self,
        table: str,
        columns: Mapping[str, ColumnType],
        window: TimeWindow | None = None,
        optional: Sequence[str] = (),
        where: Condition | str | None = None,
        *,
        spare: Collection[str] = (),
    ) -> Mapping[str, Column]:
        """Return ``columns`` of ``table``, one array each, in the order of the rows.

        Args:
            table: a table that exists.
            columns: name → how to read it.
            window: return only rows that overlap it. The table needs ``start``. Rows without an
                ``end`` are instants.
            optional: columns that may be missing. Missing columns are returned as all NULL.
            where: return only rows that satisfy it. A condition given as SQL is slower.
            spare: optional columns. `reading` ignores those that do not contain whole numbers.

        Raises:
            TraceError: a column that is not optional is missing, or the data is damaged.
        """
        missing = set(columns) - self.columns(table)
        if needed := missing - set(optional):
            raise TraceError(
                f"{self.path}: table {table} has no column {', '.join(sorted(needed))}"
            )
        present = {name: kind for name, kind in columns.items() if name not in missing}
        found = None
        if present and not isinstance(where, str):
            found = self._from_pages(table, present, self._wanted(table, window, where))
        if found is None:
            try:
                found = self._from_sqlite(table, present, window, where)
            except MistypedColumnError as error:
                if is_spare(table) or error.column in spare:
                    raise SpareColumnError(table, error.column) from error
                raise
        sound = self.catalogue.soundness(table)
        if sound is not None and sound.is_broken(found):
            raise UnsoundRowsError(table)  # `reading` then reads again without these rows
        length = len(next(iter(found.values())))
        if not missing:
            return found
        kept = found.columns if isinstance(found, Opened) else found
        return Opened(
            {
                name: spill_to_disk(all_null(kind, length)) if name in missing else kept[name]
                for name, kind in columns.items()
            }
        )

    def leave_out(self, table: str) -> None:
        """Exclude the impossible rows of ``table`` from everything that is read after this call."""
        try:
            self.catalogue.leave_out(table)
        except MistypedColumnError as error:
            if not is_spare(table):
                raise
            self.spare(table, error.column)
        self.found.clear()

    def spare(self, table: str, column: str) -> None:
        """Ignore a column, or its table, in everything that is read after this call."""
        self.catalogue.spare(table, column)
        self.tables = self.catalogue.tables
        self.found.clear()

    def _from_pages(
        self, table: str, columns: Mapping[str, ColumnType], where: Condition | None
    ) -> Mapping[str, Column] | None:
        """Return columns decoded from pages; None if only SQLite can read them."""
        pages = self.pages_of(table)
        if pages is None:
            return None
        try:
            leaves = pages.leaves()
            if where is not None:
                may_hold = where.within(
                    bounds_of(pages, leaves, where.bounded)
                    if len(leaves.pages) > _MANY_LEAVES
                    else known_bounds(pages)
                )
                leaves = leaves if may_hold is None else leaves.only(may_hold)
            return read_pages(pages, self.rows, columns, leaves, where)
        except NotPlainError:
            return None

    def pages_of(self, table: str) -> PageTable | None:
        """Return ``table`` as pages that can be decoded; None if only SQLite can read them."""
        name = self.catalogue.stored(table)
        if name is None or compiled.loaded() is None:
            return None
        if name not in self._pages:
            self._pages[name] = None
            with suppress(NotPlainError, TraceError):
                self._pages[name] = PageTable(
                    self.path,
                    self.identity,
                    layout_of(self.rows, name, *self.catalogue.described(name)),
                )
        return self._pages[name]

    def _wanted(
        self, table: str, window: TimeWindow | None, where: Condition | None
    ) -> Condition | None:
        """Return the condition that combines ``window`` and ``where``."""
        if window is None:
            return where
        conditions: list[Condition] = [between("start", None, window.end_ns - 1)]
        after = between("start", window.start_ns)
        if "end" in self.columns(table):
            conditions.append(any_of(after, between("end", window.start_ns + 1)))
        else:
            conditions.append(after)
        return all_of(*conditions, *([where] if where else []))

    def _from_sqlite(
        self,
        table: str,
        columns: Mapping[str, ColumnType],
        window: TimeWindow | None,
        where: Condition | str | None,
    ) -> dict[str, Column]:
        """Return columns that SQLite reads."""
        kinds = columns or {"": ColumnType.INTEGER}
        values = ", ".join(expression(quoted(name) if name else "1", kinds[name]) for name in kinds)
        overlap = self._wanted(table, window, None)
        filters = [overlap.sql] if overlap else []
        if where is not None:
            filters.append(where if isinstance(where, str) else where.sql)
        conditions = " AND ".join(f"({condition})" for condition in filters)
        rows = f"{self.stored_name(table)}{' WHERE ' if conditions else ''}{conditions}"
        found = self.some_rows(f"SELECT {values} FROM {rows}")
        return columns_of_rows(found, kinds, self.path, table)

    def read_strings(self, ids: npt.NDArray[np.int64], table: str = "StringIds") -> dict[int, str]:
        """Return the strings with these IDs; IDs that are missing from the table are omitted."""
        sorted_ids = sorted(set(ids.tolist()) - {NULL})
        found: dict[int, str] = {}
        for chunk in np.array_split(sorted_ids, max(1, len(sorted_ids) // 500)):
            marks = ",".join("?" * len(chunk))
            sql = f"SELECT id, CAST(value AS BLOB) FROM {quoted(table)} WHERE id IN ({marks})"
            for key, value in self.rows(sql, [int(item) for item in chunk]):
                found[key] = decoded(value or b"")
        return found


@contextmanager
def reporting_undecodable_names(path: Path) -> Iterator[None]:
    """Report the file ``path`` as damaged if a name in it is not UTF-8.

    If such a name is part of an SQLite error message, Python fails to create the exception.

    Raises:
        TraceError: a name in the file is not UTF-8.
    """
    try:
        yield
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: damaged (a name in the file is not UTF-8)") from error


NOTE: Final = "TRACEPROF_CUT"
"""The table that records what a file was cut from: one row per cut, in times of the file."""


def cut_note(database: Database) -> CutNote:
    """Return what a file records about how it was cut, windows in times of the file."""
    names = sorted(database.columns(NOTE))
    if not {"windowStart", "windowEnd"} <= set(names):
        return WHOLE
    columns = ", ".join(map(quoted, names))
    return cut_note_in(names, database.rows(f"SELECT {columns} FROM {NOTE} ORDER BY rowid"))


def cut_note_in(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> CutNote:
    """Return the combined note of all cuts: the last window, and the tables that every cut kept."""
    notes = [dict(zip(names, row, strict=True)) for row in rows]
    edges = [note[name] for note in notes for name in ("windowStart", "windowEnd")]
    if not notes or not all(isinstance(edge, int) for edge in edges) or edges[-2] > edges[-1]:
        return WHOLE
    last = notes[-1]
    kept = [noted_names(_list(note["tables"])) for note in notes if note.get("tables") is not None]
    return CutNote(
        TimeWindow(*edges[-2:]),
        noted_names(_list(last.get("recordedTables"))),
        noted_numbers(_list(last.get("usedDevices"))),
        reduce(frozenset.__and__, kept) if kept else None,
        any(note.get("devices") is not None for note in notes),
    )


def _list(text: object) -> Any:
    try:
        return json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
