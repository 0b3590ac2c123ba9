"""What the critical path of a process through the window consists of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from traceprof.facts.cache import of_window
from traceprof.facts.gaps import LAUNCH_BOUND_NS, LONGEST_CALL_NS
from traceprof.facts.host.phases import find_host_phases
from traceprof.facts.path.graph import DEVICE_KINDS, dependencies
from traceprof.facts.path.walk import HOST, LATENCY, SYNC, Segments, walk_back
from traceprof.model.intervals import Intervals
from traceprof.model.trace import Trace

__all__ = ["PATH_PARTS", "find_path"]

PATH_PARTS: Final = (*DEVICE_KINDS, "data", "launch", "host", "latency", "synchronising")
"""What the path consists of.

data: the host fetches data; launch: it launches one piece of work after the other; host: it runs
other code, or a call takes more than a millisecond (it loads a module); latency: between a
launch, or the work ahead, and the start of work; synchronising: from the end of work to the
return of the call that waited for it.
"""


@of_window
def find_path(trace: Trace, process: int) -> tuple[Mapping[str, Intervals], Segments]:
    """Return when each of `PATH_PARTS` was on the path of ``process``, and the segments.

    The parts fill the window exactly. The process must have device work somewhere.
    """
    segments = walk_back(dependencies(trace)[process], trace.span)
    parts = {name: _of_kind(segments, kind) for kind, name in enumerate(DEVICE_KINDS)}
    host = _of_kind(segments, HOST)
    nothing = Intervals.empty()
    data = _data_loading(trace).get(process, nothing)
    launching = _launching(trace).get(process, nothing)
    parts["data"] = host & data
    parts["launch"] = (host - data) & launching
    parts["host"] = host - data - launching
    parts["latency"] = _of_kind(segments, LATENCY)
    parts["synchronising"] = _of_kind(segments, SYNC)
    return parts, segments


def _of_kind(segments: Segments, kind: int) -> Intervals:
    chosen = segments.kind == kind
    return Intervals.union_of(segments.start_ns[chosen][::-1], segments.end_ns[chosen][::-1])


@of_window
def _data_loading(trace: Trace) -> Mapping[int, Intervals]:
    """Return when each process fetched data."""
    nothing = Intervals.empty()
    return {own.process: own.times.get("data", nothing) for own in find_host_phases(trace)}


@of_window
def _launching(trace: Trace) -> Mapping[int, Intervals]:
    """Return when each process made one call after the other, with pauses of at most 200 µs."""
    calls = trace.api_calls
    starts, ends = calls["start_ns"].to_numpy(np.int64), calls["end_ns"].to_numpy(np.int64)
    quick = np.flatnonzero(ends - starts <= LONGEST_CALL_NS)
    found = {}
    for process, places in calls["process"].iloc[quick].groupby(calls["process"]).indices.items():
        rows = quick[places]
        closed = Intervals.union_of(starts[rows], ends[rows] + LAUNCH_BOUND_NS)
        # What was added behind the last call of each run of calls is taken off again.
        found[int(str(process))] = Intervals(closed.starts, closed.ends - LAUNCH_BOUND_NS)
    return found
