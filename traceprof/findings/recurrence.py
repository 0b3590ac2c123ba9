"""Whether something occurs once, in a few steps, or again and again."""

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
    """Return in how many typical steps of a process ``rows`` begin; None where none are known.

    ``rows`` have process and start_ns; the most of any process counts. Without ``is_of_host`` they
    are what devices did.
    """
    if not len(context.steps):
        return None
    steps = context.steps.table.take(context.is_usual)
    borders = "start_ns" if is_of_host else "device_start_ns"
    of_process, found = rows_by(rows, "process"), 0
    for process, step_rows in rows_by(steps, "process").items():
        starts = rows["start_ns"][of_process.get(process, np.empty(0, np.int64))]
        place = np.searchsorted(np.sort(steps[borders][step_rows]), starts, side="right")
        # What the host did ahead of the first step's work is the first step's.
        found = max(found, len(np.unique(np.maximum(place, 1))))
    return found


def are_few_steps(context: Context, in_steps: int) -> bool:
    """Return whether so many steps are no more than half of the typical ones."""
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
    """Return how many ``rows`` there are, as `Context.counted`; of few steps, in how many.

    What most steps have none of has no mean per step.
    """
    in_steps = steps_with(context, rows, is_of_host=is_of_host)
    if in_steps is not None and are_few_steps(context, in_steps):
        text = f"{{n:count}} {words} in {{own:count}} of {{steps:count}} steps{more}"
        n_steps = round(context.n_steps)
        return Note.of(text, n=len(rows), own=in_steps, steps=n_steps, **values)
    return context.counted(len(rows), words, more, is_of_host=is_of_host, **values)


def is_in_most_iterations(context: Context, rows: Table) -> bool:
    """Return whether ``rows`` begin in more than half of the iterations of a pattern."""
    turns = pattern_of_ranks(context.ranks).table
    if turns.empty:
        return False
    place = owner_of(turns, rows["process"], rows["start_ns"])
    return len(np.unique(place[place >= 0])) > _MAX_FEW_RATIO * len(turns)


def occurs_once(context: Context, rows: Table) -> bool:
    """Return whether ``rows`` of the host are of one moment, not of every step.

    Of several steps they are in one. Where there is one step alone, or none is known, they recur if
    there are three at least, and some in each third of the time: a program sets up at its
    beginning, and ends once. What only loads does it once.
    """
    in_steps = steps_with(context, rows)
    if in_steps is not None and (in_steps > 1 or context.n_steps >= _MIN_STEPS):
        return in_steps <= 1
    if context.kind == LOADING:
        return True
    span, starts = context.ranks.span, rows["start_ns"]
    third = (starts - span.start_ns) * _N_THIRDS // max(span.duration_ns, 1)
    return len(starts) < _MIN_TIMES or len(np.unique(third.clip(0, _N_THIRDS - 1))) < _N_THIRDS
