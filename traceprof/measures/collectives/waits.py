"""Measure how long each rank waits for the last rank, and separate initial skew from waiting.

A rank waits in a collective, or for a message, from its start to the start of the last rank. Ranks
are in step after a collective of all of them has released them. Before that, recordings and setup
started at different times, so it is unknown which rank was late.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.measures.collectives.clocks import BROADCAST, ENDS_TOGETHER
from traceprof.measures.collectives.matches import Matches, find_matches
from traceprof.measures.device.times import device_times
from traceprof.measures.facts import fact, of_window
from traceprof.measures.rows import are_first
from traceprof.model.compact import CompactTable
from traceprof.model.grouping import rows_by_value, rows_by_values
from traceprof.model.intervals import Int64Array, Intervals
from traceprof.model.packed import Packed
from traceprof.model.ranks import Ranks
from traceprof.model.table import Table
from traceprof.model.tables import ABSENT

_MESSAGE_OP: Final = "send"
_PAIR_SIZE: Final = 2
_NEVER: Final = int(np.iinfo(np.int64).max)
_ROWS_PER_PIECE: Final = 200_000
"""Maximum number of rows that `find_rows_in` looks up at once, to limit memory."""


@of_window
def find_waits(ranks: Ranks) -> CompactTable:
    """Return one row per rank and shared collective or message, sorted by start of the last rank.

    Columns: match, member, last_member (positions in `find_members`), is_message (two ranks with
    different roles), device, start_ns, last_start_ns, wait_ns (waiting for the last rank, in step),
    exposed_ns (the part of it in which the rank did not compute; each ns of a rank counts in one
    row only), skew_ns (the same before the ranks were in step; no rank causes it), is_in_step
    (whether the ranks were in step before the first of them arrived), sync_ns (when all these ranks
    were last released together before; `ABSENT`: never), active_ns (from sync_ns to the start of
    the rank, without exposed waiting), contradicted_ns (time between the end on this rank and the
    start on the last rank; above 0 means wrong clocks or a wrong match).
    """
    found = _waits_of_whole(ranks)
    return found if ranks.uncut is None else found.take(ranks.span.holds(found["last_start_ns"]))


def matches_in_step(ranks: Ranks) -> Matches:
    """Return the collectives whose ranks were in step before the first of them arrived.

    In other collectives the late rank is unknown, since recordings and setup started at different
    times. Messages are not included.
    """
    matches = find_matches(ranks).collectives
    table = matches.table.take(np.isin(matches.table["match"], _in_step(ranks)))
    return Matches(matches.members, matches.rows.take(matches.has_match_in(table["match"])), table)


@of_window
def _in_step(ranks: Ranks) -> Int64Array:
    """Return the numbers of the matches whose ranks were in step."""
    waits = find_waits(ranks)
    found: Int64Array = np.unique(waits["match"][waits["is_in_step"]])
    return found


@fact
def waiting_of_members(ranks: Ranks) -> tuple[Intervals, ...]:
    """Return when each rank waited for others without computing, by position in `find_members`."""
    return _waiting(ranks, find_matches(ranks))


@fact
def waiting_in_collectives(ranks: Ranks) -> tuple[Intervals, ...]:
    """Return the same as `waiting_of_members` for collectives only, without messages."""
    return _waiting(ranks, find_matches(ranks).collectives)


def _waiting(ranks: Ranks, matches: Matches) -> tuple[Intervals, ...]:
    """Return when each member waited in ``matches`` without computing."""
    waiting = [Intervals.empty() for _ in matches.members]
    computing = computing_of_devices(ranks.whole)
    rows = _rows_of_matches(matches)
    starts, releases = rows["start_ns"], _find_releases(matches, rows)
    for (place, device), lane_rows in rows_by_values(rows["member"], rows["device"]).items():
        waited = Intervals.union_of(starts[lane_rows], releases[lane_rows])
        waiting[place] |= waited - computing.get(device, Intervals.empty())
    return tuple(waiting)


def _rows_of_matches(matches: Matches) -> CompactTable:
    """Return the rows that have a match and a member."""
    rows = matches.shared
    return rows.take(rows["member"] >= 0)


@fact
def _waits_of_whole(ranks: Ranks) -> CompactTable:
    matches = find_matches(ranks)
    rows = _rows_of_matches(matches)
    last_ns = matches.per_row(rows, "last_start_ns")
    order = np.lexsort((rows["member"], rows["match"], last_ns))
    rows, last_ns = rows.take(order), last_ns[order]
    del order
    ends_together = matches.table["op"].isin(ENDS_TOGETHER)
    known = CompactTable(
        {
            "match": rows["match"],
            "member": rows["member"],
            "last_member": matches.per_row(rows, "last_member"),
            "is_message": _is_message(matches)[matches.places(rows)],
            "device": rows["device"],
            "start_ns": rows["start_ns"],
            "last_start_ns": last_ns,
        }
    )
    contradicted = np.clip(last_ns - rows["end_ns"], 0, None)
    # A send may end before its receive starts. A receive cannot end before its send starts.
    contradicted[~ends_together[matches.places(rows)] & (rows["op"] != "recv")] = 0
    known = known.assign(contradicted_ns=contradicted)
    del contradicted, last_ns
    first_sync, synced = _find_syncs(matches, known, rows["end_ns"])
    known = known.assign(**synced)
    return known.assign(**_measure_waits(ranks, known, _find_releases(matches, rows), first_sync))


def _find_releases(matches: Matches, rows: Table) -> Int64Array:
    """Return the end of waiting in each row: the start of the last rank, within the row."""
    ended = np.minimum(matches.per_row(rows, "last_start_ns"), rows["end_ns"])
    return np.asarray(np.maximum(ended, rows["start_ns"]), np.int64)


def _is_message(matches: Matches) -> npt.NDArray[np.bool_]:
    """Return which matches are messages between two ranks."""
    table = matches.table
    is_exchange = (table["op"] == "send_recv") & (table["members"] == _PAIR_SIZE)
    return np.asarray((table["op"] == _MESSAGE_OP) | is_exchange, np.bool_)


def computing_of_devices(ranks: Ranks) -> Mapping[int, Intervals]:
    """Return, by device, when it computed in the window."""
    return {device: time.compute for part in ranks for device, time in device_times(part).items()}


def _find_syncs(
    matches: Matches, waits: Table, ends_ns: Int64Array
) -> tuple[Int64Array, dict[str, Any]]:
    """Find the first and the latest common release of the ranks of each collective.

    Releases come from collectives of the same ranks or of more ranks. ``ends_ns`` are the ends of
    the rows. Return the first release per
    row (`_NEVER` without any), and columns sync_ns and is_in_step.
    """
    is_first = are_first(waits["match"])
    firsts = np.flatnonzero(is_first)
    release_ns = waits["last_start_ns"][firsts]
    begin_ns = np.minimum.reduceat(waits["start_ns"], firsts)
    can_sync = matches.table["op"].isin((*ENDS_TOGETHER, _MESSAGE_OP))
    places = matches.places(waits.take(firsts))
    # The root of a broadcast need not wait. If all ranks were still in it when the last one
    # arrived, it released all of them.
    is_joint = np.minimum.reduceat(ends_ns, firsts) >= release_ns
    is_sync = can_sync[places] | (is_joint & (matches.table["op"] == BROADCAST)[places])
    of_group: dict[frozenset[int], list[int]] = {}
    for place, group in enumerate(_members_by_match(waits["member"], firsts)):
        of_group.setdefault(group, []).append(place)
    groups = {group: np.array(match_places, np.int64) for group, match_places in of_group.items()}
    supersets = _find_supersets(list(groups))
    first, last = np.full(len(firsts), _NEVER), np.full(len(firsts), ABSENT)
    in_step = np.zeros(len(firsts), np.bool_)
    released = {ranks: np.sort(release_ns[rows][is_sync[rows]]) for ranks, rows in groups.items()}
    for ranks, rows in groups.items():
        earliest, latest = _NEVER, np.full(len(rows), ABSENT, np.int64)
        for larger in supersets[ranks]:
            times = released[larger]
            if not len(times):
                continue
            earliest = min(earliest, int(times[0]))
            before = np.searchsorted(times, begin_ns[rows], side="right") - 1
            latest = np.maximum(latest, np.where(before >= 0, times[before], ABSENT))
        # Started by some ranks before the first sync and released after it: count from the sync.
        starts_before_sync = (latest == ABSENT) & (release_ns[rows] > earliest)
        first[rows] = earliest
        in_step[rows] = latest != ABSENT
        last[rows] = np.where(starts_before_sync, earliest, latest)
    of_row = np.cumsum(is_first) - 1
    return first[of_row], {"sync_ns": last[of_row], "is_in_step": in_step[of_row]}


def _members_by_match(members: Int64Array, firsts: Int64Array) -> Iterator[frozenset[int]]:
    """Yield the set of members of each match, in order of the matches."""
    known: dict[bytes, frozenset[int]] = {}
    for begin, end in pairwise([*firsts.tolist(), len(members)]):
        key = members[begin:end].tobytes()
        if key not in known:
            known[key] = frozenset(members[begin:end].tolist())
        yield known[key]


def _find_supersets(groups: list[frozenset[int]]) -> dict[frozenset[int], list[frozenset[int]]]:
    """Return, for each set of members, all sets that contain it, including itself."""
    with_rank: dict[int, list[frozenset[int]]] = {}
    for group in groups:
        for rank in group:
            with_rank.setdefault(rank, []).append(group)
    return {
        group: [other for other in min((with_rank[r] for r in group), key=len) if group <= other]
        for group in groups
    }


def _measure_waits(
    ranks: Ranks, waits: Table, releases: Int64Array, first_sync: Int64Array
) -> dict[str, Any]:
    """Return wait_ns, exposed_ns, skew_ns, and active_ns of each row."""
    starts, syncs = waits["start_ns"], waits["sync_ns"]
    in_step = np.clip(first_sync, starts, releases)
    exposed, skew, busy_ns = (np.zeros(len(waits), np.int64) for _ in range(3))
    waiting = waiting_of_members(ranks)
    for member, rows in rows_by_value(waits["member"]).items():
        time = waiting[member]
        order = rows[np.argsort(starts[rows], kind="stable")]
        # Time in which the rank waits in an earlier row is not counted twice.
        covered = np.maximum.accumulate(np.concatenate([[ABSENT], releases[order][:-1]]))
        begin = np.minimum(np.maximum(starts[order], covered), releases[order])
        split = np.maximum(begin, in_step[order])
        skew[order] = time.covered_ns(begin, split)
        exposed[order] = time.covered_ns(split, releases[order])
        since = np.maximum(syncs[rows], 0)
        until = np.maximum(starts[rows], since)
        busy_ns[rows] = until - since - time.covered_ns(since, until)
    return {
        "wait_ns": releases - in_step,
        "exposed_ns": exposed,
        "skew_ns": skew,
        "active_ns": busy_ns,
    }


def find_rows_in(table: Table, rows: Table) -> Int64Array:
    """Return the first row of ``table`` with the match and member of each of ``rows``.

    `ABSENT` if there is none, or if the row has no match or member.
    """
    n_members = 1 + int(max(columns["member"].max(initial=ABSENT) for columns in (table, rows)))
    found = np.full(len(rows), ABSENT, np.int64)
    if table.empty:
        return found
    sorted_keys = _keys(table, n_members)
    order = Packed(np.argsort(sorted_keys, kind="stable"))
    sorted_keys = order.pick(sorted_keys)
    # Look up in pieces: the temporary arrays take several times the memory of the rows.
    for begin in range(0, len(rows), _ROWS_PER_PIECE):
        places = np.arange(begin, min(begin + _ROWS_PER_PIECE, len(rows)))
        wanted = _keys(rows.take(places), n_members)
        place = np.minimum(np.searchsorted(sorted_keys, wanted), len(sorted_keys) - 1)
        is_there = (sorted_keys[place] == wanted) & (wanted >= 0)
        found[places[is_there]] = order[place[is_there]].wide()
    return found


def find_values_in(table: Table, rows: Table, name: str, nothing: int) -> Int64Array:
    """Return column ``name`` of ``table`` at the match and member of each of ``rows``.

    ``nothing`` is the value for rows that ``table`` does not have.
    """
    place = find_rows_in(table, rows)
    values = np.append(table[name], nothing)
    found: Int64Array = values[place]
    return found


def _keys(rows: Table, n_members: int) -> Int64Array:
    """Return a unique number for the match and member of each row; `ABSENT` without either."""
    keys: Int64Array = rows["match"] * np.int64(n_members)
    member = rows["member"]
    is_unknown = (keys < 0) | (member < 0)
    keys += member
    keys[is_unknown] = ABSENT
    return keys
