"""Columns of SQLite tables as arrays: their types, and names by codes."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import partial
from itertools import islice
from operator import lt
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.model.tables import ABSENT

NULL: Final = int(np.iinfo(np.int64).min)
"""Stands for SQL NULL in a column of whole numbers."""
NULL_REAL: Final = float(np.finfo(np.float64).min)
"""Stands for SQL NULL in what SQL returns of a column of reals."""

Column: TypeAlias = "npt.NDArray[Any] | pd.Categorical[Any]"


class ColumnType(Enum):
    """How a column is read, and what becomes of NULL."""

    INTEGER = "integer"  # int64; NULL → `NULL`
    REAL = "real"  # float64; NULL → NaN
    TEXT = "text"  # pandas Categorical of str; NULL → ""; bytes that are not UTF-8 are replaced


def known(values: Column) -> npt.NDArray[np.int64]:
    """Return whole numbers with `ABSENT` in the place of SQL NULL."""
    numbers = np.asarray(values, np.int64)
    is_null = numbers == NULL
    return np.where(is_null, ABSENT, numbers) if is_null.any() else numbers


def expression(column: str, kind: ColumnType) -> str:
    """Return SQL of a column in which no value is NULL, so that its type is that of all rows."""
    match kind:
        case ColumnType.INTEGER:
            return f"coalesce({column}, {NULL})"
        case ColumnType.REAL:
            return f"coalesce(CAST({column} AS REAL), {NULL_REAL!r})"
        case ColumnType.TEXT:
            return f"coalesce(CAST({column} AS BLOB), x'')"


def all_null(kind: ColumnType, length: int) -> Column:
    """Return a column of NULLs."""
    match kind:
        case ColumnType.INTEGER:
            return np.full(length, NULL, np.int64)
        case ColumnType.REAL:
            return np.full(length, np.nan)
        case ColumnType.TEXT:
            return pd.Categorical.from_codes(np.zeros(length, np.int8), pd.Index([""]))


def categorical(codes: npt.NDArray[Any], names: Sequence[str]) -> pd.Categorical:
    """Return a Categorical of ``names[codes]``, where names may repeat."""
    if all(map(lt, names, islice(names, 1, None))):
        return pd.Categorical.from_codes(codes, pd.Index(list(names), dtype=object))
    places: dict[str, Any] = dict.fromkeys(names)
    ordered = sorted(places)  # fast where they stand in a few sorted runs
    places.update(zip(ordered, range(len(ordered)), strict=True))
    place = np.fromiter(map(places.__getitem__, names), np.int64, len(names))
    return pd.Categorical.from_codes(place[codes], pd.Index(ordered, dtype=object))


def distinct(values: Column) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the distinct whole numbers, and the place of each row among them.

    As `numpy.unique` with its inverse, by hashing instead of sorting: the rows are many.
    """
    codes, uniques = pd.factorize(np.asarray(values, np.int64))
    order = np.argsort(uniques)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return uniques[order], place[codes]


def distinct_pairs(
    first: Column, second: Column
) -> tuple[list[tuple[int, int]], npt.NDArray[np.int64]]:
    """Return the distinct pairs of whole numbers, and the place of each row among them."""
    firsts, one = distinct(first)
    seconds, other = distinct(second)
    codes, place = distinct(one * len(seconds) + other)
    places = (divmod(code, len(seconds)) for code in codes.tolist())
    return [(int(firsts[a]), int(seconds[b])) for a, b in places], place


decoded: Final = partial(str, encoding="utf-8", errors="replace")
"""Returns the text in UTF-8 of bytes; those that are none are replaced."""


def all_decoded(values: Sequence[bytes]) -> list[str]:
    """Return the texts in UTF-8, as `decoded`."""
    try:
        return list(map(bytes.decode, values))
    except UnicodeDecodeError:
        return list(map(decoded, values))
