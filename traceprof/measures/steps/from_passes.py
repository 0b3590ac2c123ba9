"""Builds steps from passes of the model, for programs without markers of steps.

These are the rounds of programs that do not train, from one batch, pass, or request to the next;
and the backward passes of programs that train on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np

from traceprof.measures.host.phases import phases_of_all_ranges
from traceprof.measures.host.states import is_cpu_only_trace
from traceprof.measures.host.threads import autograd_rows
from traceprof.measures.rows import bounds, ints, rows_by
from traceprof.model.grouping import rows_by_value, rows_by_values
from traceprof.model.table import Table
from traceprof.model.timing import STEP_COLUMNS, TRACEPROF_DOMAIN, empty_steps, steps_between
from traceprof.model.trace import Trace
from traceprof.names.ranges import PHASES

FORWARD_PASSES: Final = "forward passes (no training)"
"""The source of steps that `steps_of_passes` finds."""
_DATA: Final = PHASES.index("data")
_PASSES: Final = tuple(map(PHASES.index, ("generation", "forward", "eval")))
"""Phases that are passes. The first one that a process has counts: a request contains forward
passes."""
_TRAINING_PHASES: Final = (PHASES.index("backward"), PHASES.index("optimizer"))
_MIN_ROUNDS: Final = 2
_MIN_OTHERS: Final = 3
"""Minimum number of operators of a forward pass: fewer may be part of a backward pass (hooks)."""
_PASS: Final = -1


def rounds_of_passes(trace: Trace, *, is_by_traceprof: bool = False) -> Table:
    """Return process, thread, start_ns, and end_ns of each round of each process without training.

    A round lasts from one batch to the next. Without named batches, each forward pass is a round,
    or each generation. With ``is_by_traceprof``, only ranges of traceprof count.
    """
    ranges, phases = trace.ranges, phases_of_all_ranges(trace)
    is_relevant = (phases >= 0) & (ranges["kind"] == "push_pop")
    if is_by_traceprof:
        is_relevant &= ranges["domain"] == TRACEPROF_DOMAIN
    rows = np.flatnonzero(is_relevant)
    tables = [Table(dict.fromkeys(("process", "thread", "start_ns", "end_ns"), rows[:0]))]
    for process, process_rows in rows_by_value(ranges["process"][rows]).items():
        phase, thread = phases[rows[process_rows]], ranges["thread"][rows[process_rows]]
        if np.isin(phase, _TRAINING_PHASES).any():
            continue
        kind = next((kind for kind in _PASSES if (phase == kind).any()), _PASS)
        threads, counts = np.unique(thread[phase == kind], return_counts=True)
        if not len(threads):
            continue
        main = threads[counts.argmax()]
        is_main = thread == main
        starts, ends = ints(ranges, "start_ns", "end_ns", rows=rows[process_rows[is_main]])
        kinds = np.where(phase == kind, _PASS, phase)[is_main]
        columns = (column.tolist() for column in (kinds, starts, ends))
        spans = list(_passes(zip(*columns, strict=True), bool((kinds == _DATA).any())))
        starts, ends = (np.array(side, np.int64) for side in zip(*spans, strict=True))
        values = {"process": process, "thread": int(main), "start_ns": starts, "end_ns": ends}
        tables.append(Table(values))
    return Table.stacked(tables)


def _passes(events: Iterable[tuple[int, int, int]], has_batches: bool) -> Iterator[tuple[int, int]]:
    """Yield start and end of each round, from (phase, start, end) sorted by start."""
    opens, has_pass, reach = -1, False, -1
    for phase, start, end in events:
        is_next = phase == (_DATA if has_batches else _PASS) and start >= reach
        if is_next and has_pass:
            yield opens, start
            opens, has_pass = -1, False
        if phase in (_DATA, _PASS):
            opens = start if opens < 0 else opens
        if phase == _PASS:
            has_pass, reach = True, max(reach, end)
    if has_pass:
        yield opens, reach


def steps_of_passes(trace: Trace) -> Table:
    """Return the rounds that traceprof recorded as steps; none if there are fewer than two.

    Named ranges of programs are excluded: a program that names only its forward pass may train.
    """
    rounds = rounds_of_passes(trace, is_by_traceprof=True)
    tables = [empty_steps()]
    for rows in rows_by_value(rounds["process"]).values():
        if len(rows) >= _MIN_ROUNDS:
            numbered = {"step": np.arange(len(rows)), "declared_warmup": False}
            tables.append(rounds.take(rows).assign(**numbered).select(*STEP_COLUMNS))
    return Table.stacked(tables)


def steps_of_backward(trace: Trace) -> Table:
    """Return the steps between the ends of backward passes, for programs that run on the CPU only.

    Operators outside of autograd, of the next forward pass, separate two backward passes.
    """
    tables, ops = [empty_steps()], trace.host_ops
    if not is_cpu_only_trace(trace):
        return tables[0]
    starts, ends = bounds(ops)
    is_outer = np.zeros(len(ops), np.bool_)
    for rows in rows_by_values(ops["process"], ops["thread"]).values():
        is_outer[rows] = starts[rows] >= np.maximum.accumulate(np.append(0, ends[rows][:-1]))
    is_backward = autograd_rows(ops["name"])
    for process, rows in rows_by(ops, "process").items():
        outer = rows[is_outer[rows]]
        outer = outer[np.argsort(starts[outer], kind="stable")]
        others = np.cumsum(~is_backward[outer])
        at = np.flatnonzero(is_backward[outer])
        is_last = np.append(np.diff(others[at]) >= _MIN_OTHERS, True)
        if len(at) and is_last.sum() > _MIN_ROUNDS:
            thread = int(ops["thread"][outer[0]])
            tables.append(steps_between(process, thread, ends[outer[at[is_last]]]))
    return Table.stacked(tables)
