"""Attribute the waiting of all ranks to the ranks that cause it.

The last rank to arrive at a collective is late for one of two reasons. Either it did more work
since the ranks last synchronized, or it waited longer for other ranks than the ranks that now wait
for it. The first part is attributed to the last rank. The second part is passed on to the ranks
that it waited for, and so on, back to a rank that did not wait. Each ns of waiting is charged once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.measures.collectives.clocks import (
    MAX_RESIDUAL_NS,
    find_alignment,
    why_no_common_clock,
)
from traceprof.measures.collectives.matches import find_matches
from traceprof.measures.collectives.members import find_members
from traceprof.measures.collectives.waits import find_waits
from traceprof.measures.facts import of_window
from traceprof.measures.rows import are_first, sums_at
from traceprof.model.grouping import codes_of, groups_of, rows_by_value
from traceprof.model.intervals import Int64Array
from traceprof.model.packed import Packed
from traceprof.model.ranks import Ranks
from traceprof.model.table import Table
from traceprof.model.tables import ABSENT

_Float64Array = npt.NDArray[np.float64]

_ROWS_PER_PIECE: Final = 200_000
_MAX_EARLY_RATIO: Final = 0.05  # of messages that are received before they are sent
_MAX_UNMATCHED_RATIO: Final = 0.5  # of collectives in communicators that ranks share
_MIN_CAUSED_RATIO: Final = 0.5  # of the waiting in a match, for the last rank to be its origin


def beyond_others(values: npt.NDArray[Any], keys: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return each value minus the median of the other values with the same key.

    The median excludes the value itself: if one of two ranks arrives 10 ms late, its lateness is
    10 ms, not 5 ms. The result is NaN where a key has only one value. The values are integers. The
    differences are computed before rounding to float, so they are exact for any clock.
    """
    found = np.empty(len(values), np.float64)
    for piece in pieces_of(keys):
        rows = piece[np.lexsort((values[piece], keys[piece]))]
        found[rows] = _excess_of_sorted(values[rows], are_first(keys[rows]))
    return found


def pieces_of(keys: npt.NDArray[Any]) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the row indices in pieces; all rows with the same key are in the same piece.

    Pieces limit memory: the temporary arrays of a row take ten times the memory of the row.
    """
    order = Packed(np.argsort(keys, kind="stable"))
    firsts = np.flatnonzero(are_first(order.pick(keys)))
    cuts = np.unique(np.searchsorted(firsts, np.arange(0, len(order), _ROWS_PER_PIECE)))
    begins = firsts[cuts[cuts < len(firsts)]].tolist()
    for begin, end in pairwise([*begins, len(order)]):
        yield order[begin:end].wide()


def _excess_of_sorted(
    ordered: npt.NDArray[Any], is_first: npt.NDArray[np.bool_]
) -> npt.NDArray[np.float64]:
    """Return the same as `beyond_others` for values that are sorted by key and value.

    ``is_first`` marks the first row of each key.
    """
    firsts = np.flatnonzero(is_first)
    group = np.cumsum(is_first) - 1
    size, first = np.diff(np.append(firsts, len(ordered)))[group], firsts[group]
    place = np.arange(len(ordered)) - first
    middle = np.zeros(len(ordered), np.float64)
    for rank in ((size - 2) // 2, (size - 1) // 2):
        # Element `rank` among the other values: skip the value itself if it comes before.
        there = np.clip(first + rank + (place <= rank), 0, len(ordered) - 1)
        middle += (ordered - ordered[there]) / 2
    return np.where(size > 1, middle, np.nan)


@dataclass(frozen=True, slots=True, eq=False)
class Blame:
    """Which ranks cause the waiting of all ranks.

    Arrays are indexed by the position of a rank in `find_members`. All times are in ns.

    ``waited_ns``: time that each rank waited without computing, after the ranks first synchronized.
        ``whole_ns`` is the sum.
    ``attributed_ns``: time that all other ranks together waited because of each rank.
    ``shared_ns``: waiting that no rank causes by working more than the others (a pipeline fills and
        drains).
    ``within_clock_error_ns``: waiting in waits up to ``residual_ns``, the accuracy of the clocks.
        The sum of attributed_ns, plus shared_ns and within_clock_error_ns, is whole_ns.
    ``skew_ns``: waiting before the ranks first synchronized; not part of whole_ns.
    ``busy_ns``: time that each rank did not wait between its first and last collective.
    ``excess_ns``: busy_ns beyond the median of the other ranks.
    ``cost_ns``: mean time that another rank waits because of each rank; at most its excess_ns.
    ``origins``: where delays arise. Columns: member, at_ns (when the other ranks waited),
        attributed_ns.
    ``origin_of_match``: by match number, the member that causes most of the waiting in the match:
        the last rank, or a rank that the last rank had waited for.
    ``why_not``: why these values are unreliable; "" if they are reliable.
    """

    waited_ns: Int64Array
    attributed_ns: Int64Array
    shared_ns: int
    within_clock_error_ns: int
    skew_ns: int
    residual_ns: int
    busy_ns: Int64Array
    excess_ns: Int64Array
    cost_ns: Int64Array
    origins: Table
    origin_of_match: Mapping[int, int]
    why_not: str = ""

    @property
    def whole_ns(self) -> int:
        """The waiting time of all ranks together."""
        return int(self.waited_ns.sum())


@of_window
def find_blame(ranks: Ranks) -> Blame:
    """Attribute the waiting in collectives and for messages of the window to ranks."""
    waits = find_waits(ranks)
    why_not = _why_not(ranks, waits)  # before the chain is built, to limit peak memory
    n = len(find_members(ranks))
    waited = sums_at(waits["member"], waits["exposed_ns"], n)
    # The remaining error of the clocks of the ranks after alignment.
    residual_ns = int(max((c.residual_ns or 0 for c in find_alignment(ranks).clocks), default=0))
    is_within_clock_error = waits["wait_ns"] <= residual_ns
    exposed = waits["exposed_ns"].astype(np.float64)
    busy, spans = _measure_busy(waits, waited, n)
    excess_shares = _excess_shares(busy, spans)
    chain = _Chain(waits, excess_shares, n)
    origins = chain.charge(np.where(is_within_clock_error, 0.0, exposed))
    charged = sums_at(origins["member"], origins["attributed_ns"], n)
    within_clock_error_ns = int(exposed[is_within_clock_error].sum())
    excess = np.rint(excess_shares * busy).astype(np.int64)
    n_others = max(int(np.count_nonzero(spans)) - 1, 1)
    return Blame(
        waited_ns=waited,
        attributed_ns=charged,
        shared_ns=int(waited.sum() - charged.sum()) - within_clock_error_ns,
        within_clock_error_ns=within_clock_error_ns,
        skew_ns=int(waits["skew_ns"].sum()),
        residual_ns=residual_ns,
        busy_ns=busy,
        excess_ns=excess,
        cost_ns=np.minimum(charged // n_others, excess),
        origins=origins,
        origin_of_match=chain.origin_of_match(),
        why_not=why_not,
    )


def why_withheld(ranks: Ranks) -> str:
    """Return why waiting cannot be attributed to ranks in the window; "" if it can."""
    return find_blame(ranks).why_not


def _measure_busy(waits: Table, waited: Int64Array, n: int) -> tuple[Int64Array, Int64Array]:
    """Return (busy, span) of each rank in ns.

    The span is the time from the first synchronization to the last collective. The busy time is the
    span without waiting. Both are 0 for a rank that was never synchronized.
    """
    in_step = waits.take(waits["sync_ns"] != ABSENT)
    members = in_step["member"]
    first, last = np.full(n, np.iinfo(np.int64).max), np.zeros(n, np.int64)
    np.minimum.at(first, members, in_step["sync_ns"])
    np.maximum.at(last, members, in_step["last_start_ns"])
    spans = np.clip(last - first, 0, None)  # without any sync, first > last
    return np.clip(spans - waited, 0, None), spans


def _excess_shares(busy: Int64Array, spans: Int64Array) -> _Float64Array:
    """Return the share of each rank's busy time beyond the median of the other ranks, 0 to 1."""
    excess_shares = np.zeros(len(busy), np.float64)
    known = np.flatnonzero((spans > 0) & (busy > 0))
    if len(known) < 2:
        return excess_shares
    # Compare shares of the span, as integers of 1e-12: spans differ a little at their ends.
    share = np.rint(busy[known] / spans[known] * 1e12).astype(np.int64)
    excess_shares[known] = np.clip(beyond_others(share, np.zeros_like(known)) / share, 0.0, 1.0)
    return excess_shares


def _why_not(ranks: Ranks, waits: Table) -> str:
    """Return why the matches or clocks must be wrong; "" if no contradiction was found.

    A collective does not end on any rank before the last rank starts it. All ranks of a
    communicator run the same collectives.
    """
    if why_not := why_no_common_clock(ranks):
        return why_not
    is_collective = ~waits["is_message"]
    waited, contradicted = (waits[f"{n}_ns"][is_collective] for n in ("wait", "contradicted"))
    if contradicted.sum() > waited.sum():
        can_align = len(find_alignment(ranks).corrections) > 1
        return (
            "some ranks end collectives before other ranks begin them, so the matching is wrong "
            f"or the clocks differ{' (try --align collectives)' if can_align else ''}"
        )
    early_ns = waits["contradicted_ns"][waits["is_message"]]
    # Each message has two rows. Only the row of the receiver can show a contradiction.
    if 2 * np.count_nonzero(early_ns > MAX_RESIDUAL_NS) > _MAX_EARLY_RATIO * len(early_ns):
        return (
            "some messages are received before they are sent, so the matching is wrong or the "
            "clocks differ"
        )
    rows = find_matches(ranks).collectives.rows
    rows = rows.take(rows["is_timed"] & (rows["member"] >= 0))
    by_class = groups_of(*(codes_of(rows[name]) for name in ("group", "group_size", "op")))
    of_members = groups_of(by_class.packed, rows["member"]).keys
    is_shared = np.bincount([place for place, _ in of_members], minlength=len(by_class.keys)) > 1
    unmatched_count = by_class.reduced(np.add, (rows["match"] < 0).astype(np.int64))
    if int(unmatched_count[is_shared].sum()) > _MAX_UNMATCHED_RATIO * int(
        by_class.counts[is_shared].sum()
    ):
        return "the ranks of a communicator recorded different numbers of collectives"
    return ""


class _Chain:
    """All waits of a run in time order, with links from each wait to the earlier waits behind it.

    A wait has two parts. ``caused_share`` is the share that the last rank caused: it worked that
    much more since the last synchronization. ``passed_share`` is the share that the last rank
    passes on: it had waited that much longer for other ranks. ``blamed_here`` is the part of
    caused_share in which the last rank works more than its peers. In a collective all ranks play
    the same role, so this is all of it. In a message it is limited by the excess of the rank over
    the whole run. The blamed share of a wait is blamed_here plus the blamed share of the earlier
    waits that it passes on.

    Rows are those of `find_waits`. ``begins`` and ``ends`` bound the rows of each match.
    ``place_of_row`` is the index of the match of each row. ``rows_of`` lists the rows of each
    member.
    """

    def __init__(self, waits: Table, excess_shares: _Float64Array, n_members: int) -> None:
        match = waits["match"]
        self.begins = np.flatnonzero(are_first(match))
        self.ends = np.append(self.begins, len(match))[1:]
        places = Packed(np.arange(len(self.begins))).stored
        self.place_of_row = Packed.of_stored(np.repeat(places, self.ends - self.begins))
        # One value per match. The other arrays have one value per row and are large for many ranks.
        heads = waits.take(self.begins)
        self.match, self.last, self.at_ns, self.sync_ns = (
            heads[name].astype(np.int64)
            for name in ("match", "last_member", "last_start_ns", "sync_ns")
        )
        self.is_message = heads["is_message"]
        self.member = waits["member"].astype(np.int64)
        self.wait = waits["wait_ns"].astype(np.float64)
        self.exposed = waits["exposed_ns"].astype(np.float64)
        work = waits["active_ns"].astype(np.float64)
        work_of_last = self._of_last(work)
        is_known = (self.wait > 0) & self.place_of_row.pick(self.sync_ns != ABSENT)
        self.caused_share = np.zeros(len(work), np.float64)
        extra_work = np.clip(work_of_last - work, 0, self.wait)
        np.divide(extra_work, self.wait, self.caused_share, where=is_known)
        del work, extra_work
        self.passed_share = np.where(is_known, 1 - self.caused_share, 0.0)
        self.blamed_here = self.caused_share
        rows = np.flatnonzero(self.place_of_row.pick(self.is_message))
        if len(rows):
            excess = work_of_last[rows] * excess_shares[self.place_of_row[rows].pick(self.last)]
            excess /= np.maximum(self.wait[rows], 1)
            self.blamed_here = self.caused_share.copy()
            self.blamed_here[rows] = np.minimum(self.caused_share[rows], excess)
        self.rows_of = [np.empty(0, np.int64)] * n_members
        for member, of_member in rows_by_value(self.member).items():
            self.rows_of[member] = of_member
        self.rows_since_sync = self._find_rows_since_sync()

    def _of_last(self, values: _Float64Array) -> _Float64Array:
        """Return, for each row, the value of the last rank of its match."""
        is_last = np.flatnonzero(self.member == self.place_of_row.pick(self.last))
        by_match = np.zeros(len(self.begins), np.float64)
        by_match[self.place_of_row[is_last].wide()] = values[is_last]
        return self.place_of_row.pick(by_match)

    def charge(self, waited: _Float64Array) -> Table:
        """Attribute the waiting time of each row to ranks.

        ``waited`` is in ns. Columns of the result: member, at_ns (when the other ranks waited), and
        attributed_ns.
        """
        charged = np.cumsum(self._charge_matches(self._blamed_shares(), waited))
        # Integers that add up to the rounded-down sum: each remainder carries over to the next row.
        exact = np.diff(np.floor(charged + 1e-6), prepend=0.0).astype(np.int64)
        columns = {"member": self.last, "at_ns": self.at_ns, "attributed_ns": exact}
        return Table(columns).take(exact > 0)

    def origin_of_match(self) -> Mapping[int, int]:
        """Return, by match number, the member that causes most of the waiting.

        This is the last rank if it caused at least half of the waiting. Otherwise it is the origin
        of the longest wait of the last rank since the ranks last synchronized.
        """
        found = self.last.copy()
        for place, (begin, end) in enumerate(zip(self.begins, self.ends, strict=True)):
            wait = self.wait[begin:end]
            if float(self.caused_share[begin:end] @ wait) >= _MIN_CAUSED_RATIO * wait.sum():
                continue
            first, until = self.rows_since_sync[place]
            before = self.rows_of[found[place]][first:until]
            weight = self.exposed[before]
            if weight.any():
                found[place] = found[self.place_of_row[before[weight.argmax()]]]
        return dict(zip(self.match.tolist(), found.tolist(), strict=True))

    def _find_rows_since_sync(self) -> list[tuple[int, int]]:
        """Return, by match, the range of waits of its last rank since the ranks last synchronized.

        A range is (first, end) of positions in the rows of that rank; the end is exclusive.
        """
        found = np.zeros((len(self.begins), 2), np.int64)
        for member, matches in rows_by_value(self.last).items():
            rows, sync_ns = self.rows_of[member], self.sync_ns[matches]
            end = np.searchsorted(rows, self.begins[matches])
            times = self.place_of_row[rows].pick(self.at_ns)
            begin = np.minimum(np.searchsorted(times, sync_ns, side="right"), end)
            found[matches, 0] = np.where(sync_ns == ABSENT, end, begin)
            found[matches, 1] = end
        return [(int(a), int(b)) for a, b in found]

    def _blamed_shares(self) -> _Float64Array:
        """Return the share of each wait that is caused by ranks that work more than their peers."""
        blamed = np.zeros(len(self.member), np.float64)
        # Cumulative sums over the rows of each rank, starting at 0.
        waited_sums = [np.zeros(len(rows) + 1) for rows in self.rows_of]
        blamed_sums = [np.zeros(len(rows) + 1) for rows in self.rows_of]
        filled = [0] * len(self.rows_of)
        for place, (begin, end) in enumerate(zip(self.begins, self.ends, strict=True)):
            last = self.last[place]
            first, until = self.rows_since_sync[place]
            waited_before = waited_sums[last][until] - waited_sums[last][first]
            blamed_before = blamed_sums[last][until] - blamed_sums[last][first]
            rows = slice(begin, end)
            passed = self.passed_share[rows]
            if self.is_message[place]:
                share = blamed_before / waited_before if waited_before > 0 else 0.0
            else:
                passed_ns = passed * self.wait[rows]
                share = np.minimum(blamed_before / np.maximum(passed_ns, 1), 1)
            blamed[rows] = self.blamed_here[rows] + passed * share
            for row in range(begin, end):
                member = self.member[row]
                n = filled[member]
                weight = self.exposed[row]
                waited_sums[member][n + 1] = waited_sums[member][n] + weight
                blamed_sums[member][n + 1] = blamed_sums[member][n] + weight * blamed[row]
                filled[member] = n + 1
        self.blamed_sums = blamed_sums
        return blamed

    def _charge_matches(self, blamed: _Float64Array, waited: _Float64Array) -> _Float64Array:
        """Return the ns charged to the last rank of each match; goes from the last match back."""
        share_here = np.zeros(len(self.member), np.float64)
        np.divide(self.blamed_here, blamed, share_here, where=blamed > 0)
        # The charge per ns of each wait by later waits, as differences along the rows of a rank.
        changes = [np.zeros(len(rows) + 1) for rows in self.rows_of]
        rates = [0.0] * len(self.rows_of)
        left = [len(rows) for rows in self.rows_of]
        charged = np.zeros(len(self.begins), np.float64)
        blamed_of_row = self.exposed * blamed
        blamed_ns = waited * blamed
        for place in range(len(self.begins) - 1, -1, -1):
            begin, end = self.begins[place], self.ends[place]
            last = self.last[place]
            first, until = self.rows_since_sync[place]
            passed = 0.0
            for row in range(begin, end):
                member = self.member[row]
                left[member] -= 1
                rates[member] += changes[member][left[member] + 1]
                total = blamed_ns[row] + blamed_of_row[row] * rates[member]
                charged[place] += total * share_here[row]
                passed += total * (1 - share_here[row])
            weight = self.blamed_sums[last][until] - self.blamed_sums[last][first]
            if passed > 0 and weight > 0:
                changes[last][until] += passed / weight
                changes[last][first] -= passed / weight
        return charged
