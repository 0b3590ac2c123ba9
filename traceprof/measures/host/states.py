"""When a host was in which phase, fetched data, synchronized, or was disturbed by a profiler."""

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
from traceprof.measures.host.threads import autograd_rows
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
from traceprof.model.grouping import groups_of, is_in, rows_by_values
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
    """Return when each process was in which phase, with the passes that no range names."""
    inferred = inferred_passes_on_host(trace)
    found = {host.process: dict(host.times) for host in find_host_phases(trace)}
    for process in found.keys() & inferred.keys():
        found[process] |= inferred[process]
    return found


@of_window
def times_before_forward(trace: Trace) -> dict[int, Intervals]:
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


def inferred_passes_on_host(trace: Trace) -> dict[int, dict[str, Intervals]]:
    """Return when each process was in a pass of the model that no range names, by phase.

    The backward pass and, where the host computes all by itself, the forward pass.
    """
    found = {own: {"backward": time} for own, time in inferred_backward_on_host(trace).items()}
    for process, time in inferred_forward_on_host(trace).items():
        found[process]["forward"] = time
    return found


def is_host_alone(trace: Trace) -> bool:
    """Return whether operators of the host were recorded, and nothing of devices or for them."""
    return "host_ops" in trace.recorded and not trace.recorded & {*DEVICE_TABLES, "api_calls"}


@fact
def inferred_forward_on_host(trace: Trace) -> dict[int, Intervals]:
    """Return when each process that has no device was in a forward pass that no range names.

    From the first to the last operator of its loop's thread outside its phases, before a backward
    pass: other data fetched in between, or an evaluation, and it is none.
    """
    found: dict[int, Intervals] = {}
    if not is_host_alone(trace):
        return found
    phases = {host.process: host.times for host in find_host_phases(trace.whole)}
    passes, nothing = inferred_backward_on_host(trace), Intervals.empty()
    for process, backward in inferred_backward(trace).items():
        own = phases.get(process, {})
        if process not in passes or "forward" in own:
            continue
        back = passes[process]
        operators = _operators(trace, process, backward.thread, is_autograd=False)
        spans = _spans_in(backward.free, operators & backward.free)
        # What follows a backward pass until the next phase is none.
        following = np.searchsorted(back.starts, spans.starts)
        first = np.append(back.starts, np.iinfo(np.int64).max)[following]
        spans = Intervals.union_of(spans.starts, np.minimum(spans.ends, first)) - back
        other = own.get("data", nothing) | own.get("eval", nothing)
        following = np.searchsorted(back.starts, spans.ends)
        known = following < len(back)
        until = np.append(back.starts, 0)[following]
        kept = known & (other.covered_ns(spans.ends, np.maximum(until, spans.ends)) == 0)
        # What `backward` itself does before its first operator follows a phase: the pass is before.
        starts, ends, following = spans.starts[kept], spans.ends[kept], following[kept]
        is_first = np.diff(following, prepend=-1) != 0
        of_back, of_span = (
            np.searchsorted(backward.free.starts, own, side="right")
            for own in (back.starts[following], starts)
        )
        own_pass = is_first | (of_back != of_span)
        found[process] = Intervals.union_of(starts[own_pass], ends[own_pass])
    return {process: time for process, time in found.items() if len(time)}


def _operators(trace: Trace, process: int, thread: int, *, is_autograd: bool) -> Intervals:
    """Return when operators of a thread ran: those of the autograd engine, or all others."""
    rows = trace.whole.host_ops
    rows = rows.take((rows["process"] == process) & (rows["thread"] == thread))
    chosen = autograd_rows(rows["name"])
    return Intervals.union_of(*bounds(rows.take(chosen if is_autograd else ~chosen)))


def _spans_in(parts: Intervals, times: Intervals) -> Intervals:
    """Return, of each of ``parts``, from the first to the last of ``times`` that begin in it."""
    part = np.searchsorted(parts.starts, times.starts, side="right")
    firsts = np.flatnonzero(np.diff(part, prepend=-1))
    if not len(firsts):
        return Intervals.empty()
    return Intervals.union_of(times.starts[firsts], np.maximum.reduceat(times.ends, firsts))


@fact
def inferred_backward_on_host(trace: Trace) -> dict[int, Intervals]:
    """Return when each process was in a backward pass that no range names, without its phases.

    From the first to the last launch of each, whichever threads made them: the thread that
    called it waits for these. A launch of its own for something else divides two of them. Where
    there is no device it is from the first to the last operator of autograd.
    """
    found = inferred_backward(trace)
    if not found:
        return {}
    if is_host_alone(trace):
        spans = {
            process: _spans_in(
                own.free, _operators(trace, process, own.thread, is_autograd=True) & own.free
            )
            for process, own in found.items()
        }
        return {process: time for process, time in spans.items() if len(time)}
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


_SYNCHRONIZES: Final = re.compile(
    r"(cuda|cu|hip)(Device|Stream|Event|Ctx)Synchronize", re.IGNORECASE
)
_BLOCKING_COPY: Final = re.compile(
    r"(cuda|cu|hip)Mem(cpy|set)(?!.*Async)(?!.*Batch)\w*", re.IGNORECASE
)
_LAUNCHES: Final = re.compile(r"(cuda|cu|hip)(?=\w*Launch)\w+", re.IGNORECASE)


@dataclass(frozen=True, slots=True, eq=False)
class HostState:
    """When the threads of a process that launch work waited, and why."""

    data: Intervals
    synchronizing: Intervals
    profiler: Intervals

    def alone(self) -> dict[str, Intervals]:
        """Return the three times where they count: the profiler's first, then data."""
        disturbed = self.profiler | self.data
        return {
            "profiler": self.profiler,
            "data": self.data - self.profiler,
            "synchronizing": self.synchronizing - disturbed,
        }


def is_synchronization(names: Names) -> Bools:
    """Return which API calls wait for the device."""
    return _matches(names, _SYNCHRONIZES)


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
    calls = trace.api_calls.select("process", "start_ns", "end_ns")
    waits = unions_by(calls.take(are_waits_of_launching_threads(trace.api_calls)))
    profiler = unions_by(trace.overheads)
    nothing = Intervals.empty()
    return {
        process: HostState(
            data=data.get(process, nothing),
            synchronizing=waits.get(process, nothing),
            profiler=profiler.get(process, nothing),
        )
        for process in {*np.unique(trace.api_calls["process"]).tolist(), *data}
    }


@of_window
def host_states_alone(trace: Trace) -> dict[int, dict[str, Intervals]]:
    """Return, by process, the times of each state where it counts (see `HostState.alone`)."""
    return {process: state.alone() for process, state in find_host_states(trace).items()}


HOST_BACKENDS: Final = ("gloo", "mpi", "ucc")
"""Of these the host carries out what is communicated: no kernel does."""


@of_window
def host_communication(trace: Trace) -> dict[int, Intervals]:
    """Return when each process had collectives or messages under way that its host carries out."""
    calls = trace.collectives
    return unions_by(calls.take(calls["backend"].isin(HOST_BACKENDS)))


def are_waits_of_launching_threads(calls: Table) -> Bools:
    """Return which calls wait, of the threads that launch work; of all where none does."""
    lanes = groups_of(calls["process"], calls["thread"])
    process = lanes.values[0]
    launching = np.zeros(len(process), np.bool_)
    launching[lanes.number[is_launch(calls["name"])]] = True
    counts = launching | ~is_in(process, process[launching])
    waits = is_synchronization(calls["name"]) | is_blocking_copy(calls["name"])
    return np.asarray(waits & counts[lanes.number], np.bool_)
