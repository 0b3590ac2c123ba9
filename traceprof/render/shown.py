"""What is shown of a result: its tables with their columns, ranks where a run has several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pandas as pd

from traceprof.model.results import Column, Result, TableSpec, columns
from traceprof.render.formatting import in_words

(_RANK,) = columns("same rank: the rank of the process")
_FEW_ROWS: Final = 5
_FIRST: Final = 100
"""A column that says something mostly does so in its first rows."""

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class ShownTable:
    """One table: the declarations of the columns that ``frame`` has, in their order."""

    name: str
    about: str
    columns: tuple[Column, ...]
    frame: pd.DataFrame

    def __len__(self) -> int:
        return len(self.frame)

    def __iter__(self) -> Iterator[Column]:
        return iter(self.columns)

    def rows(self, most: int | None = None) -> list[Row]:
        """Return the first ``most`` rows as plain values by column."""
        return rows_of(self.frame[[column.name for column in self.columns]], most)

    def has(self, *names: str) -> bool:
        """Return whether it has all the columns ``names``."""
        return {*names} <= {column.name for column in self.columns}


def rows_of(frame: pd.DataFrame, most: int | None = None) -> list[Row]:
    """Return the first ``most`` rows of a frame as plain values by column."""
    columns = {str(name): frame[name].head(len(frame) if most is None else most) for name in frame}
    values = [column.tolist() for column in columns.values()]
    return [dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True)]


def tables_of(result: Result, ranks: Mapping[int, int]) -> Iterator[ShownTable]:
    """Yield the tables that ``result`` has, as programs read them."""
    return (
        table_of(result, ranks, spec.name)
        for spec in result.spec.tables
        if spec.name in result.tables
    )


def table_of(
    result: Result, ranks: Mapping[int, int] | None = None, name: str | None = None
) -> ShownTable:
    """Return the table called ``name`` (the one that answers where none is given).

    In a run of several ranks each process is told with its rank: its number says little where
    every rank has its own. None where the rank is not known.

    Raises:
        KeyError: there is no such table.
    """
    spec = result.spec.tables[0] if name is None else result.spec.table(name)
    return declared_table(spec, result.to_frame(spec.name), ranks)


def declared_table(
    spec: TableSpec, frame: pd.DataFrame, ranks: Mapping[int, int] | None = None
) -> ShownTable:
    """Return a frame with the columns that ``spec`` declares, processes with their ranks."""
    columns = tuple(column for column in spec if column.name in frame)
    table = ShownTable(spec.name, spec.about, columns, frame)
    if table.has("process") and not table.has("rank") and len({*(ranks or {}).values()}) > 1:
        return _with_ranks(table, ranks or {})
    return table


def _with_ranks(table: ShownTable, ranks: Mapping[int, int]) -> ShownTable:
    found = [ranks.get(process) for process in table.frame["process"]]
    kind = object if None in found else np.int64
    names = [column.name for column in table.columns]
    place = names.index("process")
    frame = table.frame[names]
    frame.insert(place, _RANK.name, pd.Series(found, frame.index, kind))
    columns = (*table.columns[:place], _RANK, *table.columns[place:])
    return replace(table, columns=columns, frame=frame)


def table_for_people(
    result: Result, ranks: Mapping[int, int], name: str | None = None
) -> ShownTable:
    """Return a table without columns that say nothing, in words where it needs several numbers.

    Ranks stand instead of the processes that they name.
    """
    table = table_of(result, ranks, name)
    columns, frame = table.columns, table.frame
    if table.has("rank", "process"):
        of_processes = frame[["rank", "process"]].drop_duplicates()["rank"]
        if not of_processes.isna().any() and not of_processes.duplicated().any():
            columns = tuple(column for column in columns if column.name != "process")
    columns, frame = in_words(columns, frame)
    return _telling(replace(table, columns=columns, frame=frame))


def shown_frame(spec: TableSpec, frame: pd.DataFrame) -> ShownTable:
    """Return a table that no analysis made, without columns that say nothing."""
    return _telling(declared_table(spec, frame))


def _telling(table: ShownTable) -> ShownTable:
    told = []
    for column in table.columns:
        values = table.frame[column.name]
        for own in (values.iloc[:_FIRST], values):
            says = own if own.dtype == bool else own.notna()
            if not pd.api.types.is_numeric_dtype(own.dtype):
                says &= own.astype(object) != ""
            if values.empty or says.any():
                told.append(column)
                break
    return replace(table, columns=tuple(told), frame=table.frame[[column.name for column in told]])


def further_tables(result: Result, asked: Sequence[str]) -> list[str]:
    """Return the names of the tables to show beside the first: small ones, and those asked for."""
    return [
        spec.name
        for spec in result.spec.tables[1:]
        if spec.name in result.tables
        and (spec.name in asked or 0 < len(result.to_frame(spec.name)) <= _FEW_ROWS)
    ]
