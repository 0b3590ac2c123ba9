"""Results of an analysis: declared tables, typed scalars, and notes.

Each column is declared once: name, unit, key or measure, rule to combine ranks, and meaning.
Formatting, JSON and its schema, the reference docs, joining two runs, and combining ranks all use
that declaration.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import numpy.typing as npt

from traceprof.model.packed import Numbers, Packed, joined_numbers, packed_if_narrow
from traceprof.model.table import Table
from traceprof.registries import check_distinct

if TYPE_CHECKING:
    import pandas as pd


class Unit(StrEnum):
    """The unit of a column."""

    NS = "ns"  # a duration
    AT_NS = "at_ns"  # an instant, in ns after the start of the run
    BYTES = "bytes"
    BYTES_PER_S = "bytes/s"
    PER_S = "1/s"  # events per second, such as samples
    FLOP = "flop"  # a multiply-add counts as two
    FLOP_PER_S = "flop/s"
    RATIO = "ratio"  # a share; 1 is all. May exceed 1 if the meaning says so
    FACTOR = "factor"  # a factor, such as a speedup
    COUNT = "count"
    NUMBER = "number"  # any other number, or an identifier (a device, a step)
    TEXT = "text"
    FLAG = "flag"  # True or False


class Combine(StrEnum):
    """How the values of a column combine if several ranks have a row with the same key."""

    KEY = "key"  # part of the key of a row
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    MEAN = "mean"  # weighted by another column
    MEDIAN = "median"  # exact: from the samples of all ranks
    SAME = "same"  # follows from the key; the first known value is used
    DERIVED = "derived"  # computed from other columns after these were combined


@dataclass(frozen=True, slots=True)
class Column:
    """One column, or one scalar.

    ``weight`` names the column that weights a mean. Unknown values are None or NaN. ``is_proper``:
    the column name comes from the user (the name of a run) and is shown unchanged. ``is_typed``:
    its cells also come from the user.
    """

    name: str
    unit: Unit
    meaning: str
    combine: Combine
    weight: str = ""
    is_proper: bool = False
    is_typed: bool = False

    @property
    def is_key(self) -> bool:
        """Whether the column is part of the key of a row."""
        return self.combine is Combine.KEY


def key(name: str, meaning: str, unit: Unit = Unit.TEXT) -> Column:
    """Return a column that is part of the key of a row."""
    return Column(name, unit, meaning, Combine.KEY)


def total(name: str, unit: Unit, meaning: str) -> Column:
    """Return a measure that is summed over ranks."""
    return Column(name, unit, meaning, Combine.SUM)


def mean(name: str, unit: Unit, meaning: str, weight: str) -> Column:
    """Return a mean, weighted by the column ``weight``."""
    return Column(name, unit, meaning, Combine.MEAN, weight)


def same(name: str, unit: Unit, meaning: str) -> Column:
    """Return a column that follows from the key, such as the name of a device."""
    return Column(name, unit, meaning, Combine.SAME)


def derived(name: str, unit: Unit, meaning: str) -> Column:
    """Return a column that the analysis computes after ranks were combined."""
    return Column(name, unit, meaning, Combine.DERIVED)


_UNITS: Final = (
    ("bytes_per_s", Unit.BYTES_PER_S),
    ("flop_per_s", Unit.FLOP_PER_S),
    ("flop", Unit.FLOP),
    ("per_s", Unit.PER_S),
    ("bytes", Unit.BYTES),
    ("ratio", Unit.RATIO),
    ("count", Unit.COUNT),
    ("at_ns", Unit.AT_NS),
    ("ns", Unit.NS),
    *((name, Unit.NUMBER) for name in ("device", "process", "rank", "step", "stream", "stage")),
)
"""Name endings and their units."""
_KINDS: Final = {"total": Combine.SUM, "smallest": Combine.MIN, "largest": Combine.MAX}
_DECLARATION: Final = re.compile(
    r"(?P<kind>[a-z]+)(\((?P<weight>\w+)\))? (?P<name>\w+)( \[(?P<unit>\S+)\])?: (?P<meaning>.+)"
)


def find_column_name(text: str, known: Iterable[str]) -> str:
    """Return the name in ``known`` that ``text`` spells out in words ("step period").

    Return ``text`` unchanged if no name matches.
    """
    names = [*known]
    plain = re.sub(r"[ -]+", "_", text.strip().removesuffix("%").strip())
    ends = tuple(f"_{end}" for end, _ in _UNITS)
    matching = (name for name in names if name == plain or name in {plain + end for end in ends})
    return text if text in names else next(matching, text)


def _lines_of(text: str) -> list[str]:
    return re.sub(r"\n +", " ", textwrap.dedent(text).strip()).splitlines()


def _column(line: str) -> Column:
    declaration = _DECLARATION.fullmatch(line)
    if declaration is None:
        raise ValueError(f"{line!r} does not declare a column")
    name, weight = declaration["name"], declaration["weight"] or ""
    known = (unit for end, unit in _UNITS if f"_{name}".endswith(f"_{end}"))
    default_unit = Unit.FLAG if name.startswith("is_") else next(known, Unit.TEXT)
    unit = Unit(declaration["unit"]) if declaration["unit"] else default_unit
    combine = _KINDS.get(declaration["kind"]) or Combine(declaration["kind"])
    return Column(name, unit, declaration["meaning"], combine, weight)


def columns(text: str) -> tuple[Column, ...]:
    """Return the columns that ``text`` declares, one per line.

    An indented line continues the line before. A line consists of the combination rule (key, total,
    smallest, largest, mean(WEIGHT), median, same, or derived), the name, and the meaning: "total
    idle_ns: when nothing ran". The end of the name determines the unit. Another unit follows the
    name in brackets: "same waves [number]: …". Names without a known ending are text.

    Raises:
        ValueError: a line declares no column.
    """
    return tuple(map(_column, _lines_of(text)))


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A table that an analysis returns: its columns in order. Rows may lack some columns."""

    name: str
    about: str
    columns: tuple[Column, ...]

    @classmethod
    def of(cls, *parts: str | Column) -> TableSpec:
        """Return the table that texts and columns declare, as in `ResultSpec.of`."""
        (table,) = ResultSpec.of(*parts).tables
        return table

    def __iter__(self) -> Iterator[Column]:
        return iter(self.columns)

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that form the key of a row."""
        return tuple(column.name for column in self.columns if column.is_key)

    def column(self, name: str) -> Column:
        """Return the column called ``name``.

        Raises:
            KeyError: there is none.
        """
        return {column.name: column for column in self.columns}[name]

    def of_rows(self, rows: Sequence[Mapping[str, Any]] | Table = ()) -> Table:
        """Return ``rows`` as a table in declared column order; all columns if there are no rows."""
        names = [column.name for column in self.columns]
        if not isinstance(rows, Table):
            rows = Table.of_rows(rows) if rows else Table(dict.fromkeys(names, ()))
        wanted = [name for name in names if name in rows]
        return rows if wanted == list(rows) else rows.select(*wanted)


@dataclass(frozen=True, slots=True)
class ResultSpec:
    """The tables and scalars of a result; the first table is the main one.

    Raises:
        ValueError: two tables, two scalars, or two columns of a table have the same name.
    """

    tables: tuple[TableSpec, ...]
    scalars: tuple[Column, ...] = ()

    def __post_init__(self) -> None:
        check_distinct("table", (table.name for table in self.tables))
        check_distinct("scalar", (scalar.name for scalar in self.scalars))
        for table in self.tables:
            check_distinct(f"column of {table.name}", (column.name for column in table.columns))

    @classmethod
    def of(cls, *parts: str | Column | TableSpec) -> Self:
        """Return the tables and scalars that ``parts`` declare.

        In a text, the line "table NAME: what it is about" starts a table, and "scalars:" starts the
        scalars. The following lines are their columns, in the format of `columns`.

        Raises:
            ValueError: a line declares no column.
        """
        tables: list[TableSpec | tuple[str, str, list[Column]]] = []
        scalars: list[Column] = []
        target = scalars
        lines = (_lines_of(part) if isinstance(part, str) else [part] for part in parts)
        for line in chain.from_iterable(lines):
            if isinstance(line, TableSpec):
                tables.append(line)
            elif isinstance(line, Column):
                target.append(line)
            elif line.startswith("table "):
                name, _, about = line.removeprefix("table ").partition(": ")
                target = []
                tables.append((name, about, target))
            elif line == "scalars:":
                target = scalars
            else:
                target.append(_column(line))
        found = (
            item if isinstance(item, TableSpec) else TableSpec(item[0], item[1], tuple(item[2]))
            for item in tables
        )
        return cls(tuple(found), tuple(scalars))

    def table(self, name: str) -> TableSpec:
        """Return the table called ``name``.

        Raises:
            KeyError: there is none.
        """
        return {table.name: table for table in self.tables}[name]


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence to read with the numbers, with its own numbers in ``values``.

    ``text`` contains a placeholder with a unit for each value, which renderers format: "{lost:ns}
    of {n:count} launches". Values without a unit ("{name}") are text.
    """

    text: str
    values: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str, **values: Any) -> Note:
        """Return a note with its values."""
        return cls(text, values)


class Samples:
    """The individual values behind a table: ``values[i]`` belongs to its row ``rows[i]``.

    ``counts`` are the numbers of occurrences; None: each occurs once. `Packed` integers are stored
    packed and returned as int64. Immutable.
    """

    __slots__ = ("_counts", "_rows", "_values")

    def __init__(
        self, rows: Numbers, values: npt.NDArray[Any] | Packed, counts: Numbers | None = None
    ) -> None:
        self._rows, self._values = packed_if_narrow(rows), packed_if_narrow(values)
        self._counts = None if counts is None else packed_if_narrow(counts)

    @classmethod
    def joined(cls, parts: Sequence[Samples]) -> Samples:
        """Return the samples of all ``parts`` (at least one), one after another."""
        counts = None
        if any(samples._counts is not None for samples in parts):
            counts = joined_numbers([samples._counts_or_ones() for samples in parts])
        rows = joined_numbers([samples._rows for samples in parts])
        return cls(rows, joined_numbers([samples._values for samples in parts]), counts)

    @property
    def rows(self) -> npt.NDArray[np.int64]:
        """The table row of each sample."""
        return np.asarray(self._rows, np.int64)

    @property
    def values(self) -> npt.NDArray[Any]:
        """The samples: int64 or floats."""
        return np.asarray(self._values)

    @property
    def counts(self) -> npt.NDArray[np.int64] | None:
        """The number of occurrences of each sample; None: each occurs once."""
        return None if self._counts is None else np.asarray(self._counts, np.int64)

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, chosen: slice | npt.NDArray[Any]) -> Samples:
        """Return some of the samples."""
        counts = None if self._counts is None else self._counts[chosen]
        return Samples(self._rows[chosen], self._values[chosen], counts)

    def with_rows(self, row_of: Packed) -> Samples:
        """Return the samples moved to other table rows: ``row_of[row]``."""
        return Samples(row_of[self._rows], self._values, self._counts)

    def _counts_or_ones(self) -> Packed | npt.NDArray[Any]:
        return Packed.repeated(1, len(self)) if self._counts is None else self._counts


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """The outcome of an analysis: tables by declared name, scalars, and notes.

    ``samples`` are the values by table from which medians are computed; a finished result has none.
    ``lacks`` names the missing data if the result is empty for that reason, otherwise "".
    """

    name: str
    spec: ResultSpec
    tables: Mapping[str, Table]
    scalars: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()
    samples: Mapping[str, Samples] = field(default_factory=dict)
    lacks: str = ""

    @property
    def table(self) -> Table:
        """The main table."""
        return self.tables[self.spec.tables[0].name]

    def to_frame(self, name: str | None = None) -> pd.DataFrame:
        """Return the table ``name`` as a pandas frame; by default the main table.

        Raises:
            KeyError: there is no such table.
        """
        return (self.table if name is None else self.tables[name]).to_frame()

    def with_table(self, table: Table, name: str | None = None) -> Result:
        """Return the result with other rows in a table; columns are put in declared order."""
        spec = self.spec.tables[0] if name is None else self.spec.table(name)
        return replace(self, tables={**self.tables, spec.name: spec.of_rows(table)})

    def with_scalars(self, **scalars: Any) -> Result:
        """Return the result with additional scalars."""
        return replace(self, scalars={**self.scalars, **scalars})

    def lacking(self, text: str) -> Result:
        """Return the empty result with a note about the missing data."""
        return replace(self.with_notes(Note(text)), lacks=text)

    def with_notes(self, *notes: Note) -> Result:
        """Return the result with additional notes."""
        return replace(self, notes=(*self.notes, *notes))
