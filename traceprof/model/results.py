"""What an analysis returns: declared tables, typed scalars, notes.

A column is declared once: its name, unit, whether it is a key or a measure, how it combines over
ranks, and what it means. Formatting, JSON and its schema, the reference in the docs, the joining
of two runs and the combining of ranks all come from that declaration.
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
    """What the values of a column are."""

    NS = "ns"  # a length of time
    AT_NS = "at_ns"  # an instant, in ns after the start of the run
    BYTES = "bytes"
    BYTES_PER_S = "bytes/s"
    PER_S = "1/s"  # events per second, such as samples
    FLOP = "flop"  # a multiply-add is two
    FLOP_PER_S = "flop/s"
    RATIO = "ratio"  # a share, 1 is all; may exceed 1 where the meaning says so
    FACTOR = "factor"  # how many times, such as a speed-up
    COUNT = "count"
    NUMBER = "number"  # any other number, or one that names something (a device, a step)
    TEXT = "text"
    FLAG = "flag"  # True or False


class Combine(StrEnum):
    """How the values of a column combine where several ranks have a row of the same key."""

    KEY = "key"  # part of what identifies a row
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    MEAN = "mean"  # weighted by another column
    MEDIAN = "median"  # exact: from the samples of all
    SAME = "same"  # follows from the key, or: the first that is known
    DERIVED = "derived"  # computed from the others once these are combined


@dataclass(frozen=True, slots=True)
class Column:
    """One column, or one scalar.

    ``weight`` names the column by which a mean is weighted. Unknown values are None or NaN.
    ``is_proper``: the name is one that a user gave (that of a run), and is shown as it is;
    ``is_typed``: so are its cells.
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
        """Whether it is part of what identifies a row."""
        return self.combine is Combine.KEY


def key(name: str, meaning: str, unit: Unit = Unit.TEXT) -> Column:
    """Return a column that is part of what identifies a row."""
    return Column(name, unit, meaning, Combine.KEY)


def total(name: str, unit: Unit, meaning: str) -> Column:
    """Return a measure that adds up over ranks."""
    return Column(name, unit, meaning, Combine.SUM)


def mean(name: str, unit: Unit, meaning: str, weight: str) -> Column:
    """Return a mean, weighted by another column."""
    return Column(name, unit, meaning, Combine.MEAN, weight)


def same(name: str, unit: Unit, meaning: str) -> Column:
    """Return what follows from the key, such as the name of a device."""
    return Column(name, unit, meaning, Combine.SAME)


def derived(name: str, unit: Unit, meaning: str) -> Column:
    """Return what the analysis computes from other columns after ranks were combined."""
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
"""What names end with, or are, tells the unit."""
_KINDS: Final = {"total": Combine.SUM, "smallest": Combine.MIN, "largest": Combine.MAX}
_DECLARATION: Final = re.compile(
    r"(?P<kind>[a-z]+)(\((?P<weight>\w+)\))? (?P<name>\w+)( \[(?P<unit>\S+)\])?: (?P<meaning>.+)"
)


def named_in_words(text: str, known: Iterable[str]) -> str:
    """Return the name of ``known`` that ``text`` says, be it in words: "step period".

    ``text`` itself where it says none.
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
    """Return the columns that ``text`` declares, one a line; what is indented goes on with it.

    A line is how the column combines (key, total, smallest, largest, mean(WEIGHT), median, same or
    derived), its name, and what it means: "total idle_ns: when nothing ran". The name tells the
    unit; another one is named behind it: "same waves [number]: …". Names that tell none are texts.

    Raises:
        ValueError: a line declares no column.
    """
    return tuple(map(_column, _lines_of(text)))


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A table that an analysis returns: its columns in order. Rows may lack some of them."""

    name: str
    about: str
    columns: tuple[Column, ...]

    @classmethod
    def of(cls, *parts: str | Column) -> TableSpec:
        """Return the table that texts and columns declare, as `ResultSpec.of` takes them."""
        (table,) = ResultSpec.of(*parts).tables
        return table

    def __iter__(self) -> Iterator[Column]:
        return iter(self.columns)

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that identify a row."""
        return tuple(column.name for column in self.columns if column.is_key)

    def column(self, name: str) -> Column:
        """Return the column called ``name``.

        Raises:
            KeyError: there is none.
        """
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)

    def of_rows(self, rows: Sequence[Mapping[str, Any]] | Table = ()) -> Table:
        """Return ``rows`` as a table with the columns in their order; without rows all of them."""
        names = [column.name for column in self.columns]
        if not isinstance(rows, Table):
            rows = Table.of_rows(rows) if rows else Table(dict.fromkeys(names, ()))
        wanted = [name for name in names if name in rows]
        return rows if wanted == list(rows) else rows.select(*wanted)


@dataclass(frozen=True, slots=True)
class ResultSpec:
    """What the result of an analysis holds; the first table is the one that answers.

    Raises:
        ValueError: two tables, two scalars or two columns of a table have the same name.
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

        In a text a table begins with a line "table NAME: what it is about", and the scalars with
        "scalars:"; below are their columns, as `columns` reads them.

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
        for table in self.tables:
            if table.name == name:
                return table
        raise KeyError(name)


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence that must be read with the numbers; what it says in numbers is in ``values``.

    ``text`` names each value with its unit, which renderers turn into words: "{lost:ns} of
    {n:count} launches". Values of no unit ("{name}") are text.
    """

    text: str
    values: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str, **values: Any) -> Note:
        """Return a note with its values."""
        return cls(text, values)


class Samples:
    """The single values behind a table: ``values[i]`` belongs to row ``rows[i]`` of it.

    ``counts``: how often each occurs; None: once. Whole numbers that are given `Packed` are stored
    so; they come out in int64. Nothing of it changes.
    """

    __slots__ = ("_counts", "_rows", "_values")

    def __init__(
        self, rows: Numbers, values: npt.NDArray[Any] | Packed, counts: Numbers | None = None
    ) -> None:
        self._rows, self._values = packed_if_narrow(rows), packed_if_narrow(values)
        self._counts = None if counts is None else packed_if_narrow(counts)

    @classmethod
    def joined(cls, parts: Sequence[Samples]) -> Samples:
        """Return the samples of all ``every`` (at least one), one after another."""
        counts = None
        if any(samples._counts is not None for samples in parts):
            counts = joined_numbers([samples._counts_or_ones() for samples in parts])
        rows = joined_numbers([samples._rows for samples in parts])
        return cls(rows, joined_numbers([samples._values for samples in parts]), counts)

    @property
    def rows(self) -> npt.NDArray[np.int64]:
        """The row of the table that each sample belongs to."""
        return np.asarray(self._rows, np.int64)

    @property
    def values(self) -> npt.NDArray[Any]:
        """The samples: int64 or floats."""
        return np.asarray(self._values)

    @property
    def counts(self) -> npt.NDArray[np.int64] | None:
        """How often each sample occurs; None: once."""
        return None if self._counts is None else np.asarray(self._counts, np.int64)

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, chosen: slice | npt.NDArray[Any]) -> Samples:
        """Return some of the samples."""
        counts = None if self._counts is None else self._counts[chosen]
        return Samples(self._rows[chosen], self._values[chosen], counts)

    def with_rows(self, row_of: Packed) -> Samples:
        """Return the samples with another row for each: ``row_of[row]``."""
        return Samples(row_of[self._rows], self._values, self._counts)

    def _counts_or_ones(self) -> Packed | npt.NDArray[Any]:
        return Packed.repeated(1, len(self)) if self._counts is None else self._counts


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """The outcome of an analysis: tables by their declared names, scalars, notes.

    ``samples`` are what medians are computed from, by table; a finished result has none. ``lacks``
    says which data is missing where the result is empty for that reason; "" else.
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
        """The table that answers."""
        return self.tables[self.spec.tables[0].name]

    def to_frame(self, name: str | None = None) -> pd.DataFrame:
        """Return the table called ``name`` as a frame of pandas; without it the one that answers.

        Raises:
            KeyError: there is no such table.
        """
        return (self.table if name is None else self.tables[name]).to_frame()

    def with_table(self, table: Table, name: str | None = None) -> Result:
        """Return the result with other rows in a table, its columns in the declared order."""
        spec = self.spec.tables[0] if name is None else self.spec.table(name)
        return replace(self, tables={**self.tables, spec.name: spec.of_rows(table)})

    def with_scalars(self, **scalars: Any) -> Result:
        """Return the result with more scalars."""
        return replace(self, scalars={**self.scalars, **scalars})

    def lacking(self, text: str) -> Result:
        """Return the result, which is empty, with a note of the data that is missing."""
        return replace(self.with_notes(Note(text)), lacks=text)

    def with_notes(self, *notes: Note) -> Result:
        """Return the result with more notes."""
        return replace(self, notes=(*self.notes, *notes))
