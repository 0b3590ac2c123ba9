"""Run one SELECT on views of trace tables in SQLite, which may do nothing else.

The statement is first prepared on empty views. That shows which columns it reads, and only these
are loaded. Actions that SQLite asks permission for (reading, functions, files, settings) are denied
unless they are listed here. A single function call may exceed every limit here, and SQLite checks
no limit during it. So queries run in a process that can be killed (`answer_parts`, called by
`session/querying`). This module imports nothing large, so that the process starts fast.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final

from traceprof.errors import UsageError


@dataclass(frozen=True, slots=True)
class ViewColumn:
    """A column: its name, its SQL type, and its meaning ("" if the name is sufficient)."""

    name: str
    type: str
    meaning: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """A view: its name, a summary of its rows, and its columns in order."""

    name: str
    summary: str
    columns: tuple[ViewColumn, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(column.name for column in self.columns)


_FUNCTIONS: Final = """
    abs avg coalesce count cume_dist dense_rank first_value format glob group_concat hex ifnull iif
    instr lag last_value lead length like lower ltrim max min nth_value ntile nullif percent_rank
    printf quote rank replace round row_number rtrim sign string_agg substr substring sum total trim
    typeof unicode upper acos asin atan atan2 ceil ceiling cos cosh degrees exp floor ln log log10
    log2 mod pi pow power radians sin sinh sqrt tan tanh trunc
"""
FUNCTIONS: Final = frozenset(_FUNCTIONS.split())
"""The functions that a query may call, if the SQLite version has them."""

_READING: Final = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
)
_STEPS_BETWEEN_LOOKS: Final = 10_000
_LIMITS: Final = {
    sqlite3.SQLITE_LIMIT_LENGTH: 1_000_000,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 100_000,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 200,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 100,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 1_000,
}
_BYTES_OF_CELL: Final = 56  # a small Python number and its reference in the row


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a query: result rows, time, SQLite memory, and result memory.

    SQLite applies the lowest ``sqlite_bytes`` to the whole process.
    """

    n_rows: int = 1_000_000
    seconds: float = 60.0
    sqlite_bytes: int = 4 << 30
    answer_bytes: int = 1 << 30


@dataclass(frozen=True, slots=True)
class QueryRows:
    """The result: distinct column names and rows. Unknown values are None."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    is_cut: bool = False


@dataclass
class Query(AbstractContextManager["Query"]):
    """A statement on ``views``: `add` the rows that it `reads`, then `run` it once.

    Raises:
        UsageError: the statement is not a single SELECT, is invalid, or requests something that is
            not allowed.
    """

    sql: str
    views: Sequence[View]
    limits: Limits = field(default_factory=Limits)
    reads: dict[str, frozenset[str]] = field(init=False, default_factory=dict)
    """The views that the statement reads, and their columns."""

    def __post_init__(self) -> None:
        self._names = {view.name: view for view in self.views}
        self._refused = ""
        self._is_select = False
        self._deadline_s = 0.0
        self._stopped: BaseException | None = None
        self._connection = sqlite3.connect(":memory:", isolation_level=None)
        self._connection.text_factory = lambda data: data.decode("utf-8", "replace")
        # Write nothing to files, not even for sorting.
        self._connection.execute("PRAGMA temp_store=MEMORY")
        self._connection.execute(f"PRAGMA hard_heap_limit={self.limits.sqlite_bytes}")
        for view in self.views:
            columns = ", ".join(f'"{column.name}" {column.type}' for column in view.columns)
            self._connection.execute(f'CREATE TABLE "{view.name}" ({columns})')
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop the loaded data."""
        self._connection.close()

    def _prepare(self) -> None:
        for limit, value in _LIMITS.items():
            self._connection.setlimit(limit, value)
        self._execute(f"EXPLAIN {self.sql}")
        self._connection.set_authorizer(None)  # allows loading rows
        if not self._is_select:
            raise UsageError("the query is not a SELECT statement; only SELECT is allowed")

    def _execute(self, sql: str) -> sqlite3.Cursor:
        """Run ``sql`` with permission to read only."""
        self._connection.set_authorizer(self._authorize)
        try:
            return self._connection.execute(sql)
        except Exception as error:
            raise self._error_for(error) from error

    def _authorize(
        self, action: int, first: str | None, second: str | None, *_where: str | None
    ) -> int:
        """Return whether SQLite may perform an action; called for each action of a statement."""
        if action == sqlite3.SQLITE_SELECT:
            self._is_select = True
        elif action == sqlite3.SQLITE_FUNCTION:
            if (second or "").lower() not in FUNCTIONS:
                return self._refuse(f"the function {second}")
        elif action == sqlite3.SQLITE_READ:
            return self._authorize_read(first or "", second or "")
        elif action not in _READING:
            return self._refuse(_ACTIONS.get(action, "this statement"))
        return sqlite3.SQLITE_OK

    def _authorize_read(self, table: str, column: str) -> int:
        if table in self._names:
            known = self.reads.get(table, frozenset())
            self.reads[table] = known | {column} if column else known
            return sqlite3.SQLITE_OK
        # SQLite asks this for a WITH table of the query if no column is read: count(*).
        if not column and not table.lower().startswith(("sqlite_", "pragma_")):
            return sqlite3.SQLITE_OK
        return self._refuse(f"the table {table}")

    def _refuse(self, what: str) -> int:
        self._refused = self._refused or what
        return sqlite3.SQLITE_DENY

    def add(self, view: str, columns: Mapping[str, Sequence[Any]], n_rows: int) -> None:
        """Append rows to a view; missing columns are NULL.

        Raises:
            UsageError: the rows exceed the memory limit.
        """
        if not n_rows:
            return
        given = columns or {self._names[view].names[0]: [None] * n_rows}
        names = ", ".join(f'"{name}"' for name in given)
        marks = ", ".join("?" * len(given))
        try:
            self._connection.executemany(
                f'INSERT INTO "{view}" ({names}) VALUES ({marks})',
                zip(*given.values(), strict=True),
            )
        except (MemoryError, sqlite3.Error) as error:
            raise self._error_for(error) from error

    def run(self) -> QueryRows:
        """Return the result.

        Raises:
            UsageError: SQLite reports an error, or the query exceeds its time or memory.
        """
        self._connection.execute("PRAGMA query_only=ON")
        self._deadline_s = monotonic() + self.limits.seconds
        self._connection.set_progress_handler(self._check_time, _STEPS_BETWEEN_LOOKS)
        cursor = self._execute(self.sql)
        try:
            return self._fetched(cursor)
        except (MemoryError, sqlite3.Error) as error:
            raise self._error_for(error) from error

    def _check_time(self) -> int:
        """Return whether to stop. An interrupt of the program arrives here and must not be lost."""
        try:
            return int(monotonic() > self._deadline_s)
        except BaseException as error:  # noqa: BLE001  (raised again once SQLite has stopped)
            self._stopped = error
            return 1

    def _fetched(self, cursor: sqlite3.Cursor) -> QueryRows:
        names = _distinct(column[0] for column in cursor.description)
        rows: list[tuple[Any, ...]] = []
        size = 0
        for row in cursor:
            if len(rows) == self.limits.n_rows:
                return QueryRows(names, rows, is_cut=True)
            texts = sum(len(cell) for cell in row if isinstance(cell, str | bytes))
            size += texts + _BYTES_OF_CELL * len(row)
            if size > self.limits.answer_bytes:
                raise UsageError("the result needs too much memory; select fewer rows or columns")
            rows.append(row)
        return QueryRows(names, rows)

    def _error_for(self, error: Exception) -> BaseException:
        """Return the error to raise instead of ``error``."""
        if self._stopped is not None:
            return self._stopped
        if self._refused:
            return UsageError(
                f"{self._refused} is not allowed; a query can only read the views of --schema"
            )
        if isinstance(error, MemoryError):
            return out_of_memory()
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT:
            return out_of_time(self.limits)
        return UsageError(f"SQL: {error} (use --schema to list views and columns)")


def out_of_time(limits: Limits) -> UsageError:
    """Return the error for a query that was stopped."""
    return UsageError(
        f"the query was stopped after {limits.seconds:g} s; select less, or raise the limit with "
        "--timeout"
    )


def out_of_memory() -> UsageError:
    """Return the error for a query that exceeds its memory."""
    return UsageError(
        "the query needs too much memory; select fewer rows or columns, or use --window"
    )


def answer_parts(
    parts: Iterator[tuple[str, Mapping[str, Sequence[Any]], int]],
    sql: str,
    views: Sequence[View],
    limits: Limits,
) -> Iterator[Any]:
    """Yield the columns that ``sql`` reads, None once all ``parts`` are loaded, and the result.

    Raises:
        UsageError: as in `Query`.
    """
    with Query(sql, views, limits) as query:
        yield query.reads
        for view, columns, n_rows in parts:
            query.add(view, columns, n_rows)
        yield None
        yield query.run()


def _distinct(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names, with a number behind repeated ones."""
    found: dict[str, None] = {}
    for name in names:
        unique, number = name, 2
        while unique in found:
            unique, number = f"{name}_{number}", number + 1
        found[unique] = None
    return tuple(found)


_REFUSED: Final = {
    "writing": ("UPDATE", "DELETE"),
    "writing or creating a table": ("INSERT",),
    "a transaction": ("TRANSACTION",),
    "a savepoint": ("SAVEPOINT",),
    "CREATE": ("CREATE_VTABLE", "CREATE_TABLE", "CREATE_TEMP_TABLE", "CREATE_VIEW", "CREATE_INDEX"),
    "DROP": ("DROP_TABLE",),
    "ALTER": ("ALTER_TABLE",),
    **{name: (name,) for name in ("ATTACH", "DETACH", "PRAGMA", "ANALYZE", "REINDEX")},
}
_ACTIONS: Final = {
    getattr(sqlite3, f"SQLITE_{name}"): words for words, names in _REFUSED.items() for name in names
}
