"""When ranks wait, inside collectives, for the one that comes last."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from traceprof.analysis.advice.findings.claims import Claim
from traceprof.analysis.advice.findings.context import Context
from traceprof.model.intervals import Intervals

__all__ = ["waiting_for"]


def waiting_for(context: Context, places: Collection[int]) -> Claim:
    """Return the claim on the time in which devices wait for the members at ``places``.

    In each shared collective that one of them enters last: from the start of the others until then,
    as far as neither compute nor anything else runs meanwhile.
    """
    matches = context.matches
    own = matches.table[matches.table["last_member"].isin(list(places))]
    rows = matches.rows[matches.rows["match"].isin(own.index)]
    until = own["last_start_ns"].reindex(rows["match"]).to_numpy(np.int64)
    starts = rows["start_ns"].to_numpy(np.int64)
    device = rows["device"].to_numpy(np.int64)
    found = {}
    for number, time in context.times.items():
        mine = device == number
        waits = Intervals.union_of(starts[mine], until[mine])
        found[number] = (waits & time.communication) - time.compute
    return context.left(found)
