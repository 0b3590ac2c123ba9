"""Tables whose columns are declared (`traceprof.model.results`): made, widened, written and read.

Each has ``run_id`` and ``row`` in front, its key, and a column for every declared one. A table
that lacks a column gets it when a row needs it; a column that is declared no longer stays. Cells
come back exact, and are plain wherever they can be: one that is not of its column's kind (a note
among numbers, a tuple) is kept as ``json:…``.
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
"""How SQLite declares the columns of a unit. A fraction in a column of integers stays one."""

_PACKED: Final = "json:"
_EXACT: Final = 1 << 53  # whole numbers beyond it are not exact as floats
_NOTE, _TUPLE, _FLOAT = "$note", "$tuple", "$float"


def sqlite_type(unit: Unit) -> str:
    """Return how SQLite declares a column of ``unit``."""
    return _AFFINITIES[unit]


def as_cells(unit: Unit, values: Sequence[Any]) -> list[Cell]:
    """Return the values of a column of ``unit`` as SQLite keeps them."""
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
        return text if unit is Unit.TEXT and not text.startswith(_PACKED) else _packed(text)
    if isinstance(value, bool):
        return int(value) if unit is Unit.FLAG else _packed(value)
    if isinstance(value, int) and unit is not Unit.TEXT:
        return value
    return _packed(value)


def _packed(value: Any) -> str:
    return _PACKED + to_json(value)


def as_column(unit: Unit, cells: Sequence[Any]) -> Array:
    """Return the cells of a column of ``unit`` as a table has them.

    Whole numbers stay whole; beside unknown ones they are floats where these are exact, else
    Python's.
    """
    values = [
        from_json(cell[len(_PACKED) :])
        if isinstance(cell, str) and cell.startswith(_PACKED)
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
    kind = _kind_of_numbers(unit, values)
    return objects(values) if kind is object else np.array(values, kind)  # of None NaN


def _kind_of_numbers(unit: Unit, values: Sequence[Any]) -> Any:
    known = [value for value in values if value is not None]
    if not all(type(value) in (int, float) for value in known) or not values:
        return object
    is_whole = all(type(value) is int for value in known)
    if is_whole and len(known) == len(values) and _AFFINITIES[unit] != "REAL":
        return np.int64
    is_exact = all(abs(value) <= _EXACT for value in known if type(value) is int)
    return np.float64 if is_exact else object


def to_json(value: Any) -> str:
    """Return ``value`` as JSON: notes, tuples and infinite numbers come back as they are."""
    return json.dumps(to_plain(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def to_plain(value: Any) -> Any:
    """Return ``value`` as JSON has it; what is not known is null."""
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
    """Return what `to_json` made ``text`` of."""
    return json.loads(text, object_hook=_restored)


def _restored(found: dict[str, Any]) -> Any:
    if len(found) != 1:
        return found
    ((name, value),) = found.items()
    if name == _NOTE:
        return Note(value[0], value[1])
    if name == _TUPLE:
        return tuple(value)
    return float(value) if name == _FLOAT else found


_OWN: Final = ("run_id", "row")
OF_RUN: Final = "run_id INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE"
"""How SQLite declares the run that a row belongs to, and goes with."""


_RESULT: Final = "result_"


def is_declared(name: str) -> bool:
    """Return whether a table of this name is one of those that are made here."""
    return name.lower().startswith(_RESULT) or any(
        name.lower() == own.name for own in SUMMARY.tables
    )


def table_name(result: str, table: str) -> str:
    """Return the name of a table of a result: ``kernels``' ``kernels`` is result_kernels."""
    parts = [result] if result == table else [result, table]
    return _RESULT + "__".join(part.replace("-", "_") for part in parts)


def quoted(name: str) -> str:
    """Return a name as SQL takes it, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


def rename_column(database: Database, table: str, old: str, new: str) -> None:
    """Call the column ``old`` of ``table`` ``new``, where a file has them."""
    if old.lower() in _columns_of(database, table):
        database.execute(
            f"ALTER TABLE {quoted(table)} RENAME COLUMN {quoted(old)} TO {quoted(new)}"
        )


def ensure_table(database: Database, name: str, columns: Sequence[Column]) -> None:
    """Make the table ``name``, or give it those of ``columns`` that it lacks.

    Its rows lie by run, and go with it.
    """
    known = _columns_of(database, name)
    if not known:
        lines = [
            f'{OF_RUN}, "row" INTEGER NOT NULL',
            *map(_declaration, columns),
            'PRIMARY KEY (run_id, "row")',
        ]
        database.execute(f"CREATE TABLE {quoted(name)} ({', '.join(lines)}) WITHOUT ROWID")
        return
    for column in columns:
        if column.name.lower() not in known:
            database.execute(f"ALTER TABLE {quoted(name)} ADD COLUMN {_declaration(column)}")


def insert_cells(
    database: Database, name: str, run_id: int, columns: Mapping[str, Sequence[Cell]]
) -> int:
    """Put rows, column by column, into the table ``name``; return how many."""
    names = [*_OWN, *columns]
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
    """Return the columns of the rows of a run in the table ``name``, in their order.

    Raises:
        ValueError: it is the name of no table of ours, which were looked at.
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
    """Return the columns of a table as SQLite compares them; none where there is no table."""
    return {name.lower() for _, name, *_ in database.execute(f"PRAGMA table_info({quoted(name)})")}


def _declaration(column: Column) -> str:
    return f"{quoted(column.name)} {sqlite_type(column.unit)}"
