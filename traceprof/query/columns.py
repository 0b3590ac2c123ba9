"""Rows of a table as SQLite takes them: columns of plain values, None where nothing is known."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pandas as pd

from traceprof.model.tables import ABSENT, ColumnKind

__all__ = ["plain_columns", "plain_values"]


def plain_columns(
    frame: pd.DataFrame,
    kinds: Mapping[str, ColumnKind],
    wanted: Collection[str],
    zero_ns: int,
    ranks: Mapping[int, int],
) -> dict[str, list[Any]]:
    """Return the columns of a table that are ``wanted``, and those that are made of others.

    Times become ns after ``zero_ns``; ``ranks`` are those of the processes, where they have one.
    """
    found = {
        name: plain_values(frame[name], kind, zero_ns)
        for name, kind in kinds.items()
        if name in wanted
    }
    if "duration_ns" in wanted:
        found["duration_ns"] = (frame["end_ns"] - frame["start_ns"]).tolist()
    if "rank" in wanted and "rank" not in kinds:
        distinct, places = np.unique(frame["process"].to_numpy(np.int64), return_inverse=True)
        known = np.empty(len(distinct), object)
        known[:] = [_known_rank(ranks.get(one)) for one in distinct.tolist()]
        found["rank"] = known[places.ravel()].tolist()
    return found


def _known_rank(rank: int | None) -> int | None:
    return None if rank == ABSENT else rank


def plain_values(values: pd.Series, kind: ColumnKind, zero_ns: int = 0) -> list[Any]:
    """Return one column; a text that cannot be written as UTF-8 loses what is wrong in it."""
    match kind:
        case ColumnKind.TIME:
            return list((values.to_numpy(np.int64) - zero_ns).tolist())
        case ColumnKind.NUMBER:
            numbers = values.to_numpy(np.int64)
            return _with_none(numbers, numbers == ABSENT)
        case ColumnKind.FLOAT:
            reals = values.to_numpy(np.float64)
            return _with_none(reals, np.isnan(reals))
        case ColumnKind.NAME:
            names = values.array
            texts = np.empty(len(names.categories) + 1, object)
            texts[:] = [*(_text(one) for one in names.categories), None]
            return list(texts[names.codes].tolist())
        case ColumnKind.TEXT:
            return [_text(one) for one in values]


def _with_none(values: Any, is_unknown: Any) -> list[Any]:
    if not is_unknown.any():
        return list(values.tolist())
    plain = values.astype(object)
    plain[is_unknown] = None
    return list(plain.tolist())


def _text(value: object) -> str:
    return str(value).encode("utf-8", "replace").decode("utf-8")
