"""The critical path of each step, and what would be gained if parts of it took no time.

See `traceprof.facts.path.walk` for how the path is found. Its parts add up to the window
exactly. Taking a part away gains at most its time on the path, and never more than what brings
the window down to the time in which the busiest device still has other work: the smaller of the
two is the bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.facts.devices import device_time
from traceprof.facts.gaps import LAUNCH_BOUND_NS, LONGEST_CALL_NS
from traceprof.facts.host.phases import find_host_phases
from traceprof.facts.path.walk import (
    DEVICE_KINDS,
    HOST,
    LATENCY,
    SYNC,
    Segments,
    walk_back,
)
from traceprof.facts.steps.find import find_steps
from traceprof.model.intervals import Intervals
from traceprof.model.parts import DeviceTime
from traceprof.model.trace import DEVICE_TABLES, Trace

__all__ = ["ANALYSIS", "PARTS", "CriticalPath", "find_path", "measure_critical_path"]

PARTS: Final = (*DEVICE_KINDS, "data", "launch", "host", "latency", "synchronising")
"""What the path consists of.

data: the host fetches data; launch: it launches one piece of work after the other; host: it runs
other code, or a call takes more than a millisecond (it loads a module); latency: between a
launch, or the work ahead, and the start of work; synchronising: from the end of work to the
return of the call that waited for it.
"""


@dataclass(frozen=True, slots=True, eq=False)
class CriticalPath:
    """One row per process and step (one per process where steps are not known).

    ``table``: process, step (-1: the window), duration_ns, one column per part of `PARTS` (they
    add up to the duration), and bound_by, the largest.
    """

    table: pd.DataFrame
    notes: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return the table."""
        return self.table


def find_path(trace: Trace, process: int) -> tuple[dict[str, Intervals], Segments]:
    """Return when each of `PARTS` was on the path of ``process``, and the segments."""
    segments = walk_back(trace, process)
    parts = {name: _of_kind(segments, kind) for kind, name in enumerate(DEVICE_KINDS)}
    host = _of_kind(segments, HOST)
    data = _data_of(trace, process)
    launching = _launching(trace, process)
    parts["data"] = host & data
    parts["launch"] = (host - data) & launching
    parts["host"] = host - data - launching
    parts["latency"] = _of_kind(segments, LATENCY)
    parts["synchronising"] = _of_kind(segments, SYNC)
    return parts, segments


def _of_kind(segments: Segments, kind: int) -> Intervals:
    chosen = segments.kind == kind
    return Intervals.union_of(segments.start_ns[chosen], segments.end_ns[chosen])


def _data_of(trace: Trace, process: int) -> Intervals:
    for phases in find_host_phases(trace):
        if phases.process == process:
            return phases.times.get("data", Intervals.empty())
    return Intervals.empty()


def _launching(trace: Trace, process: int) -> Intervals:
    """Return when the host made one call after the other, with pauses of at most 200 µs."""
    calls = trace.api_calls
    quick = calls["end_ns"] - calls["start_ns"] <= LONGEST_CALL_NS
    own = calls[(calls["process"] == process) & quick]
    closed = Intervals.union_of(own["start_ns"], own["end_ns"] + LAUNCH_BOUND_NS)
    # What was added behind the last call of each run of calls is taken off again.
    return Intervals(closed.starts, closed.ends - LAUNCH_BOUND_NS) if len(closed) else closed


def processes_of(trace: Trace) -> list[int]:
    """Return the processes that have device work in the window."""
    frames = [trace.table(name)["process"] for name in DEVICE_TABLES]
    return [int(process) for process in np.unique(np.concatenate(frames))]


def measure_critical_path(trace: Trace) -> CriticalPath:
    """Return the critical path of every step of every process with device work."""
    steps = find_steps(trace).table
    tables = []
    for process in processes_of(trace):
        parts, _ = find_path(trace, process)
        rows = steps[steps["process"] == process]
        if rows.empty:
            span = {"start_ns": [trace.span.start_ns], "end_ns": [trace.span.end_ns]}
            rows = pd.DataFrame({"process": [process], "step": [-1], **span})
        starts, ends = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
        columns = {f"{name}_ns": parts[name].covered_ns(starts, ends) for name in PARTS}
        table = pd.DataFrame(
            {"process": process, "step": rows["step"].to_numpy(), "duration_ns": ends - starts}
        )
        largest = np.stack(list(columns.values())).argmax(axis=0)
        tables.append(table.assign(**columns, bound_by=np.array(PARTS, object)[largest]))
    if not tables:
        names = ["process", "step", "duration_ns", *(f"{name}_ns" for name in PARTS), "bound_by"]
        return CriticalPath(pd.DataFrame(columns=names), ("no device worked in this window",))
    return CriticalPath(pd.concat(tables, ignore_index=True))


def busy_without(time: DeviceTime, part: str) -> int:
    """Return how long a device works in what is left without ``part``, in ns."""
    sets = {
        "compute": time.compute,
        "communication": time.communication,
        "transfer": time.transfer,
        "device_memory": time.device_memory,
    }
    left = Intervals.empty()
    for name, own in sets.items():
        left = left if name == part else left | own
    return left.total_ns


def device_times(trace: Trace, process: int) -> list[DeviceTime]:
    """Return what each device of ``process`` did when."""
    frames = [trace.table(name) for name in DEVICE_TABLES]
    devices = np.unique(np.concatenate([f.loc[f["process"] == process, "device"] for f in frames]))
    return [device_time(trace, int(device)) for device in devices]


ANALYSIS = Analysis(
    name="path",
    needs=("kernels", "api_calls"),
    run=measure_critical_path,
)
