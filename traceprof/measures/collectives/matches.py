"""Match each collective across the ranks that took part in it.

Collectives are matched within one communicator (name and size) and operation. If every rank
recorded sequence numbers, these decide. Otherwise the order decides; sequences that start at
different times are aligned first. Communicators without a name are found by launches and times
(`communicators`), sends and receives by their peers (`messages`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.measures.collectives.communicators import (
    launch_of_rows,
    line_up,
    number_communicators,
)
from traceprof.measures.collectives.members import Member, find_members, member_of_rows
from traceprof.measures.collectives.messages import pair_messages
from traceprof.measures.collectives.operations import SINGLE_OPS, collectives_of_ranks
from traceprof.measures.collectives.rates import sizes_of
from traceprof.measures.facts import fact, of_window
from traceprof.measures.rows import are_first, ratio_of
from traceprof.model.compact import CompactTable
from traceprof.model.grouping import codes_of, groups_of, places_of, rows_by_first, rows_by_value
from traceprof.model.intervals import Int64Array
from traceprof.model.ranks import Ranks
from traceprof.model.table import Names, Table
from traceprof.model.tables import ABSENT

MATCHED_OPS: Final = (
    *("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "all_to_all_v", "broadcast"),
    *("reduce", "gather", "scatter", "barrier", "send_recv"),
)

_KEYS: Final = ("group", "group_size", "op")
_MIN_NUMBERED_RATIO: Final = 0.5


class MatchedBy(StrEnum):
    """How a match is known, the most reliable method first."""

    NUMBER = "number"  # sequence number
    PEER = "peer"  # a send and its receive
    LAUNCH = "launch"  # one call launched the kernels on all members
    ORDER = "order"  # position in a communicator with a name
    TIME = "time"  # concurrent kernels; the communicator has no name
    GUESS = "guess"  # another match fits about as well


_METHODS: Final = tuple(MatchedBy)


@dataclass(frozen=True, slots=True, eq=False)
class Matches:
    """The collectives that at least two ranks recorded.

    ``rows`` are the collectives of `find_collectives` with member (position in ``members``) and
    match; match is -1 if no other rank recorded the collective.

    ``table`` has one row per match, sorted by match number. Columns: match, op, group, group_size,
    n_bytes, members (number of rows), first_start_ns, last_start_ns, end_ns (the earliest end),
    spread_ns (latest minus earliest end), duration_ns (the shortest, which excludes waiting),
    waited_ns (sum over ranks), last_member, operation_bytes, bus_bytes, imbalance (largest input
    size divided by the mean, for an all-to-all with uneven sizes; its n_bytes is the mean; NaN for
    other operations), matched_by (a value of `MatchedBy`).
    """

    members: tuple[Member, ...]
    rows: CompactTable
    table: Table

    @property
    def is_shared(self) -> bool:
        """Whether there is any match."""
        return not self.table.empty

    @property
    def shared(self) -> CompactTable:
        """The rows that have a match."""
        return self.rows.take(self.rows["match"] >= 0)

    @property
    def collectives(self) -> Matches:
        """The same without sends and receives, in which ranks wait by design (a pipeline)."""
        single = self.rows["op"].isin(SINGLE_OPS)
        if not single.any():
            return self
        is_collective = self.table["op"] != "send"
        return Matches(self.members, self.rows.take(~single), self.table.take(is_collective))

    def places(self, rows: Table) -> Int64Array:
        """Return the row of ``table`` for each of ``rows``. All rows must have a match in it."""
        return np.asarray(np.searchsorted(self.table["match"], rows["match"]), np.int64)

    def per_row(self, rows: Table, name: str) -> Any:
        """Return column ``name`` of ``table`` for each of ``rows``. All rows must have a match."""
        return self.table[name][self.places(rows)]

    def has_match_in(self, numbers: Int64Array) -> npt.NDArray[np.bool_]:
        """Return, for each of the rows, whether its match is one of ``numbers``."""
        match = self.rows["match"]
        chosen = np.zeros(max(match.max(initial=ABSENT), numbers.max(initial=ABSENT)) + 2, np.bool_)
        chosen[numbers] = True  # the last element stands for rows without a match
        found: npt.NDArray[np.bool_] = chosen[match]
        return found


@of_window
def find_matches(ranks: Ranks) -> Matches:
    """Return the collectives that ranks share, for the window.

    A match is in the window if its last rank starts in the window.
    """
    found = _matches_of_whole(ranks)
    if ranks.uncut is None:
        return found
    rows, table = found.rows, found.table
    table = table.take(ranks.span.holds(table["last_start_ns"]))
    kept = found.has_match_in(table["match"])
    kept |= (rows["match"] < 0) & ranks.span.holds(rows["start_ns"])
    return Matches(found.members, rows.take(kept), table)


@fact
def _matches_of_whole(ranks: Ranks) -> Matches:
    members = find_members(ranks)
    work = collectives_of_ranks(ranks)
    work = work.assign(**sizes_of(work), member=member_of_rows(members, work))
    numbers = _number_matches(members, work)
    rows = work.assign(match=numbers.match, matched_by=numbers.matched_by)
    return Matches(members, rows, _summarize_matches(rows.take(rows["match"] >= 0)))


def _summarize_matches(rows: Table) -> Table:
    """Return the ``table`` of `Matches` for rows that all have a match."""
    rows = rows.in_order("match")
    match, starts, ends, sizes = (rows[n] for n in ("match", "start_ns", "end_ns", "n_bytes"))
    is_first = are_first(match)
    firsts, number = np.flatnonzero(is_first), np.cumsum(is_first) - 1
    heads = rows.take(firsts)
    members = np.diff(np.append(firsts, len(rows)))

    def first_of(name: str, places: Int64Array) -> npt.NDArray[Any]:
        """Return column ``name`` at the first of ``places`` in each match; NaN without any."""
        matches, first = np.unique(number[places], return_index=True)
        found = np.full(len(firsts), np.nan)
        found[matches] = rows[name][places[first]]
        return found

    first_end, last_start = np.minimum.reduceat(ends, firsts), np.maximum.reduceat(starts, firsts)
    last = np.flatnonzero(starts == last_start[number])
    # A send and its receive are one match, whose op is send.
    op = heads["op"]
    op = Names.coded(["send" if text == "recv" else text for text in op.texts.tolist()], op.packed)
    known = {
        name: first_of(name, np.flatnonzero(~np.isnan(rows[name])))
        for name in ("operation_bytes", "bus_bytes")
    }
    # For an all-to-all with uneven sizes (Mixture-of-Experts), S is the mean input size.
    is_uneven = (op == "all_to_all_v") & (np.minimum.reduceat(sizes, firsts) >= 0)
    mean = np.add.reduceat(sizes, firsts) / members
    n_bytes = heads["n_bytes"].copy()
    n_bytes[is_uneven] = np.rint(mean[is_uneven])
    known["operation_bytes"][is_uneven] = mean[is_uneven]
    return Table(
        {
            "match": match[firsts],
            "op": op,
            **{name: heads[name] for name in ("group", "matched_by", "group_size")},
            "n_bytes": n_bytes,
            "members": members,
            "first_start_ns": np.minimum.reduceat(starts, firsts),
            "last_start_ns": last_start,
            "end_ns": first_end,
            "duration_ns": np.minimum.reduceat(ends - starts, firsts),
            "spread_ns": np.maximum.reduceat(ends, firsts) - first_end,
            "waited_ns": last_start * members - np.add.reduceat(starts, firsts),
            "last_member": first_of("member", last).astype(np.int64),
            **known,
            "imbalance": ratio_of(
                np.maximum.reduceat(sizes, firsts), np.where(is_uneven, mean, np.nan)
            ),
        }
    )


def _number_matches(members: tuple[Member, ...], work: Table) -> _MatchNumbers:
    """Number the matches of ``work``: equal numbers mean the same collective."""
    numbers = _MatchNumbers(len(work))
    is_usable = work["is_timed"] & (work["member"] >= 0)
    single = np.flatnonzero(is_usable & work["op"].isin(SINGLE_OPS))
    calls = Table(work.take(single).columns).assign(is_sole=True)
    numbers.take(single, pair_messages(members, calls), MatchedBy.PEER)
    is_usable &= work["op"].isin(MATCHED_OPS)
    is_named = (work["group"] != "") | (work["sequence"] >= 0)
    _match_named(work, np.flatnonzero(is_usable & is_named), numbers)
    _match_unnamed(work, np.flatnonzero(is_usable & ~is_named), numbers)
    return numbers


class _MatchNumbers:
    """The match number of each row, and how each match is known."""

    def __init__(self, n_rows: int) -> None:
        self.match = np.full(n_rows, ABSENT, np.int64)
        self._matched_by = np.full(n_rows, len(_METHODS), np.int8)
        self._next = 0

    @property
    def matched_by(self) -> Names:
        """The `MatchedBy` value of each row; "" without a match."""
        return Names(self._matched_by, [*map(str, _METHODS), ""])

    def take(self, rows: Int64Array, places: Int64Array, matched_by: MatchedBy) -> None:
        """Number the matches of ``rows``: equal places are one match, negative places are none."""
        known = np.flatnonzero(places >= 0)
        distinct, number = np.unique(places[known], return_inverse=True)
        self.match[rows[known]] = self._next + number.ravel()
        self._matched_by[rows[known]] = _METHODS.index(matched_by)
        self._next += len(distinct)


def _match_named(work: Table, places: Int64Array, numbers: _MatchNumbers) -> None:
    """Match the collectives at ``places``, whose communicator has a name or sequence numbers."""
    work_named = work.take(places)
    is_exchange = work_named["op"] == "send_recv"
    exchange = np.where(is_exchange, work_named["exchange"].codes, ABSENT)
    for group_rows in rows_by_first(*(codes_of(work_named[name]) for name in _KEYS), exchange):
        rows = work_named.take(group_rows)
        if _all_equal(rows["member"]):
            continue
        place, matched_by = _find_places(rows)
        # More ranks than the communicator has: several communicators have the same name.
        head = rows.row(0)
        ranks_in_kernel = head["exchange"] if is_exchange[group_rows[0]] else ""
        limit = len(ranks_in_kernel.split(",")) if ranks_in_kernel else head["group_size"]
        numbers.take(places[group_rows], _shared_places(place, limit), matched_by)


def _match_unnamed(work: Table, places: Int64Array, numbers: _MatchNumbers) -> None:
    """Match kernels for which only names and times are known."""
    unnamed = work.take(places)
    for in_group in rows_by_first(unnamed["group_size"]):
        group, group_places = unnamed.take(in_group), places[in_group]
        communicator, certain = number_communicators(group)
        launch = launch_of_rows(group)
        numbers.take(group_places, launch, MatchedBy.LAUNCH)
        rest = np.flatnonzero(launch < 0)
        for class_rows in rows_by_first(communicator[rest], group["op"][rest]):
            chosen = rest[class_rows]
            rows = group.take(chosen)
            if _all_equal(rows["member"]):
                continue
            place, matched_by = _find_places(rows)
            place = _shared_places(place, int(rows["group_size"][0]))
            is_certain = matched_by is MatchedBy.ORDER and bool(certain[chosen].all())
            place[~_are_concurrent(rows, place)] = ABSENT
            numbers.take(
                group_places[chosen], place, MatchedBy.TIME if is_certain else MatchedBy.GUESS
            )


def _all_equal(values: npt.NDArray[Any]) -> bool:
    return bool((values == values[0]).all())


def _shared_places(place: Int64Array, limit: int) -> Int64Array:
    """Return the places that at least two and at most ``limit`` rows have; `ABSENT` for other rows.

    A ``limit`` below 1 means no limit.
    """
    number, _ = places_of(place)
    sizes = np.bincount(number)
    is_shared = (sizes > 1) & ((sizes <= limit) | (limit < 1))
    return np.where(number.pick(is_shared), place, ABSENT)


def _are_concurrent(rows: Table, place: Int64Array) -> npt.NDArray[np.bool_]:
    """Return whether each row overlaps in time with all other rows at its place.

    All True for rows of several processes, since their clocks may differ.
    """
    if not _all_equal(rows["process"]):
        return np.ones(len(rows), np.bool_)
    groups = groups_of(place)
    latest_start = groups.reduced(np.maximum, rows["start_ns"])
    earliest_end = groups.reduced(np.minimum, rows["end_ns"])
    return np.asarray((latest_start < earliest_end)[groups.number], np.bool_)


def _find_places(rows: Table) -> tuple[Int64Array, MatchedBy]:
    """Return the position of each row in the sequence that the ranks share, and how it is known.

    The code reads one column at a time, because all columns of a thousand ranks are large.
    """
    if _is_numbered(rows):
        return rows["sequence"], MatchedBy.NUMBER
    by_member = _in_order_of_calls(rows)
    reference = max(by_member, key=len)
    # Uneven all-to-alls have different sizes on each rank, so their sizes are not compared.
    ends = rows["end_ns"]
    sizes = np.where(rows["op"] == "all_to_all_v", ABSENT, rows["n_bytes"])
    one_clock = _all_equal(rows["process"])
    place, is_clear = np.zeros(len(rows), np.int64), True
    place[reference] = np.arange(len(reference))
    for member_rows in by_member:
        if member_rows is not reference:
            there, here = ((ends[some], sizes[some]) for some in (reference, member_rows))
            lined_up = line_up(there, here, one_clock)
            is_clear &= lined_up.is_clear
            place[member_rows] = np.arange(len(member_rows)) + lined_up.shift
    place -= place.min(initial=0)
    return place, MatchedBy.ORDER if is_clear else MatchedBy.GUESS


def _in_order_of_calls(rows: Table) -> list[Int64Array]:
    """Return the rows of each member, sorted by call time (start time if the call is unknown)."""
    called = rows["call_ns"]
    when = np.where(called >= 0, called, rows["start_ns"])
    return [
        places[np.argsort(when[places], kind="stable")]
        for places in rows_by_value(rows["member"]).values()
    ]


def _is_numbered(rows: Table) -> bool:
    """Return whether the ranks use the same sequence numbers for the same collectives."""
    member, sequence = rows["member"], rows["sequence"]
    if (sequence < 0).any() or groups_of(member, sequence).counts.max() > 1:
        return False
    counts = groups_of(member).counts
    complete_count = int((groups_of(sequence).counts == len(counts)).sum())
    return complete_count >= _MIN_NUMBERED_RATIO * int(counts.min())
