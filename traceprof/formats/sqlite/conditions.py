"""Conditions on rows: as SQL, and as masks over decoded columns.

As in SQL, a comparison with NULL is false.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from traceprof.formats.sqlite.columns import NULL, ColumnType
from traceprof.formats.sqlite.schema import quoted
from traceprof.model.grouping import is_in

Mask: TypeAlias = "npt.NDArray[np.bool_]"
Bounds: TypeAlias = "Mapping[str, tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]"
"""Column → its smallest and largest number in each of several groups of rows.

NULL is smaller than all other numbers.
"""


@dataclass(frozen=True, eq=False, slots=True)
class Condition:
    """A condition on rows, as ``sql`` and as ``holds``, which evaluates decoded columns.

    ``kinds`` are the columns that ``holds`` needs. It receives an object with ``values`` (columns
    of whole numbers by name), ``contains`` and ``starts_with``, such as
    `traceprof.formats.sqlite.pages.blocks.RowBlock`. ``within`` returns a mask of the groups of
    rows in which the condition may hold, from the bounds of the columns ``bounded``; None means any
    group.
    """

    sql: str
    kinds: Mapping[str, ColumnType]
    holds: Callable[[Any], Mask]
    bounded: frozenset[str] = frozenset()
    within: Callable[[Bounds], Mask | None] = lambda _: None


def between(column: str, least: int | None = None, most: int | None = None) -> Condition:
    """Return the condition that a whole number is ≥ ``least`` and ≤ ``most``, if given."""
    limits = ((">=", least), ("<=", most))
    comparisons = [
        f"{quoted(column)} {sign} {limit}" for sign, limit in limits if limit is not None
    ]

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
        may_hold = np.ones(len(smallest), np.bool_)
        if least is not None:
            may_hold &= greatest >= least
        if most is not None:
            may_hold &= smallest <= most
        return may_hold

    sql = " AND ".join(comparisons) or f"{quoted(column)} IS NOT NULL"
    return Condition(sql, {column: ColumnType.INTEGER}, holds, frozenset([column]), within)


def is_one_of(column: str, values: Sequence[int]) -> Condition:
    """Return the condition that a whole number is one of ``values``."""
    sql = f"{quoted(column)} IN ({', '.join(map(str, values))})"
    searched = np.array(values, np.int64)
    return Condition(
        sql, {column: ColumnType.INTEGER}, lambda rows: is_in(rows.values[column], searched)
    )


def differs(column: str, value: int) -> Condition:
    """Return the condition that a whole number differs from ``value``."""
    return Condition(
        f"{quoted(column)} <> {value}",
        {column: ColumnType.INTEGER},
        lambda rows: (rows.values[column] != value) & (rows.values[column] != NULL),
    )


def contains(column: str, words: Sequence[str], *, but_none_of: Sequence[str] = ()) -> Condition:
    """Return the condition that a text contains one of ``words`` and none of ``but_none_of``.

    Words consist of lower-case ASCII letters. The comparison ignores case.
    """
    searched, excluded = ([word.encode() for word in texts] for texts in (words, but_none_of))
    alternatives = (
        " OR ".join(f"{quoted(column)} LIKE '%{word}%'" for word in texts) or "0"
        for texts in (words, but_none_of)
    )
    return Condition(
        "({}) AND NOT ({})".format(*alternatives),
        {column: ColumnType.TEXT},
        lambda rows: rows.contains(column, searched) & ~rows.contains(column, excluded),
    )


def starts_with(column: str, prefixes: Sequence[str]) -> Condition:
    """Return the condition that a text starts with one of ``prefixes``.

    A prefix has up to eight ASCII letters, digits or colons.
    """
    sql = " OR ".join(f"{quoted(column)} GLOB '{prefix}*'" for prefix in prefixes)
    searched = [prefix.encode() for prefix in prefixes]
    return Condition(
        f"({sql})", {column: ColumnType.TEXT}, lambda rows: rows.starts_with(column, searched)
    )


def any_of(*parts: Condition) -> Condition:
    """Return the condition that at least one of ``parts`` holds."""
    return _several(" OR ", np.logical_or, parts)


def all_of(*parts: Condition) -> Condition:
    """Return the condition that all of ``parts`` hold."""
    return _several(" AND ", np.logical_and, parts)


def _several(operator: str, combine: np.ufunc, parts: Sequence[Condition]) -> Condition:
    def within(bounds: Bounds) -> Mask | None:
        answers = [part.within(bounds) for part in parts]
        known = [answer for answer in answers if answer is not None]
        # An unknown alternative may hold in any group.
        is_decided = len(known) == len(answers) if combine is np.logical_or else bool(known)
        return combine.reduce(known) if is_decided else None

    return Condition(
        operator.join(f"({part.sql})" for part in parts),
        {name: kind for part in parts for name, kind in part.kinds.items()},
        lambda rows: combine.reduce([part.holds(rows) for part in parts]),
        frozenset().union(*(part.bounded for part in parts)),
        within,
    )
