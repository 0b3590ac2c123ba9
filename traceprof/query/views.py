"""What a query may read: views with declared columns, made of the tables of a trace."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd

from traceprof.model.tables import ABSENT, TABLES, ColumnKind, Table

_TYPES: Final = {
    ColumnKind.TIME: "INTEGER",
    ColumnKind.NUMBER: "INTEGER",
    ColumnKind.FLOAT: "REAL",
    ColumnKind.NAME: "TEXT",
    ColumnKind.TEXT: "TEXT",
}


@dataclass(frozen=True, slots=True)
class ViewColumn:
    """A column: its name, its type in SQL, what it means ("" where the name says it)."""

    name: str
    type: str
    meaning: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """A view: its name, what its rows are, its columns in order."""

    name: str
    summary: str
    columns: tuple[ViewColumn, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(column.name for column in self.columns)


def _columns_of(table: Table) -> Iterable[ViewColumn]:
    for name, kind in table.columns.items():
        is_time = kind is ColumnKind.TIME
        yield ViewColumn(name, _TYPES[kind], "ns after the start of the run" if is_time else "")
        if name == "end_ns":
            yield ViewColumn("duration_ns", "INTEGER", "end_ns - start_ns")
        if name == "process" and "rank" not in table.columns:
            yield ViewColumn("rank", "INTEGER", "the rank of the process")


VIEWS_OF_TABLES: Final[Mapping[str, View]] = {
    name: View(name, table.summary, tuple(_columns_of(table))) for name, table in TABLES.items()
}
"""A view for each table of a trace, of the same name."""


def plain_columns(
    frame: pd.DataFrame,
    kinds: Mapping[str, ColumnKind],
    wanted: Collection[str],
    zero_ns: int,
    ranks: Mapping[int, int],
) -> dict[str, list[Any]]:
    """Return the columns of a table that are ``wanted``, and those that are made of others.

    Times become ns after ``zero_ns``; ``ranks`` are those of the processes, where they have one.
    """
    found = {
        name: plain_values(frame[name], kind, zero_ns)
        for name, kind in kinds.items()
        if name in wanted
    }
    if "duration_ns" in wanted:
        found["duration_ns"] = (frame["end_ns"] - frame["start_ns"]).tolist()
    if "rank" in wanted and "rank" not in kinds:
        distinct, places = np.unique(frame["process"].to_numpy(np.int64), return_inverse=True)
        known = np.empty(len(distinct), object)
        told = [ranks.get(one) for one in distinct.tolist()]
        known[:] = [None if rank == ABSENT else rank for rank in told]
        found["rank"] = known[places.ravel()].tolist()
    return found


def plain_values(values: pd.Series, kind: ColumnKind, zero_ns: int = 0) -> list[Any]:
    """Return one column; a text that cannot be written as UTF-8 loses what is wrong in it."""
    match kind:
        case ColumnKind.TIME:
            return list((values.to_numpy(np.int64) - zero_ns).tolist())
        case ColumnKind.NUMBER:
            numbers = values.to_numpy(np.int64)
            return _with_none(numbers, numbers == ABSENT)
        case ColumnKind.FLOAT:
            reals = values.to_numpy(np.float64)
            return _with_none(reals, np.isnan(reals))
        case ColumnKind.NAME:
            names = values.array
            texts = np.empty(len(names.categories) + 1, object)
            texts[:] = [*(_text(one) for one in names.categories), None]
            return list(texts[names.codes].tolist())
        case ColumnKind.TEXT:
            return [_text(one) for one in values]


def _with_none(values: Any, is_unknown: Any) -> list[Any]:
    if not is_unknown.any():
        return list(values.tolist())
    plain = values.astype(object)
    plain[is_unknown] = None
    return list(plain.tolist())


def _text(value: object) -> str:
    return str(value).encode("utf-8", "replace").decode("utf-8")
