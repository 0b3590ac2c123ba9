"""Tables whose columns are declared (`traceprof.model.results`): made, widened, written and read.

Each has ``run_id`` and ``row`` in front, its key, and a column for every declared one. A table
that lacks a column gets it when a row needs it; a column that is declared no longer stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pandas as pd
from sqlite_utils import Database

from traceprof.model.results import Column
from traceprof.store.values import as_cells, as_series, sqlite_type

__all__ = ["ensure_table", "insert_frame", "quoted", "read_frame", "rename_column", "table_name"]

_OWN: Final = ("run_id", "row")


def table_name(result: str, table: str) -> str:
    """Return the name of a table of a result: ``kernels``' ``kernels`` is result_kernels."""
    parts = [result] if result == table else [result, table]
    return "result_" + "__".join(part.replace("-", "_") for part in parts)


def quoted(name: str) -> str:
    """Return a name as SQL takes it, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


def rename_column(database: Database, table: str, old: str, new: str) -> None:
    """Call the column ``old`` of ``table`` ``new``, where a file has them."""
    if old.lower() in _columns_of(database, table):
        database.execute(
            f"ALTER TABLE {quoted(table)} RENAME COLUMN {quoted(old)} TO {quoted(new)}"
        )


def _create_table(database: Database, name: str, columns: Sequence[Column]) -> None:
    """Make the table ``name`` with ``columns``; rows lie by run, and go with it."""
    lines = [
        "run_id INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE",
        '"row" INTEGER NOT NULL',
        *(_declaration(column) for column in columns),
        'PRIMARY KEY (run_id, "row")',
    ]
    database.execute(f"CREATE TABLE {quoted(name)} ({', '.join(lines)}) WITHOUT ROWID")


def ensure_table(database: Database, name: str, columns: Sequence[Column]) -> None:
    """Make the table ``name``, or give it those of ``columns`` that it lacks."""
    known = _columns_of(database, name)
    if not known:
        _create_table(database, name, columns)
        return
    for column in columns:
        if column.name.lower() not in known:
            database.execute(f"ALTER TABLE {quoted(name)} ADD COLUMN {_declaration(column)}")


def insert_frame(
    database: Database, name: str, run_id: int, columns: Sequence[Column], frame: pd.DataFrame
) -> None:
    """Put the rows of ``frame`` into the table ``name``, as far as ``columns`` declare them."""
    names = [*_OWN, *(column.name for column in columns)]
    cells = [as_cells(column.unit, frame[column.name].tolist()) for column in columns]
    database.conn.executemany(
        f"INSERT INTO {quoted(name)} ({', '.join(map(quoted, names))}) "
        f"VALUES ({', '.join('?' * len(names))})",
        zip([run_id] * len(frame), range(len(frame)), *cells, strict=True),
    )


def read_frame(
    database: Database, name: str, run_id: int, columns: Sequence[Column]
) -> pd.DataFrame:
    """Return the rows of a run in the table ``name``, in their order."""
    listed = ", ".join(quoted(column.name) for column in columns) or "NULL"
    rows = database.execute(
        f'SELECT {listed} FROM {quoted(name)} WHERE run_id = ? ORDER BY "row"', [run_id]
    ).fetchall()
    values = list(zip(*rows, strict=True)) if rows else [()] * len(columns)
    return pd.DataFrame(
        {
            column.name: as_series(column.unit, cells)
            for column, cells in zip(columns, values, strict=False)
        },
        columns=[column.name for column in columns],
    )


def _columns_of(database: Database, name: str) -> set[str]:
    """Return the columns of a table as SQLite compares them; none where there is no table."""
    return {name.lower() for _, name, *_ in database.execute(f"PRAGMA table_info({quoted(name)})")}


def _declaration(column: Column) -> str:
    return f"{quoted(column.name)} {sqlite_type(column.unit)}"
