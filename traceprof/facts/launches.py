"""Which host range launched which work of a device.

A kernel or copy belongs to the API call that launched it (same process and correlation), and
that call to the innermost range around it on its thread. Kernels of a CUDA graph belong to the
launch of the graph. PyTorch's autograd engine launches backward kernels from threads of its own:
a launch on a thread without a phase belongs to the phase that is open on the thread of the same
process that calls backward. Where no range is called backward, see `traceprof.facts.backward`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.facts.backward import (
    BACKWARD,
    InferredBackward,
    autograd_rows,
    infer_backward,
)
from traceprof.facts.cache import fact
from traceprof.model.grouping import (
    compact,
    groups_of,
    parents_of,
    places_of,
    rows_by_value,
    rows_by_values,
)
from traceprof.model.intervals import nesting_depth
from traceprof.model.tables import ABSENT
from traceprof.model.trace import RowsOf, Trace
from traceprof.names.ranges import PHASES, phases_of_ranges
from traceprof.values import dataclass

__all__ = [
    "Launches",
    "adopting_range_of_launches",
    "are_inferred_backward",
    "find_launches",
    "inferred_backward",
    "innermost",
    "launches_of",
    "phase_of_launches",
    "phases_of_all_ranges",
    "phases_of_work",
    "range_of_launches",
]

_Int64Array = npt.NDArray[np.int64]
_NOTHING = -1


@dataclass(frozen=True, slots=True, eq=False)
class Launches:
    """The call that launched each row of a device table; `ABSENT` where it was not recorded.

    ``call`` is the row of ``calls``, the API calls of the whole trace, ``process`` that of the
    work. What a call itself says is looked up when it is asked for; starts and ends are in ns.
    """

    call: _Int64Array
    process: _Int64Array
    calls: pd.DataFrame

    @property
    def start_ns(self) -> _Int64Array:
        """When each call began."""
        return _taken(self.calls["start_ns"], self.call)

    @property
    def end_ns(self) -> _Int64Array:
        """When each call returned."""
        return _taken(self.calls["end_ns"], self.call)

    @property
    def thread(self) -> _Int64Array:
        """The thread of each call."""
        return _taken(self.calls["thread"], self.call)

    @property
    def is_known(self) -> npt.NDArray[np.bool_]:
        """Whether the launch of each row was recorded."""
        return self.call >= 0

    def of_rows(self, rows: RowsOf | npt.NDArray[np.bool_]) -> Launches:
        """Return the launches of some of the rows: a slice, row numbers or a mask."""
        return Launches(self.call[rows], self.process[rows], self.calls)


def launches_of(trace: Trace, table: str) -> Launches:
    """Return what launched each row of ``table`` (kernels, copies or syncs) of ``trace``."""
    calls = _calls_of_table(trace, table)[trace.rows_in_whole(table)]
    return Launches(calls, trace.table(table)["process"].to_numpy(np.int64), trace.whole.api_calls)


@fact
def _calls_of_table(trace: Trace, table: str) -> _Int64Array:
    return find_launches(trace, trace.table(table)).call


def find_launches(trace: Trace, work: pd.DataFrame) -> Launches:
    """Return what launched each row of ``work``, any rows with a process and a correlation.

    Of whole tables `launches_of` knows it already. A launch may lie outside the window that the
    trace was cut to: it is sought in the whole.
    """
    calls = trace.whole.api_calls
    call = _index_of_calls(trace.whole).find(work)
    return Launches(call, work["process"].to_numpy(np.int64), calls)


@dataclass(frozen=True, slots=True, eq=False)
class _CallIndex:
    """The API calls of a trace by process and correlation."""

    processes: _Int64Array
    keys: _Int64Array
    rows: npt.NDArray[Any]

    def find(self, work: pd.DataFrame) -> _Int64Array:
        """Return the first call with the process and correlation of each row of ``work``."""
        if work.empty or not len(self.keys):
            return np.full(len(work), _NOTHING, np.int64)
        keys = _key(work, self.processes)
        place = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        known = (work["correlation"].to_numpy() != ABSENT) & np.isin(
            work["process"], self.processes
        )
        return np.where((self.keys[place] == keys) & known, self.rows[place], _NOTHING)


@fact
def _index_of_calls(trace: Trace) -> _CallIndex:
    calls = trace.api_calls
    processes = np.unique(calls["process"].to_numpy(np.int64))
    keys = _key(calls, processes)
    rows = np.argsort(keys, kind="stable")
    return _CallIndex(processes, keys[rows], compact(rows))


def _key(frame: pd.DataFrame, processes: _Int64Array) -> _Int64Array:
    place = np.searchsorted(processes, frame["process"].to_numpy())
    return np.asarray((place << 40) + frame["correlation"].to_numpy(np.int64), np.int64)


def _taken(column: pd.Series, place: _Int64Array) -> _Int64Array:
    values = column.to_numpy(np.int64)
    if not len(values):
        return np.full(len(place), ABSENT, np.int64)
    if not len(place) or int(place.min()) >= 0:
        return values[place]
    return np.where(place >= 0, values[np.maximum(place, 0)], ABSENT)


def innermost(
    ranges: pd.DataFrame, process: _Int64Array, thread: _Int64Array, instants: _Int64Array
) -> _Int64Array:
    """Return the row of the innermost of ``ranges`` open at each instant on each thread.

    -1 where none is. The ranges must nest on each thread, as push/pop ranges do.
    """
    found = np.full(len(instants), _NOTHING, np.int64)
    if ranges.empty or not len(instants):
        return found
    starts, ends = ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy()
    queries = rows_by_values(process, thread)
    for lane, rows in rows_by_values(ranges["process"], ranges["thread"]).items():
        if lane in queries:
            mine = queries[lane]
            inner = _innermost_of_lane(starts[rows], ends[rows], instants[mine])
            found[mine] = np.where(inner >= 0, rows[np.maximum(inner, 0)], _NOTHING)
    return found


def _innermost_of_lane(
    starts: _Int64Array, ends: _Int64Array, instants: _Int64Array
) -> _Int64Array:
    parents = parents_of(nesting_depth(starts, ends))
    place = np.searchsorted(starts, instants, side="right") - 1
    while True:
        closed = (place >= 0) & (ends[place] <= instants)
        if not closed.any():
            return place
        place[closed] = parents[place[closed]]


def phases_of_work(trace: Trace, table: str) -> _Int64Array:
    """Return the place in `PHASES` that each row of ``table`` was launched in, -1 for none."""
    return _phases_of_table(trace, table)[trace.rows_in_whole(table)]


@fact
def _phases_of_table(trace: Trace, table: str) -> _Int64Array:
    launches = launches_of(trace, table)
    phases = phase_of_launches(trace, launches).copy()
    phases[_inferred_among(trace, launches, phases)] = BACKWARD
    return phases


def are_inferred_backward(trace: Trace, table: str) -> npt.NDArray[np.bool_]:
    """Return which rows of ``table`` are the backward pass's although no range says so."""
    return _inferred_of_table(trace, table)[trace.rows_in_whole(table)]


@fact
def _inferred_of_table(trace: Trace, table: str) -> npt.NDArray[np.bool_]:
    if not inferred_backward(trace):
        return np.zeros(len(trace.table(table)), np.bool_)
    launches = launches_of(trace, table)
    return _inferred_among(trace, launches, phase_of_launches(trace, launches))


def _inferred_among(trace: Trace, launches: Launches, phases: _Int64Array) -> npt.NDArray[np.bool_]:
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
    phases = phases_of_all_ranges(trace)
    kept = np.flatnonzero((phases >= 0) & (trace.ranges["kind"] == "push_pop").to_numpy())
    ranges, phases = trace.ranges.iloc[kept], phases[kept]
    unnamed = {
        process: rows
        for process, rows in rows_by_value(ranges["process"]).items()
        if not (phases[rows] == BACKWARD).any()
    }
    if not unnamed:
        return {}
    launches = launches_of(trace, "kernels")
    autograd = _autograd_operators(trace)
    found = {}
    for process, rows in unnamed.items():
        own = (launches.process == process) & launches.is_known
        backward = infer_backward(
            ranges.iloc[rows],
            phases[rows],
            autograd[autograd["process"] == process],
            launches.thread[own],
            launches.start_ns[own],
        )
        if backward is not None:
            found[process] = backward
    return found


def _autograd_operators(trace: Trace) -> pd.DataFrame:
    columns = ["process", "thread", "start_ns", "end_ns"]
    tables = (trace.host_ops, trace.ranges)
    return pd.concat([frame.loc[autograd_rows(frame["name"]), columns] for frame in tables])


@fact
def phases_of_all_ranges(trace: Trace) -> _Int64Array:
    """Return the place in `PHASES` of each range of the whole trace, -1 where it is none."""
    return phases_of_ranges(trace.ranges)


def range_of_launches(trace: Trace, launches: Launches) -> _Int64Array:
    """Return the row, in the ranges of the whole trace, that each launch belongs to; -1: none."""
    ranges = trace.whole.ranges
    nested = np.flatnonzero(ranges["kind"] == "push_pop")
    inner = innermost(ranges.iloc[nested], launches.process, launches.thread, launches.start_ns)
    found = (inner >= 0) & launches.is_known
    return np.where(found, nested[np.maximum(inner, 0)] if len(nested) else _NOTHING, _NOTHING)


def phase_of_launches(trace: Trace, launches: Launches) -> _Int64Array:
    """Return the place in `PHASES` that each launch belongs to, -1 where it belongs to none."""
    ranges = trace.whole.ranges
    phases = phases_of_all_ranges(trace)
    kept = np.flatnonzero((phases >= 0) & (ranges["kind"] == "push_pop"))
    phased, phases = ranges.iloc[kept], phases[kept]
    inner = _innermost_or_adopting(phased, launches, phased, phases)
    found = (inner >= 0) & launches.is_known
    return np.where(found, phases[np.maximum(inner, 0)] if len(phases) else _NOTHING, _NOTHING)


def adopting_range_of_launches(
    trace: Trace, spans: pd.DataFrame, launches: Launches
) -> _Int64Array:
    """Return the row of ``spans`` that each launch belongs to, -1 where it belongs to none.

    A launch on a thread without an open span belongs to the one that is open on the thread of
    the same process that calls backward.
    """
    ranges = trace.whole.ranges
    phases = phases_of_all_ranges(trace)
    kept = (phases >= 0) & (ranges["kind"] == "push_pop").to_numpy()
    found = _innermost_or_adopting(spans, launches, ranges[kept], phases[kept])
    return np.where(launches.is_known, found, _NOTHING)


def _innermost_or_adopting(
    spans: pd.DataFrame, launches: Launches, phased: pd.DataFrame, phases: _Int64Array
) -> _Int64Array:
    """Return the innermost span on the thread of each launch, else on that which calls backward."""
    found = innermost(spans, launches.process, launches.thread, launches.start_ns)
    rest = np.flatnonzero(found < 0)
    process = launches.process[rest]
    thread = _calling_thread(phased, phases, process)
    found[rest] = innermost(spans, process, thread, launches.start_ns[rest])
    return found


def _calling_thread(phased: pd.DataFrame, phases: _Int64Array, process: _Int64Array) -> _Int64Array:
    """Return the thread of each process that calls backward the most, else that names phases."""
    threads = groups_of(phased["process"], phased["thread"])
    backward = threads.reduced(np.add, (phases == PHASES.index("backward")).astype(np.int64))
    most: dict[int, tuple[tuple[int, int], int]] = {}
    for (own, thread), *counts in zip(threads.keys, backward, threads.counts, strict=True):
        if own not in most or tuple(counts) > most[own][0]:
            most[own] = (counts[0], counts[1]), thread
    place, distinct = places_of(process)
    thread_of = np.array([most[own][1] if own in most else ABSENT for own in distinct], np.int64)
    return np.asarray(thread_of[place], np.int64)
