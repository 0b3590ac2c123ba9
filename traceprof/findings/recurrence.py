"""Functions that decide whether events occur once, in a few steps, or in every step."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from traceprof.findings.context import Context
from traceprof.measures.rows import owner_of, rows_by
from traceprof.measures.steps.find import pattern_of_ranks
from traceprof.measures.workload import LOADING
from traceprof.model.results import Note
from traceprof.model.table import Table

_N_THIRDS: Final = 3
_MIN_STEPS: Final = 3
_MIN_TIMES: Final = 3
_MAX_FEW_RATIO: Final = 0.5


def steps_with(context: Context, rows: Table, *, is_of_host: bool = True) -> int | None:
    """Return the number of typical steps in which ``rows`` start; None without known steps.

    ``rows`` have process and start_ns. The result is the maximum over processes. ``is_of_host``:
    compare with the host times of steps; if False, with the device times.
    """
    if not len(context.steps):
        return None
    steps = context.steps.table.take(context.is_usual)
    borders = "start_ns" if is_of_host else "device_start_ns"
    of_process, found = rows_by(rows, "process"), 0
    for process, step_rows in rows_by(steps, "process").items():
        starts = rows["start_ns"][of_process.get(process, np.empty(0, np.int64))]
        place = np.searchsorted(np.sort(steps[borders][step_rows]), starts, side="right")
        # Events before the first step belong to the first step: the host runs ahead.
        found = max(found, len(np.unique(np.maximum(place, 1))))
    return found


def are_few_steps(context: Context, in_steps: int) -> bool:
    """Return whether ``in_steps`` is at most half of the typical steps."""
    return in_steps <= _MAX_FEW_RATIO * context.n_steps


def counted(
    context: Context,
    rows: Table,
    words: str,
    more: str = "",
    *,
    is_of_host: bool = True,
    **values: Any,
) -> Note:
    """Return a note on the number of ``rows``, see `Context.counted`.

    If only few steps have such rows, a mean per step is misleading. The note then says in how many
    steps they are.
    """
    in_steps = steps_with(context, rows, is_of_host=is_of_host)
    if in_steps is not None and are_few_steps(context, in_steps):
        text = f"{{n:count}} {words} in {{own:count}} of {{steps:count}} steps{more}"
        n_steps = round(context.n_steps)
        return Note.of(text, n=len(rows), own=in_steps, steps=n_steps, **values)
    return context.counted(len(rows), words, more, is_of_host=is_of_host, **values)


def is_in_most_iterations(context: Context, rows: Table) -> bool:
    """Return whether ``rows`` start in more than half of the iterations of a pattern."""
    turns = pattern_of_ranks(context.ranks).table
    if turns.empty:
        return False
    place = owner_of(turns, rows["process"], rows["start_ns"])
    return len(np.unique(place[place >= 0])) > _MAX_FEW_RATIO * len(turns)


def occurs_once(context: Context, rows: Table) -> bool:
    """Return whether the host events ``rows`` are a one-time event and do not recur in steps.

    With several steps, one-time events are in at most one step. With a single step, or without
    known steps, events recur if there are at least three of them, with some in each third of the
    window. Programs set up at the start and end only once. A program that only loads data does so
    once.
    """
    in_steps = steps_with(context, rows)
    if in_steps is not None and (in_steps > 1 or context.n_steps >= _MIN_STEPS):
        return in_steps <= 1
    if context.kind == LOADING:
        return True
    span, starts = context.ranks.span, rows["start_ns"]
    third = (starts - span.start_ns) * _N_THIRDS // max(span.duration_ns, 1)
    return len(starts) < _MIN_TIMES or len(np.unique(third.clip(0, _N_THIRDS - 1))) < _N_THIRDS
