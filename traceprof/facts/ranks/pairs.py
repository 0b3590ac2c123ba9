"""Rows of one rank in one shared collective, found in another table of such."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.model.compact import CompactTable
from traceprof.model.tables import ABSENT

__all__ = ["value_in", "where_in"]

_AT_ONCE: Final = 200_000


def where_in(table: CompactTable, rows: CompactTable) -> npt.NDArray[np.int64]:
    """Return the first row of ``table`` with the match and the member of each of ``rows``.

    `ABSENT` where it has none, or there is no match.
    """
    n_members = 1 + int(max(own.array("member").max(initial=ABSENT) for own in (table, rows)))
    found = np.full(len(rows), ABSENT, np.int64)
    if table.empty:
        return found
    there = _keys(table, n_members)
    order = np.argsort(there, kind="stable").astype(np.int32)
    there = there[order]
    # Some after the others: what is laid out for every row takes several times the memory.
    for begin in range(0, len(rows), _AT_ONCE):
        places = np.arange(begin, min(begin + _AT_ONCE, len(rows)))
        wanted = _keys(rows.where(places), n_members)
        place = np.minimum(np.searchsorted(there, wanted), len(there) - 1)
        is_there = (there[place] == wanted) & (wanted >= 0)
        found[places[is_there]] = order[place[is_there]]
    return found


def value_in(
    table: CompactTable, rows: CompactTable, name: str, nothing: int
) -> npt.NDArray[np.int64]:
    """Return what ``table`` says of the match and the member of each of ``rows``."""
    place = where_in(table, rows)
    values = np.append(table.array(name).astype(np.int64), nothing)
    found: npt.NDArray[np.int64] = values[place]
    return found


def _keys(own: CompactTable, n_members: int) -> npt.NDArray[np.int64]:
    keys, member = own.array("match") * np.int64(n_members), own.array("member")
    is_unknown = (keys < 0) | (member < 0)
    keys += member
    keys[is_unknown] = ABSENT
    return keys
