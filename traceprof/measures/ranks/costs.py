"""What slow ranks cost the other ranks, since when, and what they spend more time on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.measures.collectives.blame import Blame, find_blame
from traceprof.measures.collectives.matches import find_matches
from traceprof.measures.collectives.waits import (
    computing_of_devices,
    find_rows_in,
    find_waits,
    waiting_of_members,
)
from traceprof.measures.facts import of_window
from traceprof.measures.ranks.arrivals import ON_HOST, excess_of_members
from traceprof.measures.ranks.kernels import KernelExcess, compare_kernels, kernels_of_members
from traceprof.measures.ranks.times import parts_of_members
from traceprof.measures.rows import ints
from traceprof.model.compact import CompactTable
from traceprof.model.grouping import groups_of, numbered, places_of, rows_by_value
from traceprof.model.intervals import Int64Array, Intervals
from traceprof.model.ranks import Ranks
from traceprof.model.tables import ABSENT
from traceprof.model.trace import DEVICE_TABLES

_Float64Array = npt.NDArray[np.float64]

_MIN_CAUSE_RATIO: Final = 0.25  # of the excess work of a rank
_MAX_REPLAY_ERROR_RATIO: Final = 0.02  # of the span of the run
_SEQUENCE_LENGTH: Final = 8
"""Number of previous waits that identify the position of a rank in its step."""

_USUAL_QUANTILE: Final = 0.25
"""Quantile of the gaps of a kind that counts as usual, so a rank may be slow half of the time."""


def saving_of(ranks: Ranks, shares: Mapping[int, float]) -> int | None:
    """Return how much earlier the last release would be if ranks worked less, in ns.

    ``shares`` maps a member to the share of its work to remove: first from gaps that are longer
    than usual, then from all gaps proportionally. None if a replay of the unchanged run does not
    reproduce its end, since the waiting relations are not known well enough then.
    """
    waits = find_waits(ranks)
    if waits.empty:
        return None
    replay = _Replay(ranks, waits)
    end_ns = int(waits["last_start_ns"].max())
    span = max(end_ns - int(waits["last_start_ns"].min()), 1)
    replayed_ns = replay.end_ns({})
    if abs(replayed_ns - end_ns) > _MAX_REPLAY_ERROR_RATIO * span:
        return None
    return max(round(replayed_ns - replay.end_ns(shares)), 0)


class _Replay:
    """Replay of the waits of a run with shorter gaps between them.

    Rows are those of `find_waits`. ``blocks`` is whether the rank continues only after the release.
    ``kind`` identifies the group of ranks and the operation. ``previous_row`` is the previous
    blocking wait of the same rank (`ABSENT` if none). ``gap_ns`` is the time between its release
    and the start of the row.
    """

    def __init__(self, ranks: Ranks, waits: CompactTable) -> None:
        self.match, self.member, self.start_ns, release_ns = ints(
            waits, "match", "member", "start_ns", "last_start_ns"
        )
        self.blocks = _blocks(ranks, waits)
        self.kind = _kinds(ranks, waits)
        self.previous_row = np.full(len(waits), ABSENT, np.int64)
        self.gap_ns = np.zeros(len(waits), np.float64)
        for rows in rows_by_value(self.member).values():
            blocking = np.asarray(rows)[self.blocks[rows]]
            place = np.searchsorted(release_ns[blocking], self.start_ns[rows]) - 1
            known = place >= 0
            known_rows = np.asarray(rows)[known]
            self.previous_row[known_rows] = blocking[place[known]]
            self.gap_ns[known_rows] = (
                self.start_ns[known_rows] - release_ns[self.previous_row[known_rows]]
            )

    def _removed_ns(self, member: int, share: float) -> _Float64Array:
        """Return the ns to remove from each gap of ``member``; in total ``share`` of all its gaps.

        A rank that is slow periodically is slow in gaps that are longer than other gaps of their
        kind, which follow the same sequence of waits. The excess of those gaps is removed first.
        """
        rows = np.flatnonzero(self.member == member)
        gaps = self.gap_ns[rows]
        sequences = groups_of(_sequences(self.kind[rows]))
        excess = np.clip(
            gaps - sequences.quantiles(gaps, _USUAL_QUANTILE)[sequences.number], 0, None
        )
        to_remove = share * gaps.sum()
        removed = excess * min(1.0, to_remove / max(excess.sum(), 1))
        rest = gaps - removed
        found = np.zeros(len(self.member), np.float64)
        found[rows] = removed + rest * max(to_remove - removed.sum(), 0) / max(rest.sum(), 1)
        return found

    def end_ns(self, shares: Mapping[int, float]) -> float:
        """Return when the last collective releases its ranks without the work in ``shares``."""
        kept_ns = self.gap_ns.copy()
        for member, share in shares.items():
            kept_ns -= self._removed_ns(member, share)
        gaps: list[float] = kept_ns.tolist()
        # Lists, because the loop below reads single elements.
        match, members, previous_rows, starts, blocks = (
            column.tolist()
            for column in (self.match, self.member, self.previous_row, self.start_ns, self.blocks)
        )
        released_at = [0.0] * len(match)
        latest_release: dict[int, float] = {}
        place, end_ns = 0, 0.0
        while place < len(match):
            begin, release = place, 0.0
            while place < len(match) and match[place] == match[begin]:
                previous = previous_rows[place]
                start = starts[place] if previous < 0 else released_at[previous] + gaps[place]
                release = max(release, start)
                place += 1
            for row in range(begin, place):
                if blocks[row]:
                    latest_release[members[row]] = max(
                        latest_release.get(members[row], 0.0), release
                    )
                    released_at[row] = latest_release[members[row]]
            end_ns = max(end_ns, release)
        return end_ns


def _sequences(kinds: Int64Array) -> Int64Array:
    """Return a number per element that identifies it and the `_SEQUENCE_LENGTH` kinds before it."""
    found, n = kinds, int(kinds.max(initial=0)) + 1
    for _ in range(_SEQUENCE_LENGTH):
        before = np.concatenate(([ABSENT], found[:-1]))
        found = places_of((before + 1) * n + kinds)[0].wide()
    return found


def _kinds(ranks: Ranks, waits: CompactTable) -> Int64Array:
    """Return a number per row that identifies the ranks of its match and its operation."""
    by_match, rows = groups_of(waits["match"]), find_matches(ranks).rows
    members_of_match = np.split(waits["member"][by_match.order], by_match.first[1:])
    number: dict[frozenset[int], int] = {}
    group = [
        number.setdefault(frozenset(members.tolist()), len(number)) for members in members_of_match
    ]
    op = np.append(rows["op"].codes, ABSENT)[find_rows_in(rows, waits)]
    return numbered(np.array(group)[by_match.number], op)[0].astype(np.int64)


def _blocks(ranks: Ranks, waits: CompactTable) -> npt.NDArray[np.bool_]:
    """Return whether the rank of each row continues only after the wait.

    This is the case if no compute runs on its device at the end of the wait.
    """
    (at_ns,) = ints(waits, "last_start_ns")
    computing = computing_of_devices(ranks.whole)
    blocks = np.ones(len(waits), np.bool_)
    for device, rows in rows_by_value(waits["device"]).items():
        if (time := computing.get(device)) is not None:
            blocks[rows] = time.covered_ns(at_ns[rows], at_ns[rows] + 1) == 0
    return blocks


@of_window
def cost_of(ranks: Ranks, places: tuple[int, ...]) -> int:
    """Return how much longer the run takes because of the members at ``places``, in ns.

    In a run of collectives, this is the mean time that another rank waits because of them, at most
    the median of their excess work. Delays that compute hides only on the other ranks are added. In
    a pipeline the cost is lower: a faster rank would wait itself while the pipeline fills. There
    the cost comes from a replay of the run without the excess work (`saving_of`).
    """
    blame = find_blame(ranks)
    slow = np.array(places, np.int64)
    others = max(int(np.count_nonzero(blame.busy_ns)) - len(slow), 1)
    charged = int(blame.attributed_ns[slow].sum()) // others
    excess = np.sort(blame.excess_ns[slow])
    cost_ns = min(charged, int(excess[(len(excess) - 1) // 2]))  # at most the median excess
    if not cost_ns:
        return 0
    if not find_waits(ranks)["is_message"].any():
        # The other ranks do not wait in these delays, and the excess work does not include them.
        return cost_ns + _overlapped_delay_ns(ranks, places, others)
    shares = (blame.excess_ns[slow] / np.maximum(blame.busy_ns[slow], 1)).tolist()
    saving = saving_of(ranks, dict(zip(places, shares, strict=True)))
    return cost_ns if saving is None else saving


@of_window
def tails_delayed_by(ranks: Ranks, places: tuple[int, ...]) -> tuple[Intervals, ...]:
    """Return when each rank neither waits nor computes in collectives that ``places`` delay.

    By position in `find_members`, from the start of the last rank, one of ``places``, to the end of
    the collective. Collectives that run on the host are excluded if device work was recorded,
    because they do not end on all ranks at the same time.
    """
    matches = find_matches(ranks).collectives
    chosen = matches.table["match"][np.isin(matches.table["last_member"], places)]
    is_chosen = matches.has_match_in(chosen) & (matches.rows["member"] >= 0)
    if ranks.recorded & set(DEVICE_TABLES):
        is_chosen &= matches.rows["device"] != ABSENT
    rows = matches.rows.take(is_chosen)
    begin, end = matches.per_row(rows, "last_start_ns"), rows["end_ns"]
    device = rows["device"]
    computing = computing_of_devices(ranks)
    waiting = waiting_of_members(ranks.whole)
    tails = [Intervals.empty() for _ in matches.members]
    for place, member_rows in rows_by_value(rows["member"]).items():
        time = Intervals.union_of(
            begin[member_rows], np.maximum(end[member_rows], begin[member_rows])
        )
        of_device = computing.get(int(device[member_rows[0]]), Intervals.empty())
        tails[place] = time - of_device - waiting[place]
    return tuple(tails)


def _overlapped_delay_ns(ranks: Ranks, places: tuple[int, ...], n_others: int) -> int:
    """Return how much longer the others are in these tails than the slow ranks, on average."""
    totals = [time.total_ns for time in tails_delayed_by(ranks, places)]
    slow = sum(totals[place] for place in places)
    return max((sum(totals) - slow) // n_others - slow // len(places), 0)


@dataclass(frozen=True, slots=True)
class Cause:
    """What a rank spends more time on: text, total ns, and for slow kernels the slowdown factor.

    ``kernels`` compares the kernels if the cause is more work, or the same work that takes longer.
    """

    text: str
    excess_ns: int
    factor: float | None = None
    kernels: KernelExcess | None = None


@of_window
def cause_of(ranks: Ranks, place: int) -> Cause | None:
    """Return what the member at ``place`` spends more time on than the median of the other ranks.

    None if no device work was recorded, or if no cause explains a quarter of the excess work.
    """
    parts_of = parts_of_members(ranks)
    others = [parts for i, parts in parts_of.items() if i != place]
    if place not in parts_of or not others:
        return None
    copies_ns = int(
        parts_of[place]["exposed_transfer_ns"]
        - np.median([parts["exposed_transfer_ns"] for parts in others])
    )
    found = [Cause("copies that nothing hides", copies_ns)]
    kernels = compare_kernels(kernels_of_members(ranks), place)
    if kernels is not None:
        found = [
            Cause(kernels.slower_text, kernels.slower_ns, kernels.factor, kernels),
            Cause(kernels.more_text, kernels.more_ns, kernels=kernels),
            *found,
        ]
    excess_ns = int(find_blame(ranks).excess_ns[place])
    rest_ns = excess_ns - sum(max(cause.excess_ns, 0) for cause in found)
    found.append(Cause(f"the device waits for {_find_awaited(ranks, place)}", rest_ns))
    largest = max(found, key=lambda cause: cause.excess_ns)
    return largest if largest.excess_ns > _MIN_CAUSE_RATIO * excess_ns > 0 else None


def _find_awaited(ranks: Ranks, place: int) -> str:
    """Return what the idle device of a rank waits for ("data" or "the host"), from host phases."""
    excess = excess_of_members(ranks)
    on_host = [name for name in excess if name.endswith(ON_HOST)]
    longest = max(on_host, key=lambda name: float(excess[name][place]), default="")
    return "data" if longest.startswith("data") and excess[longest][place] > 0 else "the host"


def since_of(ranks: Ranks, blame: Blame, places: tuple[int, ...]) -> int | None:
    """Return when ``places`` first delayed the others by half of the usual delay.

    In ns from the start of the recording; None if they delay nobody. The usual delay is the one
    above which delays make up half of the total, so many small delays do not lower it.
    """
    rows = np.flatnonzero(np.isin(blame.origins["member"], places))
    if not len(rows):
        return None
    charged, at_ns = ints(blame.origins, "attributed_ns", "at_ns", rows=rows)
    largest = np.sort(charged)[::-1]
    usual = int(largest[np.searchsorted(np.cumsum(largest), largest.sum() / 2)])
    return int(at_ns[charged >= usual / 2].min()) - ranks.whole.span.start_ns
