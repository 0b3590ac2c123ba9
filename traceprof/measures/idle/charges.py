"""Attribute the idle time of devices to host activity, by overlap in time.

At each moment, a gap is charged to at most one name, the name of the thread that delays the
device. The candidates, in order of priority:

1. the activity of the thread that launches the next work, unless that thread only waited;
2. the activity of another thread of the process. If there are several, the thread with the most
   recorded time in this gap has priority. Example: another thread compiles while the launching
   thread waits for it or has nothing recorded;
3. the wait of the launching thread;
4. the empty name "": nothing was recorded.

The charges of a gap therefore add up to the gap, and no name is charged more time than it was open.
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
from traceprof.model.grouping import groups_of, is_in, places_of, rows_by_value, rows_by_values
from traceprof.model.intervals import Intervals, union_lengths
from traceprof.model.packed import Packed, joined_numbers
from traceprof.model.table import Names, Table, objects
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace

BY: Final = ("", "launching", "other")
"""Which thread a charge belongs to: the thread that launches the work that ends the gap, or another
thread of the process. "" if no name is charged.
"""

LAUNCHING: Final = BY.index("launching")
OTHER: Final = BY.index("other")


def find_host_pieces(parts: Table, lanes: HostLanes) -> Table:
    """Return what every thread did during each of the ``parts`` of gaps.

    ``parts`` has the columns start_ns, end_ns, process, and thread (the thread that launches the
    work that ends the gap). The result has the columns part (row in ``parts``), start_ns, end_ns,
    name, operator, lane, is_own (whether the launching thread did it), and doing (a `Doing`).
    """
    starts, ends, thread = ints(parts, "start_ns", "end_ns", "thread")
    of_processes = {
        process: _ProcessParts.of(rows, starts, ends)
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
        of_lane = (Packed(column)[piece] for column in (lane.name, lane.operator))
        values = (Packed(part), *times, *of_lane, Packed.repeated(number, len(part)))
        columns = dict(zip(names, values, strict=True))
        found.append(Table(columns | {"is_own": thread[part] == lane.thread}))
    pieces = Table.stacked(found)
    return pieces.assign(doing=lanes.doing[pieces.stored("name")])


@dataclass(frozen=True, slots=True, eq=False)
class _ProcessParts:
    """The parts of gaps of one process, sorted by start.

    ``rows`` are the row numbers of the parts and ``starts`` their starts in ns. ``reach`` is the
    running maximum of their ends.
    """

    rows: Ints
    starts: Ints
    latest_end: Ints

    @classmethod
    def of(cls, rows: Ints, starts: Ints, ends: Ints) -> Self:
        """Return the parts with the row numbers ``rows``."""
        rows = rows[np.argsort(starts[rows], kind="stable")]
        return cls(rows, starts[rows], np.maximum.accumulate(ends[rows]))

    def within(self, lane: HostLane) -> Ints:
        """Return the rows of the parts that can overlap pieces of ``lane``, in ascending order."""
        if not len(lane.starts):
            return self.rows[:0]
        first = np.searchsorted(self.latest_end, lane.starts[0], side="right")
        last = np.searchsorted(self.starts, lane.ends[-1], side="left")
        return np.sort(self.rows[first:last])


class ChargedPieces(NamedTuple):
    """The charges, row by row: part, start, end, name and operator (-1: none), and place in `BY`.

    There are as many rows as launches, so the columns use the smallest integer types that fit.
    """

    part: Packed
    start_ns: Ints
    end_ns: Ints
    name: Packed
    operator: Packed
    by: Packed


def choose_charges(parts: Table, pieces: Table) -> ChargedPieces:
    """Return the charges of ``parts``, chosen from the ``pieces`` of host activity.

    The parts are placed one after the other on a common axis (``offset_ns``), so that gaps of
    different devices do not overlap. Each layer of `_priority_layers` takes the time that earlier
    layers left free. The remaining time has no name.
    """
    offset = parts["offset_ns"]
    starts, ends = bounds(parts)
    lengths = ends - starts
    part, name, operator = (
        Packed(pieces.stored(column)) for column in ("part", "name", "operator")
    )
    time_start, is_launcher = pieces["start_ns"], pieces["is_own"]
    piece_start = part.pick(offset - starts) + time_start
    piece_end = piece_start + (pieces["end_ns"] - time_start)
    free = Intervals.single(0, int(lengths.sum()))
    found = []
    for layer in _priority_layers(parts, pieces):
        rows = layer[np.argsort(piece_start[layer])]
        begins, finishes = piece_start[rows], piece_end[rows]
        row, _, *times = overlaps(begins, finishes, free.starts, free.ends)
        row = rows[row]
        by = _by_codes(is_launcher[row])
        found.append((Packed(part[row]), *times, name[row], operator[row], by))
        free = free - Intervals.union_of(begins, finishes)

    row, _, axis_start, axis_end = overlaps(offset, offset + lengths, free.starts, free.ends)
    no_name = Packed.repeated(-1, len(row))
    found.append(
        (Packed(row), axis_start, axis_end, no_name, no_name, Packed.repeated(0, len(row)))
    )
    part_columns, axis_starts, axis_ends, *others = zip(*found, strict=True)
    axis_start, axis_end = map(np.concatenate, (axis_starts, axis_ends))
    part, name, operator, by = map(Packed.joined, (part_columns, *others))
    to_time = part.pick(starts - offset)
    return ChargedPieces(part, axis_start + to_time, axis_end + to_time, name, operator, by)


def _by_codes(is_launcher: Bools) -> Packed:
    """Return the place in `BY` of each piece, given whether the launching thread did it."""
    return Packed.below(len(BY), np.where(is_launcher, LAUNCHING, OTHER))


def _priority_layers(parts: Table, pieces: Table) -> Iterator[Ints]:
    """Yield row numbers of ``pieces`` in order of priority, one priority at a time."""
    is_launcher, doing = pieces["is_own"], pieces["doing"]
    yield np.flatnonzero(is_launcher & (doing != Doing.WAITS))
    others = np.flatnonzero(~is_launcher & (doing == Doing.RUNS))
    rank = _rank_threads(parts, pieces.take(others)) if len(others) else others
    for place in range(int(rank.max(initial=-1)) + 1):
        yield others[rank == place]
    yield np.flatnonzero(is_launcher & (doing == Doing.WAITS))


def _rank_threads(parts: Table, pieces: Table) -> Ints:
    """Return the rank of each piece's thread within its gap: 0 for the most recorded time."""
    gap, lane = parts["gap"][pieces["part"]], pieces["lane"]
    n_lanes = int(lane.max(initial=0)) + 1
    pairs, place = np.unique(gap * n_lanes + lane, return_inverse=True)
    covered = sums_at(place, lengths_of(pieces), len(pairs))
    order = np.lexsort((-covered, pairs // n_lanes))
    owner = (pairs // n_lanes)[order]
    rank = np.empty(len(pairs), np.int64)
    rank[order] = groups_of(owner).earlier
    return rank[place]


_Columns: TypeAlias = tuple[Packed | Array, ...]
"""Columns of charges: gap, start_ns, end_ns, cause, name, operator, by."""

NOTHING: Final = "(nothing recorded)"
"""Name in tables and sentences for time in which nothing was recorded on the host."""

CAUSES_CHARGED_TO_HOST: Final = (
    *("data", "synchronizing", "communication", "launch", "host"),
    *("edge", "unknown"),
)
"""Causes of idle time that are charged to host activity.

For other causes, no thread delays a device.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Charges:
    """Host activity during gaps, as two tables.

    ``times`` lists what each gap is charged to. ``running`` lists everything that ran during the
    gap.

    Both have the columns gap (row in `find_gaps`), device, start_ns, end_ns, cause (one of
    `CAUSES`), name (the innermost name), operator (the outermost operator around the name, or the
    name itself if there is none), and by (one of `BY`). ``times`` is sorted by gap and start, and
    its rows fill every gap. Its name is "" where nothing was recorded or no thread delayed the
    device. ``running`` has the innermost names of all threads of the process, without names that
    only wait. Rows of different threads overlap.
    """

    times: Table
    running: Table


@of_window
def find_charges(trace: Trace) -> Charges:
    """Return what the gaps of the devices in the window are charged to."""
    parts = _host_parts(trace)
    lanes = lanes_within(trace, unions_by(parts))
    pieces = find_host_pieces(parts, lanes).on_disk()
    chosen = choose_charges(parts, pieces)
    return Charges(
        _all_charges(trace, parts, chosen, lanes), _running_names(trace, parts, pieces, lanes)
    )


@of_window
def find_host_charges(trace: Trace) -> Table:
    """Return the rows of `Charges.times` with a cause on the host, and their length ``ns``.

    Names and operators that are "" are replaced by `NOTHING`.
    """
    times = find_charges(trace).times
    times = times.take(times["cause"].isin(CAUSES_CHARGED_TO_HOST))
    texts = np.append(NOTHING, times["name"].texts[1:])
    named = {column: Names(times[column].packed, texts) for column in ("name", "operator")}
    return times.assign(**named, ns=lengths_of(times))


def work_of_main_threads(trace: Trace, times: Mapping[int, Intervals]) -> Table:
    """Return what the main thread of each process did in its ``times``.

    One row per piece of time: start_ns, end_ns, ns, name, and operator (as in `Charges`).
    """
    lanes, main = lanes_within(trace, times), _main_threads(trace)
    none = np.empty(0, np.int64)
    names = ("name", "operator", "start_ns", "end_ns")
    found = [Table(dict.fromkeys(names, none))]
    for lane in lanes.lanes:
        if main.get(lane.process) == lane.thread:
            time = times[lane.process]
            row, _, *bounds_ns = overlaps(lane.starts, lane.ends, time.starts, time.ends)
            columns = (lane.name[row], lane.operator[row], *bounds_ns)
            found.append(Table(dict(zip(names, columns, strict=True))))
    table, texts = Table.stacked(found), objects(lanes.names)
    named = {name: Names(table[name], texts) for name in ("name", "operator")}
    return table.assign(**named, ns=lengths_of(table))


def time_by_name(rows: Table) -> dict[str, int]:
    """Return the time in ns that each name was open in ``rows`` of `Charges`, largest first.

    Time in which several threads have the same name open counts once per device.
    """
    names = rows["name"].texts
    device, numbers = places_of(rows["device"])
    n_names = max(1, len(names))
    keys = device.wide() * n_names + rows["name"].codes
    covered = union_lengths(keys, rows["start_ns"], rows["end_ns"], len(numbers) * n_names)
    totals = covered.reshape(-1, n_names).sum(axis=0)
    order = np.argsort(-totals, kind="stable")
    return {names[i]: int(totals[i]) for i in order if totals[i]}


def _host_parts(trace: Trace) -> Table:
    """Return the parts of gaps with a cause on the host, and which thread ends each gap.

    The added columns are process, thread, and offset_ns. ``offset_ns`` is the start of each part on
    an axis on which all parts follow one another. On this axis, gaps of different devices do not
    overlap.
    """
    gaps, parts = find_gaps(trace), find_idle_parts(trace)
    is_host_cause = is_in(parts["cause"], [CAUSES.index(name) for name in CAUSES_CHARGED_TO_HOST])
    parts = parts.take(is_host_cause)
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
    """Return, by process, the thread with the most launches.

    If a process has no launches, use the thread with the most ranges, operators, or calls, in this
    order.
    """
    calls = trace.api_calls
    launches = calls.select("process", "thread").take(is_launch(calls["name"]))
    found: dict[int, int] = {}
    for table in (calls, trace.host_ops, trace.ranges, launches):
        lanes = busiest_lanes(rows_by_values(table["process"], table["thread"]))
        found |= {process: thread for process, (_, thread) in lanes.items()}
    return found


def _all_charges(trace: Trace, parts: Table, chosen: ChargedPieces, lanes: HostLanes) -> Table:
    """Return the charges of all gaps, including gaps in which no thread delays a device."""
    all_parts = find_idle_parts(trace)
    others = all_parts.take(
        ~is_in(all_parts["cause"], [CAUSES.index(column) for column in CAUSES_CHARGED_TO_HOST])
    )
    other_columns = (others.stored(column) for column in ("gap", "start_ns", "end_ns", "cause"))
    none, no_thread = (Packed.repeated(value, len(others)) for value in (-1, 0))
    columns = [
        *zip(
            _with_gap_and_cause(parts, chosen), (*other_columns, none, none, no_thread), strict=True
        )
    ]
    order = Packed(np.lexsort([np.asarray(joined_numbers(columns[at])) for at in (1, 0)]))
    # One column at a time, to limit memory use.
    joined = [joined_numbers(columns.pop(0))[order.stored] for _ in range(len(columns))]
    del order
    return _charge_table(trace, _merge_adjacent(joined), lanes)


def _running_names(trace: Trace, parts: Table, pieces: Table, lanes: HostLanes) -> Table:
    """Return table `Charges.running`."""
    runs = pieces.take(pieces["doing"] == Doing.RUNS)
    part, name, operator = (Packed(runs.stored(column)) for column in ("part", "name", "operator"))
    chosen = ChargedPieces(part, *bounds(runs), name, operator, _by_codes(runs["is_own"]))
    return _charge_table(trace, _with_gap_and_cause(parts, chosen), lanes)


def _with_gap_and_cause(parts: Table, chosen: ChargedPieces) -> _Columns:
    """Return the columns of ``chosen``, with the gap and cause of each part instead of the part."""
    part, starts, ends, name, operator, by = chosen
    gap, cause = (Packed(parts.stored(column))[part] for column in ("gap", "cause"))
    return gap, starts, ends, cause, name, operator, by


def _charge_table(trace: Trace, columns: _Columns, lanes: HostLanes) -> Table:
    """Return a table of `Charges` with the text of names, causes, and threads."""
    gap, starts, ends, cause, name, operator, by = columns
    names = objects(("", *lanes.names))
    name, operator = (Packed.below(len(names), np.asarray(codes) + 1) for codes in (name, operator))
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


def _merge_adjacent(columns: list[Packed | Array]) -> _Columns:
    """Return the columns with adjacent rows merged if they differ only in their times.

    Remove each column from the list ``columns`` before the next one is merged, so that only one
    column is in memory twice.
    """
    first = np.flatnonzero(are_first(columns[0], *columns[3:]))
    last = np.append(first[1:], len(columns[0]))[: len(first)] - 1
    rows = [first, first, last, *[first] * (len(columns) - 3)]
    return tuple(columns.pop(0)[at] for at in rows)
