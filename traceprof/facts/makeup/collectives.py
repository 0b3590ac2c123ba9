"""The collectives of all ranks with when the last rank came to each, and who was to blame."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.facts.cache import fact
from traceprof.facts.collectives.matches import find_matches
from traceprof.facts.collectives.members import Member
from traceprof.facts.ranks.blame import find_blame
from traceprof.facts.ranks.pairs import value_in
from traceprof.facts.ranks.waits import find_waits
from traceprof.model.ranks import Ranks
from traceprof.model.tables import ABSENT

__all__ = ["COLLECTIVE", "NOT_IN_STEP", "WAITING", "released_collectives"]

COLLECTIVE: Final = "collective"
WAITING: Final = "waiting"
NOT_IN_STEP: Final = "(ranks that were not in step yet)"
"""Stands for whom is waited for before ranks were first released together: nobody is late."""


@fact
def released_collectives(ranks: Ranks, *, knows_waits: bool) -> pd.DataFrame:
    """Return the collectives that kernels carried out, by start.

    Columns: device, start_ns, end_ns, op, n_bytes (`ABSENT`: not known), release_ns (when the last
    rank came, within start and end; the start where that is not known) and waits_for (the name of
    the rank that the delay goes back to: the last one, or whom that had itself waited for; "" where
    nobody is waited for).
    """
    matches = find_matches(ranks)
    carried = matches.rows.where(matches.rows.array("kernels") > 0)
    carried = carried.where(np.argsort(carried.array("start_ns"), kind="stable"))
    rows = carried[["device", "start_ns", "end_ns", "op", "n_bytes", "match", "member"]]
    found = rows[["device", "start_ns", "end_ns", "op", "n_bytes"]]
    starts, ends = (rows[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    if not knows_waits or not matches.is_shared:
        return found.assign(release_ns=starts, waits_for="")
    is_shared = (rows["match"] >= 0).to_numpy() & (rows["member"] >= 0).to_numpy()
    shared = matches.table.reindex(rows["match"])
    last_ns = np.where(is_shared, shared["last_start_ns"].fillna(0).to_numpy(np.int64), starts)
    release = np.clip(last_ns, starts, ends)
    in_step = value_in(find_waits(ranks), carried, "is_in_step", 0).astype(np.bool_)
    names = np.array([*map(_name, matches.members), ""], object)
    last = shared["last_member"].fillna(-1).to_numpy(np.int64)
    origin = find_blame(ranks).origin_of_match.reindex(rows["match"]).to_numpy(np.float64)
    # Nobody waits for itself, though its own delay may come back to it.
    is_other = np.isfinite(origin) & (origin != rows["member"].to_numpy())
    whom = np.where(is_other, origin, last).astype(np.int64)
    waits_for = np.where(in_step, names[whom], NOT_IN_STEP)
    return found.assign(
        release_ns=release, waits_for=np.where(release > starts, waits_for, _nobody(len(rows)))
    )


def _nobody(n: int) -> npt.NDArray[np.object_]:
    return np.full(n, "", object)


def _name(member: Member) -> str:
    if member.rank != ABSENT:
        return f"rank {member.rank}"
    return f"device {member.device}" if member.device != ABSENT else f"process {member.process}"
