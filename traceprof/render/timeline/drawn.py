"""What a page draws of a run: each rank draws itself, where its Trace is, and as much as fits.

All events of a thousand ranks are in no process: each brings its share of the items of a page.
What a device does at each instant is found here for pages that hold condensed events; an exact
page derives the same in the browser (`assets/states.mjs`), from `state_of_parts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from operator import or_
from typing import Final

import numpy as np

from traceprof.model.activity import IDLE, DeviceTime, Part
from traceprof.model.grouping import pieces_of
from traceprof.model.intervals import Growing, Intervals
from traceprof.model.ranks import Ranks
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace
from traceprof.render.palette import CATEGORIES, CATEGORY_INDEX, NOT_RECORDED
from traceprof.render.timeline.channels import (
    Channel,
    LaneGroup,
    Lanes,
    NameTotals,
    condense,
    condense_until,
    items_by_width,
    state_channel,
    times_to_widen,
    width_of,
)
from traceprof.render.timeline.lanes import RankLanes, arranged, lanes_of_rank

_PART_OF: Final = {item.key: item.part for item in CATEGORIES}
_UNIONS: Final = tuple(Part)


def with_states(lanes: Lanes, duration_ns: int) -> Lanes:
    """Return ``lanes`` whose device groups carry their states over ``[0, duration_ns)``."""
    return replace(
        lanes,
        groups=tuple(
            replace(group, states=device_states(group, duration_ns))
            if group.kind == "device"
            else group
            for group in lanes.groups
        ),
    )


def device_states(group: LaneGroup, duration_ns: int) -> tuple[Channel, ...]:
    """Return the states of one device: exclusive, and together the whole duration."""
    time = DeviceTime(**{part.value: _busy(group, part) for part in _UNIONS})
    unknown = [
        Intervals(own.starts, own.ends) for own in group.states if own.category == NOT_RECORDED
    ]
    found: dict[str, list[Intervals]] = {key: [] for key in time.states(0, 0)}
    for span in pairwise(_borders(time, duration_ns)):
        states = dict(time.states(*span))
        for own in unknown:
            states[IDLE] -= own.clip(*span)
        for key, times in states.items():
            found[key] += [times] if len(times) else []
    found[NOT_RECORDED] = unknown
    return tuple(state_channel(key, *own) for key, own in found.items() if own)


def _borders(time: DeviceTime, duration_ns: int) -> list[int]:
    """Return instants at which another state begins, few of all, and the ends."""
    unions = (getattr(time, part.value) for part in _UNIONS)
    starts = sorted({int(own.starts[at.start]) for own in unions for at in pieces_of(len(own))})
    inner = (at for at in starts if 0 < at < duration_ns)
    return [0, *(at for at in inner if _is_border(time, at)), duration_ns]


def _is_border(time: DeviceTime, at_ns: int) -> bool:
    around = time.states(at_ns - 1, at_ns + 1)
    return not any(len(own) == 1 and own.total_ns == 2 for own in around.values())


def part_bits() -> list[int]:
    """Return, for each category, the bit of the union that its events belong to; 0 for none.

    What was not recorded has one, too: the greatest.
    """
    bits = [0 if c.part is None else 1 << _UNIONS.index(c.part) for c in CATEGORIES]
    bits[CATEGORY_INDEX[NOT_RECORDED]] = 1 << len(_UNIONS)
    return bits


def state_of_parts() -> list[int]:
    """Return the category of the state for each set of unions that are busy together.

    A place in the list has the bits of `part_bits`.
    """
    always, never = Intervals.union_of(np.array([0]), np.array([1])), Intervals.empty()
    found = []
    for bits in range(1 << len(_UNIONS)):
        parts = {p.value: always if bits >> i & 1 else never for i, p in enumerate(_UNIONS)}
        (state,) = (key for key, own in DeviceTime(**parts).states(0, 1).items() if len(own))
        found.append(CATEGORY_INDEX[state])
    return [*found, CATEGORY_INDEX[NOT_RECORDED], *found[1:]]


def _busy(group: LaneGroup, part: Part) -> Intervals:
    channels = [c for row in group.rows for c in row.channels if _PART_OF[c.category] is part]
    unions = [_union_of(channel) for channel in channels] or [Intervals.empty()]
    while len(unions) > 1:  # by twos: what many have in common is put together a few times only
        unions = [reduce(or_, unions[at : at + 2]) for at in range(0, len(unions), 2)]
    return unions[0]


def _union_of(channel: Channel) -> Intervals:
    growing = Growing(len(channel))
    for piece in channel.pieces():
        growing.add(Intervals.union_of(piece.starts, piece.ends))
    return growing.found()


@dataclass(frozen=True, slots=True)
class Drawing:
    """Lanes, the width of the bins that short events were merged in (0: none), and these by name.

    ``merged`` is None where all events are drawn.
    """

    lanes: Lanes
    bin_ns: int
    merged: NameTotals | None

    def of_at_most(
        self, max_items: int, duration_ns: int, exact: TimeWindow | None = None
    ) -> Drawing:
        """Return the same with at most so many items, those in ``exact`` as they are."""
        if self.lanes.n_items <= max_items:
            return self
        lanes = self.lanes if self.bin_ns else with_states(self.lanes, duration_ns)
        before = NameTotals.of(lanes)
        lanes, bin_ns = condense_until(lanes, max_items, exact)
        gone = before.less(NameTotals.of(lanes))
        merged = gone if self.merged is None else self.merged.more(gone)
        return Drawing(lanes, max(self.bin_ns, bin_ns), merged)


@dataclass(frozen=True, slots=True)
class _Part:
    """What one rank draws, its bins widened ``n_times``; with bins of all widths, how many items.

    ``totals`` are those of all its events, by the names of its lanes.
    """

    own: RankLanes
    n_times: int
    n_items: Sequence[int]
    totals: NameTotals

    def widened(self, n_times: int, duration_ns: int, exact: TimeWindow | None) -> _Part:
        """Return the same with the bins widened so often, or oftener; but not in ``exact``."""
        if n_times <= self.n_times:
            return self
        lanes = self.own.lanes if self.n_times else with_states(self.own.lanes, duration_ns)
        own = replace(self.own, lanes=condense(lanes, width_of(n_times), exact))
        return replace(self, own=own, n_times=n_times)


def draw_ranks(
    ranks: Ranks, span: TimeWindow, max_items: int, exact: TimeWindow | None = None
) -> Drawing:
    """Return what has a part in ``span``, in at most ``max_items`` items or what bins leave.

    What has a part in ``exact``, in ns after the start of ``span``, is merged with nothing.
    """
    processes = ranks.table("processes")
    has_hosts = len({*processes["host"].tolist()}) > 1
    share = max(1, max_items // len(ranks))
    parts = ranks.each(_drawn, span, share, exact, has_hosts=has_hosts)
    n_items = [sum(of_all) for of_all in zip(*(part.n_items for part in parts), strict=True)]
    n_times = times_to_widen(n_items, max_items)
    coarse = [i for i, part in enumerate(parts) if part.n_times > n_times]
    if coarse:  # of others there is less than their share
        few = replace(ranks, parts=tuple(ranks.parts[i] for i in coarse))
        finer = few.each(_drawn, span, 0, exact, n_times, has_hosts=has_hosts)
        for i, part in zip(coarse, finer, strict=True):
            parts[i] = part
    parts = [part.widened(n_times, span.duration_ns, exact) for part in parts]
    lanes = arranged([part.own for part in parts], processes)
    if not n_times:
        return Drawing(lanes, 0, None)
    every = NameTotals.together(lanes.names, ((p.own.lanes.names, p.totals) for p in parts))
    return Drawing(lanes, width_of(n_times), every.less(NameTotals.of(lanes)))


def _drawn(
    trace: Trace,
    span: TimeWindow,
    share: int,
    exact: TimeWindow | None,
    n_times: int | None = None,
    *,
    has_hosts: bool,
) -> _Part:
    """Return the lanes of one rank with at most ``share`` items, or its bins widened so often."""
    own = lanes_of_rank(trace, span, has_hosts=has_hosts)
    part = _Part(own, 0, items_by_width(own.lanes, exact), NameTotals.of(own.lanes))
    if n_times is None:
        n_times = times_to_widen(part.n_items, share)
    return part.widened(n_times, span.duration_ns, exact)
