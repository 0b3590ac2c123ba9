"""When a rank stood still for other ranks."""

from __future__ import annotations

import numpy as np

from traceprof.facts.collectives.matches import Matches
from traceprof.facts.devices import device_time
from traceprof.model.intervals import Intervals
from traceprof.model.trace import Trace

__all__ = ["waiting_of_processes"]


def waiting_of_processes(trace: Trace, matches: Matches) -> dict[int, Intervals]:
    """Return, by process, when it waited in shared collectives for a rank that had not come yet.

    From its own start to that of the last rank, without the time in which the same device
    computes: what compute hides holds nothing up.
    """
    rows = matches.rows[matches.rows["match"] >= 0]
    last_start = matches.table["last_start_ns"].reindex(rows["match"]).to_numpy(np.int64)
    starts = rows["start_ns"].to_numpy(np.int64)
    ends = np.minimum(last_start, rows["end_ns"].to_numpy(np.int64))
    keys = rows[["process", "device"]].reset_index(drop=True)
    waiting: dict[int, Intervals] = {}
    for places in keys.groupby(["process", "device"]).indices.values():
        process, device = keys.iloc[places[0]].tolist()
        held = Intervals.union_of(starts[places], ends[places])
        exposed = held - device_time(trace.whole, device).compute
        waiting[process] = waiting.get(process, Intervals.empty()) | exposed
    return waiting
