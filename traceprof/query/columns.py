"""The SQL views of the tables of a trace, and their columns as SQLite values."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import numpy as np

from traceprof.model.grouping import places_of
from traceprof.model.table import Column, Names, Table, objects
from traceprof.model.tables import ABSENT, TABLES, ColumnKind, TableSchema
from traceprof.query.engine import View, ViewColumn

_TYPES: Final = {
    ColumnKind.TIME: "INTEGER",
    ColumnKind.NUMBER: "INTEGER",
    ColumnKind.FLOAT: "REAL",
    ColumnKind.NAME: "TEXT",
    ColumnKind.TEXT: "TEXT",
}


def _columns_of(table: TableSchema) -> Iterable[ViewColumn]:
    for name, kind in table.columns.items():
        is_time = kind is ColumnKind.TIME
        yield ViewColumn(name, _TYPES[kind], "ns since the start of the run" if is_time else "")
        if name == "end_ns":
            yield ViewColumn("duration_ns", "INTEGER", "end_ns - start_ns")
        if name == "process" and "rank" not in table.columns:
            yield ViewColumn("rank", "INTEGER", "the rank of the process")


VIEWS_OF_TABLES: Final[Mapping[str, View]] = {
    name: View(name, table.summary, tuple(_columns_of(table))) for name, table in TABLES.items()
}
"""A view for each table of a trace, with the same name."""


def plain_columns(
    table: Table,
    kinds: Mapping[str, ColumnKind],
    wanted: Collection[str],
    zero_ns: int,
    ranks: Mapping[int, int],
) -> dict[str, list[Any]]:
    """Return the ``wanted`` columns of a table, including derived ones, as lists.

    Times become ns after ``zero_ns``. ``ranks`` maps processes to ranks, where known.
    """
    found = {
        name: plain_values(table[name], kind, zero_ns)
        for name, kind in kinds.items()
        if name in wanted
    }
    if "duration_ns" in wanted:
        found["duration_ns"] = (table["end_ns"] - table["start_ns"]).tolist()
    if "rank" in wanted and "rank" not in kinds:
        places, distinct = places_of(table["process"])
        rank_numbers = [ranks.get(process) for process in distinct]
        known = objects([None if rank == ABSENT else rank for rank in rank_numbers])
        found["rank"] = places.pick(known).tolist()
    return found


def plain_values(values: Column, kind: ColumnKind, zero_ns: int = 0) -> list[Any]:
    """Return one column as a list; characters that UTF-8 cannot encode are replaced."""
    if isinstance(values, Names):
        return list(values.by_text(objects(map(_text, values.texts))).tolist())
    match kind:
        case ColumnKind.TIME:
            return list((values - zero_ns).tolist())
        case ColumnKind.NUMBER:
            return _with_none(values, values == ABSENT)
        case ColumnKind.FLOAT:
            return _with_none(values, np.isnan(values))
        case _:
            return [_text(text) for text in values]


def _with_none(values: Any, is_unknown: Any) -> list[Any]:
    if not is_unknown.any():
        return list(values.tolist())
    plain = values.astype(object)
    plain[is_unknown] = None
    return list(plain.tolist())


def _text(value: object) -> str:
    return str(value).encode("utf-8", "replace").decode("utf-8")
