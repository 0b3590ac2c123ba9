"""Conditions on rows: as SQL, and on columns that were decoded.

As in SQL, a comparison with NULL does not hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from traceprof.formats.sqlite.columns import NULL, ColumnType
from traceprof.formats.sqlite.schema import quoted

Mask: TypeAlias = "npt.NDArray[np.bool_]"
Bounds: TypeAlias = "Mapping[str, tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]"
"""Column → its smallest and greatest number in each of several groups of rows.

NULL is the smallest of all.
"""


@dataclass(frozen=True, eq=False, slots=True)
class Condition:
    """What holds for some rows: ``sql``, or ``holds`` of rows with columns of these ``kinds``.

    Such rows have the ``values`` of columns of whole numbers by their names, and tell which texts
    contain words or start with prefixes, as `traceprof.formats.sqlite.pages.blocks` does.
    ``within`` tells in which groups of rows it may hold (None: in all) by the bounds of the
    columns ``bounded``.
    """

    sql: str
    kinds: Mapping[str, ColumnType]
    holds: Callable[[Any], Mask]
    bounded: frozenset[str] = frozenset()
    within: Callable[[Bounds], Mask | None] = lambda _: None


def between(column: str, least: int | None = None, most: int | None = None) -> Condition:
    """A whole number that is not below ``least`` nor above ``most``, where these are given."""
    limits = ((">=", least), ("<=", most))
    told = [f"{quoted(column)} {sign} {one}" for sign, one in limits if one is not None]

    def holds(rows: Any) -> Mask:
        values = rows.values[column]
        found: Mask = values != NULL
        if least is not None:
            found &= values >= least
        if most is not None:
            found &= values <= most
        return found

    def within(bounds: Bounds) -> Mask | None:
        if column not in bounds:
            return None
        smallest, greatest = bounds[column]
        may = np.ones(len(smallest), np.bool_)
        if least is not None:
            may &= greatest >= least
        if most is not None:
            may &= smallest <= most
        return may

    sql = " AND ".join(told) or f"{quoted(column)} IS NOT NULL"
    return Condition(sql, {column: ColumnType.INTEGER}, holds, frozenset([column]), within)


def among(column: str, values: Sequence[int]) -> Condition:
    """A whole number that is one of ``values``."""
    sql = f"{quoted(column)} IN ({', '.join(map(str, values))})"
    sought = np.array(values, np.int64)
    kind: Any = "sort" if len(values) <= 4 else None  # few are compared one by one
    return Condition(
        sql,
        {column: ColumnType.INTEGER},
        lambda rows: np.isin(rows.values[column], sought, kind=kind),
    )


def differs(column: str, value: int) -> Condition:
    """A whole number other than ``value``."""
    return Condition(
        f"{quoted(column)} <> {value}",
        {column: ColumnType.INTEGER},
        lambda rows: (rows.values[column] != value) & (rows.values[column] != NULL),
    )


def contains(column: str, words: Sequence[str], *, but_none_of: Sequence[str] = ()) -> Condition:
    """A text with one of ``words`` (ASCII letters in lower case) in it, whatever their case."""
    sought, others = ([word.encode() for word in own] for own in (words, but_none_of))
    told = (
        " OR ".join(f"{quoted(column)} LIKE '%{word}%'" for word in own) or "0"
        for own in (words, but_none_of)
    )
    return Condition(
        "({}) AND NOT ({})".format(*told),
        {column: ColumnType.TEXT},
        lambda rows: rows.contains(column, sought) & ~rows.contains(column, others),
    )


def starts_with(column: str, prefixes: Sequence[str]) -> Condition:
    """A text that starts with one of ``prefixes``: up to eight ASCII letters, digits or colons."""
    sql = " OR ".join(f"{quoted(column)} GLOB '{prefix}*'" for prefix in prefixes)
    sought = [prefix.encode() for prefix in prefixes]
    return Condition(
        f"({sql})", {column: ColumnType.TEXT}, lambda rows: rows.starts_with(column, sought)
    )


def any_of(*parts: Condition) -> Condition:
    """At least one of several conditions holds."""
    return _several(" OR ", np.logical_or, parts)


def all_of(*parts: Condition) -> Condition:
    """All of several conditions hold."""
    return _several(" AND ", np.logical_and, parts)


def _several(word: str, joined: np.ufunc, parts: Sequence[Condition]) -> Condition:
    def within(bounds: Bounds) -> Mask | None:
        told = [part.within(bounds) for part in parts]
        known = [one for one in told if one is not None]
        # Of alternatives one that is not known may hold anywhere.
        is_told = len(known) == len(told) if joined is np.logical_or else bool(known)
        return joined.reduce(known) if is_told else None

    return Condition(
        word.join(f"({part.sql})" for part in parts),
        {name: kind for part in parts for name, kind in part.kinds.items()},
        lambda rows: joined.reduce([part.holds(rows) for part in parts]),
        frozenset().union(*(part.bounded for part in parts)),
        within,
    )
