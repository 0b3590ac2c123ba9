"""Select the tables, columns, and ranks of a result that renderers show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Final

import numpy as np

from traceprof.errors import UsageError
from traceprof.model.results import Column, Result, TableSpec, columns, find_column_name
from traceprof.model.table import Table, is_known, objects
from traceprof.render.formatting import in_words
from traceprof.render.formatting import is_known as is_known_value

(_RANK,) = columns("same rank: rank of the process")
_MAX_SMALL_TABLE_ROWS: Final = 5
_SAMPLED_ROWS: Final = 100
"""The first rows are checked for values first: most columns that have values have some there."""

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class ShownTable:
    """A table to show: the declarations of its columns, in order, and its ``values``."""

    name: str
    about: str
    columns: tuple[Column, ...]
    values: Table

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Column]:
        return iter(self.columns)

    def rows(self, most: int | None = None) -> Sequence[Row]:
        """Return the first ``most`` rows (None: all), each as plain values by column."""
        shown = self.values.select(*(column.name for column in self.columns))
        return shown.head(len(self) if most is None else most).rows()

    def has(self, *names: str) -> bool:
        """Return whether the table has all columns ``names``."""
        return {*names} <= {column.name for column in self.columns}

    def chosen(self, names: Sequence[str]) -> ShownTable:
        """Return the table with only the columns ``names`` that it has, in this order."""
        by_name = {column.name: column for column in self.columns}
        return replace(self, columns=tuple(by_name[name] for name in names if name in by_name))


def tables_of(result: Result, ranks: Mapping[int, int]) -> Iterator[ShownTable]:
    """Yield all tables of ``result`` with all their columns, for output that programs read."""
    return (
        table_of(result, ranks, spec.name)
        for spec in result.spec.tables
        if spec.name in result.tables
    )


def table_of(
    result: Result, ranks: Mapping[int, int] | None = None, name: str | None = None
) -> ShownTable:
    """Return the table called ``name`` (default: the first table).

    In a run with several ranks, a table with processes gets a column with the rank of each process,
    None if unknown.

    Raises:
        KeyError: the result has no table of this name.
    """
    spec = result.spec.tables[0] if name is None else result.spec.table(name)
    return declared_table(spec, result.tables[spec.name], ranks)


def declared_table(
    spec: TableSpec, values: Table, ranks: Mapping[int, int] | None = None
) -> ShownTable:
    """Return ``values`` with the columns that ``spec`` declares, and ranks as in `table_of`."""
    columns = tuple(column for column in spec if column.name in values)
    table = ShownTable(spec.name, spec.about, columns, values)
    if table.has("process") and not table.has("rank") and len({*(ranks or {}).values()}) > 1:
        return _with_ranks(table, ranks or {})
    return table


def _with_ranks(table: ShownTable, ranks: Mapping[int, int]) -> ShownTable:
    found = [ranks.get(process) for process in table.values["process"].tolist()]
    place = [column.name for column in table.columns].index("process")
    columns = (*table.columns[:place], _RANK, *table.columns[place:])
    values = table.values.assign(rank=objects(found) if None in found else np.array(found))
    names = [column.name for column in columns]
    return replace(table, columns=columns, values=values.select(*names))


def table_for_people(
    result: Result, ranks: Mapping[int, int], name: str | None = None, chosen: Sequence[str] = ()
) -> ShownTable:
    """Return a table without empty columns, with some numbers replaced by words (`in_words`).

    Ranks replace processes if each process has its own rank. If columns were ``chosen``, the table
    has exactly these columns, unchanged.
    """
    table = table_of(result, ranks, name)
    if chosen:
        return table.chosen(chosen)
    columns, values = table.columns, table.values
    if table.has("rank", "process"):
        pairs = {*zip(values["rank"].tolist(), values["process"].tolist(), strict=True)}
        process_ranks = [rank for rank, _ in pairs]
        if all(map(is_known_value, process_ranks)) and len({*process_ranks}) == len(pairs):
            columns = tuple(column for column in columns if column.name != "process")
    columns, values = in_words(columns, values)
    return _without_empty_columns(replace(table, columns=columns, values=values))


def shown_table(spec: TableSpec, values: Table) -> ShownTable:
    """Return a table that is not the result of an analysis, without empty columns."""
    return _without_empty_columns(declared_table(spec, values))


def _without_empty_columns(table: ShownTable) -> ShownTable:
    """Return ``table`` without columns whose values are all unknown, false, or empty text."""
    filled = []
    for column in table.columns:
        values = np.asarray(table.values[column.name])
        for sample in (values[:_SAMPLED_ROWS], values):
            is_filled = sample if sample.dtype == np.bool_ else is_known(sample)
            if sample.dtype.kind == "O":
                is_filled &= sample != ""
            if not len(values) or is_filled.any():
                filled.append(column)
                break
    return replace(table, columns=tuple(filled))


def columns_of(
    results: Iterable[Result], ranks: Mapping[int, int], chosen: Sequence[str]
) -> tuple[str, ...]:
    """Return the names of the ``chosen`` columns, which are given by name or by heading.

    Raises:
        UsageError: a chosen column is in no table of ``results``. The message suggests a name.
    """
    if not chosen:
        return ()
    tables = [table for result in results for table in tables_of(result, ranks)]
    known = dict.fromkeys(column.name for table in tables for column in table)
    names = [find_column_name(name, known) for name in chosen]
    for name in names:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"use {', '.join(known)}"
            raise UsageError(f"unknown column {name!r}; {hint}")
    return tuple(dict.fromkeys(names))


SELF_EXPLAINING_KINDS: Final = ("kernel", "copy", "collective")
"""Kinds of causes of a difference whose names need no prefix."""
_MIN_CAUSE_RATIO: Final = 0.02


def largest_causes(causes: Sequence[Row], largest_ns: float, limit: int) -> Sequence[Row]:
    """Return the first ``limit`` causes of a difference of at least 2% of ``largest_ns``."""
    min_ns = _MIN_CAUSE_RATIO * largest_ns
    return [row for row in causes if abs(row["difference_ns"]) >= min_ns > 0][:limit]


def further_tables(result: Result, requested: Sequence[str]) -> list[str]:
    """Return the names of the tables to show after the first: small tables, and ``asked``."""
    return [
        spec.name
        for spec in result.spec.tables[1:]
        if spec.name in result.tables
        and (spec.name in requested or 0 < len(result.tables[spec.name]) <= _MAX_SMALL_TABLE_ROWS)
    ]
