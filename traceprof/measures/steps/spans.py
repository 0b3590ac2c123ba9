"""The time of each step: its period on the host, and its span on the devices.

The span of a step lasts from the end of the last work that the step before launched to the end of
the last work that it launched itself: a device may lag behind the host by more than a step. Spans
of a process follow one another; work that was launched between two steps lies in that of the
second.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np
import pandas as pd

from traceprof.measures.host.launches import launches_of
from traceprof.measures.rows import Bools, Ints, bounds, in_order, ints, rows_by, span_at
from traceprof.model.grouping import places_of, rows_by_value
from traceprof.model.tables import ABSENT
from traceprof.model.timing import OWN_DOMAIN, Steps
from traceprof.model.trace import DEVICE_TABLES, Trace
from traceprof.names.ranges import PROFILER_RANGES

_FEWEST_LINKED: Final = 0.1
_LATEST = np.iinfo(np.int64).min
_EARLIEST = np.iinfo(np.int64).max


def with_spans(trace: Trace, table: pd.DataFrame, is_of_kernels: bool) -> pd.DataFrame:
    """Return the steps ``table`` of a whole trace with next_ns, launched_ns and the span of each.

    Where they are cut in the sequence of kernels (``is_of_kernels``) they are spans themselves.
    """
    table = in_order(table, "process", "start_ns")
    starts, ends = bounds(table)
    following = ends.copy()
    begins, finishes, known = starts.copy(), ends.copy(), np.full(len(table), is_of_kernels)
    first, last, called = (None,) * 3 if is_of_kernels else _work_of_steps(table, trace)
    for process, rows in rows_by(table, "process").items():
        # A step that begins before the one before ended has no time between them.
        following[rows[:-1]] = np.maximum(starts[rows[1:]], starts[rows[:-1]])
        _leave_out(trace, process, rows, ends, following)
        if first is None or last is None:
            continue
        begins[rows], finishes[rows], known[rows] = _spans(
            starts[rows], following[rows], first[rows], last[rows]
        )
    return table.assign(
        next_ns=following,
        launched_ns=ends if called is None else np.where(known, called, ends),
        device_start_ns=begins,
        device_end_ns=finishes,
        on_device=known,
    )


def _leave_out(trace: Trace, process: int, rows: Ints, ends: Ints, following: Ints) -> None:
    """Have the periods of ``rows`` end where the profiler stops the loop for itself."""
    ranges = trace.ranges
    is_own = ranges["name"].isin(PROFILER_RANGES) & (ranges["domain"] == OWN_DOMAIN)
    stops = np.sort(ranges["start_ns"].to_numpy(np.int64)[is_own & (ranges["process"] == process)])
    if not len(stops):
        return
    place = np.searchsorted(stops, ends[rows])
    first = np.append(stops, _EARLIEST)[place]
    following[rows] = np.where(first < following[rows], first, following[rows])


def _spans(starts: Ints, following: Ints, first: Ints, last: Ints) -> tuple[Ints, Ints, Bools]:
    """Return start and end of the span of each step of a process, and whether work tells it."""
    worked = last != _LATEST
    if not worked.any():
        return starts, following, worked
    ends = np.maximum.accumulate(np.where(worked, last, following))
    earliest = max(starts[0], first[0]) if worked[0] else starts[0]
    # Where something came between two periods, the later one begins with its own.
    begun = np.where(starts[1:] > following[:-1], np.maximum(starts[1:], ends[:-1]), ends[:-1])
    begins = np.concatenate(([min(earliest, ends[0])], np.minimum(begun, ends[1:])))
    return begins, ends, worked


def _work_of_steps(table: pd.DataFrame, trace: Trace) -> tuple[Ints, ...]:
    """Return when the first work of each step starts, its last ends, and its last launch ends.

    Of steps that launched nothing, and of processes of which hardly any launch is known, the first
    is later than any time and the last earlier.
    """
    first, last = np.full(len(table), _EARLIEST), np.full(len(table), _LATEST)
    called = last.copy()
    linked = np.zeros(len(table), np.int64)
    n_rows: Counter[int] = Counter()
    for name in DEVICE_TABLES:
        frame = trace.table(name)
        if frame.empty:
            continue
        starts, ends = bounds(frame)
        launches = launches_of(trace, name)
        owner = owner_of(table, frame["process"], launches.start_ns)
        owner = np.where(launches.is_known, owner, -1)
        owned = owner >= 0
        np.minimum.at(first, owner[owned], starts[owned])
        np.maximum.at(last, owner[owned], ends[owned])
        np.maximum.at(called, owner[owned], launches.end_ns[owned])
        linked += np.bincount(owner[owned], minlength=len(table))
        place, processes = places_of(frame["process"].to_numpy(np.int64))
        n_rows.update(dict(zip(processes, np.bincount(place).tolist(), strict=True)))
    of_process = rows_by(table, "process")
    # Of those that begin in steps there are at most as many as there are.
    few = [r for p, r in of_process.items() if linked[r].sum() < _FEWEST_LINKED * n_rows[p]]
    seen = _work_begun_in(table, trace) if few else linked
    for rows in few:
        if linked[rows].sum() < _FEWEST_LINKED * seen[rows].sum():
            first[rows], last[rows] = _EARLIEST, _LATEST
    return first, last, called


def _work_begun_in(table: pd.DataFrame, trace: Trace) -> Ints:
    """Return how much device work begins in each step, whenever it was launched."""
    seen = np.zeros(len(table), np.int64)
    for name in DEVICE_TABLES:
        frame = trace.table(name)
        begun = owner_of(table, frame["process"], frame["start_ns"].to_numpy(np.int64))
        seen += np.bincount(begun[begun >= 0], minlength=len(table))
    return seen


def owner_of(steps: pd.DataFrame, process: pd.Series, instants: Ints) -> Ints:
    """Return the row of the step that each instant of a process lies in, -1 where in none.

    That is between its borders on the host.
    """
    owner = np.full(len(instants), -1, np.int64)
    starts, ends = bounds(steps)
    of_process = rows_by_value(process)
    for key, rows in rows_by(steps, "process").items():
        mine = of_process.get(key)
        if mine is None:
            continue
        place = span_at(starts[rows], ends[rows], instants[mine])
        owner[mine] = np.where(place >= 0, rows[place], -1)
    return owner


def steps_of_calls(steps: Steps, work: pd.DataFrame) -> Ints:
    """Return the row of ``steps.table`` that each row of ``work`` was called in, -1 for none.

    ``work`` has process, call_ns and start_ns: what has no known call belongs to the step in
    which it started.
    """
    called, starts = ints(work, "call_ns", "start_ns")
    return owner_of(steps.table, work["process"], np.where(called != ABSENT, called, starts))
