"""From a Trace to the timeline page."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from traceprof.model.ranks import Ranks
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace, TraceInfo
from traceprof.render.escape import html_list, html_text
from traceprof.render.page.document import write_document
from traceprof.render.page.plotly_bundle import PLOTLY_CONFIG
from traceprof.render.palette import CATEGORIES, STATES, category_index
from traceprof.render.timeline.drawn import draw_ranks
from traceprof.render.timeline.encode import encode_lanes
from traceprof.render.timeline.marks import describe_focus, describe_processes, describe_steps
from traceprof.render.timeline.names import Templates
from traceprof.render.timeline.page import timeline_fragment
from traceprof.render.timeline.samples import sample_series
from traceprof.render.timeline.size import MAX_ITEMS, pack_within
from traceprof.render.timeline.states import part_bits, state_of_parts
from traceprof.units import format_count, format_duration
from traceprof.values import dataclass

__all__ = ["encode_timeline", "render_timeline", "timeline_head"]

_BODY: Final = """<header><h1>{title}</h1><div class="sub">{subtitle}</div>{warnings}</header>
<main>
<div class="card">{timeline}</div>
<footer>{notes}</footer>
</main>"""

_PLACES: Final = {item.key: i for i, item in enumerate(CATEGORIES)}
_NOTES: Final = ("times count from the start of the trace", "nothing is loaded from elsewhere")


def render_timeline(
    trace: Trace | Ranks,
    *,
    title: str,
    window: TimeWindow | None = None,
    window_label: str = "",
    max_items: int = MAX_ITEMS,
) -> str:
    """Return the timeline of ``trace`` as one HTML page that needs nothing else and no network.

    Args:
        trace: what to draw.
        title: the heading of the page; untrusted text is fine.
        window: draw only what has a part inside it; the whole trace by default.
        window_label: how the user named the window, for the subtitle.
        max_items: above this number of events, short neighbours become one item that says how
            many it stands for.
    """
    ranks = Ranks.of(trace)
    span = window or ranks.span
    encoded = encode_timeline(ranks, span, max_items)
    fragment = timeline_fragment(encoded.packed)
    body = _BODY.format(
        title=html_text(title),
        subtitle=html_text(" · ".join(_subtitle(ranks.info, span, window_label)), 400),
        warnings=html_list((*ranks.info.warnings, *encoded.warnings)),
        timeline=fragment.html,
        notes=" · ".join(map(html_text, encoded.notes)),
    )
    return write_document(title, body, (), fragment)


@dataclass(frozen=True, slots=True)
class EncodedTimeline:
    """The data of a timeline (gzip), and what a reader must know about it."""

    packed: bytes
    warnings: tuple[str, ...]
    notes: tuple[str, ...]


def encode_timeline(
    ranks: Ranks, span: TimeWindow, max_items: int, *, view: TimeWindow | None = None
) -> EncodedTimeline:
    """Return the lanes of ``ranks`` within ``span`` in the form that the browser reads.

    The page opens at ``view``, by default the whole.
    """
    drawing = draw_ranks(ranks, span, max_items)
    n_events = drawing.lanes.n_events
    series, remarks = sample_series(ranks, span)
    shown = view or span
    head = {
        **timeline_head(ranks, span, n_events),
        "view": [shown.start_ns - span.start_ns, shown.end_ns - span.start_ns],
    }

    templates = Templates(drawing.lanes.names)

    def draw(most: int) -> tuple[tuple[int, int], int, bytes]:
        nonlocal drawing
        drawing = drawing.of_at_most(most, span.duration_ns)
        merged = drawing.merged
        n_merged = 0 if merged is None else int(merged.counts.sum())
        data = encode_lanes(drawing.lanes, head, _PLACES, series, merged, templates)
        return (n_merged, drawing.bin_ns), drawing.lanes.n_items, data

    (n_merged, bin_ns), packed = pack_within(draw, max_items)
    warnings = [_merged_note(n_merged, bin_ns)] if bin_ns else []
    events = f"{format_count(n_events)} events in this file"
    return EncodedTimeline(packed, (*warnings, *remarks), (events, *_NOTES))


def _merged_note(n_merged: int, bin_ns: int) -> str:
    return (
        f"{format_count(n_merged)} events shorter than {format_duration(bin_ns)} are drawn "
        "together with their neighbours, with their number and their time; `traceprof view`, "
        "or --window, shows each"
    )


def timeline_head(trace: Trace | Ranks, span: TimeWindow, n_events: int) -> dict[str, Any]:
    """Return what a page must know beside its lanes: palette, steps, clock, number of events."""
    ranks = Ranks.of(trace)
    return {
        "duration_ns": max(1, span.duration_ns),
        "offset_ns": span.start_ns - ranks.span.start_ns,
        "n_events": n_events,
        "categories": [asdict(category) for category in CATEGORIES],
        "states": [category_index(key) for key in STATES],
        "part_bits": part_bits(),
        "state_of_parts": state_of_parts(),
        "steps": describe_steps(ranks, span),
        "processes": describe_processes(ranks),
        "focus": describe_focus(ranks, span),
        "plotly_config": dict(PLOTLY_CONFIG),
    }


def _subtitle(info: TraceInfo, span: TimeWindow, window_label: str) -> list[str]:
    words = [info.profiler, info.host, format_duration(span.duration_ns)]
    words += [f"window {window_label}"] if window_label else []
    return [word for word in words if word]
