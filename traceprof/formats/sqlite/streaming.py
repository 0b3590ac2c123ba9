"""Make columns of the rows of an SQL query, with Python's own sqlite3.

This path reads every SQLite file, including those whose pages traceprof cannot decode itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.formats.sqlite import columns as cells
from traceprof.formats.sqlite.spare import MistypedColumnError
from traceprof.model.table import Column, Names

_BATCH_ROWS: Final = 65_536


def columns_of_rows(
    rows: Iterator[tuple[Any, ...]], kinds: Mapping[str, cells.ColumnType], path: Path, table: str
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
            if kinds[name] is cells.ColumnType.INTEGER and {*map(type, values)} != {int}:
                raise MistypedColumnError(path, table, name)
            parts[name].append(_part(kinds[name], values, codes[name]))
    return {name: _joined(kind, parts.pop(name), list(codes[name])) for name, kind in kinds.items()}


def _part(
    kind: cells.ColumnType, values: Sequence[Any], codes: dict[bytes, int]
) -> npt.NDArray[Any]:
    if kind is cells.ColumnType.TEXT:
        values = [codes.setdefault(value, len(codes)) for value in values]
    return np.array(values)


def _joined(kind: cells.ColumnType, parts: list[Any], texts: list[bytes]) -> Column:
    if not parts:
        return cells.all_null(kind, 0)
    values = np.concatenate(parts)
    if kind is cells.ColumnType.TEXT:
        return Names.coded(cells.all_decoded(texts), values, is_sorted=True)
    if kind is cells.ColumnType.REAL:
        values[values == cells.NULL_REAL] = np.nan
    return values
