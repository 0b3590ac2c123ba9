"""Build the timeline of a whole trace in several levels of detail, store it, and cut views from it.

The file contains columns one after another, then a JSON head that describes them. Columns are
mapped into memory, not loaded. Therefore the start time does not depend on the number of events,
and the operating system can reclaim the memory. A view consists of slices of the columns.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from traceprof.model.packed import Packed
from traceprof.model.ranks import Ranks
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace
from traceprof.render.formatting import sentences
from traceprof.render.timeline.channels import (
    FIRST_BIN_NS,
    Channel,
    LaneGroup,
    LaneRow,
    Lanes,
    NameTotals,
    condense_channel,
)
from traceprof.render.timeline.drawn import with_states
from traceprof.render.timeline.encode import encode_lanes
from traceprof.render.timeline.lanes import build_lanes
from traceprof.render.timeline.marks import SampleSeries, sample_series
from traceprof.render.timeline.render import timeline_head
from traceprof.render.timeline.shown_names import ShownNames
from traceprof.session.caveats import caveats_of

GROWTH: Final = 4
"""The bins of a level are this many times as wide as those of the next finer level."""
_MAX_KEPT_RATIO: Final = 0.7
"""A coarser level is kept only if it has at most this share of the events of the finer level."""
_MIN_EVENTS: Final = 2_000
"""A level with fewer events needs no coarser level."""


@dataclass(frozen=True, slots=True)
class Level:
    """A channel in which events shorter than ``bin_ns`` are merged per bin; 0 means exact."""

    bin_ns: int
    channel: Channel


def build_levels(channel: Channel, duration_ns: int) -> tuple[Level, ...]:
    """Return the exact channel and coarser levels that are considerably smaller, finest first.

    Every level represents the same number of events with the same total time.
    """
    levels = [Level(0, channel)]
    bin_ns = FIRST_BIN_NS * GROWTH
    while len(levels[-1].channel) > _MIN_EVENTS and bin_ns < duration_ns // 200:
        condensed = condense_channel(levels[-1].channel, bin_ns)
        if len(condensed) <= _MAX_KEPT_RATIO * len(levels[-1].channel):
            levels.append(Level(bin_ns, condensed))
        bin_ns *= GROWTH
    return tuple(levels)


def level_for(levels: tuple[Level, ...], pixel_ns: int) -> Level:
    """Return the coarsest level whose bins are no wider than a pixel."""
    return [level for level in levels if level.bin_ns <= pixel_ns][-1]


def cut_channel(channel: Channel, window: TimeWindow) -> Channel:
    """Return the items that overlap or touch ``window``. The items are not cut."""
    # A numpy integer, because searchsorted would convert the whole array for a float.
    first = int(np.searchsorted(channel.ends, np.int64(window.start_ns), "left"))
    last = int(np.searchsorted(channel.starts, np.int64(window.end_ns), "left"))
    part = slice(first, max(first, last))
    # Columns in a file may have narrower types.
    columns = {name: channel.column(name)[part] for name in channel.columns}
    return channel.changed(
        **{n: values.astype(np.int64, copy=False) for n, values in columns.items()}
    )


class About(NamedTuple):
    """The text above a timeline; ``warnings`` are sentences about the run."""

    profiler: str
    host: str
    n_events: int
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """The exact lanes of a trace, their levels of detail, samples, and totals.

    ``head`` is the head of the page's data. Times are in ns after the start of the trace.
    """

    lanes: Lanes
    samples: Sequence[SampleSeries]
    totals: NameTotals
    head: dict[str, Any]
    about: About
    levels: dict[Channel, tuple[Level, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, trace: Trace, notes: Sequence[str] = ()) -> Timeline:
        """Return the timeline of the whole ``trace``; ``notes`` are added to its warnings."""
        exact = build_lanes(trace, trace.span)
        lanes = with_states(exact, trace.span.duration_ns).mapped(Channel.whole, Channel.whole)
        samples, remarks = sample_series(trace, trace.span)
        info = trace.info
        warnings = (*sentences(caveats_of(Ranks.of(trace)).notes), *notes, *remarks)
        return cls(
            lanes=lanes,
            samples=samples,
            totals=NameTotals.of(lanes, every=True),
            head=timeline_head(trace, trace.span, lanes.n_events),
            about=About(info.profiler, info.host, lanes.n_events, warnings),
        )

    @property
    def duration_ns(self) -> int:
        """The duration of the trace, at least 1."""
        return int(self.head["duration_ns"])

    def levels_of(self, channel: Channel) -> tuple[Level, ...]:
        """Return the levels of detail of ``channel``, which are built once."""
        levels = self.levels.get(channel)
        if levels is None:
            levels = self.levels[channel] = build_levels(channel, self.duration_ns)
        return levels


OVERVIEW_WIDTH: Final = 700
_EMPTY: Final = TimeWindow(0, 0)


class TimelineStore:
    """Returns encoded views of one trace. Times are in ns after the start of the trace."""

    def __init__(self, timeline: Timeline, overview: bytes | None = None) -> None:
        self._timeline = timeline
        self._overview = overview
        self.lanes = timeline.lanes
        self.duration_ns = timeline.duration_ns

    @cached_property
    def overview(self) -> bytes:
        """The whole trace in low detail, with names, samples, and the head of the page's data."""
        if self._overview is not None:
            return self._overview
        window = TimeWindow(0, self.duration_ns + 1)
        everything = range(len(self.lanes.groups))
        groups, slice_head = self._cut(window, OVERVIEW_WIDTH, everything)
        return encode_lanes(
            Lanes(groups, self.lanes.names),
            {**self._timeline.head, **slice_head},
            self._timeline.samples,
            shown=ShownNames.of(self.lanes),
        )

    def view(self, window: TimeWindow, width: int, open_groups: Collection[int]) -> bytes:
        """Return the view of ``window`` for ``width`` pixels, with a margin of 1/4 on each side.

        ``open_groups`` are numbers of groups. Rows of other groups are empty except for copies,
        which the charts need. Names are those of the overview.
        """
        groups, head = self._cut(window, width, open_groups)
        return encode_lanes(Lanes(groups, ()), head)

    def _cut(
        self, window: TimeWindow, width: int, open_groups: Collection[int]
    ) -> tuple[tuple[LaneGroup, ...], dict[str, Any]]:
        """Return the groups of a view, and the head of its data: loaded span, bin width, groups."""
        pixel_ns = window.duration_ns // max(1, width)
        margin = window.duration_ns // 4
        loaded = TimeWindow(window.start_ns - margin, window.end_ns + margin)
        widest_bin_ns = 0

        def cut(channel: Channel, is_shown: bool) -> Channel:
            nonlocal widest_bin_ns
            level = level_for(self._timeline.levels_of(channel), pixel_ns)
            if is_shown:
                widest_bin_ns = max(widest_bin_ns, level.bin_ns)
            return cut_channel(level.channel, loaded if is_shown else _EMPTY)

        def cut_group(group: LaneGroup, is_open: bool) -> LaneGroup:
            is_device = group.kind == "device"
            return group.mapped(
                lambda channel: cut(
                    channel, is_open or (is_device and channel.n_bytes is not None)
                ),
                lambda states: cut(states, True),
            )

        places = enumerate(self.lanes.groups)
        groups = tuple(cut_group(group, place in open_groups) for place, group in places)
        return groups, {
            "loaded": [loaded.start_ns, loaded.end_ns],
            "bin_ns": widest_bin_ns,
            "shown": sorted(place for place in open_groups if place < len(groups)),
        }


_ALIGNED_BYTES: Final = 8
_INSTANTS: Final = ("starts", "ends")
"""Columns that stay 64 bits wide, because a binary search would convert a narrower column."""

_Column = npt.NDArray[Any]


def write_timeline(timeline: Timeline, path: Path) -> None:
    """Write ``timeline`` with all its levels; only the levels of one channel are in memory."""
    with path.open("wb") as file:
        columns = _Columns(file)

        def channel(channel_values: Channel) -> dict[str, Any]:
            levels = [
                {"bin_ns": level.bin_ns, **columns.of_channel(level.channel)}
                for level in build_levels(channel_values, timeline.duration_ns)
            ]
            return {"category": channel_values.category, "levels": levels}

        head = {
            "groups": [group.described(channel) for group in timeline.lanes.groups],
            "names": timeline.lanes.names,
            "samples": [
                {
                    "metric": series.metric,
                    "source": series.source,
                    "times": columns.add(series.times),
                    "values": columns.add(series.values),
                }
                for series in timeline.samples
            ],
            "counts": columns.add(timeline.totals.counts),
            "times": columns.add(timeline.totals.times_ns),
            "page": timeline.head,
            "about": timeline.about._asdict(),
        }
        packed = json.dumps(head).encode()
        start = file.tell()
        file.write(packed)
        file.write(b"".join(n.to_bytes(8, "little") for n in (start, len(packed))))


def read_timeline(path: Path) -> Timeline:
    """Return the timeline in a file of `write_timeline`, mapped into memory.

    Afterwards the file may be renamed or deleted, but its content must not change.
    """
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    start, length = (int.from_bytes(part, "little") for part in (mapped[-16:-8], mapped[-8:]))
    head = json.loads(mapped[start : start + length])
    levels: dict[Channel, tuple[Level, ...]] = {}

    def column(place: tuple[int, int, str]) -> _Column:
        offset, n, kind = place
        return np.frombuffer(mapped, np.dtype(kind), n, offset)

    def level(entry: Mapping[str, Any], category: str) -> Level:
        columns = {name: column(place) for name, place in entry.items() if name != "bin_ns"}
        return Level(entry["bin_ns"], Channel(category, **columns))

    def channel(entry: Mapping[str, Any]) -> Channel:
        of_channel = tuple(level(item, entry["category"]) for item in entry["levels"])
        exact = of_channel[0].channel
        levels[exact] = of_channel
        return exact

    def group(entry: Mapping[str, Any]) -> LaneGroup:
        rows = tuple(
            LaneRow(row["label"], row["kind"], tuple(map(channel, row["channels"])))
            for row in entry["rows"]
        )
        states = tuple(map(channel, entry["states"]))
        return LaneGroup(**{**entry, "rows": rows, "states": states})

    about = head["about"]
    return Timeline(
        lanes=Lanes(tuple(map(group, head["groups"])), tuple(head["names"])),
        samples=[
            SampleSeries(s["metric"], s["source"], column(s["times"]), column(s["values"]))
            for s in head["samples"]
        ],
        totals=NameTotals(column(head["counts"]), column(head["times"])),
        head=head["page"],
        about=About(**{**about, "warnings": tuple(about["warnings"])}),
        levels=levels,
    )


class _Columns:
    """Writes columns to a file, each at an aligned offset."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def of_channel(self, channel: Channel) -> dict[str, Any]:
        """Write the columns of ``channel``, packed, and return the result of `add` for each."""
        return {
            name: self.add(values if name in _INSTANTS else Packed(values).stored)
            for name, values in ((name, channel.column(name)) for name in channel.columns)
        }

    def add(self, values: _Column) -> tuple[int, int, str]:
        """Write ``values`` and return their offset in the file, their number, and their type."""
        offset = -(-self._file.tell() // _ALIGNED_BYTES) * _ALIGNED_BYTES
        self._file.write(b"\0" * (offset - self._file.tell()))
        self._file.write(np.ascontiguousarray(values).data)
        return offset, len(values), values.dtype.str
