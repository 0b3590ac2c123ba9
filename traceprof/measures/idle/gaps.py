"""The times in which a device had nothing to do, and what it waited for.

A gap ends with the next work of the device. Until that was launched the device waited for the
host; then, until `LATENCY_NS` after the launching call returned, for the launch to arrive; and
afterwards in the queue, for another stream, device or event. The causes of a gap add up to it
exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np

from traceprof.measures.device.times import device_time, recorded_times, used_devices
from traceprof.measures.facts import fact, of_window
from traceprof.measures.host.launches import Launches, are_migrations, launches_of
from traceprof.measures.host.states import host_communication, host_states_alone
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
from traceprof.model.activity import Activity
from traceprof.model.grouping import is_in, pieces_of, rows_by_value
from traceprof.model.intervals import Intervals
from traceprof.model.packed import Packed
from traceprof.model.table import Names, Table
from traceprof.model.tables import ABSENT
from traceprof.model.trace import DEVICE_TABLES, Trace


@dataclass(frozen=True, slots=True, eq=False)
class DeviceWork:
    """The kernels and copies of one device in the whole recording, by start.

    There are none where the recording is a part of one in which the device worked at other times.
    ``rows`` are their places among all kernels and, behind these, all copies; ``starts`` when they
    begin. ``by_end`` are the same rows by end, ``ends_sorted`` these ends.
    """

    rows: Packed
    starts: Ints
    by_end: Packed
    ends_sorted: Ints

    def after(self, instants: Ints) -> Ints:
        """Return the row of the first that begins at or after each instant, -1 where none does."""
        place = np.searchsorted(self.starts, instants, side="left")
        return self._row(self.rows, place, place < len(self.starts))

    def before(self, instants: Ints) -> Ints:
        """Return the row of what ended last at or before each instant, -1 where nothing did."""
        place = np.searchsorted(self.ends_sorted, instants, side="right") - 1
        return self._row(self.by_end, place, place >= 0)

    def _row(self, rows: Packed, place: Ints, is_any: Bools) -> Ints:
        if not len(rows):
            return np.full(len(place), -1, np.int64)
        return np.where(is_any, rows[np.where(is_any, place, 0)].wide(), -1)


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Some of the work of a whole recording: ``rows`` as `DeviceWork` has them.

    What is told of a row below 0 means nothing.
    """

    trace: Trace
    rows: Ints

    @property
    def process(self) -> Ints:
        """The process of each."""
        return self._of_either(*(self.trace.table(name)["process"] for name in DEVICE_TABLES))

    @property
    def is_shared(self) -> Bools:
        """Whether another device takes part: in communication, in copies between devices."""
        kernels, copies = self.trace.kernels["activity"], self.trace.copies["direction"]
        return self._of_either(kernels == Activity.COMMUNICATION.value, copies == "p2p")

    @property
    def is_migration(self) -> Bools:
        """Whether it is a page of managed memory that moved since somebody touched it."""
        moved = are_migrations(self.trace.copies, launches_of(self.trace, "copies").is_known)
        return self._of_either(np.zeros(len(self.trace.kernels), np.bool_), moved)

    @property
    def launches(self) -> Launches:
        """What launched each."""
        of_tables = [launches_of(self.trace, name) for name in DEVICE_TABLES]
        call = self._of_either(*(launches.call for launches in of_tables))
        return Launches(call, self.process, self.trace.api_calls)

    @property
    def names(self) -> Names:
        """The name of each kernel, the direction of each copy; "" where there is no row."""
        names, directions = self.trace.kernels["name"], self.trace.copies["direction"]
        texts = [*names.texts.tolist(), *directions.texts.tolist(), ""]
        codes = self._of_either(names.codes, directions.codes + len(names.texts))
        return Names.coded(texts, np.where(self.rows >= 0, codes, len(texts) - 1))

    def _of_either(self, kernels: Array, copies: Array) -> Array:
        """Return the values of the rows, of columns of both tables; any where there is no row."""
        found = np.zeros(len(self.rows), np.result_type(kernels, copies))
        rows = self.rows
        is_kernel = (rows >= 0) & (rows < len(kernels))
        found[is_kernel] = kernels[rows[is_kernel]]
        is_copy = rows >= len(kernels)
        found[is_copy] = copies[rows[is_copy] - len(kernels)]
        return found


@fact
def work_of_devices(trace: Trace) -> Mapping[int, DeviceWork]:
    """Return the work of each device in the whole recording."""
    tables = [trace.table(name) for name in DEVICE_TABLES]
    device = Packed.joined([Packed(table["device"]) for table in tables])
    rows_of = dict.fromkeys(used_devices(trace), Packed.repeated(0, 0))
    rows_of.update((number, Packed(rows)) for number, rows in rows_by_value(device).items())
    return {number: _in_order(tables, rows) for number, rows in rows_of.items()}


def _in_order(tables: Sequence[Table], rows: Packed) -> DeviceWork:
    def times(name: str) -> Ints:
        return picked(np.concatenate([table[name] for table in tables]), rows.stored)

    by_start = Packed(np.argsort(times("start_ns"), kind="stable"))
    ends, ordered = by_start.pick(times("end_ns")), rows[by_start]
    by_end = Packed(np.argsort(ends, kind="stable"))
    starts = by_start.pick(times("start_ns"))
    return DeviceWork(ordered, starts, ordered[by_end], by_end.pick(ends))


_Parts: TypeAlias = tuple[Packed, Ints, Ints, Packed]
"""Rows of gaps, and the start, end and cause of a part of each."""
_Cut: TypeAlias = tuple[Ints, Ints, Ints, Ints]
"""Rows of times, and the start, end and state of a piece of each."""
_Found: TypeAlias = tuple[Ints, Ints, Ints, Ints, Ints]
"""Start, end, the work before and after each gap of a device, and how much of it is at an edge."""

CAUSES: Final = (
    *("data", "synchronizing", "communication", "launch", "host"),
    *("queued", "peer", "profiler", "edge", "unknown"),
)
"""What a device waits for.

data: the host fetches data; synchronizing: the host waits in a synchronizing call;
communication: for long, while the host itself carries out a collective or a message (gloo, MPI);
launch: the host launches as fast as it can, but too slowly; host: the host runs other code (or a
launching call takes more than a millisecond, as when a module is loaded); queued: the work had been
launched: the pause between two kernels, or a wait for another stream or event; peer: the same
before or after work that another device takes part in; profiler: the profiler itself, and what
it adds to each launch where steps that it did not record tell (`disturbances`); edge: before the
first and after the last work of the recording; unknown: no launch was recorded.
"""

LAUNCH_BOUND_NS: Final = 200_000
"""In a gap up to this long the host is taken to be busy launching, in a longer one to run other
code: eager PyTorch needs some 5 to 50 µs from one launch to the next."""

LONGEST_CALL_NS: Final = 1_000_000
"""A launching call that takes longer does something else, such as loading a module."""

LATENCY_NS: Final = 20_000
"""How long after its launch work may take to arrive at an idle device; usual are 3 to 10 µs."""

_BEFORE_THAT: Final = ("profiler", "data", "synchronizing")
_PARTS: Final = ("gap", "start_ns", "end_ns", "cause")


def find_gaps(trace: Trace) -> Table:
    """Return every gap of every used device inside the window, sorted by device and start.

    Columns: device, start_ns, end_ns, process (of the next work, -1 at the end), holder
    (the process that the device waits for: at the end the one whose work ended last), thread (that
    launched the next work, -1 where that is not known), before and after (names of the neighboring
    work, "" where there is none). What a gap at the edge of the window waits for may lie outside.
    """
    return _gaps_and_parts(trace)[0]


def find_gap_parts(trace: Trace) -> Table:
    """Return when, in each of the gaps of `find_gaps`, each cause holds: the parts fill the gap.

    Columns: gap (its row), start_ns, end_ns, cause (place in `CAUSES`); sorted by gap and start.
    """
    return _gaps_and_parts(trace)[1]


def times_in_gaps(n_gaps: int, parts: Table, *causes: int) -> Ints:
    """Return how many ns of each of the gaps those ``parts`` take that have one of ``causes``.

    Parts are as `find_gap_parts` returns them, causes places in the names of theirs.
    """
    chosen = parts.take(is_in(parts["cause"], causes))
    return sums_at(chosen["gap"], lengths_of(chosen), n_gaps)


def carved(parts: Table, causes: Sequence[str], ns_of_gaps: Ints, cause: int) -> Table:
    """Return ``parts`` with ``cause`` for the first ``ns_of_gaps`` in which ``causes`` hold.

    The parts are those of gaps, sorted by gap; so many ns are taken of each, as far as it has them.
    """
    gap = parts["gap"]
    edges = [int(np.searchsorted(gap, gap[piece.start])) for piece in pieces_of(len(gap))]
    found, is_changed = [], False
    for edge in pairwise([*edges, len(gap)]):
        piece = parts.take(slice(*edge))
        own = _carved(piece, causes, ns_of_gaps, cause)
        is_changed |= own is not piece
        found.append(own.on_disk())
    return Table.stacked(found) if is_changed else parts


def _carved(parts: Table, causes: Sequence[str], ns_of_gaps: Ints, cause: int) -> Table:
    is_theirs = is_in(parts["cause"], [CAUSES.index(name) for name in causes])
    gap = parts["gap"]
    starts, ends = bounds(parts)
    lengths = np.where(is_theirs, ends - starts, 0)
    so_far = np.cumsum(lengths) - lengths
    first = np.flatnonzero(are_first(gap))
    so_far -= np.repeat(so_far[first], np.diff(np.append(first, len(gap))))
    taken = np.clip(ns_of_gaps[gap] - so_far, 0, lengths)
    if not taken.any():
        return parts
    # What is taken comes first, and is a row of its own where some of the part is left.
    is_cut = (taken > 0) & (taken < lengths)
    rows = np.repeat(np.arange(len(parts)), 1 + is_cut)
    head = np.flatnonzero(is_cut) + np.arange(int(is_cut.sum()))
    starts, ends, of_rows = starts[rows], ends[rows], parts["cause"][rows]
    of_rows[taken[rows] > 0] = cause
    of_rows[head + 1] = parts["cause"][is_cut]
    ends[head] = starts[head] + taken[is_cut]
    starts[head + 1] = ends[head]
    columns = Packed(gap[rows]), starts, ends, Packed(of_rows)
    return Table(dict(zip(_PARTS, columns, strict=True)))


@of_window
def _gaps_and_parts(trace: Trace) -> tuple[Table, Table]:
    gaps, parts = _as_recorded(trace)
    for process, ns_of_causes in _added_by_recording(trace).items():
        captured = disturbances(trace)[process].captured
        starts, ends = bounds(gaps)
        is_own = (gaps["process"] == process) & (captured.covered_ns(starts, ends) > 0)
        for causes, most_ns in zip(_DISTURBED, ns_of_causes, strict=True):
            parts = carved(parts, causes, np.where(is_own, most_ns, 0), CAUSES.index("profiler"))
    return gaps, parts


_DISTURBED: Final = (("launch", "host"), ("synchronizing", "communication"))
"""Where what the profiler adds to a step is looked for: the second where the first is too short."""


@fact
def _added_by_recording(trace: Trace) -> Mapping[int, tuple[int, ...]]:
    """Return, by process, how much of a gap at most the profiler made, for each of `_DISTURBED`.

    Each launch takes longer while it is recorded: so much of every gap that recorded steps end as
    much earlier as undisturbed ones do, and a gap that is long for another reason stays long.
    """
    found: dict[int, tuple[int, ...]] = {}
    for process, own in disturbances(trace).items():
        gaps, parts = _as_recorded(trace)  # of the whole recording
        is_own = (gaps["process"] == process) & (own.recorded.covered_ns(*bounds(gaps)) > 0)
        known = times_in_gaps(len(gaps), parts, CAUSES.index("profiler"))[is_own].sum()
        left_ns = own.excess_ns * len(own.recorded_ns) - int(known)
        most = []
        for causes in _DISTURBED:
            places = [CAUSES.index(cause) for cause in causes]
            lengths = times_in_gaps(len(gaps), parts, *places)[is_own]
            most.append(cap_for_total(lengths, left_ns))
            left_ns -= int(np.minimum(lengths, most[-1]).sum())
        if any(most):
            found[process] = tuple(most)
    return found


@of_window
def _as_recorded(trace: Trace) -> tuple[Table, Table]:
    """Return gaps and parts as the recording has them, what the profiler added with them."""
    gaps, parts, n_gaps = [], [], 0
    for device in used_devices(trace) or [ABSENT]:
        for found in _gaps_of(trace, device):
            own, ends = _bounded_gaps(trace, device, found)
            gaps.append(own.on_disk())
            parts.append(_parts_of(trace, own, ends, n_gaps).on_disk())
            n_gaps += len(own)
    return Table.stacked(gaps), Table.stacked(parts)


def _parts_of(trace: Trace, gaps: Table, ends_of: _Ends, n_before: int) -> Table:
    """Return the parts of gaps, one after another; ``n_before`` gaps come before these."""
    found = [*_parts_of_known(trace, gaps, ends_of), *_parts_of_others(gaps, ends_of)]
    of_gaps, *times, of_causes = zip(*found, strict=True)
    gap, cause = map(Packed.joined, (of_gaps, of_causes))
    starts, ends = map(np.concatenate, times)
    order = np.argsort(starts, kind="stable")  # gaps of a device follow one another, too
    columns = Packed(gap[order].wide() + n_before), starts[order], ends[order]
    return Table(dict(zip(_PARTS, (*columns, cause[order]), strict=True)))


@dataclass(frozen=True, slots=True, eq=False)
class _Ends:
    """What is known of the work that ends each gap, and of that in front of it."""

    launches: Launches
    is_linked: Bools
    is_migration: Bools
    is_shared: Bools
    is_edge: Bools


def _bounded_gaps(trace: Trace, device: int, found: _Found) -> tuple[Table, _Ends]:
    """Return gaps of a device as a table, and what ends each, but not what they wait for."""
    starts, ends, last, following, edge = found
    before, after = Pieces(trace.whole, last), Pieces(trace.whole, following)
    is_any, process, launches = following >= 0, after.process, after.launches
    moved = is_any & after.is_migration
    linked = is_any & (launches.is_known | moved)
    gaps = {
        "device": Packed.repeated(device, len(starts)),
        "start_ns": starts,
        "end_ns": ends,
        "process": Packed(np.where(is_any, process, -1)),
        "holder": Packed(np.where(is_any, process, before.process)),
        "thread": Packed(np.where(linked & ~moved, launches.thread, -1)),
        "before": before.names,
        "after": after.names,
    }
    shared = (is_any & after.is_shared) | ((last >= 0) & before.is_shared)
    return Table(gaps), _Ends(launches, linked, moved, shared, 2 * edge > ends - starts)


def _gaps_of(trace: Trace, device: int) -> Iterator[_Found]:
    """Yield some of the gaps of a device after others, once at least."""
    if device == ABSENT:
        yield (np.empty(0, np.int64),) * 5
        return
    span, work = trace.span, work_of_devices(trace)[device]
    idle = recorded_times(trace, device) - device_time(trace, device).busy
    first_ns, last_ns = span.end_ns, span.start_ns
    if len(work.rows):
        first, last_ns = Pieces(trace.whole, work.rows[:1].wide()), int(work.ends_sorted[-1])
        first_ns = waiting_start_ns(trace, first.process, first.launches.start_ns, work.starts[0])
    # Before the first and after the last work of the recording, wherever the window is.
    edges = Intervals.single(span.start_ns, min(first_ns, span.end_ns))
    edges = edges | Intervals.single(max(last_ns, span.start_ns), span.end_ns)
    for piece in pieces_of(max(len(idle), 1)):
        starts, ends = idle.starts[piece], idle.ends[piece]
        yield starts, ends, work.before(starts), work.after(ends), edges.covered_ns(starts, ends)


def _parts_of_others(gaps: Table, following: _Ends) -> Iterator[_Parts]:
    """Yield the gaps that have one cause alone: edges, and those before work without a launch."""
    edge, linked = following.is_edge, following.is_linked
    starts, ends = bounds(gaps)
    for rows, cause in ((edge, "edge"), (~edge & ~linked, "unknown")):
        own = np.flatnonzero(rows)
        yield _of_cause(own, starts[own], ends[own], CAUSES.index(cause))


def _parts_of_known(trace: Trace, gaps: Table, following: _Ends) -> Iterator[_Parts]:
    """Yield the parts of the gaps whose launch is known."""
    rows = np.flatnonzero(following.is_linked & ~following.is_edge)
    starts, ends, process = ints(gaps, "start_ns", "end_ns", "process", rows=rows)
    launches = following.launches.of_rows(rows)
    # A page moves as soon as the host or a kernel touches it: no call came first.
    moved = following.is_migration[rows]
    launch, returned = (np.where(moved, ends, at) for at in (launches.start_ns, launches.end_ns))
    arrival = returned + LATENCY_NS
    launched = np.clip(launch, starts, ends)
    arrived = np.maximum(launched, np.clip(arrival, starts, ends))
    of_launch, of_host = CAUSES.index("launch"), CAUSES.index("host")
    is_short = (ends - starts <= LAUNCH_BOUND_NS) & ~moved
    otherwise = np.where(is_short, of_launch, of_host)
    is_long = otherwise == of_host
    for own, first, last, cause in _split_by_state(trace, process, starts, launched, is_long):
        yield _of_cause(rows[own], first, last, np.where(cause >= 0, cause, otherwise[own]))
    # A call that takes this long loads a module or compiles: it is no launching.
    quick = arrival - launch <= LONGEST_CALL_NS + LATENCY_NS
    yield _of_cause(rows, launched, arrived, np.where(quick, of_launch, of_host))
    peer = following.is_shared[rows] & (ends - arrived > LATENCY_NS)
    cause = np.where(peer, CAUSES.index("peer"), CAUSES.index("queued"))
    yield _of_cause(rows, arrived, ends, cause)


def _of_cause(rows: Ints, starts: Ints, ends: Ints, cause: Ints | int) -> _Parts:
    """Return parts of the gaps ``rows``, without those that last for no time."""
    kept = np.flatnonzero(ends > starts)
    causes = Packed(np.full(len(rows), cause)[kept])
    return Packed(rows[kept]), starts[kept], ends[kept], causes


def _split_by_state(
    trace: Trace, process: Array, starts: Ints, ends: Ints, is_long: Bools
) -> Iterator[_Cut]:
    """Yield when the host of each time was in which state, -1 where in none.

    What the host communicates beside its launches holds up none of them: long times alone are that.
    """
    states, communicating = host_states_alone(trace), host_communication(trace)
    waited = ends > starts
    busy = [owner for owner, times in states.items() if any(map(len, times.values()))]
    is_busy = is_in(process, [*busy, *communicating])
    # Of thousands of processes most are in no state at all: these are one piece.
    others = np.flatnonzero(waited & ~is_busy)
    yield others, starts[others], ends[others], np.full(len(others), -1)
    waited_busy = np.flatnonzero(waited & is_busy)
    for owner, places in rows_by_value(process[waited_busy]).items():
        own = waited_busy[places]
        first, last = starts[own], ends[own]
        span = int(first.min()), int(last.max())
        times = {name: time.clip(*span) for name, time in states.get(owner, {}).items()}
        in_any = Intervals.empty()
        for name in _BEFORE_THAT if times else ():
            in_any = in_any | times[name]
            yield _cut(own, first, last, times[name], CAUSES.index(name))
        rest = in_any.gaps(*span)
        exchange = communicating.get(owner, Intervals.empty()) & rest
        if not len(exchange):
            yield _cut(own, first, last, rest, -1)
            continue
        for chosen, time, cause in (
            (is_long[own], exchange, CAUSES.index("communication")),
            (is_long[own], rest - exchange, -1),
            (~is_long[own], rest, -1),
        ):
            yield _cut(own[chosen], first[chosen], last[chosen], time, cause)


def _cut(rows: Ints, starts: Ints, ends: Ints, time: Intervals, cause: int) -> _Cut:
    """Return what of each span lies in ``time``."""
    span, _, first, last = overlaps(starts, ends, time.starts, time.ends)
    return rows[span], first, last, np.full(len(span), cause)
