"""The ledger of steps: one row per process and step of the whole recording, each measured once.

All code that needs the length or kind of a step reads it here. Only `traceprof.measures.steps.base`
selects the rows that an answer is based on.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from traceprof.measures.device.times import recorded_windows
from traceprof.measures.facts import fact
from traceprof.measures.rows import Bools, Ints, covered_ns, lengths_of, rows_by
from traceprof.measures.steps.completeness import WHOLE, wholeness_of_steps
from traceprof.measures.steps.costs import explained_by, occasions_in
from traceprof.measures.steps.find import (
    find_pattern,
    find_steps,
    pattern_of_ranks,
    rows_inside,
    steps_of_ranks,
)
from traceprof.measures.steps.parts import samples_in_steps
from traceprof.measures.steps.steadiness import outliers_of_processes
from traceprof.measures.steps.undisturbed import captured_times, disturbances
from traceprof.model.grouping import groups_of, is_in
from traceprof.model.ranks import Ranks
from traceprof.model.table import Table
from traceprof.model.timing import Steps, TimeWindow
from traceprof.model.trace import DEVICE_TABLES, Trace

USUAL: Final = "usual"
WARMUP: Final = "warm-up"
SLOW: Final = "slow"
CUT: Final = "cut by an edge"
INCOMPLETE: Final = "incomplete"
"""Kinds of steps, in addition to `traceprof.measures.steps.costs.OCCASIONS`.

cut by an edge: the first or last step of the recording, of which a part was not recorded; or a last
step that only seems slow, because no next step shows whether its last CPU work is part of it.
incomplete: GPU work that the step launched is missing from the recording.
"""
_MAX_CUT_RATIO: Final = 0.95
_NEARLY_WHOLE_RATIO: Final = 0.999
_MIN_COVERED_RATIO: Final = 0.9
"""A recorder starts and stops near the borders of a step, not exactly at them."""
_MIN_OTHERS: Final = 2
_OCCASION: Final = "occasion "


@fact
def all_steps(ranks: Ranks) -> Steps:
    """Return the steps of the whole recording; without steps, the iterations of its pattern."""
    steps = steps_of_ranks(ranks)
    return steps if len(steps) else pattern_of_ranks(ranks)


@fact
def step_ledger(ranks: Ranks) -> Table:
    """Return one row per process and step of the whole recording, sorted by process and host start.

    Times are in ns on the clock of the trace. Columns: process, step. start_ns and next_ns: host
    times from the start of this step to the start of the next step. period_ns: the time between
    them, without the recorder's time. device_start_ns, device_end_ns. on_device: whether the device
    times are known from the launched work. duration_ns: device time if known, else the period.
    whole_ns: the same, but the first step includes host work before any GPU work. is_covered: all
    device work of the step was recorded. is_unprofiled: only ranges were recorded in the step, so
    the profiler added no overhead. samples_count: NaN if unknown. kind: `USUAL`, `WARMUP`, `SLOW`,
    `CUT`, `INCOMPLETE`, or one of OCCASIONS; iterations of a pattern are usual. is_fast: a usual
    step that is much shorter than the others.
    """
    is_pattern = all_steps(ranks).is_pattern
    rows = ranks.each(rows_of_rank, is_pattern=is_pattern)
    table = Table.stacked([rank_rows for rank_rows in rows if len(rank_rows)] or rows[:1])
    table = table.in_order("process", "start_ns") if len(rows) > 1 else table
    occasion_times = {
        name.removeprefix(_OCCASION): table[name] for name in table if _OCCASION in name
    }
    table = table.without(*(f"{_OCCASION}{name}" for name in occasion_times))
    # Host periods are compared only with host periods, device times only with device times.
    comparable = groups_of(table["process"], table["is_covered"].astype(np.int64)).number
    is_left_out = table["is_warmup"] | ~table["is_whole"] | is_pattern
    causes = explained_by(table.assign(process=comparable), occasion_times, ~is_left_out)
    outliers = outliers_of_processes(
        table["duration_ns"].astype(np.float64), comparable, is_left_out | (causes != "")
    )
    kind = np.full(len(table), USUAL, object)
    kind[outliers > 0] = SLOW
    # The iterations of a pattern are never cut.
    is_cut = table["is_edge"] & (_are_cut(table, comparable) | (outliers < 0)) & (not is_pattern)
    # If the edge cuts a step on one rank, the same step is also unusable on the other ranks.
    kind[table["is_edge"] & is_in(table["step"], table["step"][is_cut])] = CUT
    usual_ns = table["duration_ns"][kind == USUAL].max(initial=0)
    without_tail_ns = table["duration_ns"] - table["tail_ns"]
    kind[(kind == SLOW) & (table["tail_ns"] > 0) & (without_tail_ns <= usual_ns)] = CUT
    kind[causes != ""] = causes[causes != ""]
    kind[~table["is_whole"]] = INCOMPLETE
    kind[table["is_warmup"]] = WARMUP
    return table.without("is_edge", "is_whole", "is_warmup", "tail_ns").assign(
        kind=kind, is_fast=(outliers < 0) & (kind == USUAL)
    )


def ledger_of_window(ranks: Ranks) -> Table:
    """Return the rows of the ledger between the start and end of the window of ``ranks``.

    These are the rows of `steps_of_ranks`, or of `pattern_of_ranks`, in the same order.
    """
    return ledger_within(ranks, ranks.span)


@fact
def ledger_within(ranks: Ranks, window: TimeWindow) -> Table:
    """Return the rows of the ledger between the start and end of ``window``."""
    ledger = step_ledger(ranks)
    rows = rows_inside(ledger, window)
    return ledger if len(rows) == len(ledger) else ledger.take(rows)


@fact
def rows_of_rank(trace: Trace, *, is_pattern: bool) -> Table:
    """Return the ledger rows of one rank, before ranks and steps are compared."""
    steps = find_pattern(trace) if is_pattern else find_steps(trace)
    table = steps.table
    whole = np.ones(len(table), np.bool_) if is_pattern else wholeness_of_steps(trace) == WHOLE
    is_unprofiled = np.zeros(len(table), np.bool_)
    for disturbance in disturbances(trace).values() if not is_pattern else ():
        is_unprofiled[disturbance.rows] = True
    is_edge, tail_ns = _edges(trace, table)
    names = ("process", "step", "start_ns", "next_ns", "device_start_ns", "device_end_ns")
    return table.select(*names, "end_ns", "on_device", "is_warmup").assign(
        period_ns=steps.periods_ns,
        duration_ns=steps.durations_ns,
        whole_ns=steps.whole_lengths_ns,
        is_covered=_are_covered(trace, table) & whole,
        is_unprofiled=is_unprofiled,
        samples_count=samples_in_steps(trace, table),
        is_whole=whole,
        is_edge=is_edge,
        tail_ns=tail_ns,
        **{f"{_OCCASION}{k}": t for k, t in occasions_in(trace, launching_spans(table)).items()},
    )


def _are_covered(trace: Trace, steps: Table) -> Bools:
    """Return which steps have device activity recorded from beginning to end."""
    if not trace.recorded & set(DEVICE_TABLES):
        return np.zeros(len(steps), np.bool_)
    if windows := recorded_windows(trace):
        spans = steps.select("process").assign(
            start_ns=steps["device_start_ns"], end_ns=steps["device_end_ns"]
        )
        inside = covered_ns(spans, windows) == lengths_of(spans)
        return np.asarray(inside & are_timed(steps), np.bool_)
    inside_ns = covered_ns(steps, captured_times(trace))
    is_captured = np.isnan(inside_ns) | (inside_ns >= _MIN_COVERED_RATIO * lengths_of(steps))
    # If every step overlaps the recorded time, no step is outside the recording.
    for rows in rows_by(steps, "process").values():
        is_captured[rows] |= inside_ns[rows].min() > 0
    return np.asarray(is_captured, np.bool_)


def are_timed(steps: Table) -> Bools:
    """Return which steps have known device times.

    If no launch of a process is known, its steps are their periods. If only some launches are
    known, the work of a step without launches may have run at another time.
    """
    process, known = groups_of(steps["process"]).number, steps["on_device"]
    return np.asarray(known | (np.bincount(process, known) == 0)[process], np.bool_)


def _edges(trace: Trace, steps: Table) -> tuple[Bools, Ints]:
    """Return which steps the recording may cut, and the CPU time after the GPU work of last steps.

    On devices, this is the first step of a process. On the host, it is the last step, because no
    next step begins. The CPU time is 0 for other steps.
    """
    found, tail_ns = np.zeros(len(steps), np.bool_), np.zeros(len(steps), np.int64)
    work = Table.stacked([trace.table(name).select("process", "end_ns") for name in DEVICE_TABLES])
    rows_of = rows_by(work, "process")
    for process, rows in rows_by(steps, "process").items():
        first, last = rows[0], rows[-1]
        found[first] = steps["on_device"][first]
        found[last] |= not steps["on_device"][last]
        if steps["on_device"][last] and process in rows_of:
            last_ns = work["end_ns"][rows_of[process]].max()
            tail_ns[last] = max(0, steps["device_end_ns"][last] - last_ns)
    return found, tail_ns


def _are_cut(ledger: Table, process: Ints) -> Bools:
    """Return which steps at an edge lack a part.

    On devices, a first step that ends before its host end lacks that difference, because earlier
    work was not recorded. A first step on devices (of three or more) and a last step on the host
    are also cut if they are shorter than all others.
    """
    lengths, on_device = ledger["duration_ns"].astype(np.float64), ledger["on_device"]
    lag_ns = ledger["device_end_ns"] - ledger["end_ns"]
    found = on_device & (lag_ns < (_MAX_CUT_RATIO - 1) * lengths)
    for rows in rows_by(ledger.assign(process=process), "process").values():
        first, last = rows[0], rows[-1]
        if len(rows) > _MIN_OTHERS and on_device[first]:
            found[first] |= lengths[first] < _NEARLY_WHOLE_RATIO * lengths[rows[1:]].min()
        if len(rows) > 1 and not on_device[last]:
            found[last] = lengths[last] < _NEARLY_WHOLE_RATIO * lengths[rows[:-1]].min()
    return np.asarray(found, np.bool_)


def launching_spans(steps: Table) -> Table:
    """Return ``steps`` with the host times in which their work was launched.

    A span on the devices depends on the time from the last launch of the previous step to the last
    launch of its own step. A period depends on the time within it.
    """
    known, launched = steps["on_device"], steps["launched_ns"]
    start, end = steps["start_ns"].copy(), np.where(known, launched, steps["next_ns"])
    for rows in rows_by(steps, "process").values():
        following = rows[1:]
        start[following] = np.where(known[following], launched[rows[:-1]], start[following])
    return steps.assign(start_ns=start, end_ns=end)
