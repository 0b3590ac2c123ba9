"""Whom the waiting of all ranks goes back to: the rank that itself waited for nobody.

A rank that comes last has done more itself since all were in step, or it has waited longer for
others than those who now wait for it. The first is its own; the second goes on to whom it waited
for, and so on, until somebody waited for nobody. Each ns of waiting is charged once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.measures.collectives.clocks import (
    LARGEST_RESIDUAL_NS,
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
_MAX_EARLY_RATIO: Final = 0.05
_MAX_UNMATCHED_RATIO: Final = 0.5
_MIN_CAUSED_RATIO: Final = 0.5


def beyond_others(values: npt.NDArray[Any], keys: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return each value less the median of the other values with the same key.

    The value itself is left out: of two ranks, one that comes 10 ms late is 10 ms late and not
    5 ms. NaN where a key has one value only. The values are integers; differences are taken
    before anything is rounded to float, so that they are exact whatever the clock.
    """
    found = np.empty(len(values), np.float64)
    for some in pieces_of(keys):
        rows = some[np.lexsort((values[some], keys[some]))]
        found[rows] = _excess_of_sorted(values[rows], are_first(keys[rows]))
    return found


def pieces_of(keys: npt.NDArray[Any]) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the rows of some keys after those of others, all of one key together.

    What is laid out for every row takes ten times its memory.
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
    """Return the same of values in the order of key and value."""
    firsts = np.flatnonzero(is_first)
    group = np.cumsum(is_first) - 1
    size, first = np.diff(np.append(firsts, len(ordered)))[group], firsts[group]
    place = np.arange(len(ordered)) - first
    middle = np.zeros(len(ordered), np.float64)
    for rank in ((size - 2) // 2, (size - 1) // 2):
        # Element `rank` of the others: one further on where the value itself comes before.
        there = np.clip(first + rank + (place <= rank), 0, len(ordered) - 1)
        middle += (ordered - ordered[there]) / 2
    return np.where(size > 1, middle, np.nan)


@dataclass(frozen=True, slots=True, eq=False)
class Blame:
    """Whose the waiting of all ranks is; arrays are by place in `find_members`.

    ``waited_ns`` is what each rank waited in step and did not compute: ``whole_ns`` in all.
    ``charged_ns`` is what of it goes back to each rank: that of all others together.
    ``shared_ns`` goes back to nobody who does more than the others (a pipeline fills, and empties),
    ``unclear_ns`` is below ``residual_ns``, by which the clocks may be off: the three add up to the
    whole. ``skew_ns`` was before the ranks were in step, and is not in it. ``busy_ns`` is what each
    rank did itself between its first and last collective, ``excess_ns`` that beyond the median of
    the others, ``cost_ns`` what each costs another rank on average: no more than its excess.
    ``origins`` says where delays arise: member, at_ns (when the others waited), charged_ns.
    ``origin_of_match`` is, by the number of a match, the member that most of the waiting there goes
    back to: the one that came last, or whom that itself had waited for.
    ``why_not`` says why nothing of this can be relied on; "" where it can.
    """

    waited_ns: Int64Array
    charged_ns: Int64Array
    shared_ns: int
    unclear_ns: int
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
        """What all ranks waited."""
        return int(self.waited_ns.sum())


@of_window
def find_blame(ranks: Ranks) -> Blame:
    """Return whose the waiting in collectives and for messages is, of those in the window."""
    waits = find_waits(ranks)
    why_not = _why_not(ranks, waits)  # before the chain is there, which is as large
    n = len(find_members(ranks))
    waited = sums_at(waits["member"], waits["exposed_ns"], n)
    # By how much the clocks of the ranks may be off where they were tied.
    residual_ns = int(max((c.residual_ns or 0 for c in find_alignment(ranks).clocks), default=0))
    is_unclear = waits["wait_ns"] <= residual_ns
    exposed = waits["exposed_ns"].astype(np.float64)
    busy, spans = _measure_busy(waits, waited, n)
    excess_shares = _excess_shares(busy, spans)
    chain = _Chain(waits, excess_shares, n)
    origins = chain.charge(np.where(is_unclear, 0.0, exposed))
    charged = sums_at(origins["member"], origins["charged_ns"], n)
    unclear_ns = int(exposed[is_unclear].sum())
    excess = np.rint(excess_shares * busy).astype(np.int64)
    others = max(int(np.count_nonzero(spans)) - 1, 1)
    return Blame(
        waited_ns=waited,
        charged_ns=charged,
        shared_ns=int(waited.sum() - charged.sum()) - unclear_ns,
        unclear_ns=unclear_ns,
        skew_ns=int(waits["skew_ns"].sum()),
        residual_ns=residual_ns,
        busy_ns=busy,
        excess_ns=excess,
        cost_ns=np.minimum(charged // others, excess),
        origins=origins,
        origin_of_match=chain.origin_of_match(),
        why_not=why_not,
    )


def why_withheld(ranks: Ranks) -> str:
    """Return why nothing can be said of who waits for whom in the window; "" where it can."""
    return find_blame(ranks).why_not


def _measure_busy(waits: Table, waited: Int64Array, n: int) -> tuple[Int64Array, Int64Array]:
    """Return what each rank did itself between the first and last time it was in step, and that."""
    in_step = waits.take(waits["sync_ns"] != ABSENT)
    members = in_step["member"]
    first, last = np.full(n, np.iinfo(np.int64).max), np.zeros(n, np.int64)
    np.minimum.at(first, members, in_step["sync_ns"])
    np.maximum.at(last, members, in_step["last_start_ns"])
    spans = np.clip(last - first, 0, None)  # of who never was in step the first is after the last
    return np.clip(spans - waited, 0, None), spans


def _excess_shares(busy: Int64Array, spans: Int64Array) -> _Float64Array:
    """Return what share of what each rank does itself the median other does not do."""
    excess_shares = np.zeros(len(busy), np.float64)
    known = np.flatnonzero((spans > 0) & (busy > 0))
    if len(known) < 2:
        return excess_shares
    # Shares of the span, in millionths of millionths: spans differ a little at their ends.
    share = np.rint(busy[known] / spans[known] * 1e12).astype(np.int64)
    excess_shares[known] = np.clip(beyond_others(share, np.zeros_like(known)) / share, 0.0, 1.0)
    return excess_shares


def _why_not(ranks: Ranks, waits: Table) -> str:
    """Return why the matches cannot be right, "" where they can.

    A collective does not end on one rank before the last has begun, and ranks of one communicator
    carry out the same collectives.
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
    # Of each message there are two rows, of which one receives.
    if 2 * np.count_nonzero(early_ns > LARGEST_RESIDUAL_NS) > _MAX_EARLY_RATIO * len(early_ns):
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
    """The waits of a run in the order of time, and how each goes on to earlier ones.

    Of what a rank waits, ``o`` is the last rank's own: it did as much more itself; ``p`` is what
    that had waited longer for others. ``x``, of ``o``, is more than its peers do: all of it where
    the ranks play the same part (a collective), else as much as it does more on the whole. What is
    ``x``, here or along the chain, is ``grown``.
    """

    def __init__(self, waits: Table, excess_shares: _Float64Array, n_members: int) -> None:
        match = waits["match"]
        self.begins = np.flatnonzero(are_first(match))
        self.ends = np.append(self.begins, len(match))[1:]
        places = Packed(np.arange(len(self.begins))).stored
        self.place_of_row = Packed.of_stored(np.repeat(places, self.ends - self.begins))
        # By match. All others have a value for each row: of a thousand ranks these are large.
        heads = waits.take(self.begins)
        names = ("match", "last_member", "last_start_ns", "sync_ns")
        self.match, self.last, self.at_ns, self.sync_ns = (
            heads[name].astype(np.int64) for name in names
        )
        self.is_message = heads["is_message"]
        self.member = waits["member"].astype(np.int64)
        self.wait = waits["wait_ns"].astype(np.float64)
        self.exposed = waits["exposed_ns"].astype(np.float64)
        work = waits["own_ns"].astype(np.float64)
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
        """Return, for each row, the value of the rank that came last to its match."""
        is_last = np.flatnonzero(self.member == self.place_of_row.pick(self.last))
        by_match = np.zeros(len(self.begins), np.float64)
        by_match[self.place_of_row[is_last].wide()] = values[is_last]
        return self.place_of_row.pick(by_match)

    def charge(self, waited: _Float64Array) -> Table:
        """Return to whom ``waited`` ns of each row go back, and when these held the others up."""
        charged = np.cumsum(self._charge_matches(self._blamed_shares(), waited))
        # Whole numbers that add up to the sum, rounded down: what is left goes on.
        exact = np.diff(np.floor(charged + 1e-6), prepend=0.0).astype(np.int64)
        found = Table({"member": self.last, "at_ns": self.at_ns, "charged_ns": exact})
        return found.take(exact > 0)

    def origin_of_match(self) -> Mapping[int, int]:
        """Return, by match, whom most of the waiting goes back to: one way along the chain.

        To the last rank where at least half of its delay is its own, else to whom it had waited
        for the longest since all were in step.
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
        """Return, by match, which waits of its last rank lie since all were in step.

        As places among the rows of that rank, the end left out.
        """
        found = np.zeros((len(self.begins), 2), np.int64)
        sync = self.sync_ns
        for member, matches in rows_by_value(self.last).items():
            rows = self.rows_of[member]
            found[matches, 1] = np.searchsorted(rows, self.begins[matches])
            after = np.searchsorted(
                self.place_of_row[rows].pick(self.at_ns), sync[matches], side="right"
            )
            found[matches, 0] = np.minimum(after, found[matches, 1])
            found[matches[sync[matches] == ABSENT], 0] = found[matches[sync[matches] == ABSENT], 1]
        return [(int(a), int(b)) for a, b in found]

    def _blamed_shares(self) -> _Float64Array:
        """Return the share of each wait that is of ranks that do more than their peers."""
        blamed = np.zeros(len(self.member), np.float64)
        # Sums over the rows of each rank so far, the first 0.
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
                blamed[rows] = self.blamed_here[rows] + passed * share
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
        """Charge from the last match to the first, and return how much by match."""
        share_here = np.zeros(len(self.member), np.float64)
        np.divide(self.blamed_here, blamed, share_here, where=blamed > 0)
        # What each ns of a wait is charged with from later ones, as changes along the rows.
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
            if passed > 0:
                weight = self.blamed_sums[last][until] - self.blamed_sums[last][first]
                if weight > 0:
                    changes[last][until] += passed / weight
                    changes[last][first] -= passed / weight
        return charged
