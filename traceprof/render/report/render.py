"""From answers to the report page: its parts, their order, and what its timeline holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from importlib.resources import files
from operator import or_
from typing import Final

import numpy as np

from traceprof.measures import shown_by
from traceprof.measures.steps.ledger import USUAL
from traceprof.model.grouping import split_by
from traceprof.model.ranks import Ranks
from traceprof.model.results import Result, TableSpec
from traceprof.model.table import Table
from traceprof.model.tables import ABSENT, TABLES
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace
from traceprof.render.briefing import Section, briefing_of, sections_of
from traceprof.render.charts.figure import figures_script
from traceprof.render.charts.roofline import roofline_figure
from traceprof.render.charts.waterfall import waterfall_chart
from traceprof.render.escape import html_list, html_text
from traceprof.render.formatting import is_known, sentences
from traceprof.render.heat import heat_chart, heat_style
from traceprof.render.page.document import Link, html_table, write_document
from traceprof.render.registry import Options
from traceprof.render.report.charts import (
    breakdown_bars,
    card,
    category_style,
    parts_legend,
    peer_matrix,
)
from traceprof.render.report.critical_path import path_figure
from traceprof.render.report.figures import (
    durations_figure,
    idle_figure,
    memory_figure,
    ranks_figure,
    tree_figure,
)
from traceprof.render.report.opening import (
    explaining_html,
    findings_html,
    first_page_html,
    heading_html,
    late_html,
    places_of_findings,
    summary_html,
)
from traceprof.render.report.places import Around, StillPictures, links_of_rows
from traceprof.render.report.steps import steps_figure
from traceprof.render.report.traffic import (
    bandwidth_figure,
    network_figure,
    sizes_of_collectives,
    sizes_of_copies,
)
from traceprof.render.shown import Row, ShownTable, shown_table
from traceprof.render.timeline.events import count_inside
from traceprof.render.timeline.render import encode_timeline, timeline_fragment
from traceprof.session.answer import Document
from traceprof.session.selection import Selection

SUBJECTS: Final = tuple(
    (subject, tuple(keys.split()))
    for subject, keys in {
        "Summary": "verdict findings breakdown steps timeline",
        "Hardware utilization": "mfu ideal flops flops-kernels flops-classes flops-phases "
        "flops-layers energy",
        "Ranks": "stragglers rank-steps ranks shared hosts racks peers",
        "Training": "phases step-phases layers path whatif pipeline",
        "Idle time and CPU": "gaps idle launches sync tree ranges range-work operators",
        "GPUs": "kernels durations classes summary occupancy streams memory counters",
        "Data movement": "copies transfers bandwidth collectives callers buckets "
        "collective-events network network-time",
        "Trace": "quality alignment environment missing",
    }.items()
)
"""Every part of a report, by its key: those of one subject stand together."""

_ORDER: Final = {key: i for i, key in enumerate(key for _, keys in SUBJECTS for key in keys)}
_NAMES: Final = {
    "verdict": "Time breakdown",
    "missing": "Not recorded",
    "shared": "Shared collectives",
    "rank-steps": "Heat map",
    "whatif": "What if",
    "mfu": "MFU and HFU",
    "ideal": "Ideal to measured step time",
    "flops": "FLOPs by operator",
    "flops-kernels": "FLOPs by kernel",
    "flops-classes": "FLOPs by class",
    "flops-phases": "FLOPs by phase",
    "flops-layers": "FLOPs by layer",
    "path": "Critical path",
    "sync": "Synchronization",
    "tree": "Flame graph",
    "operators": "Host operators",
}


def index_html(keys: Iterable[str]) -> str:
    """Return links to the parts ``keys``, under their subjects."""
    names = {key: _NAMES.get(key, key.replace("-", " ").capitalize()) for key in keys}
    links = {key: f'<a href="#{key}">{html_text(name)}</a>' for key, name in names.items()}
    groups = [
        f"<div><b>{html_text(subject)}</b>{''.join(present)}</div>"
        for subject, of_subject in SUBJECTS
        if (present := [links[key] for key in of_subject if key in links])
    ]
    return f'<nav aria-label="Contents">{"".join(groups)}</nav>'


_MARGIN = 20
_MORE_FOR_PLACES: Final = 1.1
_FEW_ITEMS: Final = 2_000
"""So many more items may a page have for places outside of its window."""
_MOST_DRAWN: Final = 10
"""So many times the events that a page holds are condensed; of more one step is shown."""


@dataclass(frozen=True, slots=True)
class TimelineExtent:
    """The timeline holds ``window`` and opens at ``view``, which ``label`` names.

    It has ``most`` items: every event of ``exact``, and of the rest what fits.
    """

    window: TimeWindow
    view: TimeWindow
    label: str
    most: int
    exact: TimeWindow | None = None


def choose_extent(
    ranks: Ranks,
    selection: Selection,
    steps: Result | None,
    max_events: int,
    places: Sequence[TimeWindow] = (),
) -> TimelineExtent:
    """Return what the report shows: its window and ``places``, opened at a typical step.

    The typical step is the steady one whose duration is nearest to the median, with a twentieth
    of it on either side; without steps the whole window takes its part. Of a window that is much
    every event of that step is shown; where it is far too much nothing else is.
    """
    window, has_steps = selection.window.hull, steps is not None and len(steps.table) > 0
    step, label = window, f"window {selection.label}"
    if steps is not None and has_steps:
        step, label = _typical_step(ranks, steps)
    wide = reduce(or_, places, window) & ranks.span
    n_events, n_wide = (sum(ranks.each(_count_events, own)) for own in (window, wide))
    if has_steps and n_events > _MOST_DRAWN * max_events:
        return TimelineExtent(step, step & window, label, max_events)
    if n_wide > _MOST_DRAWN * max_events:
        wide = window
    if n_events <= max_events:
        most = min(max_events, int(_MORE_FOR_PLACES * n_events) + _FEW_ITEMS)
        return TimelineExtent(wide, step & window, label, most, window)
    is_exact = sum(ranks.each(_count_events, step)) <= max_events // 2
    return TimelineExtent(wide, step & window, label, max_events, step if is_exact else None)


def _typical_step(ranks: Ranks, steps: Result) -> tuple[TimeWindow, str]:
    usual = steps.table["kind"] == USUAL
    known = steps.table.get("device_ns", np.zeros(len(usual)))
    is_seen = usual & ~np.isnan(np.asarray(known, np.float64))
    rows = is_seen if is_seen.any() else usual if usual.any() else ~usual
    table = steps.table.take(rows)
    distance = np.abs(table["duration_ns"] - np.median(table["duration_ns"]))
    row = table.row(int(distance.argmin()))
    start = ranks.span.start_ns + row["at_ns"]
    margin = row["duration_ns"] // _MARGIN
    window = TimeWindow(start - margin, start + row["duration_ns"] + margin)
    return window & ranks.span, f"typical step {row['step']}"


def _count_events(trace: Trace, window: TimeWindow) -> int:
    return sum(
        count_inside(trace.table(name), window) for name, table in TABLES.items() if table.has_spans
    )


_ROWS: Final = 12
_MAX_ITEMS: Final = 300_000
_ADVICE: Final = "findings"
_BY_RANK: Final = "rank-steps"
_CHARTS: Final[Mapping[str, Callable[[Result], str]]] = {
    "breakdown": breakdown_bars,
    "peers": peer_matrix,
    "ideal": waterfall_chart,
}
_FIGURES: Final[Mapping[str, Callable[[Result, Around], str]]] = {
    "steps": steps_figure,
    "ranks": ranks_figure,
    "path": path_figure,
    "idle": idle_figure,
    "bandwidth": bandwidth_figure,
    "network-time": network_figure,
    "transfers": sizes_of_copies,
    "collective-events": sizes_of_collectives,
    "memory": memory_figure,
    "durations": durations_figure,
    "flops": roofline_figure,
    "flops-kernels": roofline_figure,
    "tree": tree_figure,
}
"""What plotly draws; the others need no script."""
_DEVICES: Final = TableSpec.of("""
    table devices: GPUs of the machine
    key device [number]: number of the GPU in the run
    same name: GPU model
    same memory_bytes: GPU memory size
    same sm_count: number of streaming multiprocessors
    """)
_SETTINGS: Final = TableSpec.of("""
    table environment: environment of the program
    key name: name of the setting
    same value: value of the setting
    """)


@dataclass(frozen=True, slots=True)
class _Part:
    """One part of the page."""

    key: str
    title: str
    html: str


def render_report(document: Document, trace: Trace | Ranks, options: Options) -> str:
    """Return the report as one HTML page that needs nothing else and no network.

    Its size is bounded: tables show their first rows, and the timeline holds at most 300,000
    items: those of the window, condensed if need be but for one typical step, or of that alone.

    Args:
        document: everything that was measured; nothing is measured here.
        trace: all ranks of the whole run, for the timeline.
        options: the heading of the page, and how many rows a table shows (12).
    """
    words, steps = briefing_of(document), document.results.get("steps")
    ranks = Ranks.of(trace)
    findings = document.results.get(_ADVICE)
    places = [] if findings is None else places_of_findings(ranks, findings)
    extent = choose_extent(ranks, document.selection, steps, _MAX_ITEMS, places)
    encoded = encode_timeline(
        ranks, extent.window, extent.most, view=extent.view, exact=extent.exact
    )
    fragment = timeline_fragment(encoded.packed, is_embedded=True)
    rows = options.rows or _ROWS
    around = Around(ranks, document.selection.window.hull, extent.window, document.ranks)
    found = [
        _Part(section.name, section.title, _section(document, section, around, rows))
        for section in sections_of(document, options)
        if len(section.table) and section.name != _ADVICE
    ]
    stills = StillPictures(ranks)
    advice = "" if findings is None else findings_html(stills, findings, extent.window, words)
    first = "" if findings is None else first_page_html(stills, findings, extent.window)
    drawn = fragment.html + _printed(document, stills)
    notes = " · ".join(map(html_text, (*encoded.warnings, *encoded.notes)))
    missing = html_list(f"{name}: {reason}" for name, reason in document.missing.items())
    parts = [
        _Part("verdict", "Time breakdown", summary_html(document, words, first)),
        _Part(_ADVICE, "Findings", advice),
        *found,
        _Part("timeline", f"Timeline: {extent.label}", f'{drawn}<p class="note">{notes}</p>'),
        _environment(ranks),
        _Part("missing", "Not recorded", missing),
    ]
    shown = sorted(
        (part for part in parts if part.html), key=lambda part: _ORDER.get(part.key, len(_ORDER))
    )
    title = options.title or document.info.path
    body = (
        f"<header><h1>{html_text(title)}</h1>{heading_html(document, words)}</header>"
        f'<div class="beside">{index_html(part.key for part in shown)}<main>'
        + "".join(card(part.key, part.title, part.html) for part in shown)
        + "<footer>Generated by traceprof. This page loads nothing from the network. "
        f"Tables show at most {rows} rows.</footer></main></div>"
    )
    style, script = (
        (files(__package__) / name).read_text(encoding="utf-8")
        for name in ("report.css", "report.js")
    )
    styles = (category_style(), heat_style(), style)
    return write_document(title, body, styles, fragment, script + figures_script())


def _printed(document: Document, stills: StillPictures) -> str:
    """Return the whole window as a picture, which paper has instead of the timeline."""
    steps = document.results.get("steps")
    starts: list[tuple[str, int]] = []
    if steps is not None and len(steps.table):
        begin = stills.ranks.span.start_ns
        starts = [
            (f"{step:.0f}", begin + int(own["at_ns"][0]))
            for step, own in split_by(steps.table, "step")
        ]
    picture = stills.of_whole(document.selection.window.hull, starts)
    note = '<p class="note">Printed version: activity of each GPU in the whole window, by step.</p>'
    return f'<div class="printed">{note}{parts_legend()}{picture}</div>' if picture else ""


def _section(document: Document, section: Section, around: Around, rows: int) -> str:
    """Return one result: its chart, its notes, its tables."""
    result = section.result
    chart = _CHARTS[section.name](result) if section.name in _CHARTS else ""
    if section.name == _BY_RANK:
        chart = heat_chart(result, around.steps(document.results.get("steps")))
    if figure := _FIGURES.get(section.name):
        chart += figure(result, around)
    tables = "".join(_tables(document, section, around, rows))
    more = explaining_html(document) if section.name == "steps" else ""
    more += late_html(document) if section.name == _BY_RANK else ""
    return f"{chart}{html_list(sentences(result.notes))}{more}{tables}"


def _tables(document: Document, section: Section, around: Around, rows: int) -> Iterator[str]:
    captions = [shown_by(section.name), *(table.about or table.name for table in section.more)]
    for table, caption in zip((section.table, *section.more), captions, strict=True):
        if table is section.table and section.name == _BY_RANK:
            words, link = f"{caption}: slowest first", _links_of_steps(document, around)
            yield html_table(_slowest_first(table), words, rows, link)
            continue
        of_time = links_of_rows(document.span, around.shown) if table.has("at_ns") else None
        yield html_table(table, caption, rows, of_time)


def _slowest_first(table: ShownTable) -> ShownTable:
    slower = np.nan_to_num(table.values["slower_ratio"], nan=-np.inf)
    return replace(table, values=table.values.take(np.argsort(-slower, kind="stable")))


def _links_of_steps(document: Document, around: Around) -> Link:
    """Return what gives the address of the step of a rank that a row is about."""
    link = around.steps(document.results.get("steps"))
    processes = {rank: process for process, rank in document.ranks.items()}

    def of_row(row: Row) -> str | None:
        process = row.get("process", processes.get(row.get("rank", ABSENT)))
        return link(int(process), int(row["step"])) or None if is_known(process) else None

    return of_row


def _environment(ranks: Ranks) -> _Part:
    told = ranks.table("devices").select(*(column.name for column in _DEVICES))
    rows = [{n: None if v == ABSENT else v for n, v in row.items()} for row in told.rows()]
    devices = Table.of_rows(rows, list(told))
    tables: list[tuple[ShownTable, str, int]] = [
        (shown_table(_DEVICES, devices), "GPUs", 64),
        (shown_table(_SETTINGS, ranks.table("environment")), "Environment", 200),
    ]
    html = "".join(html_table(table, title, most) for table, title, most in tables if len(table))
    return _Part("environment", "Environment", html)
