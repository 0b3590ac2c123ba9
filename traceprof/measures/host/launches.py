"""Find the call that launched each kernel and copy, the launch delay, and the queue depth.

A kernel or copy belongs to the API call that launched it (same process and correlation). The call
belongs to the innermost range around it on its thread. Kernels of a CUDA graph belong to the launch
of the graph.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from traceprof.measures.analyses import Analysis
from traceprof.measures.facts import fact, of_rows, of_window
from traceprof.measures.rows import (
    Array,
    Bools,
    Ints,
    are_named,
    bounds,
    grouped,
    ints,
    lengths_of,
    rows_by,
)
from traceprof.model.activity import Activity
from traceprof.model.combining import medians_of
from traceprof.model.grouping import first_rows, rows_by_value, rows_by_values
from traceprof.model.intervals import nesting_depth
from traceprof.model.nesting import parents_of
from traceprof.model.packed import Packed
from traceprof.model.results import Note, Result, ResultSpec, Samples
from traceprof.model.table import Names, RowsOf, Table
from traceprof.model.tables import ABSENT
from traceprof.model.trace import DEVICE_TABLES, Trace

NO_ROW = -1
"""Row number of a call, range, or phase that does not exist."""


_BEGINS_CAPTURE: Final = re.compile(r"^(cuda|cu|hip)StreamBeginCapture")
_ENDS_CAPTURE: Final = re.compile(r"^(cuda|cu|hip)StreamEndCapture")


def are_migrations(copies: Table, is_called: Bools) -> Bools:
    """Return which copies are migrations of pages of managed memory, caused by an access.

    ``is_called`` is a mask of the copies with a known API call.
    """
    is_managed = (copies["src_kind"] == "managed") & (copies["dst_kind"] == "managed")
    return np.asarray(is_managed & ~is_called, np.bool_)


@fact
def captures(trace: Trace) -> Table:
    """Return when a thread captured its launches into a graph. None of these launches ran.

    Columns: process, thread, start_ns, end_ns. A capture without an end lasts until the end of the
    recording.
    """
    calls = trace.api_calls
    begins, ends = (
        calls.take(are_named(calls["name"], pattern))
        for pattern in (_BEGINS_CAPTURE, _ENDS_CAPTURE)
    )
    found = begins.select("process", "thread", "start_ns")
    end_ns = np.full(len(found), trace.span.end_ns)
    ends_of = rows_by_values(ends["process"], ends["thread"])
    for thread, rows in rows_by_values(found["process"], found["thread"]).items():
        end_times = np.sort(ends["end_ns"][ends_of[thread]]) if thread in ends_of else end_ns[:0]
        place = np.searchsorted(end_times, found["start_ns"][rows])
        end_ns[rows] = np.append(end_times, trace.span.end_ns)[place]
    return found.assign(end_ns=end_ns)


@dataclass(frozen=True, slots=True, eq=False)
class Launches:
    """The call that launched each row of a device table; `ABSENT` where it was not recorded.

    ``call`` is the row in ``calls``, the API calls of the whole trace. ``process`` is the process
    of the work. The properties look up values of the calls on each access. Times are in ns.
    """

    call: Ints
    process: Ints
    calls: Table

    @property
    def start_ns(self) -> Ints:
        """The start of each call."""
        return _values_at(self.calls["start_ns"], self.call)

    @property
    def end_ns(self) -> Ints:
        """The return of each call."""
        return _values_at(self.calls["end_ns"], self.call)

    @property
    def thread(self) -> Ints:
        """The thread of each call."""
        return _values_at(self.calls["thread"], self.call)

    @property
    def is_known(self) -> Bools:
        """Whether the launch of each row was recorded."""
        return self.call >= 0

    def of_rows(self, rows: RowsOf | Bools) -> Launches:
        """Return the launches of some of the rows: a slice, row numbers or a mask."""
        return Launches(self.call[rows], self.process[rows], self.calls)


def launches_of(trace: Trace, table: str) -> Launches:
    """Return the launch of each row of ``table`` (kernels, copies, or syncs) of ``trace``."""
    process = trace.table(table)["process"]
    return Launches(_calls_of(trace, table), process, trace.whole.api_calls)


@of_rows
def _calls_of(trace: Trace, table: str) -> Ints:
    """Return the row of the call that launched each row of ``table``; -1: not recorded."""
    return _calls_of_work(trace, trace.table(table))


def find_launches(trace: Trace, work: Table) -> Launches:
    """Return the launch of each row of ``work``, a table with a process and a correlation.

    For whole tables, use `launches_of`, which is stored. The launch may be outside the window of
    the trace, so it is searched in the whole recording.
    """
    return Launches(_calls_of_work(trace, work), work["process"], trace.whole.api_calls)


def _calls_of_work(trace: Trace, work: Table) -> Ints:
    """Return the first call with the process and correlation of each row of ``work``; -1: none."""
    found = np.full(len(work), NO_ROW, np.int64)
    numbers, called = work["correlation"], trace.whole.api_calls["correlation"]
    calls = _numbered_calls(trace)
    for process, rows_of_process in rows_by(work, "process").items():
        if process in calls:
            rows = slice(None) if len(rows_of_process) == len(work) else rows_of_process
            first = first_rows(called[calls[process]], numbers[rows])
            found[rows] = np.where(first < 0, NO_ROW, calls[process][first])
    found[numbers == ABSENT] = NO_ROW
    return found


@fact
def _numbered_calls(trace: Trace) -> dict[int, Ints]:
    """Return the rows of the API calls with a correlation, by process."""
    rows = np.flatnonzero(trace.api_calls["correlation"] != ABSENT)
    found = rows_by_value(trace.api_calls["process"][rows])
    return {process: rows[places] for process, places in found.items()}


def _values_at(values: Ints, place: Ints) -> Ints:
    """Return the value at each place, `ABSENT` for negative places."""
    if not len(values):
        return np.full(len(place), ABSENT, np.int64)
    if not len(place) or int(place.min()) >= 0:
        return values[place]
    return np.where(place >= 0, values[np.maximum(place, 0)], ABSENT)


@dataclass(frozen=True, slots=True, eq=False)
class WorkRows:
    """Properties of some kernels and copies of a whole recording.

    ``rows`` are row numbers in the kernels followed by the copies. Values for negative row numbers
    are undefined.
    """

    trace: Trace
    rows: Ints

    @property
    def process(self) -> Ints:
        """The process of each row."""
        return self._values_of_rows(*(self.trace.table(name)["process"] for name in DEVICE_TABLES))

    @property
    def is_shared(self) -> Bools:
        """Whether another device takes part: communication kernels and peer-to-peer copies."""
        kernels, copies = self.trace.kernels["activity"], self.trace.copies["direction"]
        return self._values_of_rows(kernels == Activity.COMMUNICATION.value, copies == "p2p")

    @property
    def is_migration(self) -> Bools:
        """Whether the row is a page of managed memory that migrated because it was accessed."""
        moved = are_migrations(self.trace.copies, launches_of(self.trace, "copies").is_known)
        return self._values_of_rows(np.zeros(len(self.trace.kernels), np.bool_), moved)

    @property
    def launches(self) -> Launches:
        """The launch of each row."""
        of_tables = [launches_of(self.trace, name) for name in DEVICE_TABLES]
        call = self._values_of_rows(*(launches.call for launches in of_tables))
        return Launches(call, self.process, self.trace.api_calls)

    @property
    def names(self) -> Names:
        """The name of each kernel or the direction of each copy; "" for negative row numbers."""
        names, directions = self.trace.kernels["name"], self.trace.copies["direction"]
        texts = [*names.texts.tolist(), *directions.texts.tolist(), ""]
        codes = self._values_of_rows(names.codes, directions.codes + len(names.texts))
        return Names.coded(texts, np.where(self.rows >= 0, codes, len(texts) - 1))

    def _values_of_rows(self, kernels: Array, copies: Array) -> Array:
        """Return the value of each row from a column of each table; undefined for negative rows."""
        found = np.zeros(len(self.rows), np.result_type(kernels, copies))
        rows = self.rows
        is_kernel = (rows >= 0) & (rows < len(kernels))
        found[is_kernel] = kernels[rows[is_kernel]]
        is_copy = rows >= len(kernels)
        found[is_copy] = copies[rows[is_copy] - len(kernels)]
        return found


def innermost(ranges: Table, process: Ints, thread: Ints, instants: Ints) -> Ints:
    """Return the row of the innermost range that is open at each instant on each thread; -1: none.

    The ranges must nest on each thread, as push/pop ranges do.
    """
    found = np.full(len(instants), NO_ROW, np.int64)
    if ranges.empty or not len(instants):
        return found
    starts, ends = bounds(ranges)
    queries = rows_by_values(process, thread)
    for lane, rows in rows_by_values(ranges["process"], ranges["thread"]).items():
        if lane in queries:
            queries_of_lane = queries[lane]
            inner = _innermost_of_lane(starts[rows], ends[rows], instants[queries_of_lane])
            found[queries_of_lane] = np.append(rows, NO_ROW)[inner]
    return found


def _innermost_of_lane(starts: Ints, ends: Ints, instants: Ints) -> Ints:
    """Return the place of the innermost range of one thread at each instant; -1: none."""
    parents = parents_of(nesting_depth(starts, ends))
    place = np.searchsorted(starts, instants, side="right") - 1
    while True:
        closed = (place >= 0) & (ends[place] <= instants)
        if not closed.any():
            return place
        place[closed] = parents[place[closed]]


def range_of_launches(trace: Trace, launches: Launches) -> Ints:
    """Return the innermost range of each launch, a row of the whole trace's ranges; -1: none."""
    ranges = trace.whole.ranges
    nested = np.flatnonzero(ranges["kind"] == "push_pop")
    inner = innermost(ranges.take(nested), launches.process, launches.thread, launches.start_ns)
    return np.where(launches.is_known, np.append(nested, NO_ROW)[inner], NO_ROW)


@of_window
def launch_table(trace: Trace) -> Table:
    """Return every kernel and copy whose launch was recorded, in the order of the launches.

    Columns:

    * device, stream, start_ns, end_ns
    * launch_ns, launched_ns: start and end of the launching call
    * call: row of the call; api: name of the call
    * table: kernels or copies
    * is_first: whether this is the first work that its call launched on the device. A call that
      launches a graph launches all of its work.
    * queue_depth: number of kernels and copies of the device in the window that were launched
      before but had not started
    * is_empty: whether no such work was queued or running at launch_ns

    The columns api and table are Names.
    """
    table = Table.stacked([_launched(trace, name).on_disk() for name in DEVICE_TABLES])
    table = table.take_on_disk(table.order("launch_ns"))
    depth = np.full(len(table), ABSENT, np.int64)
    empty = np.zeros(len(table), np.bool_)
    is_first = np.zeros(len(table), np.bool_)
    launches, starts, ends, calls = ints(table, "launch_ns", "start_ns", "end_ns", "call")
    for rows in rows_by(table, "device").values():
        launched, before = launches[rows], np.arange(len(rows))
        # A stable sort is fast here, because both columns are nearly sorted.
        started = np.searchsorted(np.sort(starts[rows], kind="stable"), launched, side="right")
        depth[rows] = np.maximum(before - started, 0)
        ended = np.searchsorted(np.sort(ends[rows], kind="stable"), launched, side="right")
        empty[rows] = ended >= before
        is_first[rows] = first_rows(calls[rows], calls[rows]) == before
    return table.assign(queue_depth=depth, is_empty=empty, is_first=is_first)


def _launched(trace: Trace, name: str) -> Table:
    """Return the rows of a device table with a known launch, with columns of that launch."""
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
        GPU at the start of the call
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
    table, place = _sum_by_call(rows, call)
    return Result(
        "launches",
        LAUNCHES_SPEC,
        tables={"launches": LAUNCHES_SPEC.tables[0].of_rows(table)},
        scalars={"unlinked_count": all_work - len(rows)},
        samples={
            "launches": Samples(place, np.stack([np.where(is_first, call, ABSENT), delay], axis=1))
        },
    )


def _sum_by_call(rows: Table, call: Ints) -> tuple[Table, Ints]:
    """Return the sums by device and call, and the row of each launch in that table."""
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
            **{
                name: groups.reduced(np.add, values) / groups.counts
                for name, values in means.items()
            },
        }
    )
    return table, groups.number


def _finish(result: Result) -> Result:
    """Return the combined result of all ranks with medians, order, and notes."""
    samples = result.samples["launches"]
    medians = {}
    for i, name in enumerate(_MEDIANS):
        is_known = samples.values[:, i] != ABSENT
        counts = None if samples.counts is None else samples.counts[is_known]
        known_samples = Samples(samples.rows[is_known], samples.values[is_known, i], counts)
        medians[name] = medians_of(result.table, known_samples)
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
