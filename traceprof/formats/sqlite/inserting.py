"""Insert columns into a SQLite database whose names are stored once in a string table."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from itertools import chain, islice
from typing import Any, Final

import numpy as np

from traceprof.model.grouping import numbered
from traceprof.model.table import Names
from traceprof.model.tables import ABSENT
from traceprof.secrets import storable

_ROWS_PER_STATEMENT: Final = 20
_MAX_VARIABLES: Final = 999  # of one statement, before SQLite 3.32


class StringIds:
    """The ``StringIds`` table of one database: text → ID. New texts get new IDs."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._ids: dict[str, int] = {}
        ((last,),) = connection.execute("SELECT coalesce(max(id), 0) FROM StringIds")
        self._last: int = last

    def id_of(self, text: str) -> int:
        """Return the ID of ``text``; insert it if it is new."""
        text = storable(text)
        if text not in self._ids:
            self._last += 1
            self._ids[text] = self._last
            self._connection.execute("INSERT INTO StringIds VALUES (?, ?)", (self._last, text))
        return self._ids[text]

    def ids_of(self, names: Names) -> list[int]:
        """Return the IDs of a column of names; new IDs follow the order of first appearance."""
        number, first = numbered(names)
        ids = np.array([self.id_of(text) for text in names[first]], np.int64)
        listed: list[int] = ids[number].tolist() if len(ids) else []
        return listed


def without_absent(values: Any) -> list[int | None] | None:
    """Return whole numbers with None in place of `ABSENT`; None if all are absent."""
    array = np.asarray(values)
    is_absent = array == ABSENT
    if is_absent.all():
        return None
    listed: list[int | None] = array.tolist()
    if not is_absent.any():
        return listed
    return [None if value == ABSENT else value for value in listed]


def insert_columns(connection: sqlite3.Connection, table: str, columns: Mapping[str, Any]) -> None:
    """Insert rows given as columns; the other columns of ``table`` become NULL.

    A column is a sequence, or a single value for all rows.
    """
    length = max(len(values) for values in columns.values() if _is_column(values))
    filled = {
        name: _plain(values) if _is_column(values) else [values] * length
        for name, values in columns.items()
        if values is not None
    }
    written = {
        name: values  # columns with a value other than NULL and NaN, which SQLite stores as NULL
        for name, values in filled.items()
        if any(value is not None and value == value for value in values)
    } or filled
    names = ", ".join(f'"{name}"' for name in written)
    row = f"({', '.join('?' * len(written))})"
    rows = zip(*written.values(), strict=True)
    # Several rows per statement take half the time of one statement per row.
    rows_per_statement = max(1, min(_ROWS_PER_STATEMENT, _MAX_VARIABLES // len(written)))
    values = chain.from_iterable(islice(rows, length - length % rows_per_statement))
    batches = zip(*[values] * (rows_per_statement * len(written)), strict=True)
    for n_rows, parameters in ((rows_per_statement, batches), (1, rows)):
        insert = f'INSERT INTO "{table}" ({names}) VALUES {", ".join([row] * n_rows)}'
        connection.executemany(insert, parameters)


def _is_column(values: Any) -> bool:
    return not isinstance(values, str | int | float | None)


def _plain(values: Any) -> list[Any]:
    array = np.asarray(values)
    listed: list[Any] = array.tolist()  # SQLite stores NaN as NULL
    if array.dtype.kind in "OU":
        return [storable(value) if isinstance(value, str) else value for value in listed]
    return listed
