"""Functions that decide whether events occur once, in a few steps, or in every step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from traceprof.findings.context import Context
from traceprof.measures.rows import owner_of, rows_by
from traceprof.measures.steps.base import WINDOW
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
    return max(map(len, _numbers_of_steps(context, rows, is_of_host=is_of_host)), default=0)


def _numbers_of_steps(context: Context, rows: Table, *, is_of_host: bool) -> Iterator[set[int]]:
    """Yield the numbers of the typical steps in which ``rows`` start, for each process."""
    steps = context.steps.table.take(context.is_usual)
    borders = "start_ns" if is_of_host else "device_start_ns"
    of_process = rows_by(rows, "process")
    for process, step_rows in rows_by(steps, "process").items():
        starts = rows["start_ns"][of_process.get(process, np.empty(0, np.int64))]
        in_order = step_rows[np.argsort(steps[borders][step_rows], kind="stable")]
        place = np.searchsorted(steps[borders][in_order], starts, side="right") - 1
        # Events before the first step belong to the first step: the host runs ahead.
        yield set(steps["step"][in_order[np.maximum(place, 0)]].tolist())


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
    steps they are, on any process.
    """
    in_steps = steps_with(context, rows, is_of_host=is_of_host)
    if in_steps is not None and are_few_steps(context, in_steps):
        text = f"{{n:count}} {words} in {{own:count}} of {{steps:count}} steps{more}"
        in_any = set[int]().union(*_numbers_of_steps(context, rows, is_of_host=is_of_host))
        n_steps = round(context.n_steps)
        return Note.of(text, n=len(rows), own=len(in_any), steps=n_steps, **values)
    return context.counted(len(rows), words, more, is_of_host=is_of_host, **values)


def size_in_words(context: Context, n_bytes: int, count: int) -> tuple[str, int]:
    """Return words on the bytes of ``count`` events, and the value of {moved} in them.

    Beside a number of events per step, the total of the window would be misleading.
    """
    if context.base.unit == WINDOW or not count:
        return "{moved:bytes} in total", n_bytes
    return "mean size {moved:bytes}", n_bytes // count


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
