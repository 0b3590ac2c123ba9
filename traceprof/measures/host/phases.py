"""Find the phase of the training loop that launched each kernel and copy.

PyTorch's autograd engine launches backward kernels from its own threads. A launch on a thread
without a phase belongs to the phase that is open on the thread of the same process that calls
backward.

Users annotate the step, the forward pass, and the optimizer, and PyTorch annotates its optimizers.
``loss.backward()`` usually has no range. Three signs identify it, the most reliable one first:

1. operators of the autograd engine;
2. threads that launch kernels only between forward and optimizer: the threads of the engine;
3. if only the loop's thread launches work: the time between forward and optimizer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from traceprof.measures.facts import fact, of_rows
from traceprof.measures.host.launches import NO_ROW, Launches, innermost, launches_of
from traceprof.measures.host.threads import are_loop_threads, autograd_rows
from traceprof.measures.rows import (
    Bools,
    Ints,
    are_named,
    bounds,
    ints,
    looked_up,
    span_at,
    unions_by,
)
from traceprof.model.grouping import groups_of, rows_by_value
from traceprof.model.intervals import Intervals, nesting_depth
from traceprof.model.table import Table
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace
from traceprof.names.ranges import PHASES, POST_TRAINING_PHASES, phases_of_ranges

BACKWARD: Final = PHASES.index("backward")
_ZERO_GRAD: Final = re.compile(r"(?i)zero[ _]?grad")
_ALL_TIME_NS: Final = (-(1 << 61), 1 << 61)
_MIN_INSIDE_RATIO: Final = 0.95
_RESTARTING_PHASES: Final = frozenset(PHASES.index(phase) for phase in ("data", "eval"))
_FORWARD: Final = PHASES.index("forward")
_OUTER_PHASES: Final = tuple(map(PHASES.index, POST_TRAINING_PHASES))
_PASSES_WITHIN: Final = tuple(map(PHASES.index, ("forward", "eval", "logprobs")))
_PLACE: Final = ("process", "thread", "start_ns")
_OPTIMIZER: Final = PHASES.index("optimizer")
_ZERO_GRAD_CODE: Final = len(PHASES)


@dataclass(frozen=True, slots=True, eq=False)
class InferredBackward:
    """The backward pass of one process that has ranges for other phases, but none for backward.

    ``thread`` is the main thread. ``free`` is the time in which it is in no phase. ``when`` is, by
    thread, the time in which launches without a phase belong to the backward pass.
    """

    thread: int
    free: Intervals
    when: Mapping[int, Intervals]

    def holds(self, threads: Ints, instants: Ints) -> Bools:
        """Return which launches, given by thread and start, belong to the backward pass."""
        found = np.zeros(len(threads), np.bool_)
        for thread, times in self.when.items():
            rows = np.flatnonzero(threads == thread)
            found[rows] = are_inside(times, instants[rows])
        return found


def infer_backward(
    ranges: Table, phases: Ints, autograd: Table, threads: Ints, instants: Ints
) -> InferredBackward | None:
    """Return the backward pass of one process; None if it has a range or cannot be identified.

    Args:
        ranges: the nested ranges of the process that are a phase.
        phases: the place of each range in `PHASES`.
        autograd: the thread, start_ns, and end_ns of the operators of autograd.
        threads: the thread of each kernel launch of the process, if known.
        instants: the start of each of these launches, in ns.
    """
    if not len(ranges) or (phases == BACKWARD).any():
        return None
    by_thread = rows_by_value(ranges["thread"])
    thread = max(by_thread, key=lambda number: len(by_thread[number]))
    of_loop = by_thread[thread]
    free, after_forward, after_last = _before_optimizers(ranges.take(of_loop), phases[of_loop])
    # First sign: threads that run operators of autograd.
    of_operators = unions_by(autograd, "thread")
    when = {
        number: time & free if number == thread else free for number, time in of_operators.items()
    }
    others = np.unique(threads[threads != thread]).tolist()
    if not when:
        # Second sign: threads that launch almost only between forward passes and optimizers.
        when = {
            other: after_forward
            for other in others
            if are_inside(after_forward, instants[threads == other]).mean() >= _MIN_INSIDE_RATIO
        }
    if not when and not others:
        # Third sign: only the thread of the loop launches work.
        when = {thread: after_last} if len(after_last) else {}
    return InferredBackward(thread, free, when) if when else None


def are_inside(intervals: Intervals, instants: Ints) -> Bools:
    """Return which instants are inside ``intervals``."""
    return span_at(intervals.starts, intervals.ends, instants) >= 0


def _before_optimizers(ranges: Table, phases: Ints) -> tuple[Intervals, ...]:
    """Return three intervals of the loop's thread, in which it is in no phase.

    The first covers all such time. The second is limited to the time between the first forward pass
    of a step and the optimizer, the third to the time between the last forward pass and the
    optimizer.
    """
    starts, ends = bounds(ranges)
    free = Intervals.union_of(starts, ends).gaps(*_ALL_TIME_NS)
    codes = np.where(are_named(ranges["name"], _ZERO_GRAD), _ZERO_GRAD_CODE, phases)
    events = np.stack((codes, starts, ends), axis=1)[nesting_depth(starts, ends) == 0]
    first = last = None
    spans: list[tuple[int, int, int]] = []
    for phase, start, end in events.tolist():
        if phase == _FORWARD:
            first, last = end if first is None else first, end
        elif phase == _ZERO_GRAD_CODE:
            # Gradients that zero_grad erases are unused, so the backward pass follows zero_grad.
            first = last = None if last is None else end
        elif phase == _OPTIMIZER or phase in _RESTARTING_PHASES:
            if phase == _OPTIMIZER and first is not None and last is not None:
                spans.append((first, last, start))
            first = last = None
    firsts, lasts, until = np.array(spans, np.int64).reshape(-1, 3).T
    after = (free & Intervals.union_of(begins, until) for begins in (firsts, lasts))
    return free, *after


@of_rows
def phases_of_work(trace: Trace, table: str) -> Ints:
    """Return the place in `PHASES` in which each row of ``table`` was launched; -1: none."""
    launches = launches_of(trace, table)
    phases = phase_of_launches(trace, launches).copy()
    phases[_are_inferred(trace, launches, phases)] = BACKWARD
    return phases


@of_rows
def are_inferred_backward(trace: Trace, table: str) -> Bools:
    """Return which rows of ``table`` belong to a backward pass without a range."""
    if not inferred_backward(trace):
        return np.zeros(len(trace.table(table)), np.bool_)
    launches = launches_of(trace, table)
    return _are_inferred(trace, launches, phase_of_launches(trace, launches))


def _are_inferred(trace: Trace, launches: Launches, phases: Ints) -> Bools:
    """Return which launches without a phase belong to an inferred backward pass."""
    found = np.zeros(len(phases), np.bool_)
    for process, backward in inferred_backward(trace).items():
        rows = np.flatnonzero((launches.process == process) & launches.is_known & (phases < 0))
        found[rows] = backward.holds(launches.thread[rows], launches.start_ns[rows])
    return found


@fact
def inferred_backward(trace: Trace) -> dict[int, InferredBackward]:
    """Return the backward pass of each process that has phases but no range for backward.

    The evidence comes from ``ranges``, from ``host_ops`` (operators of autograd), and from the
    launches of ``kernels``.
    """
    ranges, phases = _ranges_with_phase(trace)
    unnamed = {
        process: rows
        for process, rows in rows_by_value(ranges["process"]).items()
        if not (phases[rows] == BACKWARD).any()
    }
    if not unnamed:
        return {}
    launches = launches_of(trace, "kernels")
    columns = ("process", "thread", "start_ns", "end_ns")
    tables = (trace.host_ops, trace.ranges)
    autograd = Table.stacked(
        [table.select(*columns).take(autograd_rows(table["name"])) for table in tables]
    )
    found = {}
    for process, rows in unnamed.items():
        is_launched = (launches.process == process) & launches.is_known
        backward = infer_backward(
            ranges.take(rows),
            phases[rows],
            autograd.take(autograd["process"] == process),
            launches.thread[is_launched],
            launches.start_ns[is_launched],
        )
        if backward is not None:
            found[process] = backward
    return found


@fact
def phases_of_all_ranges(trace: Trace) -> Ints:
    """Return the place in `PHASES` of each range of the whole trace; -1: not a phase."""
    ranges, phases = trace.ranges, phases_of_ranges(trace.ranges)
    is_outer = np.isin(phases, _OUTER_PHASES)
    if not is_outer.any():
        return phases
    # Forward passes within a rollout or a reward are part of it, whatever they are named.
    outer = np.flatnonzero(is_outer & (ranges["kind"] == "push_pop"))
    passes = np.flatnonzero(np.isin(phases, _PASSES_WITHIN))
    within = innermost(ranges.take(outer), *ints(ranges, *_PLACE, rows=passes))
    held = within >= 0
    phases = phases.copy()
    phases[passes[held]] = phases[outer[within[held]]]
    return phases


def _ranges_with_phase(trace: Trace) -> tuple[Table, Ints]:
    """Return the nested ranges of the whole trace that are a phase, and the phase of each."""
    phases = phases_of_all_ranges(trace)
    kept = np.flatnonzero((phases >= 0) & (trace.whole.ranges["kind"] == "push_pop"))
    return trace.whole.ranges.take(kept), phases[kept]


def phase_of_launches(trace: Trace, launches: Launches) -> Ints:
    """Return the place in `PHASES` of each launch; -1: none."""
    phased, phases = _ranges_with_phase(trace)
    inner = _find_owning_ranges(trace, phased, launches, phased, phases)
    return np.where(launches.is_known, np.append(phases, NO_ROW)[inner], NO_ROW)


def owning_range_of_launches(trace: Trace, spans: Table, launches: Launches) -> Ints:
    """Return the row of ``spans`` that each launch belongs to; -1: none.

    A launch on a thread without an open span belongs to the span that is open on the thread of the
    same process that calls backward.
    """
    found = _find_owning_ranges(trace, spans, launches, *_ranges_with_phase(trace))
    return np.where(launches.is_known, found, NO_ROW)


def _find_owning_ranges(
    trace: Trace, spans: Table, launches: Launches, phased: Table, phases: Ints
) -> Ints:
    """Return the innermost span on the thread of each launch; -1: none.

    If that thread has no open span and works for the loop, use the span that is open on the thread
    that calls backward. Launches of background threads without a span have no owner.
    """
    found = innermost(spans, launches.process, launches.thread, launches.start_ns)
    rest = np.flatnonzero(found < 0)
    process = launches.process[rest]
    calling = _calling_threads(phased, phases)
    is_helping = are_loop_threads(trace, process, launches.thread[rest], calling)
    rest, process = rest[is_helping], process[is_helping]
    thread = looked_up(
        process, {process_id: main for process_id, (main, _) in calling.items()}, ABSENT
    )
    found[rest] = innermost(spans, process, thread, launches.start_ns[rest])
    return found


def _calling_threads(phased: Table, phases: Ints) -> dict[int, tuple[int, int]]:
    """Return, by process, the thread that calls backward most often, and the number of these calls.

    If no thread calls backward, use the thread with the most phases.
    """
    threads = groups_of(phased["process"], phased["thread"])
    backward = threads.reduced(np.add, (phases == PHASES.index("backward")).astype(np.int64))
    best: dict[int, tuple[tuple[int, int], int]] = {}
    for (process, thread), *counts in zip(threads.keys, backward, threads.counts, strict=True):
        if process not in best or tuple(counts) > best[process][0]:
            best[process] = (counts[0], counts[1]), thread
    return {
        process: (thread, int(n_backward)) for process, ((n_backward, _), thread) in best.items()
    }
