"""How long devices had nothing to do in each wait of the host."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from traceprof.facts.cache import of_window
from traceprof.facts.gaps import CAUSES, find_gap_parts, find_gaps
from traceprof.facts.host.lanes import innermost_pieces
from traceprof.facts.host.states import hold_devices_up, is_blocking_copy, is_synchronisation
from traceprof.facts.host.waits import find_waits
from traceprof.model.intervals import overlapping_pairs
from traceprof.model.trace import Trace

__all__ = ["idle_in_waits"]

_Int64Array = npt.NDArray[np.int64]
_BoolArray = npt.NDArray[np.bool_]


@of_window
def idle_in_waits(trace: Trace) -> _Int64Array:
    """Return for how long devices had nothing to do in each of the waits of `find_waits`.

    That is the time that idle gaps have as "synchronising", device by device: of threads that wait
    at once the one that began last counts. Added up it is that cause of `find_gaps`.
    """
    waits = find_waits(trace)
    found = np.zeros(len(waits), np.int64)
    parts = find_gap_parts(trace)
    parts = parts[(parts["cause"] == CAUSES.index("synchronising")).to_numpy()]
    owner = find_gaps(trace)["process"].to_numpy(np.int64)[parts["gap"].to_numpy()]
    starts, ends = parts["start_ns"].to_numpy(np.int64), parts["end_ns"].to_numpy(np.int64)
    counting = np.flatnonzero(_hold_up(trace))
    begin, end, process = (
        waits[name].to_numpy(np.int64)[counting] for name in ("start_ns", "end_ns", "process")
    )
    for number in np.unique(owner).tolist():
        own, gaps = np.flatnonzero(process == number), np.flatnonzero(owner == number)
        own = own[np.lexsort((-end[own], begin[own]))]
        first, last, row = innermost_pieces(begin[own], end[own])
        gap, piece = overlapping_pairs(starts[gaps], ends[gaps], first, last)
        ns = np.minimum(ends[gaps][gap], last[piece]) - np.maximum(starts[gaps][gap], first[piece])
        np.add.at(found, counting[own[row[piece]]], ns)
    return found


def _hold_up(trace: Trace) -> _BoolArray:
    """Return which of the waits are those of threads that launch work."""
    calls = trace.api_calls
    held = hold_devices_up(calls)
    every = is_synchronisation(calls["name"]) | is_blocking_copy(calls["name"])
    return held[every]
