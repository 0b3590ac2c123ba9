"""Rows of one rank in one shared collective, found in another table of such."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from traceprof.model.compact import CompactTable
from traceprof.model.tables import ABSENT

__all__ = ["value_in", "where_in"]


def where_in(table: CompactTable, rows: CompactTable) -> npt.NDArray[np.int64]:
    """Return the first row of ``table`` with the match and the member of each of ``rows``.

    `ABSENT` where it has none, or there is no match.
    """
    n_members = 1 + int(max(own.array("member").max(initial=ABSENT) for own in (table, rows)))
    there, wanted = (_keys(own, n_members) for own in (table, rows))
    if not len(there):
        return np.full(len(rows), ABSENT, np.int64)
    order = np.argsort(there, kind="stable")
    there = there[order]
    place = np.searchsorted(there, wanted)
    np.minimum(place, len(there) - 1, out=place)
    is_there = (there[place] == wanted) & (wanted >= 0)
    del there, wanted
    found = order[place]
    found[~is_there] = ABSENT
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
    match, member = (own.array(name).astype(np.int64) for name in ("match", "member"))
    keys = match * n_members + member
    return np.where((match >= 0) & (member >= 0), keys, ABSENT)
