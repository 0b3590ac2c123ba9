"""Find when each host was in a phase, fetched data, synchronized, or was delayed by a profiler."""

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
    Floats,
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

_MIN_PAUSE_NS: Final = 1_000_000
_ZERO_GRAD: Final = re.compile(r"(?i)((optimi[sz]er|opt)[ _.])?zero[ _]?grad(#.*)?")


@dataclass(frozen=True, slots=True, eq=False)
class HostPhases:
    """When the main thread of a process was in each phase, without nested phases.

    ``times`` has the phases that occur, in the order of the training loop. ``counts`` is the number
    of ranges of each phase.
    """

    process: int
    thread: int
    times: Mapping[str, Intervals]
    counts: Mapping[str, int]


@of_window
def find_host_phases(trace: Trace) -> list[HostPhases]:
    """Return the phases of each process, on the thread with the most phase ranges."""
    phases = phases_of_all_ranges(trace)[trace.rows_in_whole("ranges")]
    rows = np.flatnonzero((phases >= 0) & (trace.ranges["kind"] == "push_pop"))
    lanes = rows_by_values(*ints(trace.ranges, "process", "thread", rows=rows))
    columns = (*ints(trace.ranges, "start_ns", "end_ns", "depth", rows=rows), phases[rows])
    window = trace.span.times
    return [
        _phases_of_thread(lane, window, *(column[lanes[lane]] for column in columns))
        for lane in sorted(busiest_lanes(lanes).values())
    ]


def _phases_of_thread(
    lane: tuple[int, ...], window: Intervals, starts: Ints, ends: Ints, depth: Ints, phase: Ints
) -> HostPhases:
    """Return the exclusive time of each phase: nested phases are subtracted from outer phases.

    A range may contain a gap of the window, which does not count.
    """
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
        times={PHASES[place]: times[place] & window for place in present},
        counts={PHASES[place]: counts[place] for place in present},
    )


_MIN_WAIT_RATIO: Final = 0.05
"""Minimum wait for a batch, as a share of the mean step, that shows that no batch was ready."""
_MAX_STEPS_BETWEEN_WAITS: Final = 8
"""With more steps between two waits, the loop rather than the loader determines the pace."""


def paces_of_batches(part: Trace, steps: Table) -> list[tuple[float, float]]:
    """Return the pace of each process that waits for batches, and its excess, both in ns per step.

    A wait ends when the next batch is ready. Between two waits, the loop therefore takes as long as
    the loader needs for these batches, whatever the steps between them contain: a slow step only
    shortens the next waits. The pace is the median of these times per step. The excess is the mean
    time beyond it, because the workers stopped (their queue was full) or because the loop itself
    loads the data. ``steps`` has the columns process, start_ns, and next_ns.
    """
    found = []
    for host in find_host_phases(part.whole):
        rows = steps.take(steps["process"] == host.process)
        if rows.empty or "data" not in host.times:
            continue
        starts, end_ns = rows["start_ns"], int(rows["next_ns"][-1])
        time = host.times["data"] & Intervals.single(int(starts[0]), end_ns)
        step = np.searchsorted(starts, time.ends, side="right")
        waited_ns = np.bincount(step, time.ends - time.starts, minlength=len(starts) + 1)
        ready_ns = np.zeros(len(starts) + 1, np.int64)
        ready_ns[step] = time.ends  # the last of a step remains
        mean_ns = (end_ns - starts[0]) / len(starts)
        waits = np.flatnonzero(waited_ns >= _MIN_WAIT_RATIO * mean_ns)
        lengths, counts = np.diff(ready_ns[waits]).astype(np.float64), np.diff(waits)
        if 2 * counts.sum() < len(starts) or _median(counts, counts) > _MAX_STEPS_BETWEEN_WAITS:
            continue
        pace_ns = _median(lengths / counts, counts)
        found.append((pace_ns, max(0.0, lengths.sum() / counts.sum() - pace_ns)))
    return found


def _median(values: Floats | Ints, counts: Ints) -> float:
    """Return the median of ``values``, each repeated as often as ``counts`` says."""
    return float(np.median(np.repeat(values, counts)))


def phase_times(trace: Trace) -> dict[int, dict[str, Intervals]]:
    """Return when each process was in which phase, including inferred passes without a range."""
    inferred = inferred_passes_on_host(trace)
    found = {host.process: dict(host.times) for host in find_host_phases(trace)}
    for process in found.keys() & inferred.keys():
        found[process] |= inferred[process]
    return found


@of_window
def times_before_forward(trace: Trace) -> dict[int, Intervals]:
    """Return when the main thread of each process was in no phase, directly before a forward pass.

    A program without a data loader fetches or creates batches in this time, often before zero_grad.
    Time between two forward passes is excluded, because both belong to the same step.
    """
    found = {}
    resets = unions_by(trace.ranges.take(are_named(trace.ranges["name"], _ZERO_GRAD)))
    for process, times in phase_times(trace).items():
        forward = times.get("forward", Intervals.empty())
        reset = resets.get(process, Intervals.empty())
        claimed = reduce(or_, times.values(), Intervals.empty()) - reset
        begins, ends = claimed.ends[:-1], claimed.starts[1:]
        is_before = np.isin(ends, forward.starts) & ~np.isin(begins, forward.ends)
        found[process] = Intervals.union_of(begins[is_before], ends[is_before]) - reset
    return found


def inferred_passes_on_host(trace: Trace) -> dict[int, dict[str, Intervals]]:
    """Return when each process was in a model pass without a range, by phase.

    These are backward passes and, on a host without devices, forward passes.
    """
    backward = inferred_backward_on_host(trace)
    found = {process: {"backward": time} for process, time in backward.items()}
    for process, time in inferred_forward_on_host(trace).items():
        found[process]["forward"] = time
    return found


def is_cpu_only_trace(trace: Trace) -> bool:
    """Return whether the trace has host operators, and neither device activity nor API calls."""
    return "host_ops" in trace.recorded and not trace.recorded & {*DEVICE_TABLES, "api_calls"}


@fact
def inferred_forward_on_host(trace: Trace) -> dict[int, Intervals]:
    """Return when each process without devices was in a forward pass without a range.

    A forward pass lasts from the first to the last operator of the loop's thread outside its
    phases, before a backward pass. Operators before a pause that is longer than all operators make
    the batch, so a forward pass begins after such a pause. It is discarded if data is fetched or an
    evaluation runs between it and the backward pass.
    """
    found: dict[int, Intervals] = {}
    if not is_cpu_only_trace(trace):
        return found
    phases = {host.process: host.times for host in find_host_phases(trace.whole)}
    passes, nothing = inferred_backward_on_host(trace), Intervals.empty()
    for process, backward in inferred_backward(trace).items():
        named = phases.get(process, {})
        if process not in passes or "forward" in named:
            continue
        backward_times = passes[process]
        operators = _operators(trace, process, backward.thread, is_autograd=False)
        spans = _hulls_in(backward.free, operators & backward.free)
        # Operators between a backward pass and the next phase are not a forward pass.
        next_backward = np.searchsorted(backward_times.starts, spans.starts)
        next_start = np.append(backward_times.starts, np.iinfo(np.int64).max)[next_backward]
        spans = (
            Intervals.union_of(spans.starts, np.minimum(spans.ends, next_start)) - backward_times
        )
        spans = _after_pauses(spans, operators)
        other = named.get("data", nothing) | named.get("eval", nothing)
        next_backward = np.searchsorted(backward_times.starts, spans.ends)
        has_next = next_backward < len(backward_times)
        until = np.append(backward_times.starts, 0)[next_backward]
        kept = has_next & (other.covered_ns(spans.ends, np.maximum(until, spans.ends)) == 0)
        # Of several spans before a backward pass, only the first is a forward pass if it shares an
        # interval without phases with the backward pass. The others are work of `backward` itself.
        starts, ends, next_backward = spans.starts[kept], spans.ends[kept], next_backward[kept]
        is_first = np.diff(next_backward, prepend=-1) != 0
        part_of_backward, part_of_span = (
            np.searchsorted(backward.free.starts, instants, side="right")
            for instants in (backward_times.starts[next_backward], starts)
        )
        is_pass = is_first | (part_of_backward != part_of_span)
        found[process] = Intervals.union_of(starts[is_pass], ends[is_pass])
    return {process: time for process, time in found.items() if len(time)}


def _after_pauses(spans: Intervals, operators: Intervals) -> Intervals:
    """Return the part of each span after its last pause that is longer than all its operators."""
    pauses, starts = spans - operators, spans.starts.copy()
    span = np.searchsorted(spans.starts, pauses.starts, side="right") - 1
    worked_ns = np.maximum(operators.covered_ns(spans.starts, spans.ends), _MIN_PAUSE_NS)
    is_long = pauses.ends - pauses.starts > worked_ns[span]
    np.maximum.at(starts, span[is_long], pauses.ends[is_long])
    return Intervals.union_of(starts, spans.ends)


def _operators(trace: Trace, process: int, thread: int, *, is_autograd: bool) -> Intervals:
    """Return when operators of a thread ran: operators of the autograd engine, or all others."""
    rows = trace.whole.host_ops
    rows = rows.take((rows["process"] == process) & (rows["thread"] == thread))
    chosen = autograd_rows(rows["name"])
    return Intervals.union_of(*bounds(rows.take(chosen if is_autograd else ~chosen)))


def _hulls_in(parts: Intervals, times: Intervals) -> Intervals:
    """Return, for each of ``parts``, the hull of the ``times`` that begin in it."""
    part = np.searchsorted(parts.starts, times.starts, side="right")
    firsts = np.flatnonzero(np.diff(part, prepend=-1))
    if not len(firsts):
        return Intervals.empty()
    return Intervals.union_of(times.starts[firsts], np.maximum.reduceat(times.ends, firsts))


@fact
def inferred_backward_on_host(trace: Trace) -> dict[int, Intervals]:
    """Return when each process was in a backward pass without a range, excluding its phases.

    A backward pass lasts from its first to its last launch, on any thread, because the calling
    thread waits for these launches. A launch of the calling thread for another purpose separates
    two passes. Without devices, a pass lasts from the first to the last operator of autograd.
    """
    found = inferred_backward(trace)
    if not found:
        return {}
    if is_cpu_only_trace(trace):
        spans = {
            process: _hulls_in(
                backward.free,
                _operators(trace, process, backward.thread, is_autograd=True) & backward.free,
            )
            for process, backward in found.items()
        }
        return {process: time for process, time in spans.items() if len(time)}
    launches = Table.stacked([_launches(trace, table) for table in DEVICE_TABLES])
    return {
        process: _launch_spans(
            launches.take(launches["process"] == process), backward.thread, backward.free
        )
        for process, backward in found.items()
    }


def _launches(trace: Trace, table: str) -> Table:
    """Return the known launches of a device table, with a mask of inferred backward launches."""
    launches = launches_of(trace, table)
    columns = {
        name: getattr(launches, name) for name in ("process", "thread", "start_ns", "end_ns")
    }
    inferred = are_inferred_backward(trace, table)
    return Table({**columns, "inferred": inferred}).take(launches.is_known)


def _launch_spans(launches: Table, main: int, free: Intervals) -> Intervals:
    """Return the spans from the first to the last of consecutive inferred backward launches.

    Only time in ``free`` is returned. Launches of the thread ``main`` for other purposes separate
    spans.
    """
    is_relevant = launches["inferred"] | (launches["thread"] == main)
    relevant = launches.take(is_relevant).in_order("start_ns")
    starts, ends = bounds(relevant)
    inferred = relevant["inferred"]
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


def is_synchronization(names: Names) -> Bools:
    """Return which API calls wait for the device."""
    return are_full_matches(names, _SYNCHRONIZES)


def is_blocking_copy(names: Names) -> Bools:
    """Return which API calls are copies or memsets that return only after they are done."""
    return are_full_matches(names, _BLOCKING_COPY)


def is_launch(names: Names) -> Bools:
    """Return which API calls launch a kernel, a graph, or a host function."""
    return are_full_matches(names, _LAUNCHES)


def are_full_matches(names: Names, pattern: re.Pattern[str]) -> Bools:
    """Return which names match ``pattern`` completely."""
    matches = [pattern.fullmatch(name) is not None for name in names.texts.tolist()]
    return names.by_text(np.array(matches, np.bool_))


@of_window
def find_host_states(trace: Trace) -> dict[int, HostState]:
    """Return the state of the host for each process that calls the API or has phases."""
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
def exclusive_host_states(trace: Trace) -> dict[int, dict[str, Intervals]]:
    """Return, by process, the times of each state of `HostState` without overlap.

    The profiler has priority, then data.
    """
    return {
        process: {
            "profiler": state.profiler,
            "data": state.data - state.profiler,
            "synchronizing": state.synchronizing - (state.profiler | state.data),
        }
        for process, state in find_host_states(trace).items()
    }


HOST_BACKENDS: Final = ("gloo", "mpi", "ucc")
"""Communication backends that run on the host, without kernels."""


@of_window
def host_communication(trace: Trace) -> dict[int, Intervals]:
    """Return when each process had collectives or messages in flight that run on the host."""
    calls = trace.collectives
    return unions_by(calls.take(calls["backend"].isin(HOST_BACKENDS)))


def are_waits_of_launching_threads(calls: Table) -> Bools:
    """Return which calls wait on a thread that launches work.

    In a process in which no thread launches work, return all calls that wait.
    """
    lanes = groups_of(calls["process"], calls["thread"])
    process = lanes.values[0]
    launching = np.zeros(len(process), np.bool_)
    launching[lanes.number[is_launch(calls["name"])]] = True
    counts = launching | ~is_in(process, process[launching])
    waits = is_synchronization(calls["name"]) | is_blocking_copy(calls["name"])
    return np.asarray(waits & counts[lanes.number], np.bool_)
