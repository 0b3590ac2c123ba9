"""Render the timeline page of a Trace: data within a size budget, the script, and the page.

The panel of the page explains slow steps with the results of `traceprof explain`.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache, partial
from importlib.resources import files
from typing import Any, Final, TypeVar

import numpy as np

from traceprof.comparison.explaining import explain_ranks
from traceprof.errors import TraceprofError
from traceprof.measures.rows import rows_by
from traceprof.measures.steps.find import steps_of_ranks
from traceprof.model.ranks import Ranks
from traceprof.model.results import Result
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace
from traceprof.names.functions import LIBRARIES
from traceprof.render.escape import html_list, html_text, plain_text
from traceprof.render.formatting import sentences
from traceprof.render.page.document import (
    PLOTLY_CONFIG,
    Fragment,
    data_block,
    plotly_bundle,
    write_document,
)
from traceprof.render.palette import CATEGORIES, CATEGORY_INDEX, NOT_RECORDED, STATES, category_of
from traceprof.render.shown import Row
from traceprof.render.timeline.drawn import draw_ranks, part_bits, state_of_parts
from traceprof.render.timeline.encode import Templates, encode_lanes
from traceprof.render.timeline.marks import (
    describe_focus,
    describe_processes,
    describe_steps,
    sample_series,
)
from traceprof.render.timeline.shown_names import ShownNames
from traceprof.session.caveats import caveats_of
from traceprof.units import format_count, format_duration

MAX_ITEMS: Final = 5_000_000
"""Maximum number of items of a page. More events are merged, and the page reports that."""

MAX_BYTES: Final = 8_800_000
"""Maximum compressed size of the items in bytes: a page of 12 MB, up to 3 million events."""

_MIN_ITEMS: Final = 10_000
_SIZE_MARGIN_RATIO: Final = 0.9

_Drawn = TypeVar("_Drawn")


def pack_within(
    draw: Callable[[int], tuple[_Drawn, int, bytes]], max_items: int, max_bytes: int = MAX_BYTES
) -> tuple[_Drawn, bytes]:
    """Draw fewer and fewer items until the data fits; return the drawing and its gzip data.

    ``draw`` takes a maximum number of items. It returns the drawing, its number of items, and its
    uncompressed bytes. The result can exceed ``max_bytes`` if `_MIN_ITEMS` items do not fit.
    """
    while True:
        drawn, n_items, data = draw(max_items)
        packed = gzip.compress(data, compresslevel=6, mtime=0)
        if len(packed) <= max_bytes or max_items <= _MIN_ITEMS:
            return drawn, packed
        max_items = int(_SIZE_MARGIN_RATIO * min(max_items, n_items) * max_bytes / len(packed))


_IMPORT: Final = re.compile(r'^import\s[^;]*?from "\./([a-z_]+\.mjs)";\n', re.MULTILINE)
_RE_EXPORT: Final = re.compile(r"^export \{[^}]*\};\n", re.MULTILINE)
_EXPORT: Final = re.compile(r"^export ", re.MULTILINE)


def read_asset(name: str) -> str:
    """Return the text of a file in `assets/` of this package."""
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")


@cache
def timeline_script(entry: str = "main.mjs") -> str:
    """Return the module ``entry`` and all modules that it imports as one script.

    In this script, the modules share one scope, so names at their top level must be unique (a test
    checks it). Under Node.js, they run as ordinary ES modules.
    """
    bodies = map(read_asset, module_order(entry))
    for pattern in (_IMPORT, _RE_EXPORT, _EXPORT):
        bodies = map(partial(pattern.sub, ""), bodies)
    return '"use strict";\n(() => {\n' + "".join(bodies) + "})();\n"


def theme_script() -> str:
    """Return the script that selects the light or dark colors before the page is shown."""
    return timeline_script("first_theme.mjs")


def module_order(entry: str) -> tuple[str, ...]:
    """Return the modules that ``entry`` needs, each after the modules that it imports."""
    ordered: dict[str, None] = {}

    def visit(name: str, importers: tuple[str, ...]) -> None:
        for imported in _IMPORT.findall(read_asset(name)):
            if imported not in ordered and imported not in importers:
                visit(imported, (*importers, name))
        ordered[name] = None

    visit(entry, ())
    return tuple(ordered)


_ROOT: Final = """<div id="traceprof-timeline"{mode}><p class="note">Loading the trace…</p></div>
<noscript><p>The timeline requires JavaScript. It loads nothing from the network.</p></noscript>"""


def timeline_fragment(packed: bytes, *, is_embedded: bool = False) -> Fragment:
    """Return the timeline of the encoded lanes ``packed`` (gzip).

    An embedded timeline leaves the wheel and the keys to the page until the reader activates it.
    """
    bundle = plotly_bundle()
    return Fragment(
        html=_ROOT.format(mode=" data-embedded" if is_embedded else ""),
        data="\n".join(
            (data_block("traceprof-plotly", bundle.gzip), data_block("traceprof-data", packed))
        ),
        style=read_asset("timeline.css"),
        script=timeline_script(),
        csp_sources=(bundle.csp_source,),
        head_script=theme_script(),
    )


_BODY: Final = """<header class="line"><h1>{title}</h1>
<div class="sub">{subtitle}</div>{warnings}</header>
<main>
<div class="card">{timeline}</div>
<footer>{notes}</footer>
</main>"""


def timeline_page(
    fragment: Fragment, title: str, subtitle: str, notes: Iterable[str], warnings: str = ""
) -> str:
    """Return the page of a timeline. ``subtitle`` and ``warnings`` must be HTML."""
    body = _BODY.format(
        title=html_text(title),
        subtitle=subtitle,
        warnings=warnings,
        timeline=fragment.html,
        notes=" · ".join(map(html_text, notes)),
    )
    return write_document(title, body, (), fragment)


_SLOW_STEP_RATIO: Final = 1.05
"""A step is slow if it is longer than this multiple of the median step."""
_MAX_STEPS: Final = 8
_MAX_STEPS_OF_MANY_RANKS: Final = 2
_MANY_RANKS: Final = 8
_MAX_CAUSES: Final = 6
_MAX_EVENTS: Final = 1_000_000
_MIN_CAUSE_RATIO: Final = 0.01
_RANK: Final = re.compile(r"rank (\d{1,7})")
_KINDS_WITHOUT_PREFIX: Final = ("kernel", "copy", "collective")


def describe_reasons(ranks: Ranks, window: TimeWindow, n_events: int) -> dict[str, dict[str, Any]]:
    """Return why the slowest steps in ``window`` took longer, by label ("step 7").

    The cost of explaining a step grows with the number of ranks. With many ranks, fewer steps are
    explained; with very many events (``n_events``), none.
    """
    if n_events > _MAX_EVENTS:
        return {}
    max_steps = _MAX_STEPS if len(ranks) <= _MANY_RANKS else _MAX_STEPS_OF_MANY_RANKS
    reasons = {}
    for step in _slow_steps(ranks, window)[:max_steps]:
        with suppress(TraceprofError):
            _, result = explain_ranks(ranks, f"step:{step}")
            if result.scalars["difference_ns"] > 0:
                reasons[f"step {step}"] = _reasons_of(result)
    return reasons


def _slow_steps(ranks: Ranks, window: TimeWindow) -> list[int]:
    """Return the numbers of the slow steps, the longest first."""
    steps = steps_of_ranks(ranks.whole)
    if not len(steps):
        return []
    table = steps.table
    lengths = {
        step: float(steps.durations_ns[rows].mean())
        for step, rows in rows_by(table, "step").items()
        if int(table["start_ns"][rows].min()) < window.end_ns
        and int(table["end_ns"][rows].max()) > window.start_ns
    }
    median_ns = float(np.median([*lengths.values()])) if lengths else 0.0
    slow = [step for step, ns in lengths.items() if ns > _SLOW_STEP_RATIO * median_ns]
    return sorted(slow, key=lambda step: -lengths[step])


def _reasons_of(result: Result) -> dict[str, Any]:
    """Return the result of `explain` in the JSON form of the panel."""
    scalars = result.scalars
    min_ns = _MIN_CAUSE_RATIO * abs(scalars["difference_ns"])
    causes = result.tables["causes"].rows()[:_MAX_CAUSES]
    return {
        "reference": scalars["reference"],
        "difference_ns": scalars["difference_ns"],
        "devices": scalars["devices_count"],
        "causes": [_cause(row) for row in causes if abs(row["difference_ns"]) >= min_ns],
    }


def _cause(row: Row) -> dict[str, Any]:
    """Return one cause in the JSON form of the panel; ``device`` and ``rank`` are -1 if unknown."""
    name, kind = plain_text(str(row["name"]), 600), str(row["kind"])
    has_kind = kind not in (*_KINDS_WITHOUT_PREFIX, name)
    words = f"{kind} {name}".strip() if has_kind else name
    rank = _RANK.fullmatch(name) if kind == "waiting" else None
    if kind == "waiting":
        words = f"waiting for {name.strip('()')}"
    elif kind not in _KINDS_WITHOUT_PREFIX:
        words = f"{category_of(str(row['part'])).label}: {words}"
    device = row.get("device", np.nan)
    return {
        "words": words,
        "ns": row["difference_ns"],
        "part": str(row["part"]),
        "kernel": name if kind == "kernel" else "",
        "device": int(device) if device == device else -1,
        "rank": int(rank[1]) if rank else -1,
    }


_NOTES: Final = (
    "times are relative to the start of the trace",
    "this page loads nothing from the network",
)


def render_timeline(
    trace: Trace | Ranks,
    *,
    title: str,
    window: TimeWindow | None = None,
    window_label: str = "",
    max_items: int = MAX_ITEMS,
) -> str:
    """Return the timeline of ``trace`` as one HTML page that needs no other files and no network.

    Args:
        trace: the trace or run to draw.
        title: the heading of the page; untrusted text is fine.
        window: draw only events that overlap this window; the whole trace by default.
        window_label: how the user named the window, for the subtitle.
        max_items: above this number of events, short neighboring events are merged into items
            that show their number of events.
    """
    ranks = Ranks.of(trace)
    span = (window or ranks.span).hull
    caveats = sentences(caveats_of(ranks).notes)  # before the lanes, which take memory
    encoded = encode_timeline(ranks, span, max_items)
    fragment = timeline_fragment(encoded.packed)
    info, window_words = ranks.info, f"window {window_label}" if window_label else ""
    facts = (info.profiler, info.host, format_duration(span.duration_ns), window_words)
    subtitle = html_text(" · ".join(filter(None, facts)), 400)
    warnings = html_list((*caveats, *encoded.warnings))
    return timeline_page(fragment, title, subtitle, encoded.notes, warnings)


@dataclass(frozen=True, slots=True)
class EncodedTimeline:
    """The data of a timeline (gzip), with the warnings and notes for its reader."""

    packed: bytes
    warnings: tuple[str, ...]
    notes: tuple[str, ...]


def encode_timeline(
    ranks: Ranks,
    span: TimeWindow,
    max_items: int,
    *,
    view: TimeWindow | None = None,
    exact: TimeWindow | None = None,
) -> EncodedTimeline:
    """Encode the lanes of ``ranks`` within ``span`` for the browser.

    The page opens at ``view``, by default at the window that the analyses use. If the page cannot
    hold each event, it still holds each event that overlaps ``exact``.
    """
    exact_on_page = exact and exact.moved(-span.start_ns)
    drawing = draw_ranks(ranks, span, max_items, exact_on_page)
    n_events = drawing.lanes.n_events
    series, remarks = sample_series(ranks, span)
    head = timeline_head(ranks, span, n_events)
    head["steps"]["reasons"] = describe_reasons(ranks, span, n_events)
    if view is not None:
        head["view"] = [view.start_ns - span.start_ns, view.end_ns - span.start_ns]

    templates = Templates(drawing.lanes.names)
    shown_names = ShownNames.of(drawing.lanes)

    def draw(max_drawn_items: int) -> tuple[tuple[int, int], int, bytes]:
        nonlocal drawing
        drawing = drawing.limited_to(max_drawn_items, span.duration_ns, exact_on_page)
        merged = drawing.merged
        n_merged = 0 if merged is None else int(merged.counts.sum())
        data = encode_lanes(drawing.lanes, head, series, merged, templates, shown_names)
        return (n_merged, drawing.bin_ns), drawing.lanes.n_items, data

    (n_merged, bin_ns), packed = pack_within(draw, max_items)
    if bin_ns:
        merged_warning = (
            f"{format_count(n_merged)} events shorter than {format_duration(bin_ns)} are merged "
            "with their neighbors; each merged item shows its number of events and their total "
            "time. Use `traceprof view` or --window to see each event"
        )
        remarks = [merged_warning, *remarks]
    events = f"{format_count(n_events)} events in this page"
    return EncodedTimeline(packed, tuple(remarks), (events, *_NOTES))


def timeline_head(trace: Trace | Ranks, span: TimeWindow, n_events: int) -> dict[str, Any]:
    """Return the JSON head of a page without its lanes: palette, steps, clock, number of events.

    The page opens at the window that the analyses use.
    """
    ranks = Ranks.of(trace)
    focus = describe_focus(ranks, span)
    return {
        "duration_ns": max(1, span.duration_ns),
        "view": [focus["start"], focus["end"]] if focus else [0, max(1, span.duration_ns)],
        "offset_ns": span.start_ns - ranks.span.start_ns,
        "n_events": n_events,
        "categories": [asdict(category) for category in CATEGORIES],
        "states": [CATEGORY_INDEX[key] for key in STATES],
        "not_recorded": CATEGORY_INDEX[NOT_RECORDED],
        "part_bits": part_bits(),
        "state_of_parts": state_of_parts(),
        "steps": describe_steps(ranks, span),
        "processes": describe_processes(ranks),
        "focus": focus,
        "libraries": LIBRARIES.pattern,
        "plotly_config": dict(PLOTLY_CONFIG),
    }
