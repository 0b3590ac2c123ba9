"""Create, extend, write, and read tables with declared columns (`traceprof.model.results`).

Each table has the key columns ``run_id`` and ``row``, and a column per declared column. A missing
column is added when a row needs it; a column that is no longer declared remains. Values are
restored exactly. Cells are plain values if possible; a cell that does not match the type of its
column (a note among numbers, a tuple) is stored as ``json:…``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from traceprof.model.results import Column, Note, Unit
from traceprof.model.summary import SUMMARY
from traceprof.model.table import Array, objects
from traceprof.secrets import storable

if TYPE_CHECKING:
    from sqlite_utils import Database

Cell: TypeAlias = "int | float | str | None"

_AFFINITIES: Final[Mapping[Unit, str]] = {
    **dict.fromkeys((Unit.NS, Unit.AT_NS, Unit.BYTES, Unit.COUNT, Unit.FLAG), "INTEGER"),
    **dict.fromkeys((Unit.BYTES_PER_S, Unit.PER_S, Unit.RATIO, Unit.FACTOR), "REAL"),
    **dict.fromkeys((Unit.FLOP, Unit.FLOP_PER_S), "REAL"),
    Unit.NUMBER: "NUMERIC",
    Unit.TEXT: "TEXT",
}
"""SQLite column type of each unit; a fraction in an integer column remains a fraction."""

_JSON_PREFIX: Final = "json:"
_MAX_EXACT_INT: Final = 1 << 53  # floats do not represent all larger integers exactly
_NOTE, _TUPLE, _FLOAT = "$note", "$tuple", "$float"


def sqlite_type(unit: Unit) -> str:
    """Return the SQLite type of a column of ``unit``."""
    return _AFFINITIES[unit]


def as_cells(unit: Unit, values: Sequence[Any]) -> list[Cell]:
    """Return the values of a column of ``unit`` as SQLite cells."""
    return [_as_cell(unit, value) for value in values]


def _as_cell(unit: Unit, value: Any) -> Cell:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None:
        return None
    if isinstance(value, float) and (unit is not Unit.TEXT or math.isnan(value)):
        return None if math.isnan(value) else value
    if isinstance(value, str):
        text = storable(value)
        return text if unit is Unit.TEXT and not text.startswith(_JSON_PREFIX) else _json_cell(text)
    if isinstance(value, bool):
        return int(value) if unit is Unit.FLAG else _json_cell(value)
    if isinstance(value, int) and unit is not Unit.TEXT:
        return value
    return _json_cell(value)


def _json_cell(value: Any) -> str:
    return _JSON_PREFIX + to_json(value)


def as_column(unit: Unit, cells: Sequence[Any]) -> Array:
    """Return the SQLite cells of a column of ``unit`` as a table column.

    Whole numbers remain integers. If some cells are unknown, the column is float64 if that is
    exact, otherwise it contains Python objects.

    Raises:
        ValueError: a column of numbers contains text.
    """
    values = [
        from_json(cell[len(_JSON_PREFIX) :])
        if isinstance(cell, str) and cell.startswith(_JSON_PREFIX)
        else cell
        for cell in cells
    ]
    if unit is Unit.TEXT:
        return objects(values)
    if any(isinstance(value, str | bytes) for value in values):
        raise ValueError("expected a number, found text")
    if unit is Unit.FLAG:
        flags = [bool(value) if isinstance(value, int) else value for value in values]
        is_plain = flags and all(isinstance(flag, bool) for flag in flags)
        return np.array(flags, np.bool_) if is_plain else objects(flags)
    kind = _dtype_of_numbers(unit, values)
    return objects(values) if kind is object else np.array(values, kind)  # None becomes NaN


def _dtype_of_numbers(unit: Unit, values: Sequence[Any]) -> Any:
    """Return the numpy dtype that represents all values exactly."""
    known = [value for value in values if value is not None]
    if not all(type(value) in (int, float) for value in known) or not values:
        return object
    is_whole = all(type(value) is int for value in known)
    if is_whole and len(known) == len(values) and _AFFINITIES[unit] != "REAL":
        return np.int64
    is_exact = all(abs(value) <= _MAX_EXACT_INT for value in known if type(value) is int)
    return np.float64 if is_exact else object


def to_json(value: Any) -> str:
    """Return ``value`` as JSON; `from_json` restores notes, tuples, and infinite numbers."""
    return json.dumps(to_plain(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def to_plain(value: Any) -> Any:
    """Return ``value`` as a plain JSON value; an unknown value becomes null."""
    value = value.item() if isinstance(value, np.generic) else value
    if value is None:
        return None
    if isinstance(value, float):
        return _plain_float(value)
    if isinstance(value, Note):
        return {_NOTE: [value.text, to_plain(value.values)]}
    if isinstance(value, Mapping):
        return {str(name): to_plain(part) for name, part in value.items()}
    if isinstance(value, tuple):
        return {_TUPLE: [to_plain(part) for part in value]}
    if isinstance(value, list | set | frozenset | np.ndarray):
        return [to_plain(part) for part in value]
    if is_dataclass(value) and not isinstance(value, type):
        return to_plain(asdict(value))
    return value if isinstance(value, bool | int) else storable(str(value))


def _plain_float(value: float) -> Any:
    if math.isfinite(value):
        return value
    return None if math.isnan(value) else {_FLOAT: repr(value)}


def from_json(text: str) -> Any:
    """Return the value from which `to_json` made ``text``."""
    return json.loads(text, object_hook=_restored)


def _restored(found: dict[str, Any]) -> Any:
    """Restore a note, a tuple, or an infinite number from its JSON object."""
    if len(found) != 1:
        return found
    ((name, value),) = found.items()
    if name == _NOTE:
        return Note(value[0], value[1])
    if name == _TUPLE:
        return tuple(value)
    return float(value) if name == _FLOAT else found


_KEY_COLUMNS: Final = ("run_id", "row")
OF_RUN: Final = "run_id INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE"
"""SQLite declaration of the run of a row; the row is deleted with its run."""


_RESULT_PREFIX: Final = "result_"


def is_declared(name: str) -> bool:
    """Return whether a table with this name is a declared table."""
    return name.lower().startswith(_RESULT_PREFIX) or any(
        name.lower() == table.name for table in SUMMARY.tables
    )


def table_name(result: str, table: str) -> str:
    """Return the SQLite name of a result table, such as result_kernels or result_steps__phases.

    Dashes become underscores. The name of the table is omitted if it is the name of the result.
    """
    parts = [result] if result == table else [result, table]
    return _RESULT_PREFIX + "__".join(part.replace("-", "_") for part in parts)


def quoted(name: str) -> str:
    """Return a name as an SQL identifier; it may contain any characters."""
    return '"' + name.replace('"', '""') + '"'


def rename_column(database: Database, table: str, old: str, new: str) -> None:
    """Rename the column ``old`` of ``table`` to ``new``, if the file has it."""
    if old.lower() in _columns_of(database, table):
        database.execute(
            f"ALTER TABLE {quoted(table)} RENAME COLUMN {quoted(old)} TO {quoted(new)}"
        )


def ensure_table(database: Database, name: str, columns: Sequence[Column]) -> None:
    """Create the table ``name``, or add the columns that it lacks.

    Rows are ordered by run, and deleted with their run.
    """
    existing = _columns_of(database, name)
    if not existing:
        lines = [
            f'{OF_RUN}, "row" INTEGER NOT NULL',
            *map(_declaration, columns),
            'PRIMARY KEY (run_id, "row")',
        ]
        database.execute(f"CREATE TABLE {quoted(name)} ({', '.join(lines)}) WITHOUT ROWID")
        return
    for column in columns:
        if column.name.lower() not in existing:
            database.execute(f"ALTER TABLE {quoted(name)} ADD COLUMN {_declaration(column)}")


def insert_cells(
    database: Database, name: str, run_id: int, columns: Mapping[str, Sequence[Cell]]
) -> int:
    """Insert rows, given by column, into the table ``name``; return their number."""
    names = [*_KEY_COLUMNS, *columns]
    n_rows = len(next(iter(columns.values()), ()))
    database.conn.executemany(
        f"INSERT INTO {quoted(name)} ({', '.join(map(quoted, names))}) "
        f"VALUES ({', '.join('?' * len(names))})",
        zip([run_id] * n_rows, range(n_rows), *columns.values(), strict=True),
    )
    return n_rows


def read_cells(
    database: Database, name: str, run_id: int, columns: Sequence[str]
) -> dict[str, Sequence[Cell]]:
    """Return the columns of a run's rows in the table ``name``, in order.

    Raises:
        ValueError: the table is not a declared table, and therefore was not checked.
    """
    if not is_declared(name):
        raise ValueError(f"invalid table name {name!r}")
    listed = ", ".join(map(quoted, columns)) or "NULL"
    rows = database.execute(
        f'SELECT {listed} FROM {quoted(name)} WHERE run_id = ? ORDER BY "row"', [run_id]
    ).fetchall()
    values = list(zip(*rows, strict=True)) if rows else [()] * len(columns)
    return dict(zip(columns, values, strict=False))


def _columns_of(database: Database, name: str) -> set[str]:
    """Return the column names of a table in lower case; an empty set if there is no table."""
    return {name.lower() for _, name, *_ in database.execute(f"PRAGMA table_info({quoted(name)})")}


def _declaration(column: Column) -> str:
    return f"{quoted(column.name)} {sqlite_type(column.unit)}"
