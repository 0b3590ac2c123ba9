"""Which call launched which work of a device, how late that started, how deep the queues were.

A kernel or copy belongs to the API call that launched it (same process and correlation), and
that call to the innermost range around it on its thread. Kernels of a CUDA graph belong to the
launch of the graph.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from traceprof.measures.analyses import Analysis
from traceprof.measures.facts import fact, of_rows, of_window
from traceprof.measures.rows import (
    Bools,
    Ints,
    are_named,
    bounds,
    grouped,
    ints,
    lengths_of,
    rows_by,
)
from traceprof.model.combining import medians_of
from traceprof.model.grouping import first_rows, rows_by_value, rows_by_values
from traceprof.model.intervals import nesting_depth
from traceprof.model.nesting import parents_of
from traceprof.model.packed import Packed
from traceprof.model.results import Note, Result, ResultSpec, Samples
from traceprof.model.table import Names, RowsOf, Table
from traceprof.model.tables import ABSENT
from traceprof.model.trace import DEVICE_TABLES, Trace

_NOTHING = -1


_BEGINS_CAPTURE: Final = re.compile(r"^(cuda|cu|hip)StreamBeginCapture")
_ENDS_CAPTURE: Final = re.compile(r"^(cuda|cu|hip)StreamEndCapture")


def are_migrations(copies: Table, is_called: Bools) -> Bools:
    """Return which of the copies are pages of managed memory that moved when they were touched.

    ``is_called`` says which of them a call is known of.
    """
    is_managed = (copies["src_kind"] == "managed") & (copies["dst_kind"] == "managed")
    return np.asarray(is_managed & ~is_called, np.bool_)


@fact
def captures(trace: Trace) -> Table:
    """Return when a thread captured what it launched into a graph: none of that ran.

    Columns: process, thread, start_ns, end_ns. One that never ends lasts as long as the recording.
    """
    calls = trace.api_calls
    begins, ends = (
        calls.take(are_named(calls["name"], one)) for one in (_BEGINS_CAPTURE, _ENDS_CAPTURE)
    )
    found = begins.select("process", "thread", "start_ns")
    end_ns = np.full(len(found), trace.span.end_ns)
    ends_of = rows_by_values(ends["process"], ends["thread"])
    for thread, rows in rows_by_values(found["process"], found["thread"]).items():
        own = np.sort(ends["end_ns"][ends_of[thread]]) if thread in ends_of else end_ns[:0]
        place = np.searchsorted(own, found["start_ns"][rows])
        end_ns[rows] = np.append(own, trace.span.end_ns)[place]
    return found.assign(end_ns=end_ns)


@dataclass(frozen=True, slots=True, eq=False)
class Launches:
    """The call that launched each row of a device table; `ABSENT` where it was not recorded.

    ``call`` is the row of ``calls``, the API calls of the whole trace, ``process`` that of the
    work. What a call itself says is looked up when it is asked for; starts and ends are in ns.
    """

    call: Ints
    process: Ints
    calls: Table

    @property
    def start_ns(self) -> Ints:
        """When each call began."""
        return _taken(self.calls["start_ns"], self.call)

    @property
    def end_ns(self) -> Ints:
        """When each call returned."""
        return _taken(self.calls["end_ns"], self.call)

    @property
    def thread(self) -> Ints:
        """The thread of each call."""
        return _taken(self.calls["thread"], self.call)

    @property
    def is_known(self) -> Bools:
        """Whether the launch of each row was recorded."""
        return self.call >= 0

    def of_rows(self, rows: RowsOf | Bools) -> Launches:
        """Return the launches of some of the rows: a slice, row numbers or a mask."""
        return Launches(self.call[rows], self.process[rows], self.calls)


def launches_of(trace: Trace, table: str) -> Launches:
    """Return what launched each row of ``table`` (kernels, copies or syncs) of ``trace``."""
    process = trace.table(table)["process"]
    return Launches(_calls_of(trace, table), process, trace.whole.api_calls)


@of_rows
def _calls_of(trace: Trace, table: str) -> Ints:
    return _calls_of_work(trace, trace.table(table))


def find_launches(trace: Trace, work: Table) -> Launches:
    """Return what launched each row of ``work``, any rows with a process and a correlation.

    Of whole tables `launches_of` knows it already. A launch may lie outside the window that the
    trace was cut to: it is sought in the whole.
    """
    return Launches(_calls_of_work(trace, work), work["process"], trace.whole.api_calls)


def _calls_of_work(trace: Trace, work: Table) -> Ints:
    """Return the first call with the process and correlation of each row of ``work``."""
    found = np.full(len(work), _NOTHING, np.int64)
    numbers, called = work["correlation"], trace.whole.api_calls["correlation"]
    calls = _numbered_calls(trace)
    for process, own in rows_by(work, "process").items():
        if process in calls:
            rows = slice(None) if len(own) == len(work) else own
            first = first_rows(called[calls[process]], numbers[rows])
            found[rows] = np.where(first < 0, _NOTHING, calls[process][first])
    found[numbers == ABSENT] = _NOTHING
    return found


@fact
def _numbered_calls(trace: Trace) -> dict[int, Ints]:
    """Return the rows of the API calls with a correlation, by process."""
    rows = np.flatnonzero(trace.api_calls["correlation"] != ABSENT)
    found = rows_by_value(trace.api_calls["process"][rows])
    return {process: rows[own] for process, own in found.items()}


def _taken(values: Ints, place: Ints) -> Ints:
    if not len(values):
        return np.full(len(place), ABSENT, np.int64)
    if not len(place) or int(place.min()) >= 0:
        return values[place]
    return np.where(place >= 0, values[np.maximum(place, 0)], ABSENT)


def innermost(ranges: Table, process: Ints, thread: Ints, instants: Ints) -> Ints:
    """Return the row of the innermost of ``ranges`` open at each instant on each thread.

    -1 where none is. The ranges must nest on each thread, as push/pop ranges do.
    """
    found = np.full(len(instants), _NOTHING, np.int64)
    if ranges.empty or not len(instants):
        return found
    starts, ends = bounds(ranges)
    queries = rows_by_values(process, thread)
    for lane, rows in rows_by_values(ranges["process"], ranges["thread"]).items():
        if lane in queries:
            mine = queries[lane]
            inner = _innermost_of_lane(starts[rows], ends[rows], instants[mine])
            found[mine] = np.append(rows, _NOTHING)[inner]
    return found


def _innermost_of_lane(starts: Ints, ends: Ints, instants: Ints) -> Ints:
    parents = parents_of(nesting_depth(starts, ends))
    place = np.searchsorted(starts, instants, side="right") - 1
    while True:
        closed = (place >= 0) & (ends[place] <= instants)
        if not closed.any():
            return place
        place[closed] = parents[place[closed]]


def range_of_launches(trace: Trace, launches: Launches) -> Ints:
    """Return the row, in the ranges of the whole trace, that each launch belongs to; -1: none."""
    ranges = trace.whole.ranges
    nested = np.flatnonzero(ranges["kind"] == "push_pop")
    inner = innermost(ranges.take(nested), launches.process, launches.thread, launches.start_ns)
    return np.where(launches.is_known, np.append(nested, _NOTHING)[inner], _NOTHING)


@of_window
def launch_table(trace: Trace) -> Table:
    """Return every kernel and copy whose launch was recorded, in the order of the launches.

    Columns: device, stream, start_ns, end_ns, launch_ns, launched_ns, call (its row), api, table
    (both Names: kernels or copies), is_first (the first that its call launched on the device: a
    call launches all of a graph), queue_depth (pieces of work of the device in the window that were
    launched before but had not started), is_empty (no such work was queued or running then).
    """
    parts = [_launched(trace, name).on_disk() for name in DEVICE_TABLES]
    table = Table.stacked(parts)
    table = table.take_on_disk(table.order("launch_ns"))
    depth = np.full(len(table), ABSENT, np.int64)
    empty = np.zeros(len(table), np.bool_)
    is_first = np.zeros(len(table), np.bool_)
    launches, starts, ends, calls = ints(table, "launch_ns", "start_ns", "end_ns", "call")
    for rows in rows_by(table, "device").values():
        launched, before = launches[rows], np.arange(len(rows))
        # Both are nearly in order.
        started = np.searchsorted(np.sort(starts[rows], kind="stable"), launched, side="right")
        depth[rows] = np.maximum(before - started, 0)
        ended = np.searchsorted(np.sort(ends[rows], kind="stable"), launched, side="right")
        empty[rows] = ended >= before
        is_first[rows] = first_rows(calls[rows], calls[rows]) == before
    return table.assign(queue_depth=depth, is_empty=empty, is_first=is_first)


def _launched(trace: Trace, name: str) -> Table:
    """Return the rows of a device table whose launch is known, with that launch."""
    launches = launches_of(trace, name)
    known = np.flatnonzero(launches.is_known)
    launches = launches.of_rows(known)
    columns = trace.table(name).select("device", "stream", "start_ns", "end_ns")
    return columns.take(known).assign(
        launch_ns=launches.start_ns,
        launched_ns=launches.end_ns,
        call=launches.call,
        api=launches.calls["name"][launches.call],
        table=Names(Packed.repeated(DEVICE_TABLES.index(name), len(known)), DEVICE_TABLES),
    )


LAUNCHES_SPEC: Final = ResultSpec.of("""
    table launches: one row per GPU and launch call, by count
    key device: GPU index in the run
    key api: API call that launched the work
    total count: number of kernels and copies that the call launched
    median call_ns: median duration of the call
    total call_total_ns: total duration of the calls
    median delay_ns: median time from the end of the call to the start of the work; 0 if the work
        starts before the call returns
    mean(count) short_ratio: share of the work that is shorter than its launch call
    mean(count) queue_mean [number]: mean queue depth of the GPU at a launch (work that was launched
        but had not started)
    largest queue_max [count]: largest queue depth
    mean(count) empty_ratio: share of the launches for which nothing was queued or running on the
        GPU (launch-bound)
    scalars:
    total unlinked_count: number of kernels and copies without a recorded launch
    """)
_MEDIANS: Final = ("call_ns", "delay_ns")


def measure_launches(trace: Trace) -> Result:
    """Return the launches by device and call."""
    rows = launch_table(trace)
    launch, launched, starts = ints(rows, "launch_ns", "launched_ns", "start_ns")
    is_first = rows["is_first"]
    call, delay = launched - launch, np.maximum(starts - launched, 0)
    all_work = sum(len(trace.table(name)) for name in DEVICE_TABLES)
    table, place = _by_call(rows, call)
    return Result(
        "launches",
        LAUNCHES_SPEC,
        tables={"launches": LAUNCHES_SPEC.tables[0].of_rows(table)},
        scalars={"unlinked_count": all_work - len(rows)},
        samples={
            "launches": Samples(place, np.stack([np.where(is_first, call, ABSENT), delay], axis=1))
        },
    )


def _by_call(rows: Table, call: Ints) -> tuple[Table, Ints]:
    """Return the sums by device and call, and the row of them that each launch is part of."""
    depth = rows["queue_depth"]
    groups, keys = grouped({name: rows[name] for name in ("device", "api")})
    means = {
        "short_ratio": (lengths_of(rows) < call).astype(np.int64),
        "queue_mean": depth,
        "empty_ratio": rows["is_empty"].astype(np.int64),
    }
    table = Table(
        {
            **keys,
            "count": groups.counts,
            "call_total_ns": groups.reduced(np.add, np.where(rows["is_first"], call, 0)),
            "queue_max": groups.reduced(np.maximum, depth),
            **{name: groups.reduced(np.add, own) / groups.counts for name, own in means.items()},
        }
    )
    return table, groups.number


def _finish(result: Result) -> Result:
    samples = result.samples["launches"]
    medians = {}
    for i, name in enumerate(_MEDIANS):
        is_known = samples.values[:, i] != ABSENT
        counts = None if samples.counts is None else samples.counts[is_known]
        own = Samples(samples.rows[is_known], samples.values[is_known, i], counts)
        medians[name] = medians_of(result.table, own)
    table = result.table.assign(**medians).in_order("-count", "device", "api")
    lost = int(result.scalars["unlinked_count"])
    text = "{lost:count} kernels and copies have no recorded launch. The table excludes them."
    return result.with_table(table).with_notes(*([Note.of(text, lost=lost)] if lost else []))


LAUNCHES = Analysis(
    "launches",
    LAUNCHES_SPEC,
    needs=("kernels", "api_calls"),
    uses=("copies",),
    of_rank=measure_launches,
    finish=_finish,
)
