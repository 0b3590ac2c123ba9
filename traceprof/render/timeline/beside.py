"""Draw the timelines of two recordings on one page, aligned by step.

Counterpart lanes of the two recordings are placed below each other. Step k of both recordings
starts at the same position of the axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

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
    describe_iterations,
    describe_processes,
    describe_steps,
    sample_series,
)
from traceprof.render.timeline.pairing import (
    AxisClock,
    GroupPlace,
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

WHOLE: Final = "recording"
"""First word of the label of the only pair, if the recordings share no steps."""


@dataclass(frozen=True, slots=True, eq=False)
class TimelineSide:
    """One of the two recordings: ``name`` is a letter or a word such as "rank 3".

    ``title`` can be untrusted text.
    """

    name: str
    title: str
    trace: Trace
    window: TimeWindow | None = None

    @property
    def span(self) -> TimeWindow:
        """The drawn part of the recording."""
        return self.window or self.trace.span


@dataclass(frozen=True, slots=True, eq=False)
class _DrawnSide:
    """The lanes, steps, and totals of one side, on its own clock (ns after the start of its span).

    ``bin_ns`` is the width of the bins in which short events were merged (0: none merged).
    ``merged`` has the totals, by name, of the events that share an item with other events.
    """

    side: TimelineSide
    lanes: Lanes
    n_events: int
    bin_ns: int
    steps: dict[str, Any]
    merged: NameTotals


@dataclass(frozen=True, slots=True, eq=False)
class SideBySideTimeline:
    """Two recordings on one axis in the binary form that the browser reads, with their captions.

    ``packed`` is compressed with gzip. ``subtitle`` and ``warnings`` are HTML. ``notes`` are plain
    text.
    """

    sides: Sequence[TimelineSide]
    axis: StepAxis
    packed: bytes
    subtitle: str
    notes: Sequence[str]
    warnings: str

    def address(self, side: int, start_ns: int, end_ns: int) -> str:
        """Return the URL fragment that shows a span of one side; "" if the page lacks it.

        ``start_ns`` and ``end_ns`` are on the clock of that side's Trace.
        """
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
    """Return an HTML page with the timelines of two recordings on a common axis of steps.

    Args:
        sides: the base run, then the run that is compared with it.
        title: the heading of the page; untrusted text is fine.
        by_rank: pair the lanes of equal ranks; otherwise pair the processes of the two sides
            in their order.
        max_items: above this number of events, short neighboring events are merged.
    """
    encoded = encode_side_by_side(sides, by_rank=by_rank, max_items=max_items)
    return timeline_page(
        timeline_fragment(encoded.packed),
        title,
        encoded.subtitle,
        encoded.notes,
        encoded.warnings,
    )


def encode_side_by_side(
    sides: Sequence[TimelineSide], *, by_rank: bool = True, max_items: int = MAX_ITEMS
) -> SideBySideTimeline:
    """Encode the timelines of two recordings for the browser.

    The arguments have the meaning that they have in `render_side_by_side`.
    """
    has_steps = all(len(find_steps(side.trace).table) for side in sides)
    describe = describe_steps if has_steps else describe_iterations
    samples = [_sample_series_of(side) for side in sides]

    def draw(max_drawn_items: int) -> tuple[tuple[list[_DrawnSide], StepAxis], int, bytes]:
        drawn_sides = [_draw_side(side, describe, max_drawn_items // len(sides)) for side in sides]
        by_steps = all(drawn.steps["starts"] for drawn in drawn_sides)
        axis = align_steps([_step_extent(drawn, by_steps=by_steps) for drawn in drawn_sides])
        lanes, places, partners = _merge_sides(drawn_sides, axis, by_rank)
        head = _head(
            drawn_sides, axis, [place.side for place in places], partners, by_steps=by_steps
        )
        moved = [
            replace(series, times=clock.starts(series.times))
            for side_series, clock in zip(samples, axis.clocks, strict=True)
            for series in side_series
        ]
        parts = ((drawn.lanes.names, drawn.merged) for drawn in drawn_sides)
        is_merged = any(drawn.bin_ns for drawn in drawn_sides)
        merged = NameTotals.summed(lanes.names, parts) if is_merged else None
        return (drawn_sides, axis), lanes.n_items, encode_lanes(lanes, head, moved, merged)

    (drawn_sides, axis), packed = pack_within(draw, max_items)
    subtitle = html_text(" · ".join(_describe_side(drawn) for drawn in drawn_sides), 600)
    caveats = (
        note
        for side in sides
        for note in caveats_of_run(side.name, caveats_of(Ranks.of(side.trace)).notes)
    )
    return SideBySideTimeline(
        sides,
        axis,
        packed,
        subtitle,
        notes=tuple(_notes(drawn_sides, axis)),
        warnings=html_list(sentences(caveats)),
    )


def _draw_side(side: TimelineSide, describe: Describe, max_items: int) -> _DrawnSide:
    """Build the lanes of one side with at most ``max_items`` items.

    ``describe`` returns the steps or the iterations.
    """
    exact = build_lanes(side.trace, side.span)
    lanes, bin_ns = condense_until(with_states(exact, side.span.duration_ns), max_items)
    return _DrawnSide(
        side,
        lanes,
        exact.n_events,
        bin_ns,
        steps=describe(side.trace, side.span),
        merged=NameTotals.of(exact).minus(NameTotals.of(lanes)),
    )


def _step_extent(drawn: _DrawnSide, *, by_steps: bool) -> StepExtent:
    """Return the steps to align; without steps, one step from the first GPU activity to the end."""
    channels = [channel for channel in drawn.lanes.channels if len(channel)]
    first = min([0, *(int(channel.starts[0]) for channel in channels)])
    last = max([drawn.side.span.duration_ns, *(int(channel.ends[-1]) for channel in channels)])
    if not by_steps:
        rows = [row for group in drawn.lanes.groups if group.kind == "device" for row in group.rows]
        work = [int(c.starts[0]) for row in rows for c in row.channels if len(c)]
        starts, ends = np.array([min(work, default=first)]), np.array([last])
        return StepExtent(first, last, starts, ends, (0,), WHOLE)
    starts = np.array(drawn.steps["starts"], np.int64)
    ends = np.array(drawn.steps["ends"], np.int64)
    ends = np.minimum(ends, np.append(starts[1:], ends[-1:]))
    words = [label.partition(" ") for label in drawn.steps["labels"]]
    numbers = tuple(int(number) for _, _, number in words)
    first, last = min(first, int(starts[0])), max(last, int(ends[-1]))
    return StepExtent(first, last, starts, ends, numbers, words[0][0])


def _merge_sides(
    drawn_sides: Sequence[_DrawnSide], axis: StepAxis, by_rank: bool
) -> tuple[Lanes, list[GroupPlace], list[int]]:
    """Merge the lanes of both sides on the common axis.

    Return the lanes, the origin of each group, and the index of the counterpart of each group (-1:
    none).
    """
    places, partners = pair_groups(
        [(drawn.side.trace, drawn.lanes) for drawn in drawn_sides], by_rank
    )
    all_names = dict.fromkeys(name for drawn in drawn_sides for name in drawn.lanes.names)
    id_of_name = {name: i for i, name in enumerate(all_names)}
    name_ids = [
        np.array([id_of_name[name] for name in drawn.lanes.names], np.int64)
        for drawn in drawn_sides
    ]
    groups = [
        _move_group(drawn_sides[place.side], place, axis.clocks[place.side], name_ids[place.side])
        for place in places
    ]
    return Lanes(tuple(groups), tuple(id_of_name)), places, partners


def _move_group(
    drawn: _DrawnSide, place: GroupPlace, clock: AxisClock, name_ids: Int64Array
) -> LaneGroup:
    """Return the group at ``place`` on the common axis, with the name of its side in the label."""
    group = drawn.lanes.groups[place.group].mapped(
        lambda channel: _move_channel(channel, clock, name_ids),
        lambda state: _move_channel(state, clock, None),
    )
    label = plain_text(f"{drawn.side.name} · {group.label}", 120)
    process = 2 * group.process + place.side  # two runs can have equal process numbers
    return replace(group, section=place.section, label=label, process=process)


def _move_channel(channel: Channel, clock: AxisClock, name_ids: Int64Array | None) -> Channel:
    """Return the channel on the common axis, with its names renumbered by ``name_ids``."""
    starts = clock.starts(channel.starts)
    return channel.changed(
        starts=starts,
        ends=np.maximum(starts, clock.ends(channel.ends)),
        names=channel.names if name_ids is None or not len(name_ids) else name_ids[channel.names],
    )


def _sample_series_of(side: TimelineSide) -> list[SampleSeries]:
    """Return the sampled time series of one side, on its own clock."""
    return [
        replace(series, source=plain_text(f"{side.name} {series.source}".strip(), 60))
        for series in sample_series(side.trace, side.span)[0]
    ]


def _head(
    drawn_sides: Sequence[_DrawnSide],
    axis: StepAxis,
    side_of_group: list[int],
    partners: list[int],
    *,
    by_steps: bool,
) -> dict[str, Any]:
    """Return the JSON head of the page.

    Process numbers are unique on the page: 2 · process + side. ``side_of_group`` and ``partners``
    have an entry for each group.
    """
    base = drawn_sides[0].side
    steps = {"starts": axis.starts, "ends": axis.ends, "labels": axis.labels}
    processes = {
        str(2 * int(number) + i): facts
        for i, drawn in enumerate(drawn_sides)
        for number, facts in describe_processes(drawn.side.trace).items()
    }
    return {
        **timeline_head(base.trace, base.span, sum(drawn.n_events for drawn in drawn_sides)),
        "duration_ns": axis.duration_ns,
        "offset_ns": 0,
        "view": _common_span(axis),
        "focus": None,
        "steps": steps if by_steps else {"starts": [], "ends": [], "labels": []},
        "processes": processes,
        "beside": {
            "sides": [
                {
                    "name": plain_text(drawn.side.name, 40),
                    "title": plain_text(drawn.side.title, 120),
                    "offset_ns": drawn.side.span.start_ns - drawn.side.trace.span.start_ns,
                    "clock": clock.head(),
                    "steps": step_spans,
                }
                for drawn, clock, step_spans in zip(
                    drawn_sides, axis.clocks, axis.step_spans, strict=True
                )
            ],
            "side_of_group": side_of_group,
            "partner_of_group": partners,
        },
    }


def _common_span(axis: StepAxis) -> list[int]:
    """Return the span of the steps that both recordings have; the whole axis if they share none."""
    common_steps = [
        i for i, spans in enumerate(zip(*axis.step_spans, strict=True)) if None not in spans
    ]
    return (
        [axis.starts[common_steps[0]], axis.ends[common_steps[-1]]]
        if common_steps
        else [0, axis.duration_ns]
    )


def _describe_side(drawn: _DrawnSide) -> str:
    """Return the part of the subtitle that describes one side: title, number of steps, duration."""
    labels = drawn.steps["labels"]
    word = labels[0].partition(" ")[0] if labels else "step"
    facts = [drawn.side.title, f"{format_count(len(labels))} {word}s"]
    return f"{drawn.side.name}: " + ", ".join(
        [*filter(None, facts), format_duration(drawn.side.span.duration_ns)]
    )


def _notes(drawn_sides: Sequence[_DrawnSide], axis: StepAxis) -> Iterator[str]:
    """Yield notes about the alignment, merged events, missing steps, and the number of events."""
    if without_steps := [drawn.side.name for drawn in drawn_sides if not drawn.steps["starts"]]:
        yield (
            f"No steps found in {' and '.join(without_steps)}; the timelines are aligned at the "
            "first activity"
        )
    elif axis.labels[0].startswith("iteration"):
        yield "No step markers found; the timelines are aligned by iteration"
    else:
        yield "The timelines are aligned at the start of each step and drawn to the same scale"
    for drawn in drawn_sides:
        if drawn.bin_ns:
            yield (
                f"{drawn.side.name}: events shorter than {format_duration(drawn.bin_ns)} are "
                "merged with their neighbors; each merged item shows its number of events"
            )
    for drawn, step_spans in zip(drawn_sides, axis.step_spans, strict=True):
        n_missing = step_spans.count(None)
        if n_missing and len(axis.starts) > 1:
            yield f"{drawn.side.name} lacks {format_count(n_missing)} of {len(axis.starts)} steps"
    yield f"{format_count(sum(drawn.n_events for drawn in drawn_sides))} events in this page"
