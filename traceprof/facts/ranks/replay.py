"""How much sooner a run would end if some ranks did no more than the others.

The order of things stays: every rank goes on as long after it was last released as it did, and a
collective or message releases its ranks when the last of them comes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.facts.collectives.matches import find_matches
from traceprof.facts.ranks.waits import find_waits
from traceprof.measures.device.times import device_times
from traceprof.model.compact import CompactTable
from traceprof.model.grouping import rows_by_value
from traceprof.model.intervals import Intervals
from traceprof.model.ranks import Ranks
from traceprof.model.tables import ABSENT

__all__ = ["saving_of"]

_Int64Array = npt.NDArray[np.int64]
_Float64Array = npt.NDArray[np.float64]

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
        self.match = waits["match"].to_numpy(np.int64)
        self.member = waits["member"].to_numpy(np.int64)
        self.start_ns = waits["start_ns"].to_numpy(np.int64)
        release_ns = waits["last_start_ns"].to_numpy(np.int64)
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
        usual = pd.Series(gaps).groupby(_sequences(self.kind[rows])).transform("quantile", _USUAL)
        longer = np.clip(gaps - usual.to_numpy(np.float64), 0, None)
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


def _sequences(kinds: _Int64Array) -> _Int64Array:
    """Return a number for each of ``kinds`` that says which ones came last, itself included."""
    found, n = kinds, int(kinds.max(initial=0)) + 1
    for _ in range(_REMEMBERED):
        before = np.concatenate(([ABSENT], found[:-1]))
        found = np.asarray(pd.factorize((before + 1) * n + kinds)[0], np.int64)
    return found


def _kinds(ranks: Ranks, waits: CompactTable) -> _Int64Array:
    """Return a number for each row that says with whom its rank meets, and which end it is."""
    keys = ["match", "member"]
    rows = find_matches(ranks).rows[[*keys, "op"]]
    own_op = rows.drop_duplicates(keys).set_index(keys)["op"]
    met = waits[keys].groupby("match", sort=False)["member"].agg(frozenset)
    met = met.reindex(waits["match"])
    op = own_op.reindex(pd.MultiIndex.from_frame(waits[keys])).astype(object)
    pairs = pd.Series(list(zip(met, op, strict=True)), dtype=object)
    return np.asarray(pd.factorize(pairs)[0], np.int64)


def _blocks(ranks: Ranks, waits: CompactTable) -> npt.NDArray[np.bool_]:
    """Return whether the rank of each row goes on only when that is over: no compute runs then."""
    at_ns = waits["last_start_ns"].to_numpy(np.int64)
    computing: dict[int, Intervals] = {}
    for part in ranks.whole:
        computing |= {device: time.compute for device, time in device_times(part).items()}
    blocks = np.ones(len(waits), np.bool_)
    for device, rows in rows_by_value(waits.array("device")).items():
        time = computing.get(device)
        if time is not None:
            blocks[rows] = time.covered_ns(at_ns[rows], at_ns[rows] + 1) == 0
    return blocks
