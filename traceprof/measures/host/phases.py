"""Which phase of the training loop launched which work of a device.

PyTorch's autograd engine launches backward kernels from threads of its own: a launch on a thread
without a phase belongs to the phase that is open on the thread of the same process that calls
backward.

People name the step, the forward pass and the optimizer, and PyTorch names its optimizers
itself; ``loss.backward()`` in between stays without a name. Three things give it away, the
surest first: operators of the autograd engine, threads that launch kernels between forward and
optimizer and at no other time (the engine's own), and, where only the loop's thread launches
anything, the time between forward and optimizer itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from traceprof.measures.facts import fact, of_rows
from traceprof.measures.host.launches import _NOTHING, Launches, innermost, launches_of
from traceprof.measures.host.threads import are_working, autograd_rows
from traceprof.measures.rows import Bools, Ints, are_named, bounds, looked_up, span_at, unions_by
from traceprof.model.grouping import groups_of, rows_by_value
from traceprof.model.intervals import Intervals, nesting_depth
from traceprof.model.table import Table
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace
from traceprof.names.ranges import PHASES, phases_of_ranges

BACKWARD: Final = PHASES.index("backward")
_ZERO_GRAD: Final = re.compile(r"(?i)zero[ _]?grad")
_ALWAYS: Final = (-(1 << 61), 1 << 61)
_NEARLY_ALL: Final = 0.95
_RESTART: Final = frozenset(PHASES.index(phase) for phase in ("data", "eval"))
_FORWARD: Final = PHASES.index("forward")
_OPTIMIZER: Final = PHASES.index("optimizer")
_ZEROES: Final = len(PHASES)


@dataclass(frozen=True, slots=True, eq=False)
class InferredBackward:
    """The backward pass of one process that has phases, but none of that name.

    ``free`` is when its main thread is in no phase; ``when`` says of each thread at which times
    its launches, if no phase claims them, are those of the backward pass.
    """

    thread: int
    free: Intervals
    when: Mapping[int, Intervals]

    def holds(self, threads: Ints, instants: Ints) -> Bools:
        """Return which launches, by thread and start, are those of the backward pass."""
        found = np.zeros(len(threads), np.bool_)
        for thread, times in self.when.items():
            mine = np.flatnonzero(threads == thread)
            found[mine] = are_inside(times, instants[mine])
        return found


def infer_backward(
    ranges: Table, phases: Ints, autograd: Table, threads: Ints, instants: Ints
) -> InferredBackward | None:
    """Return the backward pass of one process; None where it is named, or nothing tells it.

    Args:
        ranges: the ranges of the process that nest and are a phase.
        phases: the place of each in `PHASES`.
        autograd: the thread, start_ns and end_ns of the operators of autograd.
        threads: the thread that launched each kernel of the process whose launch is known.
        instants: when that was.
    """
    if not len(ranges) or (phases == BACKWARD).any():
        return None
    by_thread = rows_by_value(ranges["thread"])
    thread = max(by_thread, key=lambda own: len(by_thread[own]))
    of_loop = by_thread[thread]
    free, after_forward, after_last = _before_optimizers(ranges.take(of_loop), phases[of_loop])
    # The threads of autograd's operators, when these are what launches.
    of_operators = unions_by(autograd, "thread")
    when = {own: time & free if own == thread else free for own, time in of_operators.items()}
    others = np.unique(threads[threads != thread]).tolist()
    if not when:
        when = {
            other: after_forward
            for other in others
            if are_inside(after_forward, instants[threads == other]).mean() >= _NEARLY_ALL
        }
    if not when and not others:
        when = {thread: after_last} if len(after_last) else {}
    return InferredBackward(thread, free, when) if when else None


def are_inside(intervals: Intervals, instants: Ints) -> Bools:
    """Return which instants lie in ``intervals``."""
    return span_at(intervals.starts, intervals.ends, instants) >= 0


def _before_optimizers(ranges: Table, phases: Ints) -> tuple[Intervals, ...]:
    """Return when the thread of a loop is in no phase, and what of that lies before optimizers.

    That is after forward passes, the first and the last of several, until the optimizer.
    """
    starts, ends = bounds(ranges)
    free = Intervals.union_of(starts, ends).gaps(*_ALWAYS)
    codes = np.where(are_named(ranges["name"], _ZERO_GRAD), _ZEROES, phases)
    events = np.stack((codes, starts, ends), axis=1)[nesting_depth(starts, ends) == 0]
    first = last = None
    spans: list[tuple[int, int, int]] = []
    for phase, start, end in events.tolist():
        if phase == _FORWARD:
            first, last = end if first is None else first, end
        elif phase == _ZEROES:
            # No gradient that it erases was worth computing: backward comes after it.
            first = last = None if last is None else end
        elif phase == _OPTIMIZER or phase in _RESTART:
            if phase == _OPTIMIZER and first is not None and last is not None:
                spans.append((first, last, start))
            first = last = None
    firsts, lasts, until = np.array(spans, np.int64).reshape(-1, 3).T
    after = (free & Intervals.union_of(own, until) for own in (firsts, lasts))
    return free, *after


@of_rows
def phases_of_work(trace: Trace, table: str) -> Ints:
    """Return the place in `PHASES` that each row of ``table`` was launched in, -1 for none."""
    launches = launches_of(trace, table)
    phases = phase_of_launches(trace, launches).copy()
    phases[_inferred_among(trace, launches, phases)] = BACKWARD
    return phases


@of_rows
def are_inferred_backward(trace: Trace, table: str) -> Bools:
    """Return which rows of ``table`` are the backward pass's although no range says so."""
    if not inferred_backward(trace):
        return np.zeros(len(trace.table(table)), np.bool_)
    launches = launches_of(trace, table)
    return _inferred_among(trace, launches, phase_of_launches(trace, launches))


def _inferred_among(trace: Trace, launches: Launches, phases: Ints) -> Bools:
    found = np.zeros(len(phases), np.bool_)
    for process, backward in inferred_backward(trace).items():
        rows = np.flatnonzero((launches.process == process) & launches.is_known & (phases < 0))
        found[rows] = backward.holds(launches.thread[rows], launches.start_ns[rows])
    return found


@fact
def inferred_backward(trace: Trace) -> dict[int, InferredBackward]:
    """Return the backward pass of each process that has phases, but none of that name.

    It takes ``ranges``, ``host_ops`` (operators of autograd), and the launches of ``kernels``.
    """
    ranges, phases = _phased(trace)
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
        [own.select(*columns).take(autograd_rows(own["name"])) for own in tables]
    )
    found = {}
    for process, rows in unnamed.items():
        own = (launches.process == process) & launches.is_known
        backward = infer_backward(
            ranges.take(rows),
            phases[rows],
            autograd.take(autograd["process"] == process),
            launches.thread[own],
            launches.start_ns[own],
        )
        if backward is not None:
            found[process] = backward
    return found


@fact
def phases_of_all_ranges(trace: Trace) -> Ints:
    """Return the place in `PHASES` of each range of the whole trace, -1 where it is none."""
    return phases_of_ranges(trace.ranges)


def _phased(trace: Trace) -> tuple[Table, Ints]:
    """Return the ranges of the whole trace that nest and are a phase, and which each is."""
    phases = phases_of_all_ranges(trace)
    kept = np.flatnonzero((phases >= 0) & (trace.whole.ranges["kind"] == "push_pop"))
    return trace.whole.ranges.take(kept), phases[kept]


def phase_of_launches(trace: Trace, launches: Launches) -> Ints:
    """Return the place in `PHASES` that each launch belongs to, -1 where it belongs to none."""
    phased, phases = _phased(trace)
    inner = _innermost_or_adopting(trace, phased, launches, phased, phases)
    return np.where(launches.is_known, np.append(phases, _NOTHING)[inner], _NOTHING)


def owning_range_of_launches(trace: Trace, spans: Table, launches: Launches) -> Ints:
    """Return the row of ``spans`` that each launch belongs to, -1 where it belongs to none.

    A launch on a thread without an open span belongs to the one that is open on the thread of
    the same process that calls backward.
    """
    found = _innermost_or_adopting(trace, spans, launches, *_phased(trace))
    return np.where(launches.is_known, found, _NOTHING)


def _innermost_or_adopting(
    trace: Trace, spans: Table, launches: Launches, phased: Table, phases: Ints
) -> Ints:
    """Return the innermost span on the thread of each launch, else on that which calls backward.

    What a thread in the background launches is adopted by none.
    """
    found = innermost(spans, launches.process, launches.thread, launches.start_ns)
    rest = np.flatnonzero(found < 0)
    process = launches.process[rest]
    calling = _calling_threads(phased, phases)
    is_helping = are_working(trace, process, launches.thread[rest], calling)
    rest, process = rest[is_helping], process[is_helping]
    thread = looked_up(process, {own: main for own, (main, _) in calling.items()}, ABSENT)
    found[rest] = innermost(spans, process, thread, launches.start_ns[rest])
    return found


def _calling_threads(phased: Table, phases: Ints) -> dict[int, tuple[int, int]]:
    """Return the thread of each process that calls backward the most, else that names phases.

    And how often it calls it.
    """
    threads = groups_of(phased["process"], phased["thread"])
    backward = threads.reduced(np.add, (phases == PHASES.index("backward")).astype(np.int64))
    most: dict[int, tuple[tuple[int, int], int]] = {}
    for (own, thread), *counts in zip(threads.keys, backward, threads.counts, strict=True):
        if own not in most or tuple(counts) > most[own][0]:
            most[own] = (counts[0], counts[1]), thread
    return {own: (thread, int(n_backward)) for own, ((n_backward, _), thread) in most.items()}
