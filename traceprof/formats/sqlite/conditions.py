"""Conditions on rows: as SQL, and on columns that were decoded.

As in SQL, a comparison with NULL does not hold.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from traceprof.formats.sqlite.columns import NULL, ColumnType
from traceprof.formats.sqlite.schema import quoted

Mask: TypeAlias = "npt.NDArray[np.bool_]"
Bounds: TypeAlias = "Mapping[str, tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]"
"""Column → its smallest and greatest number in each of several groups of rows."""


class ConditionRows(Protocol):
    """Rows of which columns can be asked for."""

    def certain(self, name: str) -> npt.NDArray[np.int64]:
        """Return a column of whole numbers in which `NULL` stands for nothing but NULL."""
        ...

    def contains(self, name: str, words: Sequence[bytes]) -> Mask:
        """Return in which rows a column contains one of these words, as LIKE finds them."""
        ...

    def starts_with(self, name: str, prefixes: Sequence[bytes]) -> Mask:
        """Return in which rows a column starts with one of these."""
        ...


class Condition(ABC):
    """What holds for some rows."""

    @abstractmethod
    def sql(self) -> str:
        """Return it as SQL."""

    @abstractmethod
    def kinds(self) -> dict[str, ColumnType]:
        """Return the columns that it asks for."""

    @abstractmethod
    def of(self, rows: ConditionRows) -> Mask:
        """Return for which rows it holds."""

    def bounded(self) -> frozenset[str]:
        """Return the columns whose bounds tell in which groups of rows it cannot hold."""
        return frozenset()

    def within(self, bounds: Bounds) -> Mask | None:
        """Return in which groups of rows it may hold; None where in all."""
        del bounds  # they tell nothing of it
        return None


@dataclass(frozen=True, slots=True)
class Between(Condition):
    """A whole number that is not below ``least`` nor above ``most``, where these are given."""

    column: str
    least: int | None = None
    most: int | None = None

    def sql(self) -> str:
        """Return it as SQL."""
        bounds = ((">=", self.least), ("<=", self.most))
        told = [f"{quoted(self.column)} {sign} {one}" for sign, one in bounds if one is not None]
        return " AND ".join(told) or f"{quoted(self.column)} IS NOT NULL"

    def kinds(self) -> dict[str, ColumnType]:
        """Return the columns that it asks for."""
        return {self.column: ColumnType.INTEGER}

    def of(self, rows: ConditionRows) -> Mask:
        """Return for which rows it holds."""
        values = rows.certain(self.column)
        holds: Mask = values != NULL
        if self.least is not None:
            holds &= values >= self.least
        if self.most is not None:
            holds &= values <= self.most
        return holds

    def bounded(self) -> frozenset[str]:
        """Return the columns whose bounds tell in which groups of rows it cannot hold."""
        return frozenset([self.column])

    def within(self, bounds: Bounds) -> Mask | None:
        """Return in which groups of rows it may hold."""
        if self.column not in bounds:
            return None
        least, most = bounds[self.column]
        may = np.ones(len(least), np.bool_)
        if self.least is not None:
            may &= most >= self.least
        if self.most is not None:
            may &= least <= self.most
        return may


@dataclass(frozen=True, slots=True)
class Among(Condition):
    """A whole number that is one of ``values``."""

    column: str
    values: tuple[int, ...]

    def sql(self) -> str:
        """Return it as SQL."""
        return f"{quoted(self.column)} IN ({', '.join(map(str, self.values))})"

    def kinds(self) -> dict[str, ColumnType]:
        """Return the columns that it asks for."""
        return {self.column: ColumnType.INTEGER}

    def of(self, rows: ConditionRows) -> Mask:
        """Return for which rows it holds."""
        values = rows.certain(self.column)
        if len(self.values) > 4:
            return np.isin(values, np.array(self.values, np.int64))
        holds = np.zeros(len(values), np.bool_)
        for one in self.values:
            holds |= values == one
        return holds


@dataclass(frozen=True, slots=True)
class Differs(Condition):
    """A whole number other than ``value``."""

    column: str
    value: int

    def sql(self) -> str:
        """Return it as SQL."""
        return f"{quoted(self.column)} <> {self.value}"

    def kinds(self) -> dict[str, ColumnType]:
        """Return the columns that it asks for."""
        return {self.column: ColumnType.INTEGER}

    def of(self, rows: ConditionRows) -> Mask:
        """Return for which rows it holds."""
        values = rows.certain(self.column)
        holds: Mask = (values != self.value) & (values != NULL)
        return holds


@dataclass(frozen=True, slots=True)
class Contains(Condition):
    """A text with one of ``words`` (ASCII letters in lower case) in it, whatever their case."""

    column: str
    words: tuple[str, ...]

    def sql(self) -> str:
        """Return it as SQL."""
        found = " OR ".join(f"{quoted(self.column)} LIKE '%{word}%'" for word in self.words)
        return f"({found})"

    def kinds(self) -> dict[str, ColumnType]:
        """Return the columns that it asks for."""
        return {self.column: ColumnType.TEXT}

    def of(self, rows: ConditionRows) -> Mask:
        """Return for which rows it holds."""
        return rows.contains(self.column, [word.encode() for word in self.words])


@dataclass(frozen=True, slots=True)
class StartsWith(Condition):
    """A text that starts with one of ``prefixes``: up to eight ASCII letters, digits or colons."""

    column: str
    prefixes: tuple[str, ...]

    def sql(self) -> str:
        """Return it as SQL."""
        found = [f"{quoted(self.column)} GLOB '{prefix}*'" for prefix in self.prefixes]
        return f"({' OR '.join(found)})"

    def kinds(self) -> dict[str, ColumnType]:
        """Return the columns that it asks for."""
        return {self.column: ColumnType.TEXT}

    def of(self, rows: ConditionRows) -> Mask:
        """Return for which rows it holds."""
        return rows.starts_with(self.column, [prefix.encode() for prefix in self.prefixes])


class _Several(Condition):
    """Several conditions put together."""

    __slots__ = ("parts",)

    def __init__(self, *parts: Condition) -> None:
        self.parts = parts

    def kinds(self) -> dict[str, ColumnType]:
        """Return the columns that it asks for."""
        return {name: kind for part in self.parts for name, kind in part.kinds().items()}

    def bounded(self) -> frozenset[str]:
        """Return the columns whose bounds tell in which groups of rows it cannot hold."""
        return frozenset().union(*(part.bounded() for part in self.parts))


class AnyOf(_Several):
    """At least one of several conditions holds."""

    def sql(self) -> str:
        """Return it as SQL."""
        return " OR ".join(f"({part.sql()})" for part in self.parts)

    def of(self, rows: ConditionRows) -> Mask:
        """Return for which rows it holds."""
        holds: Mask = np.logical_or.reduce([part.of(rows) for part in self.parts])
        return holds

    def within(self, bounds: Bounds) -> Mask | None:
        """Return in which groups of rows it may hold; None where in all."""
        told = [part.within(bounds) for part in self.parts]
        known = [one for one in told if one is not None]
        return np.logical_or.reduce(known) if len(known) == len(told) else None


class AllOf(_Several):
    """All of several conditions hold."""

    def sql(self) -> str:
        """Return it as SQL."""
        return " AND ".join(f"({part.sql()})" for part in self.parts)

    def of(self, rows: ConditionRows) -> Mask:
        """Return for which rows it holds."""
        holds: Mask = np.logical_and.reduce([part.of(rows) for part in self.parts])
        return holds

    def within(self, bounds: Bounds) -> Mask | None:
        """Return in which groups of rows it may hold; None where in all."""
        told = [part.within(bounds) for part in self.parts]
        known = [one for one in told if one is not None]
        return np.logical_and.reduce(known) if known else None
