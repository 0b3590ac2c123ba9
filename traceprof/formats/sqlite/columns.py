"""Columns of SQLite tables as arrays: their types, and names by codes."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.model.grouping import places_of
from traceprof.model.packed import Packed
from traceprof.model.table import Column, Names
from traceprof.model.tables import ABSENT

NULL: Final = int(np.iinfo(np.int64).min)
"""Stands for SQL NULL in a column of whole numbers."""
NULL_REAL: Final = float(np.finfo(np.float64).min)
"""Stands for SQL NULL in what SQL returns of a column of reals."""


class ColumnType(Enum):
    """How a column is read, and what becomes of NULL."""

    INTEGER = "integer"  # int64; NULL → `NULL`
    REAL = "real"  # float64; NULL → NaN
    TEXT = "text"  # `Names`; NULL → ""; bytes that are not UTF-8 are replaced


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
            return Names(Packed.repeated(0, length), [""])


def distinct(values: Column) -> tuple[Packed, list[int]]:
    """Return the place of each whole number among the distinct ones, and these, as `places_of`."""
    numbers = np.asarray(values, np.int64)
    is_null = numbers == NULL
    if not is_null.any():
        return places_of(numbers)
    # Beside the others NULL is counted with them.
    place, found = places_of(np.where(is_null, numbers[~is_null].min(initial=0) - 1, numbers))
    return place, [NULL, *found[1:]]


decoded: Final = partial(str, encoding="utf-8", errors="replace")
"""Returns the text in UTF-8 of bytes; those that are none are replaced."""


def all_decoded(values: Sequence[bytes]) -> list[str]:
    """Return the texts in UTF-8, as `decoded`."""
    try:
        return list(map(bytes.decode, values))
    except UnicodeDecodeError:
        return list(map(decoded, values))
