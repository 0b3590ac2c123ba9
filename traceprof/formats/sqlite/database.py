"""The one seam to SQLite files: opened read-only and immutable, read column by column.

`Database.read_columns` is how every reader gets bulk data: numpy arrays, streamed through Arrow
in batches, never one Python object per value. Small look-ups go through `Database.rows`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from enum import Enum
from pathlib import Path
from typing import Any, Final, TypeAlias

import adbc_driver_manager
import adbc_driver_sqlite.dbapi as adbc
import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import sqlite_utils

from traceprof.errors import TraceError
from traceprof.formats.sqlite.header import SQLITE_MAGIC, check_sqlite_file
from traceprof.formats.sqlite.table_names import quoted, versioned_tables
from traceprof.model.tables import ABSENT
from traceprof.model.window import TimeWindow

__all__ = [
    "NULL",
    "SQLITE_MAGIC",
    "ColumnType",
    "Database",
    "categorical",
    "distinct",
    "distinct_pairs",
    "known",
]

NULL: Final = int(np.iinfo(np.int64).min)
"""Stands for SQL NULL in a column of whole numbers."""

_BATCH_ROWS: Final = 65_536
_PARALLEL_ROWS: Final = 100_000
_N_SCANS: Final = 2
_NULL_REAL: Final = float(np.finfo(np.float64).min)

Column: TypeAlias = "npt.NDArray[Any] | pd.Categorical[Any]"


class ColumnType(Enum):
    """How a column is read, and what becomes of NULL."""

    INTEGER = "integer"  # int64; NULL → `NULL`
    REAL = "real"  # float64; NULL → NaN
    TEXT = "text"  # pandas Categorical of str; NULL → ""; bytes that are not UTF-8 are replaced


class Database:
    """A SQLite file that is only ever read.

    It is opened immutable, so that not even a lock file appears beside it; a file with a
    pending write-ahead log is refused, because its latest rows would be missed.

    Raises:
        TraceError: no such file, not SQLite, cut off, or damaged.
    """

    def __init__(self, path: Path) -> None:
        check_sqlite_file(path)
        self.path = path
        self._uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
        self._connection = sqlite3.connect(self._uri, uri=True)
        self._connection.text_factory = _decode
        self._schema = sqlite_utils.Database(self._connection, execute_plugins=False)
        try:
            names = self._schema.table_names()
            self._versioned = versioned_tables(names)
            for table, name in self._versioned.items():
                self._connection.execute(
                    f"CREATE TEMP VIEW {quoted(table)} AS SELECT * FROM {quoted(name)}"
                )
        except sqlite3.Error as error:
            self._connection.close()
            raise TraceError(f"{path}: a damaged SQLite database ({error})") from error
        self.tables = frozenset([*names, *self._versioned])
        self._columns: dict[str, frozenset[str]] = {}

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def columns(self, table: str) -> frozenset[str]:
        """Return the names of the columns of ``table``; none where there is no such table."""
        if table not in self._columns:
            name = self._versioned.get(table, table)
            names = self._schema[name].columns_dict if table in self.tables else {}
            self._columns[table] = frozenset(names)
        return self._columns[table]

    def has_rows(self, table: str) -> bool:
        """Return whether ``table`` exists and is not empty."""
        return table in self.tables and bool(self.rows(f"SELECT 1 FROM {quoted(table)} LIMIT 1"))

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a small query."""
        try:
            return self._connection.execute(sql, parameters).fetchall()
        except sqlite3.Error as error:
            raise TraceError(f"{self.path}: cannot be read ({error})") from error

    def some_rows(self, sql: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query one by one: who has enough of them scans no further."""
        try:
            with closing(self._connection.execute(sql)) as cursor:
                yield from cursor
        except sqlite3.Error as error:
            raise TraceError(f"{self.path}: cannot be read ({error})") from error

    def rows_of_each(self, queries: Iterable[str]) -> list[list[tuple[Any, ...]]]:
        """Return the rows of each query, which may scan big tables: they run side by side.

        A table that bears the version of its layout must be called by `stored_name`.
        """

        def run(sql: str) -> list[tuple[Any, ...]]:
            try:
                with closing(sqlite3.connect(self._uri, uri=True)) as connection:
                    connection.text_factory = _decode
                    return connection.execute(sql).fetchall()
            except sqlite3.Error as error:
                raise TraceError(f"{self.path}: cannot be read ({error})") from error

        with ThreadPoolExecutor(_N_SCANS) as pool:
            return list(pool.map(run, queries))

    def stored_name(self, table: str) -> str:
        """Return the name of ``table`` as SQL takes it, with the version of its layout."""
        return quoted(self._versioned.get(table, table))

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
        where: str = "",
        computed: Mapping[str, str] | None = None,
    ) -> dict[str, Column]:
        """Return ``columns`` of ``table``, one array each, in the order of the rows.

        Args:
            table: a table that exists.
            columns: name → how to read it.
            window: only rows that overlap it (the table needs ``start``; ``end`` is used where
                there is one; a row without an end is an instant).
            optional: columns that may be missing; they come back as all NULL.
            where: only rows for which this SQL holds.
            computed: those of ``columns`` that the table does not have: name → SQL.

        Raises:
            TraceError: a column that is not optional is missing, or the data is damaged.
        """
        computed = computed or {}
        missing = set(columns) - self.columns(table) - set(computed)
        if missing - set(optional):
            raise TraceError(
                f"{self.path}: table {table} has no column {', '.join(sorted(missing))}"
            )
        present = {name: kind for name, kind in columns.items() if name not in missing}
        expressions = [
            _expression(computed.get(name, quoted(name)), kind) for name, kind in present.items()
        ]
        conditions = " AND ".join(filter(None, (self._condition(table, window), where)))
        batches = self._read(table, expressions, conditions)
        length = sum(batch.num_rows for batch in batches)
        result: dict[str, Column] = {}
        for name, kind in columns.items():
            if name in missing:
                result[name] = _all_null(kind, length)
            else:
                parts = [batch.column(list(present).index(name)) for batch in batches]
                result[name] = self._to_column(table, name, kind, parts)
        return result

    def read_strings(self, ids: npt.NDArray[np.int64], table: str = "StringIds") -> dict[int, str]:
        """Return the strings with these ids; an id that is missing from the table is left out."""
        wanted = np.unique(ids[ids != NULL])
        found: dict[int, str] = {}
        for chunk in np.array_split(wanted, max(1, len(wanted) // 500)):
            marks = ",".join("?" * len(chunk))
            sql = f"SELECT id, CAST(value AS BLOB) FROM {quoted(table)} WHERE id IN ({marks})"
            for key, value in self.rows(sql, [int(item) for item in chunk]):
                found[key] = _decode(value or b"")
        return found

    def _condition(self, table: str, window: TimeWindow | None) -> str:
        if window is None:
            return ""
        before = f"start < {window.end_ns}"
        if "end" not in self.columns(table):
            return f"{before} AND start >= {window.start_ns}"
        return f"{before} AND (start >= {window.start_ns} OR [end] > {window.start_ns})"

    def _read(self, table: str, expressions: Sequence[str], condition: str) -> list[pa.RecordBatch]:
        table = self._versioned.get(table, table)
        sql = f"SELECT {', '.join(expressions) or '1'} FROM {quoted(table)}"
        halves = [
            f"{sql} WHERE {' AND '.join(filter(None, (part, condition)))}"
            if part or condition
            else sql
            for part in self._row_ranges(table)
        ]
        if len(halves) == 1:
            return list(self._stream(halves[0]))
        with ThreadPoolExecutor(len(halves)) as pool:
            streamed = pool.map(lambda half: list(self._stream(half)), halves)
            return [batch for batches in streamed for batch in batches]

    def _row_ranges(self, table: str) -> list[str]:
        """Return conditions that split a big table in two; SQLite reads with one core each."""
        try:
            ((last,),) = self._connection.execute(f"SELECT max(rowid) FROM {quoted(table)}")
        except sqlite3.Error:  # a view, or a table without row ids
            return [""]
        if last is None or last < _PARALLEL_ROWS:
            return [""]
        return [f"rowid <= {last // 2}", f"rowid > {last // 2}"]

    def _stream(self, sql: str) -> Iterator[pa.RecordBatch]:
        try:
            with (
                closing(adbc.connect(self._uri)) as connection,
                closing(connection.cursor()) as cursor,
            ):
                cursor.adbc_statement.set_options(
                    **{"adbc.sqlite.query.batch_rows": str(_BATCH_ROWS)}
                )
                cursor.execute(sql)
                yield from cursor.fetch_record_batch()
        except (adbc_driver_manager.Error, pa.ArrowException, OSError) as error:
            reason = str(error).splitlines()[0]
            raise TraceError(f"{self.path}: cannot be read ({reason})") from error

    def _to_column(
        self, table: str, name: str, kind: ColumnType, parts: Sequence[pa.Array]
    ) -> Column:
        whole = pa.chunked_array(parts) if parts else None
        if whole is None or len(whole) == 0:
            return _all_null(kind, 0)
        if kind is ColumnType.TEXT:
            return _to_categorical(whole)
        if kind is ColumnType.INTEGER:
            if not pa.types.is_integer(whole.type):
                raise TraceError(f"{self.path}: column {table}.{name} is not of whole numbers")
            return np.asarray(whole.to_numpy(), np.int64)
        values = np.array(whole.to_numpy(), np.float64)
        values[values == _NULL_REAL] = np.nan
        return values


def known(values: Column) -> npt.NDArray[np.int64]:
    """Return whole numbers with `ABSENT` in the place of SQL NULL."""
    numbers = np.asarray(values, np.int64)
    return np.where(numbers == NULL, ABSENT, numbers)


def _expression(column: str, kind: ColumnType) -> str:
    match kind:
        case ColumnType.INTEGER:
            return f"coalesce({column}, {NULL})"
        case ColumnType.REAL:
            return f"coalesce(CAST({column} AS REAL), {_NULL_REAL!r})"
        case ColumnType.TEXT:
            return f"coalesce(CAST({column} AS BLOB), x'')"


def _all_null(kind: ColumnType, length: int) -> Column:
    match kind:
        case ColumnType.INTEGER:
            return np.full(length, NULL, np.int64)
        case ColumnType.REAL:
            return np.full(length, np.nan)
        case ColumnType.TEXT:
            return pd.Categorical.from_codes(np.zeros(length, np.int8), pd.Index([""]))


def _to_categorical(whole: pa.ChunkedArray) -> pd.Categorical:
    if not pa.types.is_binary(whole.type):  # what ADBC makes of a result without rows
        return _all_null(ColumnType.TEXT, len(whole))  # type: ignore[return-value]
    encoded = pc.dictionary_encode(whole).unify_dictionaries()
    names = [_decode(value) for value in encoded.chunk(0).dictionary.to_pylist()]
    codes = np.concatenate([chunk.indices.to_numpy() for chunk in encoded.chunks])
    return categorical(codes, names)


def categorical(codes: npt.NDArray[Any], names: Sequence[str]) -> pd.Categorical:
    """Return a Categorical of ``names[codes]``, where names may repeat."""
    ordered = sorted(set(names))
    places = {name: place for place, name in enumerate(ordered)}
    place = np.fromiter(map(places.__getitem__, names), np.int64, len(names))
    return pd.Categorical.from_codes(place[codes], pd.Index(ordered, dtype=object))


def distinct(values: Column) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the distinct whole numbers, and the place of each row among them.

    As `numpy.unique` with its inverse, by hashing instead of sorting: the rows are many.
    """
    codes, uniques = pd.factorize(np.asarray(values, np.int64))
    order = np.argsort(uniques)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return uniques[order], place[codes]


def distinct_pairs(
    first: Column, second: Column
) -> tuple[list[tuple[int, int]], npt.NDArray[np.int64]]:
    """Return the distinct pairs of whole numbers, and the place of each row among them."""
    firsts, one = distinct(first)
    seconds, other = distinct(second)
    codes, place = distinct(one * len(seconds) + other)
    places = (divmod(code, len(seconds)) for code in codes.tolist())
    return [(int(firsts[a]), int(seconds[b])) for a, b in places], place


def _decode(value: bytes) -> str:
    return value.decode("utf-8", "replace")
