"""All lanes of one trace on every level of detail; a view is a few binary searches and slices."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

from traceprof.model.timing import TimeWindow
from traceprof.render.palette import CATEGORIES
from traceprof.render.timeline.channels import Channel, Group, Lanes, Row
from traceprof.render.timeline.encode import encode_lanes
from traceprof.viewer.pyramid import cut_channel, level_for
from traceprof.viewer.timeline import Timeline

__all__ = ["OVERVIEW_WIDTH", "TimelineStore"]

OVERVIEW_WIDTH: Final = 700
_PLACES: Final = {item.key: i for i, item in enumerate(CATEGORIES)}
_NOTHING: Final = TimeWindow(0, 0)


class TimelineStore:
    """Answers views of one trace. Times are ns after the start of the trace."""

    def __init__(self, timeline: Timeline, overview: bytes | None = None) -> None:
        self._timeline = timeline
        self._overview = overview
        self.lanes = timeline.lanes
        self.duration_ns = timeline.duration_ns

    @cached_property
    def overview(self) -> bytes:
        """The whole trace, coarsely, with names, samples and all that a page must know."""
        if self._overview is not None:
            return self._overview
        window = TimeWindow(0, self.duration_ns + 1)
        everything = range(len(self.lanes.groups))
        groups, slice_head = self._cut(window, OVERVIEW_WIDTH, everything)
        lanes = Lanes(groups, self.lanes.names)
        head = {**self._timeline.head, "view": [0, self.duration_ns], **slice_head}
        return encode_lanes(lanes, head, _PLACES, self._timeline.samples)

    def view(self, window: TimeWindow, width: int, open_groups: Collection[int]) -> bytes:
        """Return the view of ``window`` on ``width`` pixels, with a quarter of it on each side.

        Rows of groups that are not open stay empty, but for copies: the charts need those.
        Names are those of the overview.
        """
        groups, head = self._cut(window, width, open_groups)
        return encode_lanes(Lanes(groups, ()), head, _PLACES)

    def _cut(
        self, window: TimeWindow, width: int, open_groups: Collection[int]
    ) -> tuple[tuple[Group, ...], dict[str, Any]]:
        pixel_ns = window.duration_ns // max(1, width)
        margin = window.duration_ns // 4
        around = TimeWindow(window.start_ns - margin, window.end_ns + margin)
        widest = 0

        def cut(channel: Channel, is_wanted: bool) -> Channel:
            nonlocal widest
            level = level_for(self._timeline.levels_of(channel), pixel_ns)
            if is_wanted:
                widest = max(widest, level.bin_ns)
            return cut_channel(level.channel, around if is_wanted else _NOTHING)

        groups = tuple(
            _cut_group(group, place in open_groups, cut)
            for place, group in enumerate(self.lanes.groups)
        )
        shown = sorted(place for place in open_groups if place < len(groups))
        head = {"loaded": [around.start_ns, around.end_ns], "bin_ns": widest, "shown": shown}
        return groups, head


def _cut_group(group: Group, is_open: bool, cut: Any) -> Group:
    def cut_row(row: Row) -> Row:
        channels = (cut(c, is_open or _is_charted(group, c)) for c in row.channels)
        return replace(row, channels=tuple(channels))

    return replace(
        group,
        rows=tuple(cut_row(row) for row in group.rows),
        states=tuple(cut(c, True) for c in group.states),
    )


def _is_charted(group: Group, channel: Channel) -> bool:
    return group.kind == "device" and channel.n_bytes is not None
