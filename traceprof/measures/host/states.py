"""When a host was in which phase, fetched data, synchronised, or was disturbed by a profiler."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Final

import numpy as np

from traceprof.measures.facts import fact, of_window
from traceprof.measures.host.launches import launches_of
from traceprof.measures.host.phases import (
    are_inferred_backward,
    inferred_backward,
    phases_of_all_ranges,
)
from traceprof.measures.rows import (
    Bools,
    Ints,
    are_first,
    are_named,
    bounds,
    busiest_lanes,
    ints,
    unions_by,
)
from traceprof.model.grouping import rows_by_values
from traceprof.model.intervals import Intervals
from traceprof.model.table import Names, Table
from traceprof.model.trace import DEVICE_TABLES, Trace
from traceprof.names.ranges import PHASES

_RESETS: Final = re.compile(r"(?i)((optimi[sz]er|opt)[ _.])?zero[ _]?grad(#.*)?")


@dataclass(frozen=True, slots=True, eq=False)
class HostPhases:
    """When the main thread of a process was in each phase, without the phases inside it.

    ``times`` has the phases that occur, in the order of the training loop; ``counts`` how many
    ranges name each.
    """

    process: int
    thread: int
    times: Mapping[str, Intervals]
    counts: Mapping[str, int]


@of_window
def find_host_phases(trace: Trace) -> list[HostPhases]:
    """Return the phases of each process that names any, on the thread that names the most."""
    phases = phases_of_all_ranges(trace)[trace.rows_in_whole("ranges")]
    rows = np.flatnonzero((phases >= 0) & (trace.ranges["kind"] == "push_pop"))
    lanes = rows_by_values(*ints(trace.ranges, "process", "thread", rows=rows))
    columns = (*ints(trace.ranges, "start_ns", "end_ns", "depth", rows=rows), phases[rows])
    return [
        _of_thread(lane, *(column[lanes[lane]] for column in columns))
        for lane in sorted(busiest_lanes(lanes).values())
    ]


def _of_thread(
    lane: tuple[int, ...], starts: Ints, ends: Ints, depth: Ints, phase: Ints
) -> HostPhases:
    """Return the exclusive times: what is deeper is taken from what is around it."""
    times = dict.fromkeys(range(len(PHASES)), Intervals.empty())
    claimed = Intervals.empty()
    for level in np.unique(depth)[::-1]:
        at_level = depth == level
        for place in np.unique(phase[at_level]).tolist():
            rows = at_level & (phase == place)
            times[place] = times[place] | (Intervals.union_of(starts[rows], ends[rows]) - claimed)
        claimed = claimed | Intervals.union_of(starts[at_level], ends[at_level])
    counts = np.bincount(phase, minlength=len(PHASES)).tolist()
    present = [place for place, count in enumerate(counts) if count]
    return HostPhases(
        process=lane[0],
        thread=lane[1],
        times={PHASES[place]: times[place] for place in present},
        counts={PHASES[place]: counts[place] for place in present},
    )


def phase_times(trace: Trace) -> dict[int, dict[str, Intervals]]:
    """Return when each process was in which phase, with the backward passes that no range names."""
    inferred = inferred_backward_on_host(trace)
    found = {host.process: dict(host.times) for host in find_host_phases(trace)}
    for process in found.keys() & inferred.keys():
        found[process]["backward"] = inferred[process]
    return found


@of_window
def before_forward(trace: Trace) -> dict[int, Intervals]:
    """Return when the main thread of each process was in no phase, and then in a forward pass.

    What batches are fetched or made by without a loader lies there, often ahead of the resetting of
    gradients. Not what lies between two forward passes: those of one step.
    """
    found = {}
    resets = unions_by(trace.ranges.take(are_named(trace.ranges["name"], _RESETS)))
    for process, times in phase_times(trace).items():
        forward = times.get("forward", Intervals.empty())
        reset = resets.get(process, Intervals.empty())
        claimed = reduce(or_, times.values(), Intervals.empty()) - reset
        begins, ends = claimed.ends[:-1], claimed.starts[1:]
        is_before = np.isin(ends, forward.starts) & ~np.isin(begins, forward.ends)
        found[process] = Intervals.union_of(begins[is_before], ends[is_before]) - reset
    return found


@fact
def inferred_backward_on_host(trace: Trace) -> dict[int, Intervals]:
    """Return when each process was in a backward pass that no range names, without its phases.

    From the first to the last launch of each, whichever threads made them: the thread that
    called it waits for these. A launch of its own for something else divides two of them.
    """
    found = inferred_backward(trace)
    if not found:
        return {}
    launches = Table.stacked([_launches(trace, table) for table in DEVICE_TABLES])
    return {
        process: _hulls(
            launches.take(launches["process"] == process), backward.thread, backward.free
        )
        for process, backward in found.items()
    }


def _launches(trace: Trace, table: str) -> Table:
    launches = launches_of(trace, table)
    columns = {
        name: getattr(launches, name) for name in ("process", "thread", "start_ns", "end_ns")
    }
    inferred = are_inferred_backward(trace, table)
    return Table({**columns, "inferred": inferred}).take(launches.is_known)


def _hulls(launches: Table, main: int, free: Intervals) -> Intervals:
    is_mine = launches["inferred"] | (launches["thread"] == main)
    mine = launches.take(is_mine).in_order("start_ns")
    starts, ends = bounds(mine)
    inferred = mine["inferred"]
    part = np.searchsorted(free.starts, starts, side="right")
    firsts = np.flatnonzero(are_first(inferred, part))
    if not len(firsts):
        return Intervals.empty()
    last = np.maximum.reduceat(ends, firsts)
    kept = inferred[firsts]
    return Intervals.union_of(starts[firsts][kept], last[kept]) & free


_SYNCHRONISES: Final = re.compile(
    r"(cuda|cu|hip)(Device|Stream|Event|Ctx)Synchronize", re.IGNORECASE
)
_BLOCKING_COPY: Final = re.compile(
    r"(cuda|cu|hip)Mem(cpy|set)(?!.*Async)(?!.*Batch)\w*", re.IGNORECASE
)
_LAUNCHES: Final = re.compile(r"(cuda|cu|hip)\w*Launch\w*", re.IGNORECASE)


@dataclass(frozen=True, slots=True, eq=False)
class HostState:
    """When the threads of a process that launch work waited, and why."""

    data: Intervals
    synchronising: Intervals
    profiler: Intervals

    def alone(self) -> dict[str, Intervals]:
        """Return the three times where they count: the profiler's first, then data."""
        disturbed = self.profiler | self.data
        return {
            "profiler": self.profiler,
            "data": self.data - self.profiler,
            "synchronising": self.synchronising - disturbed,
        }


def is_synchronisation(names: Names) -> Bools:
    """Return which API calls wait for the device."""
    return _matches(names, _SYNCHRONISES)


def is_blocking_copy(names: Names) -> Bools:
    """Return which API calls are copies or memsets that return only when they are done."""
    return _matches(names, _BLOCKING_COPY)


def is_launch(names: Names) -> Bools:
    """Return which API calls launch a kernel, a graph or a host function."""
    return _matches(names, _LAUNCHES)


def _matches(names: Names, pattern: re.Pattern[str]) -> Bools:
    matches = [pattern.fullmatch(name) is not None for name in names.texts.tolist()]
    return names.by_text(np.array(matches, np.bool_))


@of_window
def find_host_states(trace: Trace) -> dict[int, HostState]:
    """Return the state of the host for each process that calls the API or names phases."""
    data = {
        phases.process: phases.times.get("data", Intervals.empty())
        for phases in find_host_phases(trace)
    }
    waits = unions_by(trace.api_calls.take(hold_devices_up(trace.api_calls)))
    profiler = unions_by(trace.overheads)
    nothing = Intervals.empty()
    return {
        process: HostState(
            data=data.get(process, nothing),
            synchronising=waits.get(process, nothing),
            profiler=profiler.get(process, nothing),
        )
        for process in {*np.unique(trace.api_calls["process"]).tolist(), *data}
    }


HOST_BACKENDS: Final = ("gloo", "mpi", "ucc")
"""Of these the host carries out what is communicated: no kernel does."""


@of_window
def host_communication(trace: Trace) -> dict[int, Intervals]:
    """Return when each process had collectives or messages under way that its host carries out."""
    calls = trace.collectives
    return unions_by(calls.take(calls["backend"].isin(HOST_BACKENDS)))


def hold_devices_up(calls: Table) -> Bools:
    """Return which calls wait, of the threads that launch work; of all where none does."""
    launches = is_launch(calls["name"])
    waits = is_synchronisation(calls["name"]) | is_blocking_copy(calls["name"])
    lanes = rows_by_values(calls["process"], calls["thread"])
    launching = {lane for lane, rows in lanes.items() if launches[rows].any()}
    processes = {process for process, _ in launching}
    for lane, rows in lanes.items():
        if lane not in launching and lane[0] in processes:
            waits[rows] = False
    return waits
