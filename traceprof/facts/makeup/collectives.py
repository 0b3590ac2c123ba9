"""The collectives of all ranks with when the last rank came to each, and who was to blame."""

from __future__ import annotations

from typing import Final

import numpy as np

from traceprof.facts.cache import fact
from traceprof.facts.collectives.matches import find_matches
from traceprof.facts.collectives.members import Member
from traceprof.facts.ranks.blame import find_blame
from traceprof.facts.ranks.pairs import value_in
from traceprof.facts.ranks.waits import find_waits
from traceprof.model.compact import CompactTable
from traceprof.model.ranks import Ranks
from traceprof.model.tables import ABSENT

__all__ = ["COLLECTIVE", "NOT_IN_STEP", "WAITING", "released_collectives"]

COLLECTIVE: Final = "collective"
WAITING: Final = "waiting"
NOT_IN_STEP: Final = "(ranks that were not in step yet)"
"""Stands for whom is waited for before ranks were first released together: nobody is late."""


@fact
def released_collectives(ranks: Ranks, *, knows_waits: bool) -> CompactTable:
    """Return the collectives that kernels carried out, by start.

    Columns: device, start_ns, end_ns, op, n_bytes (`ABSENT`: not known), release_ns (when the last
    rank came, within start and end; the start where that is not known) and waits_for (the name of
    the rank that the delay goes back to: the last one, or whom that had itself waited for; "" where
    nobody is waited for).
    """
    matches = find_matches(ranks)
    carried = matches.rows.where(matches.rows.array("kernels") > 0)
    carried = carried.where(np.argsort(carried.array("start_ns"), kind="stable"))
    columns = ("device", "start_ns", "end_ns", "op", "n_bytes")
    found = CompactTable.of({name: carried.array(name) for name in columns})
    starts = carried.array("start_ns")
    if not knows_waits or not matches.is_shared:
        return found.assign(release_ns=starts, waits_for=np.full(len(found), "", object))
    match, member = carried.array("match"), carried.array("member")
    shared = matches.table[["last_start_ns", "last_member"]]
    place = np.searchsorted(shared.index.to_numpy(np.int64), match)
    known = np.flatnonzero((match >= 0) & (member >= 0) & (place < len(shared)))
    known = known[shared.index.to_numpy(np.int64)[place[known]] == match[known]]
    release = starts.copy()
    release[known] = shared["last_start_ns"].to_numpy(np.int64)[place[known]]
    release = np.clip(release, starts, carried.array("end_ns"))
    whom = np.full(len(found), ABSENT, np.int64)
    whom[known] = shared["last_member"].to_numpy(np.int64)[place[known]]
    origins = find_blame(ranks).origin_of_match
    origin = origins.reindex(shared.index).to_numpy(np.float64)[place[known]]
    # Nobody waits for itself, though its own delay may come back to it.
    is_other = np.isfinite(origin) & (origin != member[known])
    whom[known[is_other]] = origin[is_other].astype(np.int64)
    in_step = value_in(find_waits(ranks), carried, "is_in_step", 0).astype(np.bool_)
    names = np.array([*map(_name, matches.members), NOT_IN_STEP, ""], object)
    whom[whom < 0] = len(names) - 1
    whom[~in_step] = len(names) - 2
    whom[release <= starts] = len(names) - 1
    return found.assign(release_ns=release, waits_for=names[whom])


def _name(member: Member) -> str:
    if member.rank != ABSENT:
        return f"rank {member.rank}"
    return f"device {member.device}" if member.device != ABSENT else f"process {member.process}"
