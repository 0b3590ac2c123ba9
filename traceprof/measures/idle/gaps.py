"""Find the gaps in which a device was idle, and the causes of each gap.

A gap ends with the next work of the device. Before the launch of that work, the device waits for
the host. Until `LATENCY_NS` after the launching call returns, it waits for the launch to arrive.
After that, the work is queued behind another stream, device, or event. The causes of a gap add up
to the gap exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np

from traceprof.measures.device.times import device_time, recorded_times, used_devices
from traceprof.measures.facts import fact, of_window
from traceprof.measures.host.launches import Launches, WorkRows
from traceprof.measures.host.states import exclusive_host_states, host_communication
from traceprof.measures.rows import (
    Array,
    Bools,
    Ints,
    are_first,
    bounds,
    cap_for_total,
    ints,
    lengths_of,
    overlaps,
    picked,
    sums_at,
)
from traceprof.measures.steps.undisturbed import disturbances, waiting_start_ns
from traceprof.model.grouping import is_in, pieces_of, rows_by_value
from traceprof.model.intervals import Intervals
from traceprof.model.packed import Packed
from traceprof.model.table import Table
from traceprof.model.tables import ABSENT
from traceprof.model.trace import DEVICE_TABLES, Trace


@dataclass(frozen=True, slots=True, eq=False)
class DeviceWork:
    """The kernels and copies of one device in the whole recording, sorted by start.

    It is empty if the device worked only in other parts of a recording that was cut. ``rows`` are
    row numbers in the kernels followed by the copies. ``starts`` are the start times in ns.
    ``by_end`` are the same row numbers sorted by end, and ``ends_sorted`` the corresponding ends.
    """

    rows: Packed
    starts: Ints
    by_end: Packed
    ends_sorted: Ints

    def after(self, instants: Ints) -> Ints:
        """Return the row of the first work that begins at or after each instant; -1: none."""
        place = np.searchsorted(self.starts, instants, side="left")
        return self._row(self.rows, place, place < len(self.starts))

    def before(self, instants: Ints) -> Ints:
        """Return the row of the work that ended last at or before each instant; -1: none."""
        place = np.searchsorted(self.ends_sorted, instants, side="right") - 1
        return self._row(self.by_end, place, place >= 0)

    def _row(self, rows: Packed, place: Ints, exists: Bools) -> Ints:
        if not len(rows):
            return np.full(len(place), -1, np.int64)
        return np.where(exists, rows[np.where(exists, place, 0)].wide(), -1)


@fact
def work_of_devices(trace: Trace) -> Mapping[int, DeviceWork]:
    """Return the work of each device in the whole recording."""
    tables = [trace.table(name) for name in DEVICE_TABLES]
    device = Packed.joined([Packed(table["device"]) for table in tables])
    rows_of = dict.fromkeys(used_devices(trace), Packed.repeated(0, 0))
    rows_of.update((number, Packed(rows)) for number, rows in rows_by_value(device).items())
    return {number: _sort_work(tables, rows) for number, rows in rows_of.items()}


def _sort_work(tables: Sequence[Table], rows: Packed) -> DeviceWork:
    """Return the work ``rows`` of one device, sorted by start and by end."""

    def times(name: str) -> Ints:
        return picked(np.concatenate([table[name] for table in tables]), rows.stored)

    by_start = Packed(np.argsort(times("start_ns"), kind="stable"))
    ends, ordered = by_start.pick(times("end_ns")), rows[by_start]
    by_end = Packed(np.argsort(ends, kind="stable"))
    starts = by_start.pick(times("start_ns"))
    return DeviceWork(ordered, starts, ordered[by_end], by_end.pick(ends))


_CauseParts: TypeAlias = tuple[Packed, Ints, Ints, Packed]
"""Parts of gaps: row of the gap, start, end, and cause."""
_StatePieces: TypeAlias = tuple[Ints, Ints, Ints, Ints]
"""Pieces of spans: row of the span, start, end, and state of the host."""
_DeviceGaps: TypeAlias = tuple[Ints, Ints, Ints, Ints, Ints]
"""Gaps of one device: start, end, rows of the work before and after, and time at an edge.

The time at an edge is the time before the first or after the last work of the recording, in ns.
"""

CAUSES: Final = (
    *("data", "synchronizing", "communication", "launch", "host"),
    *("queued", "peer", "role", "profiler", "edge", "unknown"),
)
"""What a device waits for.

* data: the host fetches data.
* synchronizing: the host waits in a synchronizing call.
* communication: in a long gap, the host itself runs a collective or a message (gloo, MPI).
* launch: the host launches work as fast as it can, but too slowly.
* host: the host runs other code, or a launching call takes more than 1 ms (for example, because it
  loads a module).
* queued: the work was already launched. The gap is the pause between two kernels, or a wait for
  another stream or event.
* peer: like queued, but before or after work in which another device takes part.
* role: ranks with another role, such as rollouts, do the work that the device waits for.
* profiler: the profiler itself runs, or it slows down launches. The slowdown is known only if the
  recording has steps without the profiler (`disturbances`).
* edge: before the first or after the last work of the recording.
* unknown: no launch was recorded.
"""

LAUNCH_BOUND_NS: Final = 200_000
"""In gaps up to this length, the host is assumed to be busy launching; in longer gaps, to run other
code. Eager PyTorch needs about 5 to 50 µs between launches.
"""

LONGEST_CALL_NS: Final = 1_000_000
"""A launching call that takes longer also does something else, for example load a module."""

LATENCY_NS: Final = 20_000
"""Maximum latency from a launch to its start on an idle device. Usual values are 3 to 10 µs."""

_STATES: Final = ("profiler", "data", "synchronizing")
"""States of the host that are causes of idle time, in order of priority."""
_PART_COLUMNS: Final = ("gap", "start_ns", "end_ns", "cause")


def find_gaps(trace: Trace) -> Table:
    """Return every gap of every used device inside the window, sorted by device and start.

    Columns: device, start_ns, end_ns, process (of the next work; -1 if there is none), holder (the
    process that the device waits for; without next work, the process whose work ended last), thread
    (the thread that launched the next work; -1 if unknown), before and after (names of the adjacent
    work; "" if there is none). The next work of a gap at the edge of the window may be outside the
    window.
    """
    return _gaps_and_parts(trace)[0]


def find_gap_parts(trace: Trace) -> Table:
    """Return the parts of each gap of `find_gaps` by cause. The parts of a gap fill the gap.

    Columns: gap (row in `find_gaps`), start_ns, end_ns, cause (place in `CAUSES`). Sorted by gap
    and start.
    """
    return _gaps_and_parts(trace)[1]


def times_in_gaps(n_gaps: int, parts: Table, *causes: int) -> Ints:
    """Return the time in ns of each gap that has one of the ``causes``. Shape: (n_gaps,).

    ``parts`` is a table like the result of `find_gap_parts`. ``causes`` are values of its column
    cause.
    """
    chosen = parts.take(is_in(parts["cause"], causes))
    return sums_at(chosen["gap"], lengths_of(chosen), n_gaps)


def sums_before(values: Ints, groups: Array) -> Ints:
    """Return, for each row, the sum of the ``values`` of the earlier rows of its group.

    The rows of a group must be adjacent.
    """
    before = np.cumsum(values) - values
    first = np.flatnonzero(are_first(groups))
    return before - np.repeat(before[first], np.diff(np.append(first, len(groups))))


def reassign_cause(parts: Table, causes: Sequence[str], ns_of_gaps: Ints, cause: int) -> Table:
    """Return ``parts``, with part of the time of each gap reassigned to ``cause``.

    The first ``ns_of_gaps`` ns (per gap) of the time that has one of ``causes`` get the new cause,
    or all of that time if it is shorter. ``parts`` must be sorted by gap.
    """
    gap = parts["gap"]
    edges = [int(np.searchsorted(gap, gap[piece.start])) for piece in pieces_of(len(gap))]
    found, is_changed = [], False
    for edge in pairwise([*edges, len(gap)]):
        piece = parts.take(slice(*edge))
        changed = _reassign_cause_of_rows(piece, causes, ns_of_gaps, cause)
        is_changed |= changed is not piece
        found.append(changed.on_disk())
    return Table.stacked(found) if is_changed else parts


def _reassign_cause_of_rows(
    parts: Table, causes: Sequence[str], ns_of_gaps: Ints, cause: int
) -> Table:
    """Return ``parts`` like `reassign_cause`; the same object if nothing changes."""
    is_candidate = is_in(parts["cause"], [CAUSES.index(name) for name in causes])
    gap = parts["gap"]
    starts, ends = bounds(parts)
    lengths = np.where(is_candidate, ends - starts, 0)
    taken = np.clip(ns_of_gaps[gap] - sums_before(lengths, gap), 0, lengths)
    if not taken.any():
        return parts
    # A partly reassigned part becomes two rows: first the new cause, then the old one.
    is_cut = (taken > 0) & (taken < lengths)
    rows = np.repeat(np.arange(len(parts)), 1 + is_cut)
    head = np.flatnonzero(is_cut) + np.arange(int(is_cut.sum()))
    starts, ends, of_rows = starts[rows], ends[rows], parts["cause"][rows]
    of_rows[taken[rows] > 0] = cause
    of_rows[head + 1] = parts["cause"][is_cut]
    ends[head] = starts[head] + taken[is_cut]
    starts[head + 1] = ends[head]
    columns = Packed(gap[rows]), starts, ends, Packed(of_rows)
    return Table(dict(zip(_PART_COLUMNS, columns, strict=True)))


@of_window
def _gaps_and_parts(trace: Trace) -> tuple[Table, Table]:
    """Return the gaps and their parts, with the overhead of the profiler as a cause."""
    gaps, parts = _as_recorded(trace)
    for process, ns_of_causes in _added_by_recording(trace).items():
        captured = disturbances(trace)[process].captured
        starts, ends = bounds(gaps)
        is_disturbed = (gaps["process"] == process) & (captured.covered_ns(starts, ends) > 0)
        for causes, most_ns in zip(_PROFILED_CAUSES, ns_of_causes, strict=True):
            parts = reassign_cause(
                parts, causes, np.where(is_disturbed, most_ns, 0), CAUSES.index("profiler")
            )
    return gaps, parts


_PROFILED_CAUSES: Final = (("launch", "host"), ("synchronizing", "communication"))
"""Causes that can contain profiler overhead. The second group is used if the first is too short."""


@fact
def _added_by_recording(trace: Trace) -> Mapping[int, tuple[int, ...]]:
    """Return the maximum profiler overhead per gap in ns, by process, for `_PROFILED_CAUSES`.

    Each launch takes longer while it is recorded. The maximum is chosen so that recorded steps
    become as fast as undisturbed steps. Limiting each gap to this maximum keeps gaps long that are
    long for another reason.
    """
    found: dict[int, tuple[int, ...]] = {}
    for process, disturbance in disturbances(trace).items():
        gaps, parts = _as_recorded(trace)  # of the whole recording
        is_disturbed = (gaps["process"] == process) & (
            disturbance.recorded.covered_ns(*bounds(gaps)) > 0
        )
        known_ns = times_in_gaps(len(gaps), parts, CAUSES.index("profiler"))[is_disturbed].sum()
        remaining_ns = disturbance.excess_ns * len(disturbance.recorded_ns) - int(known_ns)
        caps_ns = []
        for causes in _PROFILED_CAUSES:
            places = [CAUSES.index(cause) for cause in causes]
            lengths = times_in_gaps(len(gaps), parts, *places)[is_disturbed]
            caps_ns.append(cap_for_total(lengths, remaining_ns))
            remaining_ns -= int(np.minimum(lengths, caps_ns[-1]).sum())
        if any(caps_ns):
            found[process] = tuple(caps_ns)
    return found


@of_window
def _as_recorded(trace: Trace) -> tuple[Table, Table]:
    """Return the gaps and parts as recorded, without separating the overhead of the profiler."""
    gaps, parts, n_gaps = [], [], 0
    for device in used_devices(trace) or [ABSENT]:
        waits = trace.whole.waits_for_roles.get(device, Intervals.empty())
        for found in _gaps_of(trace, device):
            some_gaps, ends = _bounded_gaps(trace, device, found)
            gaps.append(some_gaps.on_disk())
            of_device = _parts_of(trace, some_gaps, ends, n_gaps)
            parts.append(_with_waits_for_roles(of_device, waits).on_disk())
            n_gaps += len(some_gaps)
    return Table.stacked(gaps), Table.stacked(parts)


def _parts_of(trace: Trace, gaps: Table, next_work: _NextWork, n_before: int) -> Table:
    """Return the parts of ``gaps``, sorted by start; ``n_before`` gaps precede these gaps."""
    found = [*_parts_with_launch(trace, gaps, next_work), *_edges_and_unknown(gaps, next_work)]
    of_gaps, *times, of_causes = zip(*found, strict=True)
    gap, cause = map(Packed.joined, (of_gaps, of_causes))
    starts, ends = map(np.concatenate, times)
    order = np.argsort(starts, kind="stable")  # the gaps of a device are also sorted
    columns = Packed(gap[order].wide() + n_before), starts[order], ends[order]
    return Table(dict(zip(_PART_COLUMNS, (*columns, cause[order]), strict=True)))


def _with_waits_for_roles(parts: Table, waits: Intervals) -> Table:
    """Return ``parts`` of one device with the cause "role" in its ``waits`` for another role."""
    if not len(waits):
        return parts
    cause = parts["cause"].astype(np.int64)
    is_wait = (waits.covered_ns(*bounds(parts)) > 0) & (cause != CAUSES.index("profiler"))
    return parts.assign(cause=Packed(np.where(is_wait, CAUSES.index("role"), cause)))


@dataclass(frozen=True, slots=True, eq=False)
class _NextWork:
    """Properties of the work that ends each gap.

    ``is_shared`` also includes the work before the gap. ``is_edge`` is set if most of the gap is
    before the first or after the last work of the recording.
    """

    launches: Launches
    is_linked: Bools
    is_migration: Bools
    is_shared: Bools
    is_edge: Bools


def _bounded_gaps(trace: Trace, device: int, found: _DeviceGaps) -> tuple[Table, _NextWork]:
    """Return the gaps ``found`` of a device as a table, with the work that ends each gap."""
    starts, ends, row_before, row_after, edge_ns = found
    before, after = WorkRows(trace.whole, row_before), WorkRows(trace.whole, row_after)
    has_next, process, launches = row_after >= 0, after.process, after.launches
    moved = has_next & after.is_migration
    linked = has_next & (launches.is_known | moved)
    gaps = {
        "device": Packed.repeated(device, len(starts)),
        "start_ns": starts,
        "end_ns": ends,
        "process": Packed(np.where(has_next, process, -1)),
        "holder": Packed(np.where(has_next, process, before.process)),
        "thread": Packed(np.where(linked & ~moved, launches.thread, -1)),
        "before": before.names,
        "after": after.names,
    }
    shared = (has_next & after.is_shared) | ((row_before >= 0) & before.is_shared)
    return Table(gaps), _NextWork(launches, linked, moved, shared, 2 * edge_ns > ends - starts)


def _gaps_of(trace: Trace, device: int) -> Iterator[_DeviceGaps]:
    """Yield the gaps of a device in portions, at least one."""
    if device == ABSENT:
        yield (np.empty(0, np.int64),) * 5
        return
    span, work = trace.span, work_of_devices(trace)[device]
    idle = recorded_times(trace, device) - device_time(trace, device).busy
    first_ns, last_ns = span.end_ns, span.start_ns
    if len(work.rows):
        first, last_ns = WorkRows(trace.whole, work.rows[:1].wide()), int(work.ends_sorted[-1])
        first_ns = waiting_start_ns(trace, first.process, first.launches.start_ns, work.starts[0])
    # The edges of the recording do not depend on the window.
    edges = Intervals.single(span.start_ns, min(first_ns, span.end_ns))
    edges = edges | Intervals.single(max(last_ns, span.start_ns), span.end_ns)
    for piece in pieces_of(max(len(idle), 1)):
        starts, ends = idle.starts[piece], idle.ends[piece]
        yield starts, ends, work.before(starts), work.after(ends), edges.covered_ns(starts, ends)


def _edges_and_unknown(gaps: Table, next_work: _NextWork) -> Iterator[_CauseParts]:
    """Yield the parts of gaps with one cause: edges, and gaps before work of unknown launch."""
    edge, linked = next_work.is_edge, next_work.is_linked
    starts, ends = bounds(gaps)
    for rows, cause in ((edge, "edge"), (~edge & ~linked, "unknown")):
        chosen = np.flatnonzero(rows)
        yield _parts_of_cause(chosen, starts[chosen], ends[chosen], CAUSES.index(cause))


def _parts_with_launch(trace: Trace, gaps: Table, next_work: _NextWork) -> Iterator[_CauseParts]:
    """Yield the parts of the gaps that end with work whose launch is known."""
    rows = np.flatnonzero(next_work.is_linked & ~next_work.is_edge)
    starts, ends, process = ints(gaps, "start_ns", "end_ns", "process", rows=rows)
    launches = next_work.launches.of_rows(rows)
    # A page migrates as soon as the host or a kernel accesses it, without a call before it.
    moved = next_work.is_migration[rows]
    launch, returned = (np.where(moved, ends, at) for at in (launches.start_ns, launches.end_ns))
    arrival = returned + LATENCY_NS
    launched = np.clip(launch, starts, ends)
    arrived = np.maximum(launched, np.clip(arrival, starts, ends))
    of_launch, of_host = CAUSES.index("launch"), CAUSES.index("host")
    is_long = (ends - starts > LAUNCH_BOUND_NS) | moved
    otherwise = np.where(is_long, of_host, of_launch)
    for part, first, last, cause in _split_by_state(trace, process, starts, launched, is_long):
        yield _parts_of_cause(rows[part], first, last, np.where(cause >= 0, cause, otherwise[part]))
    # A longer call loads a module or compiles code, and is not counted as launching.
    quick = arrival - launch <= LONGEST_CALL_NS + LATENCY_NS
    yield _parts_of_cause(rows, launched, arrived, np.where(quick, of_launch, of_host))
    peer = next_work.is_shared[rows] & (ends - arrived > LATENCY_NS)
    cause = np.where(peer, CAUSES.index("peer"), CAUSES.index("queued"))
    yield _parts_of_cause(rows, arrived, ends, cause)


def _parts_of_cause(rows: Ints, starts: Ints, ends: Ints, cause: Ints | int) -> _CauseParts:
    """Return parts of the gaps ``rows``, without parts of length 0."""
    kept = np.flatnonzero(ends > starts)
    causes = Packed(np.full(len(rows), cause)[kept])
    return Packed(rows[kept]), starts[kept], ends[kept], causes


def _split_by_state(
    trace: Trace, process: Array, starts: Ints, ends: Ints, is_long: Bools
) -> Iterator[_StatePieces]:
    """Yield the pieces of each span by state of the host; -1 if the host is in no known state.

    Communication on the host in the background does not delay launches, so it counts only in long
    spans (``is_long``).
    """
    states, communicating = exclusive_host_states(trace), host_communication(trace)
    has_length = ends > starts
    busy = [owner for owner, times in states.items() if any(map(len, times.values()))]
    is_busy = is_in(process, [*busy, *communicating])
    # Of thousands of processes, most are in no state at all. Their spans are not split.
    others = np.flatnonzero(has_length & ~is_busy)
    yield others, starts[others], ends[others], np.full(len(others), -1)
    busy_rows = np.flatnonzero(has_length & is_busy)
    for owner, places in rows_by_value(process[busy_rows]).items():
        rows = busy_rows[places]
        first, last = starts[rows], ends[rows]
        span = int(first.min()), int(last.max())
        times = {name: time.clip(*span) for name, time in states.get(owner, {}).items()}
        in_any = Intervals.empty()
        for name in _STATES if times else ():
            in_any = in_any | times[name]
            yield _clip_to(rows, first, last, times[name], CAUSES.index(name))
        in_no_state = in_any.gaps(*span)
        communication = communicating.get(owner, Intervals.empty()) & in_no_state
        if not len(communication):
            yield _clip_to(rows, first, last, in_no_state, -1)
            continue
        for chosen, time, cause in (
            (is_long[rows], communication, CAUSES.index("communication")),
            (is_long[rows], in_no_state - communication, -1),
            (~is_long[rows], in_no_state, -1),
        ):
            yield _clip_to(rows[chosen], first[chosen], last[chosen], time, cause)


def _clip_to(rows: Ints, starts: Ints, ends: Ints, time: Intervals, cause: int) -> _StatePieces:
    """Return the pieces of each span that are inside ``time``."""
    span, _, first, last = overlaps(starts, ends, time.starts, time.ends)
    return rows[span], first, last, np.full(len(span), cause)
