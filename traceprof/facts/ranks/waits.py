"""Who waits for whom, when, and what of it is but the skew with which the recordings began.

A rank waits in a collective, or for a message, from its own start to that of the last rank. Ranks
are in step once a collective of all of them has released them: before, nobody knows who was late.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.facts.cache import fact, of_window
from traceprof.facts.collectives.matches import Matches, find_matches
from traceprof.facts.device.times import device_times
from traceprof.facts.ranks.ends import ENDS_TOGETHER
from traceprof.model.intervals import Intervals
from traceprof.model.ranks import Ranks
from traceprof.model.tables import ABSENT

__all__ = ["find_waits", "matches_in_step", "waiting_of_members"]

_Int64Array = npt.NDArray[np.int64]

_MESSAGE: Final = "send"
_PAIR: Final = 2


@of_window
def find_waits(ranks: Ranks) -> pd.DataFrame:
    """Return one row per rank and shared collective or message, by the start of the last rank.

    Columns: match, member, last_member (places in `find_members`), is_message (of two ranks, that
    play different parts), device, start_ns, last_start_ns, wait_ns (until the last rank came, in
    step), exposed_ns (of that, when the rank did not compute; each ns of a rank in one row alone),
    skew_ns (the same before the ranks were in step: it belongs to nobody), is_in_step (whether they
    were when the first of them came), sync_ns (when all these ranks were last released together
    before; `ABSENT`: never), own_ns (since then until its start, without exposed waiting),
    contradicted_ns (how much earlier it ended than the last one started).
    """
    found = _waits_of_whole(ranks)
    if ranks.uncut is None:
        return found
    inside = ranks.span.holds(found["last_start_ns"].to_numpy(np.int64))
    return found[inside].reset_index(drop=True)


def matches_in_step(ranks: Ranks) -> Matches:
    """Return the matches whose ranks were in step before the first of them came.

    In the others who came late is not known: the recordings, and the set-up, began at different
    times. Without messages.
    """
    matches = find_matches(ranks).collectives
    table = matches.table[matches.table.index.isin(_in_step(ranks))]
    rows = matches.rows[matches.rows["match"].isin(table.index)].reset_index(drop=True)
    return Matches(matches.members, rows, table)


@of_window
def _in_step(ranks: Ranks) -> _Int64Array:
    waits = find_waits(ranks)
    found: _Int64Array = waits.loc[waits["is_in_step"], "match"].unique()
    return found


@fact
def waiting_of_members(ranks: Ranks) -> tuple[Intervals, ...]:
    """Return when each rank waited for others and did not compute, by place in `find_members`."""
    matches = find_matches(ranks)
    waiting = [Intervals.empty() for _ in matches.members]
    computing = _computing(ranks)
    rows = matches.rows[(matches.rows["match"] >= 0) & (matches.rows["member"] >= 0)]
    starts, releases = rows["start_ns"].to_numpy(np.int64), _releases(matches, rows)
    device = rows["device"].to_numpy(np.int64)
    places = rows["member"].to_numpy(np.int64)
    for own in rows.groupby(["member", "device"]).indices.values():
        held = Intervals.union_of(starts[own], releases[own])
        place = int(places[own[0]])
        waiting[place] |= held - computing.get(int(device[own[0]]), Intervals.empty())
    return tuple(waiting)


@fact
def _waits_of_whole(ranks: Ranks) -> pd.DataFrame:
    matches = find_matches(ranks)
    rows = matches.rows[(matches.rows["match"] >= 0) & (matches.rows["member"] >= 0)]
    shared = matches.table.loc[rows["match"]]
    last_ns = shared["last_start_ns"].to_numpy(np.int64)
    waits = pd.DataFrame(
        {
            "match": rows["match"].to_numpy(np.int64),
            "member": rows["member"].to_numpy(np.int64),
            "last_member": shared["last_member"].to_numpy(np.int64),
            "is_message": _is_message(shared),
            "device": rows["device"].to_numpy(np.int64),
            "start_ns": rows["start_ns"].to_numpy(np.int64),
            "last_start_ns": last_ns,
            "release_ns": _releases(matches, rows),
            "contradicted_ns": np.where(
                shared["op"].isin(ENDS_TOGETHER),
                np.clip(last_ns - rows["end_ns"].to_numpy(np.int64), 0, None),
                0,
            ),
        }
    )
    waits = waits.sort_values(["last_start_ns", "match", "member"], ignore_index=True)
    waits = waits.assign(**_syncs(matches, waits))
    waits = waits.assign(**_exposed(ranks, waits))
    return waits.drop(columns=["first_sync_ns", "release_ns"])


def _releases(matches: Matches, rows: pd.DataFrame) -> _Int64Array:
    last_ns = matches.table["last_start_ns"].reindex(rows["match"]).to_numpy(np.int64)
    ended = np.minimum(last_ns, rows["end_ns"].to_numpy(np.int64))
    return np.asarray(np.maximum(ended, rows["start_ns"].to_numpy(np.int64)), np.int64)


def _is_message(shared: pd.DataFrame) -> npt.NDArray[np.bool_]:
    is_exchange = (shared["op"] == "send_recv") & (shared["members"] == _PAIR)
    return np.asarray((shared["op"] == _MESSAGE) | is_exchange, np.bool_)


def _computing(ranks: Ranks) -> Mapping[int, Intervals]:
    return {
        device: time.compute for part in ranks.whole for device, time in device_times(part).items()
    }


def _syncs(matches: Matches, waits: pd.DataFrame) -> dict[str, Any]:
    """Return when all ranks of each collective were first released together, and last before it.

    By collectives of these ranks, or of more. Nobody's first is `_NEVER`.
    """
    together = matches.table["op"].isin((*ENDS_TOGETHER, _MESSAGE))
    by_match = waits.groupby("match", sort=False)
    table = pd.DataFrame(
        {
            "release_ns": by_match["last_start_ns"].first(),
            "begin_ns": by_match["start_ns"].min(),
            "holds": together.reindex(by_match["member"].first().index),
        }
    )
    places: dict[frozenset[int], list[int]] = {}
    for place, group in enumerate(_members_by_match(waits)):
        places.setdefault(group, []).append(place)
    groups = {group: np.array(own, np.int64) for group, own in places.items()}
    above = _groups_above(list(groups))
    release_ns, begin_ns = (table[n].to_numpy(np.int64) for n in ("release_ns", "begin_ns"))
    holds = table["holds"].to_numpy(np.bool_)
    first, last = np.full(len(table), _NEVER), np.full(len(table), ABSENT)
    in_step = np.zeros(len(table), np.bool_)
    released = {ranks: np.sort(release_ns[rows][holds[rows]]) for ranks, rows in groups.items()}
    for ranks, rows in groups.items():
        earliest, latest = _NEVER, np.full(len(rows), ABSENT, np.int64)
        for larger in above[ranks]:
            times = released[larger]
            if not len(times):
                continue
            earliest = min(earliest, int(times[0]))
            before = np.searchsorted(times, begin_ns[rows], side="right") - 1
            latest = np.maximum(latest, np.where(before >= 0, times[before], ABSENT))
        # Begun by some before the ranks were first in step: what comes after that is known.
        is_open = (latest == ABSENT) & (release_ns[rows] > earliest)
        first[rows] = earliest
        in_step[rows] = latest != ABSENT
        last[rows] = np.where(is_open, earliest, latest)
    of_row = (
        pd.Series(np.arange(len(table)), table.index).reindex(waits["match"]).to_numpy(np.int64)
    )
    return {
        "first_sync_ns": first[of_row],
        "sync_ns": last[of_row],
        "is_in_step": in_step[of_row],
    }


def _members_by_match(waits: pd.DataFrame) -> list[frozenset[int]]:
    """Return the ranks of each match, in the order in which the matches come."""
    number, matches = pd.factorize(waits["match"].to_numpy())
    members = waits["member"].to_numpy()[np.argsort(number, kind="stable")].tolist()
    ends = np.cumsum(np.bincount(number, minlength=len(matches))).tolist()
    return [frozenset(members[a:b]) for a, b in pairwise([0, *ends])]


_NEVER: Final = int(np.iinfo(np.int64).max)


def _groups_above(groups: list[frozenset[int]]) -> dict[frozenset[int], list[frozenset[int]]]:
    """Return, of each group of ranks, itself and those that hold all of it."""
    with_rank: dict[int, list[frozenset[int]]] = {}
    for group in groups:
        for rank in group:
            with_rank.setdefault(rank, []).append(group)
    return {
        group: [other for other in min((with_rank[r] for r in group), key=len) if group <= other]
        for group in groups
    }


def _exposed(ranks: Ranks, waits: pd.DataFrame) -> dict[str, Any]:
    """Return how long each row waited, in step and before, and what its rank did itself."""
    starts, releases, syncs, firsts = (
        waits[name].to_numpy(np.int64)
        for name in ("start_ns", "release_ns", "sync_ns", "first_sync_ns")
    )
    in_step = np.clip(firsts, starts, releases)
    exposed, skew, own_ns = (np.zeros(len(waits), np.int64) for _ in range(3))
    waiting = waiting_of_members(ranks)
    for member, rows in waits.groupby("member").indices.items():
        time = waiting[int(str(member))]
        order = rows[np.argsort(starts[rows], kind="stable")]
        # What an earlier row of the rank waits for already is not counted twice.
        covered = np.maximum.accumulate(np.concatenate([[ABSENT], releases[order][:-1]]))
        begin = np.minimum(np.maximum(starts[order], covered), releases[order])
        split = np.maximum(begin, in_step[order])
        skew[order] = time.covered_ns(begin, split)
        exposed[order] = time.covered_ns(split, releases[order])
        since = np.maximum(syncs[rows], 0)
        until = np.maximum(starts[rows], since)
        own_ns[rows] = until - since - time.covered_ns(since, until)
    return {
        "wait_ns": releases - in_step,
        "exposed_ns": exposed,
        "skew_ns": skew,
        "own_ns": own_ns,
    }
