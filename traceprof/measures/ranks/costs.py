"""What slow ranks cost the others, since when, and what they do more of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.measures.collectives.blame import Blame, find_blame
from traceprof.measures.collectives.matches import find_matches
from traceprof.measures.collectives.members import find_members, member_of_rows
from traceprof.measures.collectives.waits import (
    computing_of_devices,
    find_waits,
    waiting_of_members,
    where_in,
)
from traceprof.measures.facts import of_window
from traceprof.measures.ranks.arrivals import ON_HOST, excess_of_members
from traceprof.measures.ranks.times import parts_of_members
from traceprof.measures.rows import ints, lengths_of
from traceprof.model.activity import Activity
from traceprof.model.compact import CompactTable
from traceprof.model.grouping import grouped_by, groups_of, numbered, places_of, rows_by_value
from traceprof.model.intervals import Int64Array, Intervals
from traceprof.model.ranks import Ranks
from traceprof.model.table import Table
from traceprof.model.tables import ABSENT
from traceprof.model.trace import DEVICE_TABLES, Trace

_Float64Array = npt.NDArray[np.float64]

_LEAST_SHARE: Final = 0.25
_LARGEST_ERROR: Final = 0.02
_REMEMBERED: Final = 8
"""How many meetings before tell where in its step a rank is."""

_USUAL: Final = 0.25
"""The quantile of the gaps of a kind that counts as usual: a rank may be slow half of the time."""


def saving_of(ranks: Ranks, shares: Mapping[int, float]) -> int | None:
    """Return how much sooner the last release would be, in ns.

    ``shares`` is what part of what a rank does itself would not be done, by place in
    `find_members`: first where it takes longer than usual, then everywhere alike. None where even
    the run as it was does not come out as it was: then what ranks wait for is not known well
    enough.
    """
    waits = find_waits(ranks)
    if waits.empty:
        return None
    order = _Order(ranks, waits)
    end_ns = int(waits["last_start_ns"].max())
    span = max(end_ns - int(waits["last_start_ns"].min()), 1)
    as_it_was = order.end_ns({})
    if abs(as_it_was - end_ns) > _LARGEST_ERROR * span:
        return None
    return max(round(as_it_was - order.end_ns(shares)), 0)


class _Order:
    """The waits in the order of their release; what each rank goes on from, and how much later."""

    def __init__(self, ranks: Ranks, waits: CompactTable) -> None:
        names = ("match", "member", "start_ns", "last_start_ns")
        self.match, self.member, self.start_ns, release_ns = ints(waits, *names)
        self.blocks = _blocks(ranks, waits)
        self.kind = _kinds(ranks, waits)
        self.after = np.full(len(waits), ABSENT, np.int64)
        self.gap_ns = np.zeros(len(waits), np.float64)
        for rows in rows_by_value(self.member).values():
            blocking = np.asarray(rows)[self.blocks[rows]]
            place = np.searchsorted(release_ns[blocking], self.start_ns[rows]) - 1
            known = place >= 0
            own = np.asarray(rows)[known]
            self.after[own] = blocking[place[known]]
            self.gap_ns[own] = self.start_ns[own] - release_ns[self.after[own]]

    def _left_out(self, member: int, share: float) -> _Float64Array:
        """Return what of each gap of a rank would not be, ``share`` of all of them together.

        A rank that is slow now and then is so in gaps that are longer than others of their kind:
        after the same sequence of meetings.
        """
        rows = np.flatnonzero(self.member == member)
        gaps = self.gap_ns[rows]
        alike = groups_of(_sequences(self.kind[rows]))
        longer = np.clip(gaps - alike.quantiles(gaps, _USUAL)[alike.number], 0, None)
        due = share * gaps.sum()
        less = longer * min(1.0, due / max(longer.sum(), 1))
        rest = gaps - less
        found = np.zeros(len(self.member), np.float64)
        found[rows] = less + rest * max(due - less.sum(), 0) / max(rest.sum(), 1)
        return found

    def end_ns(self, shares: Mapping[int, float]) -> float:
        """Return when the last collective releases its ranks, without some of what they do."""
        kept_ns = self.gap_ns.copy()
        for member, share in shares.items():
            kept_ns -= self._left_out(member, share)
        gaps: list[float] = kept_ns.tolist()
        match: list[int] = self.match.tolist()
        members: list[int] = self.member.tolist()
        after: list[int] = self.after.tolist()
        starts: list[int] = self.start_ns.tolist()
        blocks = self.blocks.tolist()
        free = [0.0] * len(match)
        latest: dict[int, float] = {}
        place, released = 0, 0.0
        while place < len(match):
            begin, release = place, 0.0
            while place < len(match) and match[place] == match[begin]:
                before = after[place]
                start = starts[place] if before < 0 else free[before] + gaps[place]
                release = max(release, start)
                place += 1
            for row in range(begin, place):
                if blocks[row]:
                    latest[members[row]] = max(latest.get(members[row], 0.0), release)
                    free[row] = latest[members[row]]
            released = max(released, release)
        return released


def _sequences(kinds: Int64Array) -> Int64Array:
    """Return a number for each of ``kinds`` that says which ones came last, itself included."""
    found, n = kinds, int(kinds.max(initial=0)) + 1
    for _ in range(_REMEMBERED):
        before = np.concatenate(([ABSENT], found[:-1]))
        found = places_of((before + 1) * n + kinds)[0].wide()
    return found


def _kinds(ranks: Ranks, waits: CompactTable) -> Int64Array:
    """Return a number for each row that says with whom its rank meets, and which end it is."""
    by_match, rows = groups_of(waits["match"]), find_matches(ranks).rows
    there = np.split(waits["member"][by_match.order], by_match.first[1:])
    number: dict[frozenset[int], int] = {}
    met = [number.setdefault(frozenset(own.tolist()), len(number)) for own in there]
    op = np.append(rows["op"].codes, ABSENT)[where_in(rows, waits)]
    return numbered(np.array(met)[by_match.number], op)[0].astype(np.int64)


def _blocks(ranks: Ranks, waits: CompactTable) -> npt.NDArray[np.bool_]:
    """Return whether the rank of each row goes on only when that is over: no compute runs then."""
    (at_ns,) = ints(waits, "last_start_ns")
    computing = computing_of_devices(ranks.whole)
    blocks = np.ones(len(waits), np.bool_)
    for device, rows in rows_by_value(waits["device"]).items():
        time = computing.get(device)
        if time is not None:
            blocks[rows] = time.covered_ns(at_ns[rows], at_ns[rows] + 1) == 0
    return blocks


@of_window
def cost_of(ranks: Ranks, places: tuple[int, ...]) -> int:
    """Return how much longer the run takes because of the ranks at ``places``, in ns.

    What another rank waits because of them on average and, as far as compute hides it from them
    alone, until the collectives that they come last to are done; no more than they do more
    themselves. In a pipeline less: had the slow one been faster, it would have waited itself while
    the pipeline fills; there the run is gone through again without what they do more.
    """
    blame = find_blame(ranks)
    own = np.array(places, np.int64)
    others = max(int(np.count_nonzero(blame.busy_ns)) - len(own), 1)
    charged = int(blame.charged_ns[own].sum()) // others
    excess = np.sort(blame.excess_ns[own])
    most_ns = int(excess[(len(excess) - 1) // 2])
    cost_ns = min(charged, most_ns)
    if not cost_ns:
        return 0
    if not find_waits(ranks)["is_message"].any():
        # For the others this is no waiting: it is not in what the slow ones do more, either.
        return cost_ns + _hidden_ns(ranks, places, others)
    busy = blame.busy_ns[own]
    shares = (blame.excess_ns[own] / np.maximum(busy, 1)).tolist()
    saving = saving_of(ranks, dict(zip(places, shares, strict=True)))
    return cost_ns if saving is None else saving


@of_window
def tails_after(ranks: Ranks, places: tuple[int, ...]) -> tuple[Intervals, ...]:
    """Return when each rank neither waits nor computes, in collectives that slow ones come last to.

    From the start of the last rank, one at ``places``, to the end; by place in `find_members`.
    Of what hosts carry out beside the devices nothing: no rank is done with it as others are.
    """
    matches = find_matches(ranks).collectives
    chosen = matches.table["match"][np.isin(matches.table["last_member"], places)]
    is_chosen = matches.among(chosen) & (matches.rows["member"] >= 0)
    if ranks.recorded & set(DEVICE_TABLES):
        is_chosen &= matches.rows["device"] != ABSENT
    rows = matches.rows.take(is_chosen)
    begin, end = matches.per_row(rows, "last_start_ns"), rows["end_ns"]
    device = rows["device"]
    computing = computing_of_devices(ranks)
    waiting = waiting_of_members(ranks.whole)
    tails = [Intervals.empty() for _ in matches.members]
    for place, own in rows_by_value(rows["member"]).items():
        time = Intervals.union_of(begin[own], np.maximum(end[own], begin[own]))
        of_device = computing.get(int(device[own[0]]), Intervals.empty())
        tails[place] = time - of_device - waiting[place]
    return tuple(tails)


def _hidden_ns(ranks: Ranks, places: tuple[int, ...], n_others: int) -> int:
    """Return how much longer the others are in these collectives than the slow ones, in the end."""
    totals = [time.total_ns for time in tails_after(ranks, places)]
    slow = sum(totals[place] for place in places)
    return max((sum(totals) - slow) // n_others - slow // len(places), 0)


@dataclass(frozen=True, slots=True)
class Cause:
    """What a rank does more of: in words, by how much in all, and of kernels how many times."""

    text: str
    excess_ns: int
    factor: float | None = None


@of_window
def cause_of(ranks: Ranks, place: int) -> Cause | None:
    """Return what the rank at ``place`` does more of than the median of the others.

    None where no device work was recorded, or where nothing stands out by a quarter of what the
    rank does more.
    """
    own = parts_of_members(ranks)
    others = [parts for i, parts in own.items() if i != place]
    if place not in own or not others:
        return None
    slower_ns, more_ns, factor = _of_kernels(ranks, place)
    usual_ns = np.median([parts["exposed_transfer_ns"] for parts in others])
    copies_ns = int(own[place]["exposed_transfer_ns"] - usual_ns)
    excess_ns = int(find_blame(ranks).excess_ns[place])
    rest_ns = excess_ns - max(slower_ns, 0) - max(more_ns, 0) - max(copies_ns, 0)
    found = [
        Cause("the same kernels take longer", slower_ns, factor),
        Cause("more kernels", more_ns),
        Cause("copies that nothing hides", copies_ns),
        Cause(f"the device waits for {_awaited(ranks, place)}", rest_ns),
    ]
    most = max(found, key=lambda cause: cause.excess_ns)
    return most if most.excess_ns > _LEAST_SHARE * excess_ns > 0 else None


def _of_kernels(ranks: Ranks, place: int) -> tuple[int, int, float]:
    """Return how much longer the same kernels take, how much more the rest takes, and the factor.

    Each name is held against the median of the ranks that have it.
    """
    table = _kernels_of_members(ranks)
    is_mine = table["member"] == place
    mine, others = table.take(is_mine), table.take(~is_mine)
    n, ns, name = mine["n"], mine["ns"], mine["name"].codes
    usual, n_ranks = groups_of(others["name"].packed), len(np.unique(others["member"]))
    mean_ns, count = (np.full(len(mine["name"].texts), nothing) for nothing in (np.nan, 0.0))
    (known,) = usual.values
    mean_ns[known] = usual.quantiles(others["ns"] / others["n"])
    count[known] = np.where(usual.counts * 2 > n_ranks, usual.quantiles(others["n"]), 0)
    mean_ns, count = mean_ns[name], count[name]
    is_known = ~np.isnan(mean_ns)
    expected = (n * mean_ns)[is_known]
    slower = float((ns[is_known] - expected).sum())
    more = float(((n - count) * mean_ns)[is_known].sum() + ns[~is_known].sum())
    factor = float(ns[is_known].sum() / expected.sum()) if expected.sum() > 0 else 1.0
    return round(slower), round(more), factor


@of_window
def _kernels_of_members(ranks: Ranks) -> Table:
    """Return the kernels of each rank by name: member, name, n, ns; communication left out."""
    every = Table.stacked(ranks.each(_kernels_of_one))
    every = every.assign(member=member_of_rows(find_members(ranks), every))
    found, groups = grouped_by(every, "member", "name")
    return found.assign(**{own: groups.reduced(np.add, every[own]) for own in ("n", "ns")})


def _kernels_of_one(part: Trace) -> Table:
    kernels = part.kernels.take(part.kernels["activity"] != Activity.COMMUNICATION.value)
    found, groups = grouped_by(kernels, "process", "device", "name")
    return found.assign(n=groups.counts, ns=groups.reduced(np.add, lengths_of(kernels)))


def _awaited(ranks: Ranks, place: int) -> str:
    """Return whether it is data that a rank's idle device waits for, by the phase of its host."""
    excess = excess_of_members(ranks)
    on_host = [name for name in excess if name.endswith(ON_HOST)]
    most = max(on_host, key=lambda name: float(excess[name][place]), default="")
    is_data = most.startswith("data") and excess[most][place] > 0
    return "data" if is_data else "the host"


def since_of(ranks: Ranks, blame: Blame, places: tuple[int, ...]) -> int | None:
    """Return when ``places`` first cost the others half of what is usual, from the start.

    Usual is what half of all that they cost comes from: many small delays make it no smaller.
    None where they cost nothing.
    """
    own = np.flatnonzero(np.isin(blame.origins["member"], places))
    if not len(own):
        return None
    charged, at_ns = ints(blame.origins, "charged_ns", "at_ns", rows=own)
    largest = np.sort(charged)[::-1]
    usual = int(largest[np.searchsorted(np.cumsum(largest), largest.sum() / 2)])
    return int(at_ns[charged >= usual / 2].min()) - ranks.whole.span.start_ns
