"""Putting columns into a SQLite database, with names kept once in a table of strings."""

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

_ROWS_TOGETHER: Final = 20
_MOST_VARIABLES: Final = 999  # of one statement, before SQLite 3.32


class StringIds:
    """The ``StringIds`` table of one database: text → id, new texts get new ids."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._ids: dict[str, int] = {}
        ((last,),) = connection.execute("SELECT coalesce(max(id), 0) FROM StringIds")
        self._last: int = last

    def id_of(self, text: str) -> int:
        """Return the id of ``text``."""
        text = storable(text)
        if text not in self._ids:
            self._last += 1
            self._ids[text] = self._last
            self._connection.execute("INSERT INTO StringIds VALUES (?, ?)", (self._last, text))
        return self._ids[text]

    def ids_of(self, names: Names) -> list[int]:
        """Return the ids of a column of names; new ones in the order in which these come first."""
        number, first = numbered(names.packed)
        ids = np.array([self.id_of(text) for text in names[first]], np.int64)
        listed: list[int] = ids[number].tolist() if len(ids) else []
        return listed


def without_absent(values: Any) -> list[int | None] | None:
    """Return whole numbers with None in the place of `ABSENT`; None where all are absent."""
    array = np.asarray(values)
    is_absent = array == ABSENT
    if is_absent.all():
        return None
    listed: list[int | None] = array.tolist()
    if not is_absent.any():
        return listed
    return [None if value == ABSENT else value for value in listed]


def insert_columns(connection: sqlite3.Connection, table: str, columns: Mapping[str, Any]) -> None:
    """Insert the rows whose columns are given; the other columns of ``table`` become NULL.

    A column is a sequence, or a single value that stands in every row.
    """
    length = max(len(values) for values in columns.values() if _is_column(values))
    filled = {
        name: _plain(values) if _is_column(values) else [values] * length
        for name, values in columns.items()
        if values is not None
    }
    told = {
        name: values  # all that has a value other than NULL, and NaN, which is NULL
        for name, values in filled.items()
        if any(value is not None and value == value for value in values)
    } or filled
    names = ", ".join(f'"{name}"' for name in told)
    row = f"({', '.join('?' * len(told))})"
    rows = zip(*told.values(), strict=True)
    # Several rows in one statement take half the time of as many statements.
    n_together = max(1, min(_ROWS_TOGETHER, _MOST_VARIABLES // len(told)))
    values = chain.from_iterable(islice(rows, length - length % n_together))
    together = zip(*[values] * (n_together * len(told)), strict=True)
    for n_rows, given in ((n_together, together), (1, rows)):
        insert = f'INSERT INTO "{table}" ({names}) VALUES {", ".join([row] * n_rows)}'
        connection.executemany(insert, given)


def _is_column(values: Any) -> bool:
    return not isinstance(values, str | int | float | None)


def _plain(values: Any) -> list[Any]:
    array = np.asarray(values)
    listed: list[Any] = array.tolist()  # SQLite stores NaN as NULL
    if array.dtype.kind in "OU":
        return [storable(value) if isinstance(value, str) else value for value in listed]
    return listed
