"""From a Trace to the timeline page: its data within a budget, its script, the page around it."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cache, partial
from importlib.resources import files
from typing import Any, Final, TypeVar

from traceprof.model.ranks import Ranks
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace
from traceprof.render.escape import html_list, html_text
from traceprof.render.formatting import sentences
from traceprof.render.page.document import (
    PLOTLY_CONFIG,
    Fragment,
    data_block,
    plotly_bundle,
    write_document,
)
from traceprof.render.palette import CATEGORIES, CATEGORY_INDEX, NOT_RECORDED, STATES
from traceprof.render.timeline.drawn import draw_ranks, part_bits, state_of_parts
from traceprof.render.timeline.encode import Templates, encode_lanes
from traceprof.render.timeline.marks import (
    describe_focus,
    describe_processes,
    describe_steps,
    sample_series,
)
from traceprof.render.timeline.reasons import describe_reasons
from traceprof.render.timeline.shown_names import ShownNames
from traceprof.session.caveats import caveats_of
from traceprof.units import format_count, format_duration

MAX_ITEMS: Final = 5_000_000
"""How many items a page holds at most; more are condensed, and the page says so."""

MAX_BYTES: Final = 8_800_000
"""How many bytes they take at most, packed: a page of 12 MB, some 3 million events."""

_FEWEST_ITEMS: Final = 10_000
_MARGIN: Final = 0.9

_Drawn = TypeVar("_Drawn")


def pack_within(
    draw: Callable[[int], tuple[_Drawn, int, bytes]], max_items: int, max_bytes: int = MAX_BYTES
) -> tuple[_Drawn, bytes]:
    """Return what ``draw`` makes of at most so many items that it fits, and its bytes as gzip.

    ``draw`` takes a number of items and returns what it drew, its number of items and its bytes.
    """
    while True:
        drawn, n_items, data = draw(max_items)
        packed = gzip.compress(data, compresslevel=6, mtime=0)
        if len(packed) <= max_bytes or max_items <= _FEWEST_ITEMS:
            return drawn, packed
        max_items = int(_MARGIN * min(max_items, n_items) * max_bytes / len(packed))


_IMPORT: Final = re.compile(r'^import\s[^;]*?from "\./([a-z_]+\.mjs)";\n', re.MULTILINE)
_RE_EXPORT: Final = re.compile(r"^export \{[^}]*\};\n", re.MULTILINE)
_EXPORT: Final = re.compile(r"^export ", re.MULTILINE)


def read_asset(name: str) -> str:
    """Return the text of a file of this package's `assets/`."""
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")


@cache
def timeline_script(entry: str = "main.mjs") -> str:
    """Return ``entry`` with all that it imports as one script.

    The modules share one scope there, so a name at their top level must be unique (a test
    checks it); run by themselves, under node, they are ordinary ES modules.
    """
    bodies = map(read_asset, module_order(entry))
    for pattern in (_IMPORT, _RE_EXPORT, _EXPORT):
        bodies = map(partial(pattern.sub, ""), bodies)
    return '"use strict";\n(() => {\n' + "".join(bodies) + "})();\n"


def theme_script() -> str:
    """Return what gives a page its colors, light or dark, before anything of it is shown."""
    return timeline_script("first_theme.mjs")


def module_order(entry: str) -> tuple[str, ...]:
    """Return the modules that ``entry`` needs, each after those that it imports."""
    done: dict[str, None] = {}

    def visit(name: str, above: tuple[str, ...]) -> None:
        for imported in _imports(name):
            if imported not in done and imported not in above:
                visit(imported, (*above, name))
        done[name] = None

    visit(entry, ())
    return tuple(done)


def _imports(name: str) -> Iterator[str]:
    return (match.group(1) for match in _IMPORT.finditer(read_asset(name)))


_ROOT: Final = """<div id="traceprof-timeline"{mode}><p class="note">Loading the trace…</p></div>
<noscript><p>The timeline requires JavaScript. It loads nothing from the network.</p></noscript>"""


def timeline_fragment(packed: bytes, *, is_embedded: bool = False) -> Fragment:
    """Return the timeline of the encoded lanes ``packed`` (gzip).

    Embedded among other things it leaves the wheel and the keys to the page until the reader
    turns to it.
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


_BODY: Final = """<header><h1>{title}</h1><div class="sub">{subtitle}</div>{warnings}</header>
<main>
<div class="card">{timeline}</div>
<footer>{notes}</footer>
</main>"""


def timeline_page(
    fragment: Fragment, title: str, subtitle: str, notes: Iterable[str], warnings: str = ""
) -> str:
    """Return the page of a timeline; ``subtitle`` and ``warnings`` are HTML already."""
    body = _BODY.format(
        title=html_text(title),
        subtitle=subtitle,
        warnings=warnings,
        timeline=fragment.html,
        notes=" · ".join(map(html_text, notes)),
    )
    return write_document(title, body, (), fragment)


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
    """Return the timeline of ``trace`` as one HTML page that needs nothing else and no network.

    Args:
        trace: what to draw.
        title: the heading of the page; untrusted text is fine.
        window: draw only what has a part inside it; the whole trace by default.
        window_label: how the user named the window, for the subtitle.
        max_items: above this number of events, short neighbors become one item that says how
            many it stands for.
    """
    ranks = Ranks.of(trace)
    span = (window or ranks.span).hull
    caveats = sentences(caveats_of(ranks).notes)  # first: lanes take memory
    encoded = encode_timeline(ranks, span, max_items)
    fragment = timeline_fragment(encoded.packed)
    info, window_words = ranks.info, f"window {window_label}" if window_label else ""
    about = (info.profiler, info.host, format_duration(span.duration_ns), window_words)
    subtitle = html_text(" · ".join(filter(None, about)), 400)
    warnings = html_list((*caveats, *encoded.warnings))
    return timeline_page(fragment, title, subtitle, encoded.notes, warnings)


@dataclass(frozen=True, slots=True)
class EncodedTimeline:
    """The data of a timeline (gzip), and what a reader must know about it."""

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
    """Return the lanes of ``ranks`` within ``span`` in the form that the browser reads.

    The page opens at ``view``, by default at the window that the analyses look at. Where it cannot
    hold each event, it holds those with a part in ``exact``.
    """
    kept = exact and exact.moved(-span.start_ns)
    drawing = draw_ranks(ranks, span, max_items, kept)
    n_events = drawing.lanes.n_events
    series, remarks = sample_series(ranks, span)
    head = timeline_head(ranks, span, n_events)
    head["steps"]["reasons"] = describe_reasons(ranks, span, n_events)
    if view is not None:
        head["view"] = [view.start_ns - span.start_ns, view.end_ns - span.start_ns]

    templates = Templates(drawing.lanes.names)
    shown_names = ShownNames.of(drawing.lanes)

    def draw(most: int) -> tuple[tuple[int, int], int, bytes]:
        nonlocal drawing
        drawing = drawing.of_at_most(most, span.duration_ns, kept)
        merged = drawing.merged
        n_merged = 0 if merged is None else int(merged.counts.sum())
        data = encode_lanes(drawing.lanes, head, series, merged, templates, shown_names)
        return (n_merged, drawing.bin_ns), drawing.lanes.n_items, data

    (n_merged, bin_ns), packed = pack_within(draw, max_items)
    told = (
        f"{format_count(n_merged)} events shorter than {format_duration(bin_ns)} are merged with "
        "their neighbors; each merged item shows its number of events and their total time. Use "
        "`traceprof view` or --window to see each event"
    )
    warnings = [told] if bin_ns else []
    events = f"{format_count(n_events)} events in this page"
    return EncodedTimeline(packed, (*warnings, *remarks), (events, *_NOTES))


def timeline_head(trace: Trace | Ranks, span: TimeWindow, n_events: int) -> dict[str, Any]:
    """Return what a page must know beside its lanes: palette, steps, clock, number of events.

    It opens at the window that the analyses look at.
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
        "plotly_config": dict(PLOTLY_CONFIG),
    }
