"""What a query may read: views with declared columns, made of the tables of a trace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from traceprof.model.tables import TABLES, ColumnKind, Table
from traceprof.values import dataclass

__all__ = ["VIEWS_OF_TABLES", "View", "ViewColumn"]

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
