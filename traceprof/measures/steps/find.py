"""Finds the training steps: where they begin and end.

A step is one optimizer step. The sources are tried in order of reliability: steps marked by the
user or by `traceprof record`, PyTorch's ``ProfilerStep#N``, engine steps of inference servers,
ranges named like "step 3" or "iteration", the ends of PyTorch's ``Optimizer.step#…``, bursts of
optimizer kernels (inferred, and results say so), and the forward passes of a program without
training. A period of the kernel sequence is no step; `find_pattern` returns its iterations.

The span of a step lasts from the end of the last work that the previous step launched to the end of
the last work that it launched itself, because a device may lag behind the host by more than a step.
Work of background threads, for example data loading, does not end a step. The spans of a process do
not overlap. Work launched between two steps belongs to the second step.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from traceprof.errors import UsageError
from traceprof.measures.device.times import (
    between_cycles,
    recorded_windows,
    recorder_times,
    work_before_recording,
)
from traceprof.measures.facts import fact, of_window
from traceprof.measures.host.launches import launches_of
from traceprof.measures.host.threads import are_launched_by_loop
from traceprof.measures.rows import Bools, Ints, bounds, ints, owner_of, rows_by
from traceprof.measures.steps.from_kernels import find_optimizer_steps, find_periodic_steps
from traceprof.measures.steps.from_passes import FORWARD_PASSES, steps_of_backward, steps_of_passes
from traceprof.measures.steps.from_phases import BACKWARD, RECORDED_PHASES, steps_of_phases
from traceprof.measures.steps.from_ranges import (
    NAMED_STEP,
    STEP_WORDS,
    STEPS_OF_ENGINES,
    steps_between_ends,
    steps_of_ranges,
    steps_of_step_from,
)
from traceprof.measures.steps.steadiness import count_first_iterations, count_warmup
from traceprof.model.grouping import groups_of, places_of
from traceprof.model.intervals import Intervals
from traceprof.model.ranks import Ranks, measure_each, measure_of_each
from traceprof.model.table import Table
from traceprof.model.tables import ABSENT
from traceprof.model.timing import TRACEPROF_DOMAIN, Steps, TimeWindow, empty_steps
from traceprof.model.trace import DEVICE_TABLES, Trace
from traceprof.names.user_patterns import UserPattern, user_pattern

_MIN_LINKED_RATIO: Final = 0.1
_NO_END_NS = np.iinfo(np.int64).min
"""End of the last work of a step without work: earlier than any time."""
_NO_START_NS = np.iinfo(np.int64).max
"""Start of the first work of a step without work: later than any time."""
_MIN_TAIL_RATIO: Final = 0.05  # of a step


def with_spans(trace: Trace, table: Table, is_of_kernels: bool) -> Table:
    """Return the steps ``table`` of a whole trace with the columns of `Steps`, except is_warmup.

    If the steps are cut from the kernel sequence (``is_of_kernels``), they are their own spans.
    """
    table = table.in_order("process", "start_ns")
    starts, ends = bounds(table)
    next_starts, recorder_ns = ends.copy(), np.zeros(len(table), np.int64)
    recorder = {} if is_of_kernels else recorder_times(trace)
    # With recorder windows, unseen work says nothing about the start of steps before a window.
    is_whole = not is_of_kernels and not recorded_windows(trace)
    unseen = work_before_recording(trace) if is_whole else {}
    device_starts, device_ends = starts.copy(), ends.copy()
    on_device = np.full(len(table), is_of_kernels)
    work = None if is_of_kernels else _work_of_steps(table, trace)
    for process, rows in rows_by(table, "process").items():
        # A step may begin before the previous step ends; then no time is between them.
        next_starts[rows[:-1]] = np.maximum(starts[rows[1:]], starts[rows[:-1]])
        recorder_time = recorder.get(process, Intervals.empty())
        recorder_ns[rows] = recorder_time.covered_ns(starts[rows], next_starts[rows])
        if work is not None:
            device_starts[rows], device_ends[rows], on_device[rows] = _device_spans(
                starts[rows], next_starts[rows], [column[rows] for column in work], recorder_time
            )
            if len(rows) > 1 and device_ends[rows[-1]] > work[1][rows].max():  # its host tail
                work[2][rows[-1]] = ends[rows[-1]]
            for time in (time for (owner, _), time in unseen.items() if owner == process):
                device_starts[rows] = (
                    device_starts[rows].clip(time.ends[-1]).clip(max=device_ends[rows])
                )
    return table.assign(
        next_ns=next_starts,
        recorder_ns=recorder_ns,
        launched_ns=ends if work is None else np.where(on_device, work[2], ends),
        device_start_ns=device_starts,
        device_end_ns=device_ends,
        on_device=on_device,
    )


def _device_spans(
    starts: Ints, following: Ints, work: Sequence[Ints], recorder: Intervals
) -> tuple[Ints, Ints, Bools]:
    """Return start and end of the device span of each step of a process, and if work defines it."""
    first_start, last_end, _, previous_end = work
    has_work = last_end != _NO_END_NS
    if not has_work.any():
        return starts, following, has_work
    ends = np.maximum.accumulate(np.where(has_work, last_end, following))
    if len(ends) == 1:
        ends = np.maximum(ends, following)
    # Work before the first step may be unrecorded. Assume that it ended with the same lag after the
    # start of the step as the work of the step after its end, and that the device was then idle.
    begun = min(first_start[0], max(starts[0] + ends[0] - following[0], previous_end[0]))
    earliest = max(starts[0], begun) if has_work[0] else starts[0]
    # The device is idle between two spans, so the recorder's time can be left out anywhere.
    begun = ends[:-1] + recorder.covered_ns(ends[:-1], starts[1:])
    resumed = np.minimum(first_start, starts + ends - following)[1:]
    resumes = has_work[1:] & ~has_work[:-1] & (recorder.covered_ns(starts[:-1], starts[1:]) > 0)
    begun = np.where(resumes, np.maximum(begun, resumed), begun)
    begins = np.concatenate(([min(earliest, ends[0])], np.minimum(begun, ends[1:])))
    # The host time after the work of a step is part of the next step. If it is unusual for the last
    # step (a checkpoint), it is part of this step, because no step follows.
    tails = np.maximum(following - ends, 0)
    is_known = len(ends) > 2 and not len(recorder)
    tail_ns = int(tails[-1] - np.median(tails[:-1])) if is_known else 0
    ends[-1] += tail_ns if tail_ns > _MIN_TAIL_RATIO * np.median(ends - begins) else 0
    return begins, ends, has_work


def _work_of_steps(table: Table, trace: Trace) -> tuple[Ints, ...]:
    """Return per step: start of its first work, end of its last work, and end of its last launch.

    For steps without launches, and for processes with almost no known launches, the first is
    `_NO_START_NS` and the second `_NO_END_NS`. The fourth array is the end of the work that the
    loop launched before the first step of each process.
    """
    of_process = rows_by(table, "process")
    main = {p: (int(table["thread"][rows[0]]), len(rows)) for p, rows in of_process.items()}
    first_start, last_end = np.full(len(table), _NO_START_NS), np.full(len(table), _NO_END_NS)
    launch_end, previous_end = last_end.copy(), last_end.copy()
    n_linked = np.zeros(len(table), np.int64)
    n_rows: Counter[int] = Counter()
    of_loop = {name: are_launched_by_loop(trace, name, main) for name in DEVICE_TABLES}
    for name, is_of_loop in of_loop.items():
        work, launches = trace.table(name), launches_of(trace, name)
        starts, ends = bounds(work)
        owner = np.where(launches.is_known, owner_of(table, work["process"], launches.start_ns), -1)
        n_linked += np.bincount(owner[owner >= 0], minlength=len(table))
        in_loop = (owner >= 0) & is_of_loop
        np.minimum.at(first_start, owner[in_loop], starts[in_loop])
        np.maximum.at(last_end, owner[in_loop], ends[in_loop])
        np.maximum.at(launch_end, owner[in_loop], launches.end_ns[in_loop])
        place, processes = places_of(work["process"])
        n_rows.update(dict(zip(processes, np.bincount(place).tolist(), strict=True)))
    for name, is_of_loop in of_loop.items():
        work, launches = trace.table(name), launches_of(trace, name)
        starts, ends = bounds(work)
        for process, rows in of_process.items():
            before = slice(np.searchsorted(starts, first_start[rows[0]]))
            is_before = is_of_loop[before] & (launches.call[before] >= 0)
            is_before &= work["process"][before] == process
            previous_end[rows[0]] = ends[before].max(where=is_before, initial=previous_end[rows[0]])
    # The work that begins in steps is a subset of all work, so try the cheaper test first.
    sparse = [r for p, r in of_process.items() if n_linked[r].sum() < _MIN_LINKED_RATIO * n_rows[p]]
    n_begun = _count_work_by_start(table, trace) if sparse else n_linked
    for rows in sparse:
        if n_linked[rows].sum() < _MIN_LINKED_RATIO * n_begun[rows].sum():
            first_start[rows], last_end[rows] = _NO_START_NS, _NO_END_NS
    return first_start, last_end, launch_end, previous_end


def _count_work_by_start(table: Table, trace: Trace) -> Ints:
    """Return the number of kernels and copies that begin in each step, regardless of launch."""
    counts = np.zeros(len(table), np.int64)
    for name in DEVICE_TABLES:
        work = trace.table(name)
        owner = owner_of(table, work["process"], work["start_ns"])
        counts += np.bincount(owner[owner >= 0], minlength=len(table))
    return counts


def steps_of_calls(steps: Steps, work: Any) -> Ints:
    """Return the row of ``steps.table`` in which each row of ``work`` was launched, -1 if none.

    ``work`` has the columns process, call_ns, and start_ns. Work without a known call belongs to
    the step in which it started.
    """
    called, starts = ints(work, "call_ns", "start_ns")
    return owner_of(steps.table, work["process"], np.where(called != ABSENT, called, starts))


_EXPLICIT: Final = re.compile("user_step")
_PROFILER_STEP: Final = re.compile(r"ProfilerStep\s*#\s*(?P<number>\d+)")
_OPTIMIZER_STEP: Final = re.compile(r"Optimizer\.step#.*")
_SELECTED: Final = "ranges selected as steps"


@of_window
def find_steps(trace: Trace) -> Steps:
    """Return the steps of every process from the most reliable source in the recording.

    For a cut trace, return the steps whose span lies completely inside the window. A repeating
    kernel pattern is no step (see `find_pattern`).
    """
    if trace.uncut is not None:
        return _cut_to_window(find_steps(trace.uncut), trace)
    # A rank without steps of the source of the others may have rounds of its own: it rolls out.
    return trace.steps or _steps_of_best_source([trace], trace.warmup_steps)[0]


@of_window
def steps_of_ranks(ranks: Ranks) -> Steps:
    """Return the steps of all ranks whose span lies completely inside the window."""
    return _merge_ranks([find_steps(part) for part in ranks])


@of_window
def find_pattern(trace: Trace) -> Steps:
    """Return the iterations of the repeating kernel pattern; none if kernels do not repeat.

    For a cut trace, return the iterations completely inside the window. If steps are known, the
    result is empty.
    """
    if trace.uncut is not None:
        return _cut_to_window(find_pattern(trace.uncut), trace)
    if len(find_steps(trace)):
        return _no_steps(is_pattern=True)
    table, confidence_ratio = find_periodic_steps(trace)
    if table.empty:
        return _no_steps(is_pattern=True)
    table = with_spans(trace, table, is_of_kernels=True).assign(is_warmup=False)
    # the length of an iteration across a gap is unknown
    for process, between in between_cycles(trace).items():
        is_whole = between.covered_ns(*bounds(table)) == 0
        table = table.take(is_whole | (table["process"] != process))
    lengths, is_first = Steps(table, "", is_pattern=True).durations_ns, np.zeros(len(table), bool)
    for rows in rows_by(table, "process").values():
        is_first[rows[: count_first_iterations(lengths[rows])]] = True
    table = table.take(~is_first)
    return Steps(table, _PATTERN, confidence_ratio, is_pattern=True)


@of_window
def pattern_of_ranks(ranks: Ranks) -> Steps:
    """Return the iterations of the kernel patterns of all ranks; none if steps are known."""
    if len(steps_of_ranks(ranks.whole)):
        return _no_steps(is_pattern=True)
    return _merge_ranks([find_pattern(part) for part in ranks])


def _no_steps(*, is_pattern: bool = False) -> Steps:
    names = ("next_ns", "recorder_ns", "launched_ns", "device_start_ns", "device_end_ns")
    columns = dict.fromkeys(names, np.empty(0, np.int64))
    flags = dict.fromkeys(("on_device", "is_warmup"), np.empty(0, np.bool_))
    return Steps(empty_steps().assign(**columns, **flags), "", is_pattern=is_pattern)


def _merge_ranks(found: Sequence[Steps]) -> Steps:
    """Return the steps of all ranks in one table; the other properties come from the longest."""
    if len(found) == 1:
        return found[0]
    table = Table.stacked([steps.table for steps in found]).in_order("process", "start_ns")
    return replace(max(found, key=len), table=table)


def has_named_steps(ranks: Ranks) -> bool:
    """Return whether ranges mark the steps, so that no kernel is needed to find them."""
    return any(ranks.whole.each(_has_named_steps))


def _has_named_steps(trace: Trace) -> bool:
    if trace.steps is not None:
        return len(trace.steps) > 0 and not trace.steps.is_inferred
    return any(len(_steps_of_source(trace, place)[0]) for place in range(len(_SOURCES)))


def decide_steps(ranks: Ranks) -> Ranks:
    """Return the ranks with steps from one source: the most reliable source of any rank.

    All ranks drop the same number of leading steps as warm-up, which is the largest number of any
    rank.
    """
    return _with_steps(ranks, _steps_of_best_source(ranks.whole.parts, ranks.parts[0].warmup_steps))


def mark_steps(ranks: Ranks, pattern: str) -> Ranks:
    """Return the ranks with the ranges whose whole name matches ``pattern`` as steps.

    A group in the pattern captures the step number.

    Raises:
        UsageError: the pattern is not a regular expression, or no range matches it.
    """
    tables = measure_each(
        ranks.whole.parts, _steps_of_pattern, user_pattern(pattern, "step pattern")
    )
    if all(table.empty for table in tables):
        raise UsageError(f"no range matches the step pattern {pattern!r}")
    return with_steps_of(ranks, tables, _SELECTED)


def with_steps_of(ranks: Ranks, tables: Sequence[Table], source: str) -> Ranks:
    """Return the ranks with the steps of one table per rank, with columns `STEP_COLUMNS`."""
    n_warmup = ranks.parts[0].warmup_steps
    return _with_steps(ranks, _with_warmup(ranks.whole.parts, tables, source, 1.0, n_warmup))


def _with_steps(ranks: Ranks, steps: Sequence[Steps]) -> Ranks:
    return ranks.map_each(Trace.with_steps, [(rank_steps,) for rank_steps in steps])


def _cut_to_window(steps: Steps, trace: Trace) -> Steps:
    """Return the steps whose span lies between the start and end of the window of ``trace``."""
    return replace(steps, table=steps.table.take(rows_inside(steps.table, trace.span)))


def rows_inside(steps: Table, window: TimeWindow) -> Ints:
    """Return which steps lie between the start and end of a window, including its gaps."""
    starts, ends = steps["device_start_ns"], steps["device_end_ns"]
    return np.flatnonzero((starts >= window.start_ns) & (ends <= window.end_ns))


def rows_of_steps(trace: Trace) -> Ints:
    """Return the rows, in the steps of the whole recording, of the steps in the window."""
    return rows_inside(find_steps(trace.whole).table, trace.span)


def _steps_of_best_source(traces: Sequence[Trace], n_warmup: int | None) -> list[Steps]:
    """Return the steps of each trace from the most reliable source that any trace has."""
    for place, source in enumerate(_SOURCES):
        annotated = measure_each(traces, _steps_of_source, place)
        tables = [table for table, _ in annotated]
        if any(map(len, tables)):
            detail = max((detail for table, detail in annotated if len(table)), default="")
            return _with_warmup(traces, tables, source.name + detail, 1.0, n_warmup)
    found = measure_each(traces, find_optimizer_steps)
    confidences = [confidence_ratio for table, confidence_ratio in found if len(table)]
    if confidences:
        return _with_warmup(
            traces, [table for table, _ in found], _OPTIMIZER, min(confidences), n_warmup
        )
    rounds = measure_each(traces, steps_of_passes)
    if any(map(len, rounds)):
        return _with_warmup(traces, rounds, FORWARD_PASSES, 1.0, n_warmup)
    passes = measure_each(traces, steps_of_backward)
    if any(map(len, passes)):
        return _with_warmup(traces, passes, _BACKWARD_PASSES, 1.0, n_warmup)
    return [_no_steps() for _ in traces]


def _with_warmup(
    traces: Sequence[Trace],
    tables: Sequence[Table],
    source: str,
    confidence_ratio: float,
    n_given: int | None,
) -> list[Steps]:
    """Return the steps of each trace, with the same number of leading steps marked as warm-up."""
    is_inferred = confidence_ratio < 1
    tables = measure_of_each(traces, with_spans, [(table, is_inferred) for table in tables])
    n_leading = n_given if n_given is not None else max(map(_count_warmup, tables))
    return [
        Steps(
            table.assign(is_warmup=groups_of(table["process"]).earlier < n_leading),
            source,
            confidence_ratio,
        )
        for table in tables
    ]


def _count_warmup(table: Table) -> int:
    """Return the largest number of leading warm-up steps of any process, by duration or by name."""
    n_warmup, steps = 0, Steps(table, "")
    lengths, periods = steps.durations_ns, steps.periods_ns
    for rows in rows_by(table, "process").values():
        declared, durations = table["declared_warmup"][rows], lengths[rows]
        # If devices lag, the device span of the first step begins late, so use its host period.
        durations[0] = max(durations[0], periods[rows[0]])
        n_declared = 0 if declared.all() else int(declared.sum())
        n_warmup = max(n_warmup, count_warmup(durations), n_declared)
    return n_warmup


@fact
def _steps_of_source(trace: Trace, place: int) -> tuple[Table, str]:
    """Return the steps of a trace from source number ``place``, and a suffix for its name."""
    source, ranges = _SOURCES[place], trace.ranges
    if source.is_by_traceprof is not None:
        ranges = ranges.take((ranges["domain"] == TRACEPROF_DOMAIN) == source.is_by_traceprof)
    if ranges.empty:
        return empty_steps(), ""
    found = source.steps_of(ranges)
    if isinstance(found, tuple):
        return found
    if source.name:
        return found, ""
    is_annotated = trace.info.format.startswith("xplane")  # JAX, TensorFlow
    return found, "profiler step annotations" if is_annotated else "ranges named step"


def _steps_of_pattern(trace: Trace, pattern: UserPattern) -> Table:
    """Return the ranges that match a user's pattern, as steps."""
    return steps_of_ranges(trace.ranges, pattern)


class _Source(NamedTuple):
    """Ranges that mark steps: ranges of traceprof, of others, or of both (None)."""

    name: str
    is_by_traceprof: bool | None
    steps_of: Callable[[Table], Table | tuple[Table, str]]


_BACKWARD_PASSES: Final = "backward passes (no PyTorch optimizer found)"
_SOURCES: Final = (
    _Source(
        "traceprof.step()", True, partial(steps_of_ranges, pattern=_EXPLICIT, words=["user_step"])
    ),
    _Source("--step-from ", True, steps_of_step_from),
    _Source(RECORDED_PHASES, True, steps_of_phases),
    _Source(
        "ProfilerStep",
        None,
        partial(steps_of_ranges, pattern=_PROFILER_STEP, words=["ProfilerStep"]),
    ),
    _Source("steps of a server's engine", False, STEPS_OF_ENGINES),
    _Source("", False, partial(steps_of_ranges, pattern=NAMED_STEP, words=STEP_WORDS)),
    _Source(
        "ends of Optimizer.step",
        False,
        partial(steps_between_ends, pattern=_OPTIMIZER_STEP, words=["Optimizer.step"]),
    ),
    _Source(
        _BACKWARD_PASSES,
        True,
        partial(steps_of_phases, closing=BACKWARD),
    ),
)
_OPTIMIZER: Final = "optimizer kernels (inferred)"
_PATTERN: Final = "repeating pattern of kernels"
