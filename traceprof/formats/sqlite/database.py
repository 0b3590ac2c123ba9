"""The one seam to SQLite files: opened read-only and immutable, read column by column.

`Database.read_columns` is how every reader gets bulk data: numpy arrays, decoded from the pages of
plain tables or else streamed through Arrow, never one Python object per value. Small look-ups go
through `Database.rows`.
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
from traceprof.files import kind_of_no_file
from traceprof.formats import compiled
from traceprof.formats.sqlite.columns import NULL, ColumnType, all_null, decoded, expression
from traceprof.formats.sqlite.conditions import Condition, all_of, any_of, between
from traceprof.formats.sqlite.pages.columns import PageTable, read_pages
from traceprof.formats.sqlite.pages.totals import bounds_of, known_bounds
from traceprof.formats.sqlite.pages.tree import FileIdentity, NotPlainError, identity_of, layout_of
from traceprof.formats.sqlite.schema import Catalogue, UnsoundRowsError, quoted
from traceprof.formats.sqlite.spare import MistypedColumnError, SpareColumnError, is_spare
from traceprof.model.cutting import WHOLE, CutNote, noted_names, noted_numbers
from traceprof.model.table import Column, Opened, set_aside
from traceprof.model.timing import TimeWindow
from traceprof.processes import made_side_by_side

_OTHER_ENCODINGS: Final = {2: "UTF-16LE", 3: "UTF-16BE"}
_JOURNAL_MAGIC: Final = bytes.fromhex("d9d505f920a163d7")


def _checked_identity(path: Path) -> FileIdentity:
    """Return what identifies a file that is a whole SQLite database with nothing pending beside it.

    Raises:
        TraceError: it is not.
    """
    try:
        found = identity_of(path)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from error
    if not found.is_sqlite:
        raise TraceError(f"{path}: not a SQLite database")
    expected = found.page_bytes * found.n_pages
    if found.n_bytes < expected:
        raise TraceError(
            f"{path}: truncated ({found.n_bytes} of {expected} bytes); copy or export it again"
        )
    # SQLite keeps log and journal beside the file itself, not beside a link to it. A journal that
    # was ended is gone, empty, or begins with zeros.
    real, heads = path.resolve(), {"-wal": b"", "-journal": b""}
    for suffix in heads:
        beside = real.with_name(real.name + suffix)
        if kind := kind_of_no_file(beside):
            raise TraceError(f"{beside}: {kind}, but SQLite needs this file name; remove it")
        with suppress(OSError), beside.open("rb") as file:
            heads[suffix] = file.read(len(_JOURNAL_MAGIC))
    if heads["-wal"]:
        raise TraceError(
            f"{path}: has unmerged changes in {real.name}-wal; close the program that writes "
            "the file first"
        )
    if heads["-journal"] == _JOURNAL_MAGIC:
        raise TraceError(
            f"{path}: a change was interrupted ({real.name}-journal exists); open the file once "
            "with sqlite3, which undoes the change, or export the trace again"
        )
    return found


_PARALLEL_ROWS: Final = 100_000
_N_SCANS: Final = 2
_MANY_LEAVES: Final = 64
"""Of fewer, all are read as soon as those of a window are found."""


T = TypeVar("T")


def reading(path: Path, read: Callable[[Database], T], *, any_encoding: bool = False) -> T:
    """Return what ``read`` makes of a file, without the rows of its tables that cannot be.

    These are found while the file is read, in columns that are read anyway; it is then begun anew.
    ``any_encoding``: its texts need not be in UTF-8.

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
                # What SQLite gives of a file that is cut off or written over meanwhile is anything.
                if _checked_identity(path) != database.identity:
                    raise TraceError(f"{path}: changed during reading; try again") from error
                raise


class Database(AbstractContextManager["Database"]):
    """A SQLite file that is only ever read.

    It is opened immutable, so that not even a lock file appears beside it; a file with a
    pending write-ahead log is refused, because its latest rows would be missed.
    ``only_names``: nothing but the names of its tables is asked for.

    Raises:
        TraceError: no such file, not SQLite, cut off, or damaged.
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
                self.catalogue.show_as_asked()
        except TraceError as error:
            connection.close()
            if (cause := error.__cause__) is None:
                raise
            raise TraceError(f"{path}: damaged SQLite database ({cause})") from cause
        self.tables = self.catalogue.tables
        self.columns = self.catalogue.columns
        self.stored_name = self.catalogue.source
        """What stands behind FROM for a table in SQL, whatever the file calls it."""
        self._pages: dict[str, PageTable | None] = {}
        self.found: dict[tuple[Any, ...], Any] = {}
        """What was found out about tables, kept while the file is open."""

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def has_rows(self, table: str) -> bool:
        """Return whether ``table`` exists and is not empty."""
        return table in self.tables and bool(self.rows(f"SELECT 1 FROM {quoted(table)} LIMIT 1"))

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a small query."""
        try:
            with self._lock:  # threads make statements in turn
                return self._connection.execute(sql, parameters).fetchall()
        except sqlite3.Error as error:
            raise TraceError(f"{self.path}: cannot be read ({error})") from error

    def some_rows(self, sql: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query one by one: who has enough of them scans no further.

        A table is called by `stored_name` there.
        """
        try:
            with closing(sqlite3.connect(self._uri, uri=True)) as connection:
                connection.text_factory = decoded
                yield from connection.execute(sql)
        except sqlite3.Error as error:
            raise TraceError(f"{self.path}: cannot be read ({error})") from error

    def rows_of_each(self, queries: Iterable[str]) -> list[list[tuple[Any, ...]]]:
        """Return the rows of each query, which may scan big tables: they run side by side.

        A table is called by `stored_name` there.
        """
        return made_side_by_side(lambda sql: list(self.some_rows(sql)), queries, _N_SCANS)

    def settings(self, table: str) -> dict[str, str]:
        """Return a (name, value) table as a dictionary; empty where there is none."""
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
            window: only rows that overlap it (the table needs ``start``; ``end`` is used where
                there is one; a row without an end is an instant).
            optional: columns that may be missing; they come back as all NULL.
            where: only rows for which this holds; as SQL it is slower.
            spare: optional columns; one that is not of whole numbers is left out (`reading`).

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
            raise UnsoundRowsError(table)  # see `reading`
        length = len(next(iter(found.values())))
        if not missing:
            return found
        kept = found.columns if isinstance(found, Opened) else found
        return Opened(
            {
                name: set_aside(all_null(kind, length)) if name in missing else kept[name]
                for name, kind in columns.items()
            }
        )

    def leave_out(self, table: str) -> None:
        """Leave the rows that cannot be out of ``table``, whatever is read of it from now on."""
        try:
            self.catalogue.leave_out(table)
        except MistypedColumnError as error:
            if not is_spare(table):
                raise
            self.spare(table, error.column)
        self.found.clear()

    def spare(self, table: str, column: str) -> None:
        """Leave out a column, or its table, in everything that is read after this."""
        self.catalogue.spare(table, column)
        self.tables = self.catalogue.tables
        self.found.clear()

    def _from_pages(
        self, table: str, columns: Mapping[str, ColumnType], where: Condition | None
    ) -> Mapping[str, Column] | None:
        """Return columns decoded from pages; None where SQLite has to read them."""
        pages = self.pages_of(table)
        if pages is None:
            return None
        try:
            leaves = pages.leaves()
            if where is not None:
                is_worth_it = len(leaves.pages) > _MANY_LEAVES
                may_hold = where.within(
                    bounds_of(pages, leaves, where.bounded) if is_worth_it else known_bounds(pages)
                )
                leaves = leaves if may_hold is None else leaves.only(may_hold)
            return read_pages(pages, self.rows, columns, leaves, where)
        except NotPlainError:
            return None

    def pages_of(self, table: str) -> PageTable | None:
        """Return ``table`` as pages that can be decoded; None where only SQLite can read it."""
        name = self.catalogue.stored(table)
        if name is None or compiled.loaded() is None:
            return None
        if name not in self._pages:
            self._pages[name] = None
            with suppress(NotPlainError, TraceError):
                layout = layout_of(self.rows, name, *self.catalogue.described(name))
                self._pages[name] = PageTable(self.path, self.identity, layout)
        return self._pages[name]

    def _wanted(
        self, table: str, window: TimeWindow | None, where: Condition | None
    ) -> Condition | None:
        """Return which rows are wanted."""
        if window is None:
            return where
        inside: list[Condition] = [between("start", None, window.end_ns - 1)]
        after = between("start", window.start_ns)
        if "end" in self.columns(table):
            inside.append(any_of(after, between("end", window.start_ns + 1)))
        else:
            inside.append(after)
        return all_of(*inside, *([where] if where else []))

    def _from_sqlite(
        self,
        table: str,
        columns: Mapping[str, ColumnType],
        window: TimeWindow | None,
        where: Condition | str | None,
    ) -> dict[str, Column]:
        """Return columns that SQLite reads."""
        # Not needed for most files, and slow to import.
        from traceprof.formats.sqlite.arrow import stream_columns

        kinds = columns or {"": ColumnType.INTEGER}
        told = ", ".join(expression(quoted(name) if name else "1", kinds[name]) for name in kinds)
        inside = self._wanted(table, window, None)
        held = [inside.sql] if inside else []
        if where is not None:
            held.append(where if isinstance(where, str) else where.sql)
        queries = []
        for part in self._row_ranges(table):
            conditions = " AND ".join(f"({one})" for one in (part, *held) if one)
            rows = f"{self.stored_name(table)}{' WHERE ' if conditions else ''}{conditions}"
            queries.append(f"SELECT {told} FROM {rows}")
        return stream_columns(self.path, self._uri, queries, kinds, table)

    def read_strings(self, ids: npt.NDArray[np.int64], table: str = "StringIds") -> dict[int, str]:
        """Return the strings with these ids; an id that is missing from the table is left out."""
        wanted = sorted(set(ids.tolist()) - {NULL})
        found: dict[int, str] = {}
        for chunk in np.array_split(wanted, max(1, len(wanted) // 500)):
            marks = ",".join("?" * len(chunk))
            sql = f"SELECT id, CAST(value AS BLOB) FROM {quoted(table)} WHERE id IN ({marks})"
            for key, value in self.rows(sql, [int(item) for item in chunk]):
                found[key] = decoded(value or b"")
        return found

    def _row_ranges(self, table: str) -> list[str]:
        """Return conditions that split a big table in two; SQLite reads with one core each."""
        row_id = self.catalogue.row_id(table)
        if row_id is None:
            return [""]
        ((last,),) = self.rows(f"SELECT max({row_id}) FROM {self.stored_name(table)}")
        if last is None or last < _PARALLEL_ROWS:
            return [""]
        return [f"{row_id} <= {last // 2}", f"{row_id} > {last // 2}"]


@contextmanager
def reporting_undecodable_names(path: Path) -> Iterator[None]:
    """Say that the file ``path`` is damaged where a name in it is no UTF-8.

    Where such a name is in a message of SQLite, Python cannot even make the error of it.

    Raises:
        TraceError: it is.
    """
    try:
        yield
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: damaged (a name in the file is not UTF-8)") from error


NOTE: Final = "TRACEPROF_CUT"
"""The table that says what a file was cut from: a row for each cut, times as the file has them."""


def cut_note(database: Database) -> CutNote:
    """Return what a file says of how it was cut, windows in its own times."""
    names = sorted(database.columns(NOTE))
    if not {"windowStart", "windowEnd"} <= set(names):
        return WHOLE
    told = ", ".join(map(quoted, names))
    return cut_note_in(names, database.rows(f"SELECT {told} FROM {NOTE} ORDER BY rowid"))


def cut_note_in(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> CutNote:
    """Return what the notes of all cuts say together: the last window, what all of them kept."""
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
