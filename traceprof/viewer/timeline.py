"""The timeline of all of a trace on every level of detail, kept in a file; a view is a few slices.

The file has columns one after another, then a JSON head that names them. What is read is mapped,
not loaded: a start takes no longer for more events, and the system takes the memory back when it
needs it.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import starmap
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
from traceprof.session.doubts import doubts_of

GROWTH: Final = 4
_LEAST_GAIN: Final = 0.7
_FEW: Final = 2_000


@dataclass(frozen=True, slots=True)
class Level:
    """A channel whose events shorter than ``bin_ns`` are merged per bin; 0: exact."""

    bin_ns: int
    channel: Channel


def build_levels(channel: Channel, duration_ns: int) -> tuple[Level, ...]:
    """Return the exact channel and coarser ones, each worth its memory, the finest first.

    Every level stands for the same number of events, busy for the same time.
    """
    levels = [Level(0, channel)]
    bin_ns = FIRST_BIN_NS * GROWTH
    while len(levels[-1].channel) > _FEW and bin_ns < duration_ns // 200:
        condensed = condense_channel(levels[-1].channel, bin_ns)
        if len(condensed) <= _LEAST_GAIN * len(levels[-1].channel):
            levels.append(Level(bin_ns, condensed))
        bin_ns *= GROWTH
    return tuple(levels)


def level_for(levels: tuple[Level, ...], pixel_ns: int) -> Level:
    """Return the coarsest level whose bins are no wider than a pixel."""
    return [level for level in levels if level.bin_ns <= pixel_ns][-1]


def cut_channel(channel: Channel, window: TimeWindow) -> Channel:
    """Return the items with a part in ``window`` or at its edges, whole."""
    # An integer of numpy: a float would make searchsorted convert the whole array.
    first = int(np.searchsorted(channel.ends, np.int64(window.start_ns), "left"))
    last = int(np.searchsorted(channel.starts, np.int64(window.end_ns), "left"))
    part = slice(first, max(first, last))
    # Columns of a file may be narrower.
    columns = {name: channel.column(name)[part] for name in channel.columns}
    return channel.changed(
        **{n: values.astype(np.int64, copy=False) for n, values in columns.items()}
    )


class About(NamedTuple):
    """What stands above a timeline; ``warnings`` are sentences about the run."""

    profiler: str
    host: str
    n_events: int
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """The exact lanes, their levels of detail, samples and totals; ``head`` is that of a page.

    Times are ns after the start of the trace.
    """

    lanes: Lanes
    samples: Sequence[SampleSeries]
    totals: NameTotals
    head: dict[str, Any]
    about: About
    levels: dict[Channel, tuple[Level, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, trace: Trace, notes: Sequence[str] = ()) -> Timeline:
        """Return the timeline of the whole of ``trace``; ``notes`` are more to be said of it."""
        exact = build_lanes(trace, trace.span)
        lanes = with_states(exact, trace.span.duration_ns).mapped(Channel.whole, Channel.whole)
        samples, remarks = sample_series(trace, trace.span)
        info = trace.info
        doubts = sentences(doubts_of(Ranks.of(trace)).notes)
        warnings = (*doubts, *notes, *remarks)
        return cls(
            lanes=lanes,
            samples=samples,
            totals=NameTotals.of(lanes, every=True),
            head=timeline_head(trace, trace.span, lanes.n_events),
            about=About(info.profiler, info.host, lanes.n_events, warnings),
        )

    @property
    def duration_ns(self) -> int:
        """How long the trace is; at least 1."""
        duration: int = self.head["duration_ns"]
        return duration

    def levels_of(self, channel: Channel) -> tuple[Level, ...]:
        """Return the levels of detail of ``channel``, which are kept from the first time on."""
        found = self.levels.get(channel)
        if found is None:
            found = self.levels[channel] = self.build_levels(channel)
        return found

    def build_levels(self, channel: Channel) -> tuple[Level, ...]:
        """Return the levels of detail of ``channel``."""
        return build_levels(channel, self.duration_ns)


OVERVIEW_WIDTH: Final = 700
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
        head = {**self._timeline.head, **slice_head}
        shown = ShownNames.of(self.lanes)
        return encode_lanes(lanes, head, self._timeline.samples, shown=shown)

    def view(self, window: TimeWindow, width: int, open_groups: Collection[int]) -> bytes:
        """Return the view of ``window`` on ``width`` pixels, with a quarter of it on each side.

        Rows of groups that are not open stay empty, but for copies: the charts need those.
        Names are those of the overview.
        """
        groups, head = self._cut(window, width, open_groups)
        return encode_lanes(Lanes(groups, ()), head)

    def _cut(
        self, window: TimeWindow, width: int, open_groups: Collection[int]
    ) -> tuple[tuple[LaneGroup, ...], dict[str, Any]]:
        pixel_ns = window.duration_ns // max(1, width)
        margin = window.duration_ns // 4
        loaded = TimeWindow(window.start_ns - margin, window.end_ns + margin)
        widest = 0

        def cut(channel: Channel, is_wanted: bool) -> Channel:
            nonlocal widest
            level = level_for(self._timeline.levels_of(channel), pixel_ns)
            if is_wanted:
                widest = max(widest, level.bin_ns)
            return cut_channel(level.channel, loaded if is_wanted else _NOTHING)

        def cut_group(group: LaneGroup, is_open: bool) -> LaneGroup:
            is_device = group.kind == "device"
            return group.mapped(
                lambda own: cut(own, is_open or (is_device and own.n_bytes is not None)),
                lambda own: cut(own, True),
            )

        places = enumerate(self.lanes.groups)
        groups = tuple(cut_group(group, place in open_groups) for place, group in places)
        shown = sorted(place for place in open_groups if place < len(groups))
        head = {"loaded": [loaded.start_ns, loaded.end_ns], "bin_ns": widest, "shown": shown}
        return groups, head


_ALIGNED_BYTES: Final = 8
_INSTANTS: Final = ("starts", "ends")
"""These stay 64 bits wide: binary searches would convert the whole of a narrower column."""

_Column = npt.NDArray[Any]


def write_timeline(timeline: Timeline, path: Path) -> None:
    """Write ``timeline`` with all its levels; of these those of one channel are there at a time."""
    with path.open("wb") as file:
        columns = _Columns(file)

        def channel(channel_values: Channel) -> dict[str, Any]:
            levels = [
                {"bin_ns": level.bin_ns, **columns.of_channel(level.channel)}
                for level in timeline.build_levels(channel_values)
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
    """Return what `write_timeline` wrote; the file may lose its name meanwhile, not its content."""
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    start, length = (int.from_bytes(part, "little") for part in (mapped[-16:-8], mapped[-8:]))
    head = json.loads(mapped[start : start + length])
    levels: dict[Channel, tuple[Level, ...]] = {}

    def column(place: tuple[int, int, str]) -> _Column:
        offset, n, kind = place
        return np.frombuffer(mapped, np.dtype(kind), n, offset)

    def level_of(told: Mapping[str, Any], category: str) -> Level:
        columns = {name: column(place) for name, place in told.items() if name != "bin_ns"}
        return Level(told["bin_ns"], Channel(category, **columns))

    def channel(told: Mapping[str, Any]) -> Channel:
        found = tuple(level_of(level, told["category"]) for level in told["levels"])
        levels[found[0].channel] = found
        return found[0].channel

    def group(told: Mapping[str, Any]) -> LaneGroup:
        rows = [
            (row["label"], row["kind"], tuple(map(channel, row["channels"])))
            for row in told["rows"]
        ]
        states = tuple(map(channel, told["states"]))
        return LaneGroup(**{**told, "rows": tuple(starmap(LaneRow, rows)), "states": states})

    groups = tuple(map(group, head["groups"]))
    samples = [
        SampleSeries(s["metric"], s["source"], column(s["times"]), column(s["values"]))
        for s in head["samples"]
    ]
    totals = NameTotals(column(head["counts"]), column(head["times"]))
    about = head["about"]
    return Timeline(
        lanes=Lanes(groups, tuple(head["names"])),
        samples=samples,
        totals=totals,
        head=head["page"],
        about=About(**{**about, "warnings": tuple(about["warnings"])}),
        levels=levels,
    )


class _Columns:
    """Writes columns, each at an aligned place, as narrow as its values allow."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def of_channel(self, channel: Channel) -> dict[str, Any]:
        """Return the places of the columns that ``channel`` has."""
        return {
            name: self.add(values if name in _INSTANTS else Packed(values).stored)
            for name, values in ((name, channel.column(name)) for name in channel.columns)
        }

    def add(self, values: _Column) -> tuple[int, int, str]:
        """Return the place, the number and the kind of the values that were written."""
        place = -(-self._file.tell() // _ALIGNED_BYTES) * _ALIGNED_BYTES
        self._file.write(b"\0" * (place - self._file.tell()))
        self._file.write(np.ascontiguousarray(values).data)
        return place, len(values), values.dtype.str
