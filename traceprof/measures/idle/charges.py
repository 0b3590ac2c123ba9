"""What the host did in the gaps of the devices, charged by overlap.

At each moment a gap is charged to one name at most, that of the thread which holds the device
up:

1. what the thread that launches the next work was in, unless it merely waited;
2. else what another thread of the process ran, of several the one that had most recorded in this
   gap: it compiles, say, while the launching thread waits for it or has nothing recorded;
3. else the wait of the launching thread;
4. else to "": nothing was recorded there.

So the charges of a gap add up to it, and no name is charged more than it was open.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Self, TypeAlias

import numpy as np

from traceprof.measures.facts import fact, of_window
from traceprof.measures.host.states import is_launch
from traceprof.measures.idle.gaps import CAUSES, find_gaps
from traceprof.measures.idle.lanes import Doing, HostLane, HostLanes, lanes_within
from traceprof.measures.idle.losses import find_idle_parts
from traceprof.measures.rows import (
    Array,
    Bools,
    Ints,
    are_first,
    bounds,
    busiest_lanes,
    ints,
    lengths_of,
    looked_up,
    overlaps,
    sums_at,
    unions_by,
)
from traceprof.model.grouping import is_in, places_of, rows_by_value, rows_by_values
from traceprof.model.intervals import Intervals, union_lengths
from traceprof.model.packed import Packed, joined_numbers
from traceprof.model.table import Names, Table, objects
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace

BY: Final = ("", "launching", "other")
"""Whose name is charged: of the thread that launches what ends the gap, or of another one."""

LAUNCHING: Final = BY.index("launching")
OTHER: Final = BY.index("other")


def pieces_of_parts(parts: Table, lanes: HostLanes) -> Table:
    """Return what every thread was in during each of the ``parts`` of gaps.

    ``parts`` have start_ns, end_ns, process and thread (that launches what ends the gap). Columns:
    part (its row), start_ns, end_ns, name, operator, lane, is_own (of that thread) and doing.
    """
    starts, ends, thread = ints(parts, "start_ns", "end_ns", "thread")
    of_processes = {
        process: _Parts.of(rows, starts, ends)
        for process, rows in rows_by_value(parts["process"]).items()
    }
    none = np.empty(0, np.int64)
    names = ("part", "start_ns", "end_ns", "name", "operator", "lane")
    found = [Table(dict.fromkeys(names, none) | {"is_own": none.astype(np.bool_)})]
    for number, lane in enumerate(lanes.lanes):
        if lane.process not in of_processes:
            continue
        rows = of_processes[lane.process].within(lane)
        place, piece, *times = overlaps(starts[rows], ends[rows], lane.starts, lane.ends)
        part = rows[place]
        of_lane = (Packed(own)[piece] for own in (lane.name, lane.operator))
        columns = (Packed(part), *times, *of_lane, Packed.repeated(number, len(part)))
        own = dict(zip(names, columns, strict=True))
        found.append(Table(own | {"is_own": thread[part] == lane.thread}))
    pieces = Table.stacked(found)
    return pieces.assign(doing=lanes.doing[pieces.stored("name")])


@dataclass(frozen=True, slots=True, eq=False)
class _Parts:
    """The parts of gaps of a process by their starts, and how far those up to each reach."""

    rows: Ints
    starts: Ints
    reach: Ints

    @classmethod
    def of(cls, rows: Ints, starts: Ints, ends: Ints) -> Self:
        """Return the parts ``rows``."""
        rows = rows[np.argsort(starts[rows], kind="stable")]
        return cls(rows, starts[rows], np.maximum.accumulate(ends[rows]))

    def within(self, lane: HostLane) -> Ints:
        """Return the parts, in their order, that can overlap what a thread was in."""
        if not len(lane.starts):
            return self.rows[:0]
        first = np.searchsorted(self.reach, lane.starts[0], side="right")
        last = np.searchsorted(self.starts, lane.ends[-1], side="left")
        return np.sort(self.rows[first:last])


class ChargedPieces(NamedTuple):
    """What is charged, row by row: part, start, end, name and operator (-1: none), place in `BY`.

    Of the smallest types that hold them: there are as many rows as launches.
    """

    part: Packed
    start_ns: Ints
    end_ns: Ints
    name: Packed
    operator: Packed
    by: Packed


def chosen_pieces(parts: Table, pieces: Table) -> ChargedPieces:
    """Return what is charged.

    It is looked for on an axis on which all parts stand one behind the other (``offset_ns``):
    there the gaps of several devices do not overlap. First what comes first takes its time, the
    next what that left free, and so on.
    """
    offset = parts["offset_ns"]
    starts, ends = bounds(parts)
    lengths = ends - starts
    part, name, operator = (Packed(pieces.stored(own)) for own in ("part", "name", "operator"))
    begin, is_own = pieces["start_ns"], pieces["is_own"]
    first = part.pick(offset - starts) + begin
    last = first + (pieces["end_ns"] - begin)
    free = Intervals.single(0, int(lengths.sum()))
    found = []
    for layer in _layers(parts, pieces):
        rows = layer[np.argsort(first[layer])]
        row, _, x0, x1 = overlaps(first[rows], last[rows], free.starts, free.ends)
        row = rows[row]
        found.append((Packed(part[row]), x0, x1, name[row], operator[row], _by(is_own[row])))
        free = free - Intervals.union_of(first[rows], last[rows])
    row, _, x0, x1 = overlaps(offset, offset + lengths, free.starts, free.ends)
    nothing = Packed.repeated(-1, len(row))
    found.append((Packed(row), x0, x1, nothing, nothing, Packed.repeated(0, len(row))))
    parts_of, x0s, x1s, *others = zip(*found, strict=True)
    x0, x1 = map(np.concatenate, (x0s, x1s))
    part, name, operator, by = map(Packed.joined, (parts_of, *others))
    to_time = part.pick(starts - offset)
    return ChargedPieces(part, x0 + to_time, x1 + to_time, name, operator, by)


def _by(is_own: Bools) -> Packed:
    """Return the place in `BY` of what is of the launching thread or not."""
    return Packed.below(len(BY), np.where(is_own, LAUNCHING, OTHER))


def _layers(parts: Table, pieces: Table) -> Iterator[Ints]:
    """Yield the rows of ``pieces`` that are charged first, then those behind them, and so on."""
    is_own, doing = pieces["is_own"], pieces["doing"]
    yield np.flatnonzero(is_own & (doing != Doing.WAITS))
    others = np.flatnonzero(~is_own & (doing == Doing.RUNS))
    rank = _ranks(parts, pieces.take(others)) if len(others) else others
    for place in range(int(rank.max(initial=-1)) + 1):
        yield others[rank == place]
    yield np.flatnonzero(is_own & (doing == Doing.WAITS))


def _ranks(parts: Table, pieces: Table) -> Ints:
    """Return which thread of its gap each piece is of, by the time that they cover of it."""
    gap, lane = parts["gap"][pieces["part"]], pieces["lane"]
    n_lanes = int(lane.max(initial=0)) + 1
    pairs, place = np.unique(gap * n_lanes + lane, return_inverse=True)
    covered = sums_at(place, lengths_of(pieces), len(pairs))
    order = np.lexsort((-covered, pairs // n_lanes))
    owner = (pairs // n_lanes)[order]
    opens = np.flatnonzero(are_first(owner))
    rank = np.empty(len(pairs), np.int64)
    rank[order] = np.arange(len(pairs)) - np.repeat(opens, np.diff(np.append(opens, len(pairs))))
    return rank[place]


_Columns: TypeAlias = tuple[Packed | Array, ...]
"""gap, start_ns, end_ns, cause, name, operator, by"""

NOTHING: Final = "(nothing recorded)"
"""Stands in tables and sentences for the time in which the host recorded nothing."""

CAUSES_CHARGED_TO_HOST: Final = (
    *("data", "synchronizing", "communication", "launch", "host"),
    *("edge", "unknown"),
)
"""The causes for which it is told what the host did; in the others no thread holds a device up."""


@dataclass(frozen=True, slots=True, eq=False)
class Charges:
    """``times``: when each gap is charged to what; ``running``: all that ran in it meanwhile.

    Both have gap (its row in `find_gaps`), device, start_ns, end_ns, cause (of `CAUSES`), name (the
    innermost), operator (the outermost around it, the name where none is) and by (one of `BY`).
    ``times``, sorted by gap and start, fill every gap: name is "" where nothing was recorded, or no
    thread held the device up. ``running`` are the names, innermost, that any thread of the process
    had open and that do not merely wait: those of several threads overlap.
    """

    times: Table
    running: Table


@of_window
def find_charges(trace: Trace) -> Charges:
    """Return what the gaps of the devices in the window are charged to."""
    parts = _asked_parts(trace)
    lanes = lanes_within(trace, unions_by(parts))
    pieces = pieces_of_parts(parts, lanes).on_disk()
    chosen = chosen_pieces(parts, pieces)
    return Charges(_times(trace, parts, chosen, lanes), _running(trace, parts, pieces, lanes))


@of_window
def find_host_charges(trace: Trace) -> Table:
    """Return those of `Charges.times` that are the host's, and `NOTHING` for a name without one.

    With ``ns``, the length of each.
    """
    times = find_charges(trace).times
    times = times.take(times["cause"].isin(CAUSES_CHARGED_TO_HOST))
    texts = np.append(NOTHING, times["name"].texts[1:])
    named = {own: Names(times[own].packed, texts) for own in ("name", "operator")}
    return times.assign(**named, ns=lengths_of(times))


def time_by_name(rows: Table) -> dict[str, int]:
    """Return how long each name was open in ``rows`` of `Charges`, the most first.

    What several threads have open at once counts once for each device.
    """
    names = rows["name"].texts
    device, numbers = places_of(rows["device"])
    n_names = max(1, len(names))
    keys = device.wide() * n_names + rows["name"].codes
    covered = union_lengths(keys, rows["start_ns"], rows["end_ns"], len(numbers) * n_names)
    totals = covered.reshape(-1, n_names).sum(axis=0)
    order = np.argsort(-totals, kind="stable")
    return {names[i]: int(totals[i]) for i in order if totals[i]}


def _asked_parts(trace: Trace) -> Table:
    """Return the parts of gaps that are the host's, with the process and thread that ends each.

    ``offset_ns`` is where each lies on an axis on which they all stand one behind the other:
    there the gaps of several devices do not overlap.
    """
    gaps, parts = find_gaps(trace), find_idle_parts(trace)
    asked = is_in(parts["cause"], [CAUSES.index(name) for name in CAUSES_CHARGED_TO_HOST])
    parts = parts.take(asked)
    process, thread = ints(gaps, "holder", "thread", rows=parts["gap"])
    lengths = lengths_of(parts)
    main = looked_up(process, _main_threads(trace), ABSENT)
    return parts.assign(
        process=process,
        thread=np.where(thread == ABSENT, main, thread),
        offset_ns=np.cumsum(lengths) - lengths,
    )


@fact
def _main_threads(trace: Trace) -> Mapping[int, int]:
    """Return the thread of each process that launches the most, else that names the most."""
    calls = trace.api_calls
    launches = calls.select("process", "thread").take(is_launch(calls["name"]))
    found: dict[int, int] = {}
    for table in (calls, trace.host_ops, trace.ranges, launches):
        lanes = busiest_lanes(rows_by_values(table["process"], table["thread"]))
        found |= {process: thread for process, (_, thread) in lanes.items()}
    return found


def _times(trace: Trace, parts: Table, chosen: ChargedPieces, lanes: HostLanes) -> Table:
    """Return the charges of all gaps, those in which no thread holds a device up included."""
    every = find_idle_parts(trace)
    rest = every.take(~is_in(every["cause"], [CAUSES.index(own) for own in CAUSES_CHARGED_TO_HOST]))
    theirs = (rest.stored(own) for own in ("gap", "start_ns", "end_ns", "cause"))
    none, nobody = (Packed.repeated(value, len(rest)) for value in (-1, 0))
    columns = [*zip(_of_parts(parts, chosen), (*theirs, none, none, nobody), strict=True)]
    order = Packed(np.lexsort([np.asarray(joined_numbers(columns[at])) for at in (1, 0)]))
    # A column at a time: all together take much memory.
    whole = [joined_numbers(columns.pop(0))[order.stored] for _ in range(len(columns))]
    del order
    return _named(trace, _joined(whole), lanes)


def _running(trace: Trace, parts: Table, pieces: Table, lanes: HostLanes) -> Table:
    runs = pieces.take(pieces["doing"] == Doing.RUNS)
    part, name, operator = (Packed(runs.stored(own)) for own in ("part", "name", "operator"))
    chosen = ChargedPieces(part, *bounds(runs), name, operator, _by(runs["is_own"]))
    return _named(trace, _of_parts(parts, chosen), lanes)


def _of_parts(parts: Table, chosen: ChargedPieces) -> _Columns:
    """Return the same with the gap and the cause of each part."""
    part, starts, ends, name, operator, by = chosen
    gap, cause = (Packed(parts.stored(own))[part] for own in ("gap", "cause"))
    return gap, starts, ends, cause, name, operator, by


def _named(trace: Trace, columns: _Columns, lanes: HostLanes) -> Table:
    gap, starts, ends, cause, name, operator, by = columns
    names = objects(("", *lanes.names))
    name, operator = (Packed.below(len(names), np.asarray(own) + 1) for own in (name, operator))
    return Table(
        {
            "gap": Packed(gap),
            "device": Packed(find_gaps(trace).stored("device"))[Packed(gap)],
            "start_ns": starts,
            "end_ns": ends,
            "cause": Names(cause, CAUSES),
            "name": Names(name, names),
            "operator": Names(operator, names),
            "by": Names(by, BY),
        }
    )


def _joined(columns: list[Packed | Array]) -> _Columns:
    """Return the columns with neighbors as one row that differ in nothing but their times.

    It takes them out of the list: a column at a time is there twice.
    """
    first = np.flatnonzero(are_first(columns[0], *columns[3:]))
    last = np.append(first[1:], len(columns[0]))[: len(first)] - 1
    rows = [first, first, last, *[first] * (len(columns) - 3)]
    return tuple(columns.pop(0)[at] for at in rows)
