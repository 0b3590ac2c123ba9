"""When each rank arrives at each shared collective, and what it did before.

A shared collective ends on all ranks at the same time. Between the end of one collective and the
arrival at the next, a rank does not wait for other ranks, so these times can be compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from itertools import pairwise
from operator import or_
from typing import Final, TypeAlias

import numpy as np

from traceprof.measures.collectives.blame import beyond_others, pieces_of
from traceprof.measures.collectives.matches import Matches, find_matches
from traceprof.measures.collectives.waits import matches_in_step
from traceprof.measures.facts import fact, of_window
from traceprof.measures.host.phases import phases_of_work
from traceprof.measures.host.states import find_host_phases
from traceprof.measures.rows import are_first, bounds, rows_by, unions_of
from traceprof.model.activity import Activity
from traceprof.model.compact import CompactTable
from traceprof.model.intervals import Int64Array, Intervals
from traceprof.model.packed import Packed
from traceprof.model.ranks import Ranks
from traceprof.model.table import Table
from traceprof.model.trace import Trace
from traceprof.names.ranges import PHASES, UNCLAIMED

NOT_RECORDED: Final = "the time before its recording"
DEVICE_IDLE: Final = "device idle"
ON_HOST: Final = " (device idle)"
"""Suffix of a host phase during which the device was idle."""
USED_TABLES: Final = (
    *("kernels", "kernel_shapes", "copies", "collectives", "api_calls", "ranges", "host_ops"),
    *("processes", "devices"),
)
"""Tables that analyses of lateness read: arrivals, and what the ranks did before."""
_KNOWN_COLUMNS: Final = ("match", "member", "late_ns")
_OF_PROCESSES: Final = ("api_calls", "host_ops", "ranges", "kernels", "collectives")


_ProcessPhases: TypeAlias = tuple[Mapping[str, Intervals], Intervals, str]
"""The times of each phase of a process, their union, and the name for the rest of the time."""
_MemberSpans: TypeAlias = tuple[int, int, Int64Array, Int64Array]
"""A member, its process, and the starts and ends of spans."""


@of_window
def find_arrivals(ranks: Ranks) -> CompactTable:
    """Return one row per rank and shared collective, sorted by start of the last rank.

    Sends and receives are not included, because ranks wait in them by design (a pipeline).
    Collectives before the ranks were in step (`matches_in_step`) are not included either.

    Columns: match, member, late_ns (start minus the median start of the other ranks), and one
    column per phase with its time since the previous collective, or since the start of the window.
    With recorded device work, the phases are: device phases, host phases while the device was idle
    (`ON_HOST`), and `DEVICE_IDLE` for the rest. Without it, they are host phases and "outside any
    phase" for the rest. `NOT_RECORDED` is time before the first event of the rank: the rank was
    late before its recording started.
    """
    matches = find_matches(ranks).collectives
    rows = matches.shared
    rows = rows.take(np.lexsort((rows["start_ns"], rows["member"])))
    late_ns = beyond_others(rows["start_ns"], rows["match"])
    known = {"match": rows["match"], "member": rows["member"], "late_ns": late_ns}
    order = _order_in_step(ranks, matches, rows)
    found = CompactTable({name: order.pick(values) for name, values in known.items()})
    del known, late_ns
    for name, spent in _time_in_phases(ranks, matches, rows):
        found = found.assign(**{name: order.pick(spent)})
    return found


def _order_in_step(ranks: Ranks, matches: Matches, rows: CompactTable) -> Packed:
    """Return the indices of the rows whose ranks were in step, sorted by start of the last rank."""
    in_step = Matches(matches.members, rows, matches_in_step(ranks).table)
    known = np.flatnonzero(in_step.has_match_in(in_step.table["match"]))
    in_step_rows = rows.take(known)
    order = np.lexsort((in_step_rows["member"], in_step.per_row(in_step_rows, "last_start_ns")))
    return Packed.below(len(rows), known[order])


def phases_of_arrivals(arrivals: CompactTable) -> list[str]:
    """Return the columns of `find_arrivals` that are phases."""
    return [name for name in arrivals if name not in _KNOWN_COLUMNS]


@of_window
def excess_of_members(ranks: Ranks) -> Table:
    """Return the total excess of each phase before arrivals, in ns.

    The excess is the time beyond the median of the other ranks. One row per member (in the order of
    `find_members`), one column per phase.
    """
    arrivals = find_arrivals(ranks)
    return excess_by(arrivals, arrivals["member"], len(find_matches(ranks).members))


def excess_by(arrivals: CompactTable, place: Int64Array, n: int) -> Table:
    """Return the same as `excess_of_members`, summed by ``place`` (0 to ``n`` - 1) of each arrival.

    Arrivals with a negative place do not count.
    """
    sums = {name: np.zeros(n) for name in phases_of_arrivals(arrivals)}
    for rows in pieces_of(arrivals["match"]):
        piece, piece_place = arrivals.take(rows), place[rows]
        kept, match = piece_place >= 0, piece["match"]
        for name in sums:
            excess = np.nan_to_num(beyond_others(piece[name], match))
            sums[name] += np.bincount(piece_place[kept], excess[kept], minlength=n)
    return Table(sums, n)


def _time_in_phases(
    ranks: Ranks, matches: Matches, rows: CompactTable
) -> Iterator[tuple[str, Int64Array]]:
    """Yield each phase with its ns before each of ``rows``, which are sorted by member."""
    member_of_row = rows["member"]
    borders = [*np.flatnonzero(are_first(member_of_row)).tolist(), len(member_of_row)]
    rows_of = {int(member_of_row[begin]): slice(begin, end) for begin, end in pairwise(borders)}
    measured = ranks.each_of(_measure_spans, _spans_before_arrivals(ranks, matches, rows, rows_of))
    spent = {member: phases for of_part in measured for member, phases in of_part.items()}
    del measured
    for name in dict.fromkeys(name for member in rows_of for name in spent[member]):
        column = np.zeros(len(rows), np.int64)
        for member, member_rows in rows_of.items():
            if name in spent[member]:
                column[member_rows] = spent[member].pop(name)
        yield name, column


def _spans_before_arrivals(
    ranks: Ranks, matches: Matches, rows: CompactTable, rows_of: Mapping[int, slice]
) -> list[tuple[tuple[_MemberSpans, ...]]]:
    """Return, by part of the ranks, the spans before the arrivals of its members."""
    spans_of_part: list[list[_MemberSpans]] = [[] for _ in ranks.parts]
    starts, ends, part = (rows[name] for name in ("start_ns", "end_ns", "part"))
    begin_ns = ranks.span.start_ns
    for member, member_rows in rows_of.items():
        # The end of the previous collective of the rank, in order of start.
        previous_end = np.maximum.accumulate(np.append(begin_ns, ends[member_rows]))[:-1]
        previous_end = np.minimum(previous_end, starts[member_rows])
        span = member, matches.members[member].process, previous_end, starts[member_rows]
        spans_of_part[int(part[member_rows.start])].append(span)
    return [(tuple(member_rows),) for member_rows in spans_of_part]


def _measure_spans(trace: Trace, spans: tuple[_MemberSpans, ...]) -> dict[int, dict[str, Packed]]:
    """Return, by member, the ns of every phase in each of its spans, in compact arrays."""
    phases_of = _phases_of_processes(trace) if spans else {}
    found = {}
    for member, process, starts, ends in spans:
        phases, claimed, remainder = phases_of[process]
        spent = {name: time.covered_ns(starts, ends) for name, time in phases.items()}
        unclaimed = ends - starts - claimed.covered_ns(starts, ends)
        spent[remainder] = unclaimed + spent.get(remainder, 0)
        found[member] = {name: Packed(ns) for name, ns in spent.items()}
    return found


@fact
def _phases_of_processes(trace: Trace) -> Mapping[int, _ProcessPhases]:
    """Return the phases of each process over the whole recording."""
    of_hosts = {phases.process: phases.times for phases in find_host_phases(trace)}
    has_device = "kernels" in trace.recorded
    on_device = _phases_on_devices(trace) if has_device else {}
    found = {}
    for process, first in _first_events(trace).items():
        phases = {NOT_RECORDED: Intervals.single(trace.span.start_ns, first)}
        on_host = {n: t for n, t in of_hosts.get(process, {}).items() if n != "communication"}
        if has_device:
            phases |= on_device.get(process, {})
            busy = reduce(or_, phases.values())
            on_host = {f"{name}{ON_HOST}": time - busy for name, time in on_host.items()}
        phases |= on_host
        found[process] = (
            phases,
            reduce(or_, phases.values()),
            DEVICE_IDLE if has_device else UNCLAIMED,
        )
    return found


def _phases_on_devices(trace: Trace) -> dict[int, dict[str, Intervals]]:
    """Return, by process, when its devices computed for each phase."""
    kernels = trace.kernels
    computing = kernels["activity"] != Activity.COMMUNICATION.value
    keys = kernels["process"], phases_of_work(trace, "kernels")
    found: dict[int, dict[str, Intervals]] = {}
    for (owner, phase), time in unions_of(*bounds(kernels), *keys, where=computing).items():
        found.setdefault(owner, {})[PHASES[phase] if phase >= 0 else UNCLAIMED] = time
    return found


def _first_events(trace: Trace) -> dict[int, int]:
    """Return the time of the first event of each process."""
    found: dict[int, int] = {}
    for table in map(trace.table, _OF_PROCESSES):
        for process, rows in rows_by(table, "process").items():
            first_ns = int(table["start_ns"][rows[0]])  # tables are sorted by start
            found[process] = min(first_ns, found.get(process, first_ns))
    return found
