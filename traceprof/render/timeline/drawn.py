"""Draw the lanes of a run: each rank draws itself, in the process that holds its Trace.

No process holds all events of a thousand ranks. Each rank contributes its share of the items of a
page. Pages with merged events get the device states from this module. In exact pages, the browser
derives the same states (`assets/states.mjs`) from `state_of_parts`.
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
    bin_width_ns,
    condense,
    condense_until,
    find_widening,
    items_by_width,
    state_channel,
)
from traceprof.render.timeline.lanes import (
    RankLanes,
    has_several_hosts,
    lanes_of_rank,
    merge_ranks,
)

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
    """Return the state channels of one device. They are disjoint and cover the whole duration."""
    time = DeviceTime(**{part.value: _busy(group, part) for part in _UNIONS})
    unknown = [
        Intervals(channel.starts, channel.ends)
        for channel in group.states
        if channel.category == NOT_RECORDED
    ]
    times_by_state: dict[str, list[Intervals]] = {key: [] for key in time.states(0, 0)}
    for span in pairwise(_borders(time, duration_ns)):
        states = dict(time.states(*span))
        for channel in unknown:
            states[IDLE] -= channel.clip(*span)
        for key, times in states.items():
            times_by_state[key] += [times] if len(times) else []
    times_by_state[NOT_RECORDED] = unknown
    return tuple(state_channel(key, *times) for key, times in times_by_state.items() if times)


def _borders(time: DeviceTime, duration_ns: int) -> list[int]:
    """Return 0, ``duration_ns``, and a few instants between them at which the device state changes.

    The caller processes the states between these instants separately, to limit memory.
    """
    unions = (getattr(time, part.value) for part in _UNIONS)
    starts = sorted(
        {int(union.starts[piece.start]) for union in unions for piece in pieces_of(len(union))}
    )
    inner = (at for at in starts if 0 < at < duration_ns and _is_state_change(time, at))
    return [0, *inner, duration_ns]


def _is_state_change(time: DeviceTime, at_ns: int) -> bool:
    """Return whether no single state covers both the ns before and the ns after ``at_ns``."""
    return not any(
        len(times) == 1 and times.total_ns == 2
        for times in time.states(at_ns - 1, at_ns + 1).values()
    )


def part_bits() -> list[int]:
    """Return, for each category, the bit of the part of GPU time that it belongs to; 0 for none.

    Times that were not recorded have the highest bit.
    """
    bits = [0 if c.part is None else 1 << _UNIONS.index(c.part) for c in CATEGORIES]
    bits[CATEGORY_INDEX[NOT_RECORDED]] = 1 << len(_UNIONS)
    return bits


def state_of_parts() -> list[int]:
    """Return the category of the device state for each set of parts that are busy together.

    The index in the list is the sum of the bits of `part_bits`.
    """
    always, never = Intervals.union_of(np.array([0]), np.array([1])), Intervals.empty()
    categories = []
    for bits in range(1 << len(_UNIONS)):
        parts = {p.value: always if bits >> i & 1 else never for i, p in enumerate(_UNIONS)}
        (state,) = (key for key, times in DeviceTime(**parts).states(0, 1).items() if len(times))
        categories.append(CATEGORY_INDEX[state])
    return [*categories, CATEGORY_INDEX[NOT_RECORDED], *categories[1:]]


def _busy(group: LaneGroup, part: Part) -> Intervals:
    """Return the union of the device times whose category belongs to ``part``."""
    channels = [c for row in group.rows for c in row.channels if _PART_OF[c.category] is part]
    unions = [_union_of(channel) for channel in channels] or [Intervals.empty()]
    while len(unions) > 1:  # merge in pairs: each interval is copied only log2(n) times
        unions = [reduce(or_, unions[at : at + 2]) for at in range(0, len(unions), 2)]
    return unions[0]


def _union_of(channel: Channel) -> Intervals:
    """Return the union of the intervals of a channel, piece by piece to limit memory."""
    growing = Growing(len(channel))
    for piece in channel.pieces():
        growing.add(Intervals.union_of(piece.starts, piece.ends))
    return growing.found()


@dataclass(frozen=True, slots=True)
class Drawing:
    """Lanes, and the totals of the events that were merged.

    ``bin_ns`` is the width of the bins in which short events were merged. If all events are drawn,
    ``bin_ns`` is 0 and ``merged`` is None.
    """

    lanes: Lanes
    bin_ns: int
    merged: NameTotals | None

    def limited_to(
        self, max_items: int, duration_ns: int, exact: TimeWindow | None = None
    ) -> Drawing:
        """Return the drawing with at most ``max_items`` items.

        Events that overlap ``exact`` stay unmerged.
        """
        if self.lanes.n_items <= max_items:
            return self
        lanes = self.lanes if self.bin_ns else with_states(self.lanes, duration_ns)
        before = NameTotals.of(lanes)
        lanes, bin_ns = condense_until(lanes, max_items, exact)
        newly_merged = before.minus(NameTotals.of(lanes))
        merged = newly_merged if self.merged is None else self.merged.plus(newly_merged)
        return Drawing(lanes, max(self.bin_ns, bin_ns), merged)


@dataclass(frozen=True, slots=True)
class _RankDrawing:
    """The lanes of one rank, condensed to bins that were widened ``n_times``.

    ``n_items`` holds the number of items for every bin width (`items_by_width`). ``totals`` counts
    all events of the rank, by the names of its lanes.
    """

    rank_lanes: RankLanes
    n_times: int
    n_items: Sequence[int]
    totals: NameTotals

    def widened(self, n_times: int, duration_ns: int, exact: TimeWindow | None) -> _RankDrawing:
        """Return the drawing with bins widened at least ``n_times``.

        Events that overlap ``exact`` stay unmerged.
        """
        if n_times <= self.n_times:
            return self
        lanes = (
            self.rank_lanes.lanes
            if self.n_times
            else with_states(self.rank_lanes.lanes, duration_ns)
        )
        rank_lanes = replace(self.rank_lanes, lanes=condense(lanes, bin_width_ns(n_times), exact))
        return replace(self, rank_lanes=rank_lanes, n_times=n_times)


def draw_ranks(
    ranks: Ranks, span: TimeWindow, max_items: int, exact: TimeWindow | None = None
) -> Drawing:
    """Draw the events that overlap ``span`` in at most ``max_items`` items.

    The number of items can be higher if even the widest bins need more. Events that overlap
    ``exact`` (in ns after the start of ``span``) are never merged.
    """
    processes = ranks.table("processes")
    has_hosts = has_several_hosts(processes)
    share = max(1, max_items // len(ranks))
    drawings = ranks.each(_draw_rank, span, share, exact, has_hosts=has_hosts)
    n_items = [sum(n) for n in zip(*(drawing.n_items for drawing in drawings), strict=True)]
    n_times = find_widening(n_items, max_items)
    coarse = [i for i, drawing in enumerate(drawings) if drawing.n_times > n_times]
    if coarse:  # other ranks need less than their share, so these ranks can have more
        coarse_ranks = replace(ranks, parts=tuple(ranks.parts[i] for i in coarse))
        finer = coarse_ranks.each(_draw_rank, span, 0, exact, n_times, has_hosts=has_hosts)
        for i, drawing in zip(coarse, finer, strict=True):
            drawings[i] = drawing
    drawings = [drawing.widened(n_times, span.duration_ns, exact) for drawing in drawings]
    lanes = merge_ranks([drawing.rank_lanes for drawing in drawings], processes)
    if not n_times:
        return Drawing(lanes, 0, None)
    parts = ((drawing.rank_lanes.lanes.names, drawing.totals) for drawing in drawings)
    totals = NameTotals.summed(lanes.names, parts)
    return Drawing(lanes, bin_width_ns(n_times), totals.minus(NameTotals.of(lanes)))


def _draw_rank(
    trace: Trace,
    span: TimeWindow,
    share: int,
    exact: TimeWindow | None,
    n_times: int | None = None,
    *,
    has_hosts: bool,
) -> _RankDrawing:
    """Draw one rank with at most ``share`` items, or with bins that were widened ``n_times``."""
    rank_lanes = lanes_of_rank(trace, span, has_hosts=has_hosts)
    drawing = _RankDrawing(
        rank_lanes, 0, items_by_width(rank_lanes.lanes, exact), NameTotals.of(rank_lanes.lanes)
    )
    if n_times is None:
        n_times = find_widening(drawing.n_items, share)
    return drawing.widened(n_times, span.duration_ns, exact)
