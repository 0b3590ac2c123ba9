"""Find where the host waits for a device, and how long devices were idle during these waits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from traceprof.measures.analyses import Analysis
from traceprof.measures.durations import summarize
from traceprof.measures.facts import fact, of_window
from traceprof.measures.host.launches import innermost
from traceprof.measures.host.states import (
    are_waits_of_launching_threads,
    is_blocking_copy,
    is_synchronization,
)
from traceprof.measures.idle.gaps import CAUSES, find_gap_parts, find_gaps
from traceprof.measures.idle.lanes import innermost_pieces
from traceprof.measures.rows import Bools, Ints, are_first, bounds, ints, overlaps, sums_at
from traceprof.measures.steps.find import find_steps
from traceprof.model.packed import Packed
from traceprof.model.results import Note, Result, ResultSpec
from traceprof.model.table import Names, Table
from traceprof.model.tables import ABSENT
from traceprof.model.trace import DEVICE_TABLES, Trace
from traceprof.names.ranges import plain_name

READS_A_VALUE: Final = ".item()"
PATTERNS: Final = ("synchronize", "blocking copy", READS_A_VALUE)
"""Kinds of waits. `READS_A_VALUE` is a copy of a few bytes to the host, which waits for it."""

_MAX_VALUE_BYTES: Final = 64
"""Maximum size of a copy to the host that counts as `.item()` or `if tensor:`."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waits:
    """The waiting calls of the whole recording: row numbers, `PATTERNS`, and names of ranges."""

    rows: Ints
    pattern: Names
    label: Names


@of_window
def find_waits(trace: Trace) -> Table:
    """Return the API calls of the window that wait for a device.

    The columns are those of ``api_calls``, plus pattern (one of `PATTERNS`) and host_range (the
    innermost range in which the call began, without numbers that differ between occurrences; "" if
    none is open). For a call that the window cuts, pattern and host_range are those of the whole
    call.
    """
    waits = _waits_of_whole(trace)
    in_window = np.arange(len(trace.whole.api_calls))[trace.rows_in_whole("api_calls")]
    chosen = np.flatnonzero(np.isin(in_window, waits.rows))
    place = np.searchsorted(waits.rows, in_window[chosen])
    calls = trace.api_calls.take(chosen)
    return calls.assign(pattern=waits.pattern[place], host_range=waits.label[place])


@fact
def _waits_of_whole(trace: Trace) -> _Waits:
    """Return the waiting calls of the whole recording."""
    calls = trace.api_calls
    copies = is_blocking_copy(calls["name"])
    rows = np.flatnonzero(copies | is_synchronization(calls["name"]))
    pattern = np.where(copies[rows], PATTERNS.index("blocking copy"), 0)
    reads = _reads_a_value(trace, rows, copies[rows])
    pattern = np.where(reads, PATTERNS.index(READS_A_VALUE), pattern)
    return _Waits(rows, Names(Packed.below(len(PATTERNS), pattern), PATTERNS), _labels(trace, rows))


def _labels(trace: Trace, waits: Ints) -> Names:
    """Return the plain name of the innermost range around each of ``waits`` (rows of api_calls)."""
    ranges = trace.ranges
    nested = np.flatnonzero(ranges["kind"] == "push_pop")
    at = ints(trace.api_calls, "process", "thread", "start_ns", rows=waits)
    lanes = ranges.select("process", "thread", "start_ns", "end_ns").take(nested)
    names = ranges["name"]
    codes = np.append(names.codes[nested], -1)[innermost(lanes, *at)]
    distinct, place = np.unique(codes, return_inverse=True)
    known = distinct[distinct >= 0]  # -1 (no range) is sorted first
    none = [""] * (len(distinct) - len(known))
    return Names.coded([*none, *map(plain_name, names.texts[known])], place)


def _reads_a_value(trace: Trace, waits: Ints, is_copy: Bools) -> Bools:
    """Return which waits are a copy of a few bytes to the host, or directly follow one."""
    calls = trace.api_calls
    small = _makes_a_small_copy(trace)
    if not small.any() or not len(waits):
        return np.zeros(len(waits), np.bool_)
    process, thread, starts = ints(calls, "process", "thread", "start_ns")
    order = np.lexsort((thread, process))
    process, thread, starts = process[order], thread[order], starts[order]
    # Calls that begin together on a thread are nested and count as one instant.
    opens_thread, opens = are_first(process, thread), are_first(process, thread, starts)
    instant_of = np.empty(len(order), np.int64)
    instant_of[order] = np.cumsum(opens) - 1
    has_small_copy = np.zeros(int(opens.sum()), np.bool_)
    has_small_copy[instant_of[small]] = True
    follows = np.append(False, has_small_copy[:-1]) & ~opens_thread[opens]
    instant = instant_of[waits]
    return np.where(is_copy, has_small_copy[instant], follows[instant])


def _makes_a_small_copy(trace: Trace) -> Bools:
    """Return which API calls made a copy of a few bytes to the host."""
    copies, calls = trace.copies, trace.api_calls
    n_bytes, number = copies["n_bytes"], copies["correlation"]
    small = (copies["direction"] == "d2h") & (n_bytes >= 1) & (n_bytes <= _MAX_VALUE_BYTES)
    small &= number != ABSENT
    found = np.zeros(len(calls), np.bool_)
    for process in np.unique(copies["process"][small]).tolist():
        launched = np.isin(calls["correlation"], number[small & (copies["process"] == process)])
        found |= launched & (calls["process"] == process)
    return found


@of_window
def idle_in_waits(trace: Trace) -> Ints:
    """Return the time in ns that devices were idle during each wait of `find_waits`.

    This is the idle time with the cause "synchronizing", over all devices. If several threads wait
    at the same time, the wait that began last counts. The sum is the total of that cause in
    `find_gaps`.
    """
    waits = find_waits(trace)
    found = np.zeros(len(waits), np.int64)
    parts = find_gap_parts(trace)
    parts = parts.take(parts["cause"] == CAUSES.index("synchronizing"))
    owner = find_gaps(trace)["process"][parts["gap"]].astype(np.int64)
    starts, ends = bounds(parts)
    calls = trace.api_calls
    is_wait = is_synchronization(calls["name"]) | is_blocking_copy(calls["name"])
    counting = np.flatnonzero(
        are_waits_of_launching_threads(calls)[is_wait]
    )  # waits of threads that launch work
    begin, end, process = ints(waits, "start_ns", "end_ns", "process", rows=counting)
    for number in np.unique(owner).tolist():
        calls_of_process, gaps = np.flatnonzero(process == number), np.flatnonzero(owner == number)
        calls_of_process = calls_of_process[
            np.lexsort((-end[calls_of_process], begin[calls_of_process]))
        ]
        first, last, row = innermost_pieces(begin[calls_of_process], end[calls_of_process])
        _, piece, begins, finishes = overlaps(starts[gaps], ends[gaps], first, last)
        np.add.at(found, counting[calls_of_process[row[piece]]], finishes - begins)
    return found


_KEYS: Final = ("call", "pattern", "host_range")
SYNC_SPEC: Final = ResultSpec.of("""
    table waits: one row per call, pattern, and range, by total duration of the calls
    key call: call that waits for the GPU
    key pattern: synchronize, blocking copy, or .item() (a copy of a few bytes to the host that the
        CPU waits for immediately)
    key host_range: innermost range around the call
    total count: number of calls
    derived per_step: number of calls per step
    total total_ns: total duration of the calls
    derived mean_ns: mean duration of a call
    largest max_ns: longest call
    total idle_ns: GPU idle time during the calls, summed over GPUs (the cause "synchronizing" in
        `idle`); empty if the trace contains no GPU activity
    scalars:
    total steps_count: number of steps in the window, over all processes
    """)


def measure_sync(trace: Trace) -> Result:
    """Return the waits of the host by call, pattern, and range."""
    waits = find_waits(trace).renamed(name="call")
    table, samples = summarize(waits, _KEYS)
    table = table.assign(idle_ns=sums_at(samples.rows, idle_in_waits(trace), len(table)))
    if not trace.recorded & set(DEVICE_TABLES):
        table = table.assign(idle_ns=np.nan)
    return Result(
        "sync",
        SYNC_SPEC,
        tables={"waits": SYNC_SPEC.tables[0].of_rows(table)},
        scalars={"steps_count": len(find_steps(trace))},
    )


def _finish(result: Result) -> Result:
    """Return the combined result of all ranks with derived columns, order, and notes."""
    table = result.table
    n_steps = int(result.scalars["steps_count"])
    table = table.assign(
        per_step=table["count"] / n_steps if n_steps else np.nan,
        mean_ns=table["total_ns"] / table["count"],
    )
    table = table.in_order("-total_ns", *_KEYS)
    return result.with_table(table).with_notes(*_notes(table))


def _notes(table: Table) -> list[Note]:
    """Return a note on waits for a few bytes, if there are any."""
    values = table.take(table["pattern"] == READS_A_VALUE)
    if values.empty:
        return []
    return [
        Note.of(
            "{n:count} wait(s) for a few bytes from the GPU ({lost:ns}), probably `.item()`, "
            "`.cpu()` of a scalar, or `if tensor:`.",
            n=int(values["count"].sum()),
            lost=int(values["total_ns"].sum()),
        )
    ]


SYNC = Analysis(
    "sync",
    SYNC_SPEC,
    needs=("api_calls",),
    uses=("copies", "ranges", "kernels", "overheads", "devices", "collectives"),
    whole=("api_calls", "copies", "kernels"),
    of_steps=True,
    of_rank=measure_sync,
    finish=_finish,
)
