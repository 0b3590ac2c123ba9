"""Types of SQLite columns, and conversion of their values to arrays and names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.formats.sqlite.spare import MistypedColumnError
from traceprof.model.grouping import places_of
from traceprof.model.packed import Packed
from traceprof.model.table import Column, Names
from traceprof.model.tables import ABSENT

NULL: Final = int(np.iinfo(np.int64).min)
"""Value that represents SQL NULL in a column of whole numbers."""
NULL_REAL: Final = float(np.finfo(np.float64).min)
"""Value that represents SQL NULL in a column of reals that SQL returns."""
_BATCH_ROWS: Final = 65_536


class ColumnType(Enum):
    """How to read a column, and what replaces NULL."""

    INTEGER = "integer"  # int64; NULL → `NULL`
    REAL = "real"  # float64; NULL → NaN
    TEXT = "text"  # `Names`; NULL → ""; bytes that are not UTF-8 are replaced


def known(values: Column) -> npt.NDArray[np.int64]:
    """Return whole numbers with `ABSENT` in place of SQL NULL."""
    numbers = np.asarray(values, np.int64)
    is_null = numbers == NULL
    return np.where(is_null, ABSENT, numbers) if is_null.any() else numbers


def expression(column: str, kind: ColumnType) -> str:
    """Return SQL that replaces NULL in a column, so that all rows have values of one type."""
    match kind:
        case ColumnType.INTEGER:
            return f"coalesce({column}, {NULL})"
        case ColumnType.REAL:
            return f"coalesce(CAST({column} AS REAL), {NULL_REAL!r})"
        case ColumnType.TEXT:
            return f"coalesce(CAST({column} AS BLOB), x'')"


def all_null(kind: ColumnType, length: int) -> Column:
    """Return a column of ``length`` NULLs."""
    match kind:
        case ColumnType.INTEGER:
            return np.full(length, NULL, np.int64)
        case ColumnType.REAL:
            return np.full(length, np.nan)
        case ColumnType.TEXT:
            return Names(Packed.repeated(0, length), [""])


def distinct(values: Column) -> tuple[Packed, list[int]]:
    """Return the index of each whole number among the distinct ones, and the distinct ones.

    Same result as `places_of`, but NULL does not affect the choice of a fast counting method.
    """
    numbers = np.asarray(values, np.int64)
    is_null = numbers == NULL
    if not is_null.any():
        return places_of(numbers)
    # NULL is far from the other numbers: replace it by a number next to them.
    place, found = places_of(np.where(is_null, numbers[~is_null].min(initial=0) - 1, numbers))
    return place, [NULL, *found[1:]]


decoded: Final = partial(str, encoding="utf-8", errors="replace")
"""Decode bytes as UTF-8; invalid bytes become replacement characters."""


def all_decoded(values: Sequence[bytes]) -> list[str]:
    """Return the decoded texts; invalid UTF-8 is replaced, as in `decoded`."""
    try:
        return list(map(bytes.decode, values))
    except UnicodeDecodeError:
        return list(map(decoded, values))


def columns_of_rows(
    rows: Iterator[tuple[Any, ...]], kinds: Mapping[str, ColumnType], path: Path, table: str
) -> dict[str, Column]:
    """Return the columns of ``rows``, which have columns of these ``kinds``, without NULL.

    ``path`` and ``table`` are used in error messages.

    Raises:
        TraceError: a column of whole numbers contains other values.
    """
    parts: dict[str, list[Any]] = {name: [] for name in kinds}
    codes: dict[str, dict[bytes, int]] = {name: {} for name in kinds}  # of distinct texts
    while batch := list(islice(rows, _BATCH_ROWS)):
        for name, values in zip(kinds, zip(*batch, strict=True), strict=True):
            if kinds[name] is ColumnType.INTEGER and {*map(type, values)} != {int}:
                raise MistypedColumnError(path, table, name)
            parts[name].append(_part(kinds[name], values, codes[name]))
    return {name: _joined(kind, parts.pop(name), list(codes[name])) for name, kind in kinds.items()}


def _part(kind: ColumnType, values: Sequence[Any], codes: dict[bytes, int]) -> npt.NDArray[Any]:
    if kind is ColumnType.TEXT:
        values = [codes.setdefault(value, len(codes)) for value in values]
    return np.array(values)


def _joined(kind: ColumnType, parts: list[Any], texts: list[bytes]) -> Column:
    if not parts:
        return all_null(kind, 0)
    values = np.concatenate(parts)
    if kind is ColumnType.TEXT:
        return Names.coded(all_decoded(texts), values, is_sorted=True)
    if kind is ColumnType.REAL:
        values[values == NULL_REAL] = np.nan
    return values
