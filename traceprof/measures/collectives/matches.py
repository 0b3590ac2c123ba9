"""The same collective as every rank of it saw it.

Collectives are matched within one communicator (its name and size) and operation: by their
sequence number where every rank recorded one, else by their order, lined up where the ranks
began to record at different times. Communicators without a name are told by launches and times
(`communicators`), sends and receives by their ends (`messages`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.measures.collectives.communicators import (
    LinedUp,
    launch_of_rows,
    line_up,
    tell_communicators,
)
from traceprof.measures.collectives.members import Member, find_members, member_of_rows
from traceprof.measures.collectives.messages import pair_messages
from traceprof.measures.collectives.operations import SINGLE_OPS, collectives_of_ranks
from traceprof.measures.collectives.rates import sizes_of
from traceprof.measures.facts import fact, of_window
from traceprof.measures.rows import are_first
from traceprof.model.compact import CompactTable
from traceprof.model.grouping import rows_by_first, rows_by_value
from traceprof.model.intervals import Int64Array
from traceprof.model.ranks import Ranks
from traceprof.model.tables import ABSENT

MATCHED_OPS: Final = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "all_to_all_v",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "barrier",
    "send_recv",
)

_KEYS: Final = ("group", "group_size", "op")
_LEAST_NUMBERED: Final = 0.5


class MatchedBy(StrEnum):
    """How it is known that rows are the same collective, the surest first."""

    NUMBER = "number"  # the ranks numbered it
    PEER = "peer"  # a send and the receive that took it
    LAUNCH = "launch"  # one call launched it on all
    ORDER = "order"  # its place in a communicator that has a name
    TIME = "time"  # what else runs at that time: its communicator has no name
    GUESS = "guess"  # another match would fit about as well


_WAYS: Final = tuple(MatchedBy)


@dataclass(frozen=True, slots=True, eq=False)
class Matches:
    """The collectives that at least two ranks share.

    ``rows`` are the collectives of `find_collectives` with member (place in ``members``) and
    match, -1 where no other rank has the same. ``table`` has one row per match (its index):
    op, group, group_size, n_bytes, members (how many), first_start_ns, last_start_ns, end_ns (the
    earliest), spread_ns (from the earliest to the latest end), duration_ns (the shortest: without
    the waiting), waited_ns (of all ranks together), last_member, operation_bytes, bus_bytes,
    imbalance (of an all-to-all with uneven parts: the most that a rank hands in over the mean,
    which n_bytes is then; else NaN), matched_by (how the match is known, of `MatchedBy`).
    """

    members: tuple[Member, ...]
    rows: CompactTable
    table: pd.DataFrame

    @property
    def is_shared(self) -> bool:
        """Whether there is any match at all."""
        return not self.table.empty

    @property
    def numbers(self) -> Int64Array:
        """The numbers of the matches, row by row of ``table``; they ascend."""
        return self.table.index.to_numpy(np.int64)

    @property
    def shared(self) -> CompactTable:
        """The rows that have a match."""
        return self.rows.where(self.rows.array("match") >= 0)

    @property
    def collectives(self) -> Matches:
        """The same without sends and receives: in those, ranks wait by design (a pipeline)."""
        single = self.rows.isin("op", SINGLE_OPS)
        if not single.any():
            return self
        table = self.table[self.table["op"] != "send"]
        return Matches(self.members, self.rows.where(~single), table)

    def places(self, rows: CompactTable) -> Int64Array:
        """Return the row of ``table`` of each of ``rows``, which all have a match there."""
        return np.searchsorted(self.table.index.to_numpy(np.int64), rows.array("match"))

    def per_row(self, rows: CompactTable, name: str) -> npt.NDArray[Any]:
        """Return the column ``name`` of ``table`` for each of ``rows``, which all have a match."""
        found: npt.NDArray[Any] = self.table[name].to_numpy()[self.places(rows)]
        return found

    def among(self, numbers: Int64Array) -> npt.NDArray[np.bool_]:
        """Return which of the rows have one of the matches ``numbers``."""
        match = self.rows.array("match")
        chosen = np.zeros(max(match.max(initial=ABSENT), numbers.max(initial=ABSENT)) + 2, np.bool_)
        chosen[numbers] = True  # the last place is for rows without a match
        found: npt.NDArray[np.bool_] = chosen[match]
        return found


@of_window
def find_matches(ranks: Ranks) -> Matches:
    """Return the collectives of the recording that ranks share, of those in the window.

    A match is in the window if its last rank starts in it.
    """
    found = _matches_of_whole(ranks)
    if ranks.uncut is None:
        return found
    rows, table = found.rows, found.table
    table = table[ranks.span.holds(table["last_start_ns"].to_numpy(np.int64))]
    kept = found.among(table.index.to_numpy(np.int64))
    kept |= (rows.array("match") < 0) & ranks.span.holds(rows.array("start_ns"))
    return Matches(found.members, rows.where(kept), table)


@fact
def _matches_of_whole(ranks: Ranks) -> Matches:
    members = find_members(ranks)
    work = collectives_of_ranks(ranks)
    work = work.assign(**sizes_of(work), member=member_of_rows(members, work))
    numbers = _match(members, work)
    rows = work.assign(match=numbers.match, matched_by=numbers.matched_by)
    found = Matches(members, rows, pd.DataFrame())
    return Matches(members, rows, _summarised(found.shared))


def _summarised(rows: CompactTable) -> pd.DataFrame:
    """Return one row per match of ``rows``, all of which have one, as `Matches` holds it."""
    rows = rows.where(np.argsort(rows.array("match"), kind="stable"))
    match, starts, ends, sizes = (
        rows.array(name) for name in ("match", "start_ns", "end_ns", "n_bytes")
    )
    is_first = are_first(match)
    firsts, number = np.flatnonzero(is_first), np.cumsum(is_first) - 1
    heads, index = rows.where(firsts), pd.Index(match[firsts], name="match")
    first_end, last_start = np.minimum.reduceat(ends, firsts), np.maximum.reduceat(starts, firsts)
    members = np.diff(np.append(firsts, len(rows)))

    def first_of(name: str, places: Int64Array) -> pd.Series:
        """Return the value of the first of the rows at ``places`` of each match, else NaN."""
        own, first = np.unique(number[places], return_index=True)
        return pd.Series(rows.array(name)[places[first]], index[own]).reindex(index)

    texts = {n: pd.Series(heads.array(n), index, dtype=object) for n in ("group", "matched_by")}
    # A receive is the other end of a send: the match is called after the latter.
    op = pd.Series(heads.array("op"), index, dtype=object)
    op = op.where(op != "recv", "send")
    known = {
        name: first_of(name, np.flatnonzero(~np.isnan(rows.array(name))))
        for name in ("operation_bytes", "bus_bytes")
    }
    # Of an all-to-all with uneven parts S is what a rank hands in on average, as in
    # Mixture-of-Experts, where ranks differ.
    is_uneven = (op == "all_to_all_v") & (np.minimum.reduceat(sizes, firsts) >= 0)
    mean = pd.Series(np.add.reduceat(sizes, firsts) / members, index)
    n_bytes = pd.Series(heads.array("n_bytes"), index).where(~is_uneven, mean.round())
    return pd.DataFrame(
        {
            "op": op,
            **texts,
            "group_size": heads.array("group_size"),
            "n_bytes": n_bytes.astype(np.int64),
            "members": members,
            "first_start_ns": np.minimum.reduceat(starts, firsts),
            "last_start_ns": last_start,
            "end_ns": first_end,
            "duration_ns": np.minimum.reduceat(ends - starts, firsts),
            "spread_ns": np.maximum.reduceat(ends, firsts) - first_end,
            "waited_ns": last_start * members - np.add.reduceat(starts, firsts),
            "last_member": first_of("member", np.flatnonzero(starts == last_start[number])),
            "operation_bytes": known["operation_bytes"].where(~is_uneven, mean),
            "bus_bytes": known["bus_bytes"],
            "imbalance": np.maximum.reduceat(sizes, firsts) / mean.where(is_uneven & (mean > 0)),
        },
        index=index,
    )


def _match(members: tuple[Member, ...], work: CompactTable) -> _Numbers:
    """Return match, a number for each row that equals that of the other ranks, and matched_by."""
    numbers = _Numbers(len(work))
    is_usable = work.array("is_timed").astype(np.bool_) & (work.array("member") >= 0)
    is_single = work.isin("op", SINGLE_OPS)
    single = np.flatnonzero(is_usable & is_single)
    calls = work.where(single).frame().assign(is_sole=True)
    numbers.take(single, pair_messages(members, calls), MatchedBy.PEER)
    is_usable &= work.isin("op", MATCHED_OPS)
    is_named = ~work.isin("group", ("",)) | (work.array("sequence") >= 0)
    _match_named(work, np.flatnonzero(is_usable & is_named), numbers)
    _match_unnamed(work, np.flatnonzero(is_usable & ~is_named), numbers)
    return numbers


class _Numbers:
    """Numbers given to matches, and how each is known."""

    def __init__(self, n_rows: int) -> None:
        self.match = np.full(n_rows, ABSENT, np.int64)
        self._matched_by = np.full(n_rows, ABSENT, np.int8)
        self._next = 0

    @property
    def matched_by(self) -> npt.NDArray[np.object_]:
        """How each is known: a value of `MatchedBy`, "" where it has no match."""
        # Plain texts, which a `CompactTable` keeps as codes.
        values: npt.NDArray[np.object_] = np.array([*map(str, _WAYS), ""], object)
        return values[self._matched_by]

    def take(self, rows: Int64Array, places: Int64Array, matched_by: MatchedBy) -> None:
        """Number those of ``rows`` whose places are equal and not negative."""
        known = np.flatnonzero(places >= 0)
        distinct, number = np.unique(places[known], return_inverse=True)
        self.match[rows[known]] = self._next + number.ravel()
        self._matched_by[rows[known]] = _WAYS.index(matched_by)
        self._next += len(distinct)


def _match_named(work: CompactTable, places: Int64Array, numbers: _Numbers) -> None:
    together = work.where(places)
    is_exchange = together.isin("op", ("send_recv",))
    exchange = np.where(is_exchange, together.codes("exchange").astype(np.int64), ABSENT)
    for own in rows_by_first(*(together.codes(name) for name in _KEYS), exchange):
        rows = together.where(own)
        if _is_of_one(rows.array("member")):
            continue
        place, matched_by = _places(rows)
        # More ranks than the communicator has: several communicators bear one name.
        head = rows.where(np.zeros(1, np.int64))
        named = str(head.array("exchange")[0]) if is_exchange[own[0]] else ""
        limit = len(named.split(",")) if named else int(head.array("group_size")[0])
        numbers.take(places[own], _shared(place, limit), matched_by)


def _match_unnamed(work: CompactTable, places: Int64Array, numbers: _Numbers) -> None:
    """Match kernels of which only their names and times are known."""
    unnamed = work.where(places)
    for in_group in rows_by_first(unnamed.array("group_size")):
        group, group_places = unnamed.where(in_group), places[in_group]
        communicator, certain = tell_communicators(group)
        launch = launch_of_rows(group)
        numbers.take(group_places, launch, MatchedBy.LAUNCH)
        rest = np.flatnonzero(launch < 0)
        for own in rows_by_first(communicator[rest], group.codes("op")[rest]):
            chosen = rest[own]
            rows = group.where(chosen)
            if _is_of_one(rows.array("member")):
                continue
            place, matched_by = _places(rows)
            place = _shared(place, int(rows.array("group_size")[0]))
            sure = matched_by is MatchedBy.ORDER and bool(certain[chosen].all())
            place[~_runs_side_by_side(rows, place)] = ABSENT
            numbers.take(group_places[chosen], place, MatchedBy.TIME if sure else MatchedBy.GUESS)


def _is_of_one(values: npt.NDArray[Any]) -> bool:
    return bool((values == values[0]).all())


def _shared(place: Int64Array, limit: int) -> Int64Array:
    """Return the places that at least two rows have, and at most ``limit``; else `ABSENT`."""
    number, _ = pd.factorize(place)
    sizes = np.bincount(number)
    is_shared = (sizes > 1) & ((sizes <= limit) | (limit < 1))
    return np.where(is_shared[number], place, ABSENT)


def _runs_side_by_side(rows: CompactTable, place: Int64Array) -> npt.NDArray[np.bool_]:
    """Return whether each row runs at the time of the others at its place.

    Only rows of one process have one clock for certain.
    """
    if not _is_of_one(rows.array("process")):
        return np.ones(len(rows), np.bool_)
    groups = rows[["start_ns", "end_ns"]].groupby(place)
    begun, ended = groups["start_ns"].transform("max"), groups["end_ns"].transform("min")
    return np.asarray(begun < ended, np.bool_)


def _places(rows: CompactTable) -> tuple[Int64Array, MatchedBy]:
    """Return the place of each row in the sequence that the ranks share, and what tells it.

    Columns are looked at one by one: those of a thousand ranks are large.
    """
    if _is_numbered(rows):
        return rows.array("sequence").astype(np.int64), MatchedBy.NUMBER
    by_member = _in_order_of_calls(rows)
    reference = max(by_member, key=len)
    ends, sizes = _signature(rows)
    one_clock = _is_of_one(rows.array("process"))
    place, is_clear = np.zeros(len(rows), np.int64), True
    for own in by_member:
        if own is reference:
            lined_up = LinedUp(0, is_clear=True)
        else:
            there, here = (ends[reference], sizes[reference]), (ends[own], sizes[own])
            lined_up = line_up(there, here, one_clock)
        is_clear &= lined_up.is_clear
        place[own] = np.arange(len(own)) + lined_up.shift
    place -= place.min(initial=0)
    return place, MatchedBy.ORDER if is_clear else MatchedBy.GUESS


def _in_order_of_calls(rows: CompactTable) -> list[Int64Array]:
    """Return the rows of each member, in the order in which they were called or began."""
    called = rows.array("call_ns")
    when = np.where(called >= 0, called, rows.array("start_ns"))
    own = rows_by_value(rows.array("member")).values()
    return [places[np.argsort(when[places], kind="stable")] for places in own]


def _is_numbered(rows: CompactTable) -> bool:
    """Return whether the ranks number the same collectives alike."""
    if (rows.array("sequence") < 0).any():
        return False
    seen = rows[["member", "sequence"]]
    if seen.duplicated().any():
        return False
    own = seen.groupby("member").size()
    everywhere = int((seen.groupby("sequence").size() == len(own)).sum())
    return everywhere >= _LEAST_NUMBERED * int(own.min())


def _signature(rows: CompactTable) -> tuple[Int64Array, Int64Array]:
    """Return ends and sizes; of uneven parts no size, since ranks differ in it."""
    sizes = rows.array("n_bytes").astype(np.int64)
    sizes[rows.isin("op", ("all_to_all_v",))] = ABSENT
    return rows.array("end_ns").astype(np.int64, copy=False), sizes
