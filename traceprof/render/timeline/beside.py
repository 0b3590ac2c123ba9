"""Two recordings on one page: what is compared lies under one another, step under step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from traceprof.measures.steps.find import find_steps
from traceprof.model.intervals import Int64Array
from traceprof.model.ranks import Ranks
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace
from traceprof.render.escape import html_list, html_text, plain_text
from traceprof.render.formatting import sentences
from traceprof.render.timeline.channels import Channel, LaneGroup, Lanes, NameTotals, condense_until
from traceprof.render.timeline.drawn import with_states
from traceprof.render.timeline.encode import encode_lanes
from traceprof.render.timeline.lanes import build_lanes
from traceprof.render.timeline.marks import (
    SampleSeries,
    describe_periods,
    describe_processes,
    describe_steps,
    sample_series,
)
from traceprof.render.timeline.pairing import (
    AxisClock,
    Place,
    StepAxis,
    StepExtent,
    align_steps,
    pair_groups,
)
from traceprof.render.timeline.render import (
    MAX_ITEMS,
    pack_within,
    timeline_fragment,
    timeline_head,
    timeline_page,
)
from traceprof.session.caveats import caveats_of, caveats_of_run
from traceprof.units import format_count, format_duration

Describe = Callable[[Trace, TimeWindow], dict[str, Any]]


@dataclass(frozen=True, slots=True, eq=False)
class TimelineSide:
    """One of the two: ``name`` is a letter or a word such as "rank 3", ``title`` untrusted text."""

    name: str
    title: str
    trace: Trace
    window: TimeWindow | None = None

    @property
    def span(self) -> TimeWindow:
        """What is drawn of it."""
        return self.window or self.trace.span


@dataclass(frozen=True, slots=True, eq=False)
class _Drawn:
    """What a side has to draw, on its own clock (ns after the start of its span).

    ``merged`` are the events that share an item with others, by name.
    """

    side: TimelineSide
    lanes: Lanes
    n_events: int
    bin_ns: int
    steps: dict[str, Any]
    merged: NameTotals


@dataclass(frozen=True, slots=True, eq=False)
class SideBySideTimeline:
    """Two recordings on one axis in the form that the browser reads, and what is said of them.

    ``subtitle`` and ``warnings`` are HTML.
    """

    sides: Sequence[TimelineSide]
    axis: StepAxis
    packed: bytes
    subtitle: str
    notes: Sequence[str]
    warnings: str

    def address(self, side: int, start_ns: int, end_ns: int) -> str:
        """Return the address of a span of a side, on the clock of its Trace; "" where not shown."""
        span = self.sides[side].span
        if start_ns < span.start_ns or end_ns > span.end_ns:
            return ""
        clock, zero = self.axis.clocks[side], span.start_ns
        start = int(clock.starts(np.array([start_ns - zero]))[0])
        end = max(start, int(clock.ends(np.array([end_ns - zero]))[0]))
        margin = max(1_000, 2 * (end - start))
        return f"#at={start - margin}..{end + margin}&mark={start}..{max(end, start + 1)}"


def render_side_by_side(
    sides: Sequence[TimelineSide], *, title: str, by_rank: bool = True, max_items: int = MAX_ITEMS
) -> str:
    """Return the timelines of two recordings as one page, on a common axis of steps.

    Args:
        sides: the base, then what is held against it.
        title: the heading of the page; untrusted text is fine.
        by_rank: lanes of one rank belong together; else those of the first process of each side,
            and so on.
        max_items: above this number of events, short neighbors become one item.
    """
    found = encode_side_by_side(sides, by_rank=by_rank, max_items=max_items)
    fragment = timeline_fragment(found.packed)
    return timeline_page(fragment, title, found.subtitle, found.notes, found.warnings)


def encode_side_by_side(
    sides: Sequence[TimelineSide], *, by_rank: bool = True, max_items: int = MAX_ITEMS
) -> SideBySideTimeline:
    """Return the timelines of two recordings as `render_side_by_side` shows them."""
    describe = describe_steps
    if not all(len(find_steps(side.trace).table) for side in sides):
        describe = describe_periods
    samples = [_series(side) for side in sides]

    def draw(most: int) -> tuple[tuple[list[_Drawn], StepAxis], int, bytes]:
        drawn = [_draw(side, describe, most // len(sides)) for side in sides]
        by_steps = all(one.steps["starts"] for one in drawn)
        axis = align_steps([_extent(one, by_steps=by_steps) for one in drawn])
        lanes, places, partners = _merged(drawn, axis, by_rank)
        head = _head(drawn, axis, [place.side for place in places], partners, by_steps=by_steps)
        moved = [
            replace(series, times=clock.starts(series.times))
            for found, clock in zip(samples, axis.clocks, strict=True)
            for series in found
        ]
        parts = ((one.lanes.names, one.merged) for one in drawn)
        is_merged = any(one.bin_ns for one in drawn)
        merged = NameTotals.together(lanes.names, parts) if is_merged else None
        return (drawn, axis), lanes.n_items, encode_lanes(lanes, head, moved, merged)

    (drawn, axis), packed = pack_within(draw, max_items)
    subtitle = html_text(" · ".join(_told(one) for one in drawn), 600)
    caveats = (
        note
        for side in sides
        for note in caveats_of_run(side.name, caveats_of(Ranks.of(side.trace)).notes)
    )
    notes = tuple(_notes(drawn, axis))
    return SideBySideTimeline(sides, axis, packed, subtitle, notes, html_list(sentences(caveats)))


def _draw(side: TimelineSide, describe: Describe, max_items: int) -> _Drawn:
    exact = build_lanes(side.trace, side.span)
    lanes, bin_ns = condense_until(with_states(exact, side.span.duration_ns), max_items)
    steps = describe(side.trace, side.span)
    merged = NameTotals.of(exact).less(NameTotals.of(lanes))
    return _Drawn(side, lanes, exact.n_events, bin_ns, steps, merged)


def _extent(one: _Drawn, *, by_steps: bool) -> StepExtent:
    """Return what is aligned: the steps, else all from the first work on a device on."""
    channels = [channel for channel in one.lanes.channels if len(channel)]
    first = min([0, *(int(channel.starts[0]) for channel in channels)])
    last = max([one.side.span.duration_ns, *(int(channel.ends[-1]) for channel in channels)])
    if not by_steps:
        rows = [row for g in one.lanes.groups if g.kind == "device" for row in g.rows]
        work = [int(c.starts[0]) for row in rows for c in row.channels if len(c)]
        begin = min(work, default=first)
        return StepExtent(first, last, np.array([begin]), np.array([last]), (0,))
    starts = np.array(one.steps["starts"], np.int64)
    ends = np.array(one.steps["ends"], np.int64)
    ends = np.minimum(ends, np.append(starts[1:], ends[-1:]))
    words = [label.partition(" ") for label in one.steps["labels"]]
    numbers = tuple(int(number) for _, _, number in words)
    first, last = min(first, int(starts[0])), max(last, int(ends[-1]))
    return StepExtent(first, last, starts, ends, numbers, words[0][0])


def _merged(
    drawn: Sequence[_Drawn], axis: StepAxis, by_rank: bool
) -> tuple[Lanes, list[Place], list[int]]:
    """Return the lanes of both, where each group is from, and the place of its counterpart."""
    places, partners = pair_groups([(one.side.trace, one.lanes) for one in drawn], by_rank)
    names = {
        name: i for i, name in enumerate(dict.fromkeys(n for d in drawn for n in d.lanes.names))
    }
    ids = [np.array([names[name] for name in one.lanes.names], np.int64) for one in drawn]
    groups = [
        _moved(drawn[place.side], place, axis.clocks[place.side], ids[place.side])
        for place in places
    ]
    return Lanes(tuple(groups), tuple(names)), places, partners


def _moved(one: _Drawn, place: Place, clock: AxisClock, ids: Int64Array) -> LaneGroup:
    group = one.lanes.groups[place.group].mapped(
        lambda channel: _on_axis(channel, clock, ids), lambda state: _on_axis(state, clock, None)
    )
    label = plain_text(f"{one.side.name} · {group.label}", 120)
    process = 2 * group.process + place.side  # two runs may have processes of one number
    return replace(group, section=place.section, label=label, process=process)


def _on_axis(channel: Channel, clock: AxisClock, ids: Int64Array | None) -> Channel:
    starts = clock.starts(channel.starts)
    return channel.changed(
        starts=starts,
        ends=np.maximum(starts, clock.ends(channel.ends)),
        names=channel.names if ids is None or not len(ids) else ids[channel.names],
    )


def _series(side: TimelineSide) -> list[SampleSeries]:
    """Return the series of one side, on its own clock."""
    return [
        replace(series, source=plain_text(f"{side.name} {series.source}".strip(), 60))
        for series in sample_series(side.trace, side.span)[0]
    ]


def _head(
    drawn: Sequence[_Drawn],
    axis: StepAxis,
    side_of_group: list[int],
    partners: list[int],
    *,
    by_steps: bool,
) -> dict[str, Any]:
    base = drawn[0].side
    steps = {"starts": axis.starts, "ends": axis.ends, "labels": axis.labels}
    processes = {
        str(2 * int(number) + i): known
        for i, one in enumerate(drawn)
        for number, known in describe_processes(one.side.trace).items()
    }
    return {
        **timeline_head(base.trace, base.span, sum(one.n_events for one in drawn)),
        "duration_ns": axis.duration_ns,
        "offset_ns": 0,
        "view": _shared(axis),
        "focus": None,
        "steps": steps if by_steps else {"starts": [], "ends": [], "labels": []},
        "processes": processes,
        "beside": {
            "sides": [
                {
                    "name": plain_text(one.side.name, 40),
                    "title": plain_text(one.side.title, 120),
                    "offset_ns": one.side.span.start_ns - one.side.trace.span.start_ns,
                    "clock": clock.head(),
                    "steps": own,
                }
                for one, clock, own in zip(drawn, axis.clocks, axis.own, strict=True)
            ],
            "side_of_group": side_of_group,
            "partner_of_group": partners,
        },
    }


def _shared(axis: StepAxis) -> list[int]:
    """Return the span of the steps that all have: there the same work is compared."""
    both = [i for i, own in enumerate(zip(*axis.own, strict=True)) if None not in own]
    return [axis.starts[both[0]], axis.ends[both[-1]]] if both else [0, axis.duration_ns]


def _told(one: _Drawn) -> str:
    labels = one.steps["labels"]
    word = labels[0].partition(" ")[0] if labels else "step"
    words = [one.side.title, f"{format_count(len(labels))} {word}s"]
    return f"{one.side.name}: " + ", ".join(
        [*filter(None, words), format_duration(one.side.span.duration_ns)]
    )


def _notes(drawn: Sequence[_Drawn], axis: StepAxis) -> Iterator[str]:
    if without := [one.side.name for one in drawn if not one.steps["starts"]]:
        yield (
            f"No steps found in {' and '.join(without)}; the timelines are aligned at the first "
            "activity"
        )
    elif axis.labels[0].startswith("iteration"):
        yield "No step markers found; the timelines are aligned by iteration"
    else:
        yield "The timelines are aligned at the start of each step and drawn to the same scale"
    for one in drawn:
        if one.bin_ns:
            yield (
                f"{one.side.name}: events shorter than {format_duration(one.bin_ns)} are merged "
                "with their neighbors; each merged item shows its number of events"
            )
    lacking = [sum(step is None for step in own) for own in axis.own]
    for one, n_missing in zip(drawn, lacking, strict=True):
        if n_missing and len(axis.starts) > 1:
            yield f"{one.side.name} lacks {format_count(n_missing)} of {len(axis.starts)} steps"
    yield f"{format_count(sum(one.n_events for one in drawn))} events in this page"
