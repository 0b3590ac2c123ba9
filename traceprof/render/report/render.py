"""Write the report page: its sections, their order, and the contents of its timeline."""

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
from traceprof.render.charts.parts import parts_legend
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
    peer_matrix,
)
from traceprof.render.report.figures import (
    durations_figure,
    idle_figure,
    memory_figure,
    ranks_figure,
    rooflines,
    tree_figure,
)
from traceprof.render.report.opening import (
    explain_command_html,
    findings_html,
    first_page_html,
    heading_html,
    places_of_findings,
    stragglers_html,
    summary_html,
)
from traceprof.render.report.places import PageContext, StillPictures, links_of_rows
from traceprof.render.report.steps import path_figure, steps_figure
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
        "Summary": "verdict findings breakdown steps kernels timeline",
        "Hardware utilization": "mfu ideal flops flops-shapes flops-kernels flops-classes "
        "flops-phases flops-layers energy",
        "Ranks": "stragglers rank-steps ranks shared hosts racks peers",
        "Training": "phases step-phases layers path whatif pipeline",
        "Idle time and CPU": "gaps idle launches sync tree ranges range-times range-work "
        "functions function-stacks operators",
        "GPUs": "durations classes summary occupancy streams memory counters",
        "Data movement": "copies transfers bandwidth collectives callers buckets "
        "collective-events network network-time",
        "Trace": "quality alignment environment missing",
    }.items()
)
"""The keys of all sections of a report, by subject, in the order of the page."""

_ORDER: Final = {key: i for i, key in enumerate(key for _, keys in SUBJECTS for key in keys)}
_UNFOLDED: Final = frozenset(SUBJECTS[0][1])
"""The keys of the sections that are unfolded on the page."""
_OF_SEVERAL_RANKS: Final = frozenset(
    ("stragglers", "rank-steps", "ranks", "shared", "hosts", "racks")
)
_LABELS: Final = {
    "verdict": "Time breakdown",
    "missing": "Not recorded",
    "shared": "Shared collectives",
    "rank-steps": "Heat map",
    "whatif": "What if",
    "mfu": "MFU and HFU",
    "ideal": "Ideal to measured step time",
    "flops": "FLOPs by operator",
    "flops-shapes": "FLOPs by shape",
    "flops-kernels": "FLOPs by kernel",
    "flops-classes": "FLOPs by class",
    "flops-phases": "FLOPs by phase",
    "flops-layers": "FLOPs by layer",
    "path": "Critical path",
    "sync": "Synchronization",
    "tree": "Flame graph",
    "functions": "Python functions",
    "function-stacks": "Flame graph of Python functions",
    "operators": "Host operators",
}


def index_html(keys: Iterable[str]) -> str:
    """Return the table of contents: links to the sections ``keys``, grouped by subject."""
    labels = {key: _LABELS.get(key, key.replace("-", " ").capitalize()) for key in keys}
    links = {key: f'<a href="#{key}">{html_text(label)}</a>' for key, label in labels.items()}
    groups = []
    for subject, subject_keys in SUBJECTS:
        present = [links[key] for key in subject_keys if key in links]
        heading, entries = html_text(subject), "".join(present)
        if present and subject == SUBJECTS[0][0]:
            groups.append(f"<div><b>{heading}</b>{entries}</div>")
        elif present:
            groups.append(
                f"<details><summary>{heading} ({len(present)})</summary>{entries}</details>"
            )
    return f'<nav aria-label="Contents">{"".join(groups)}</nav>'


_MARGINS_PER_STEP: Final = 20
"""The margin on each side of the typical step is its duration divided by this number."""
_PLACES_FACTOR: Final = 1.1
_PLACES_ITEMS: Final = 2_000
"""The worst cases of findings outside the window add 10% and 2,000 items at most."""
_MAX_CONDENSING: Final = 10
"""With more than this many times the maximum of events, the timeline holds one step only."""


@dataclass(frozen=True, slots=True)
class TimelineExtent:
    """The contents of a timeline: it holds ``window`` and opens at ``view``, named ``label``.

    It has at most ``most`` items: every event of ``exact``, and condensed events elsewhere.
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
    """Return the contents of the report's timeline: the window and ``places``, typical step first.

    The typical step is the steady step whose duration is nearest to the median, with a margin of a
    twentieth of its duration on either side. Without steps the whole window is the typical step.

    The timeline has every event of the window if they are at most ``max_events``. Otherwise it
    has every event of the typical step (unless they exceed half of ``max_events``) and condenses
    the other events. If they exceed ten times ``max_events``, it holds only the typical step.
    """
    window, has_steps = selection.window.hull, steps is not None and len(steps.table) > 0
    step, label = window, f"window {selection.label}"
    if steps is not None and has_steps:
        step, label = _typical_step(ranks, steps)
    wide = reduce(or_, places, window) & ranks.span
    n_events, n_wide = (sum(ranks.each(_count_events, extent)) for extent in (window, wide))
    if has_steps and n_events > _MAX_CONDENSING * max_events:
        return TimelineExtent(step, step & window, label, max_events)
    if n_wide > _MAX_CONDENSING * max_events:
        wide = window
    if n_events <= max_events:
        most = min(max_events, int(_PLACES_FACTOR * n_events) + _PLACES_ITEMS)
        return TimelineExtent(wide, step & window, label, most, window)
    is_exact = sum(ranks.each(_count_events, step)) <= max_events // 2
    return TimelineExtent(wide, step & window, label, max_events, step if is_exact else None)


def _typical_step(ranks: Ranks, steps: Result) -> tuple[TimeWindow, str]:
    """Return window and name of the typical step, if possible one with known GPU time."""
    is_steady = steps.table["kind"] == USUAL
    device_ns = steps.table.get("device_ns", np.zeros(len(is_steady)))
    is_measured = is_steady & ~np.isnan(np.asarray(device_ns, np.float64))
    is_candidate = next((rows for rows in (is_measured, is_steady) if rows.any()), ~is_steady)
    table = steps.table.take(is_candidate)
    distance = np.abs(table["duration_ns"] - np.median(table["duration_ns"]))
    row = table.row(int(distance.argmin()))
    start = ranks.span.start_ns + row["at_ns"]
    margin = row["duration_ns"] // _MARGINS_PER_STEP
    window = TimeWindow(start - margin, start + row["duration_ns"] + margin)
    return window & ranks.span, f"typical step {row['step']}"


def _count_events(trace: Trace, window: TimeWindow) -> int:
    return sum(
        count_inside(trace.table(name), window) for name, table in TABLES.items() if table.has_spans
    )


_DEFAULT_ROWS: Final = 12
_MAX_ITEMS: Final = 300_000
_FINDINGS: Final = "findings"
_RANK_STEPS: Final = "rank-steps"
_STRAGGLERS: Final = "stragglers"
_CHARTS: Final[Mapping[str, Callable[[Result], str]]] = {
    "breakdown": breakdown_bars,
    "peers": peer_matrix,
    "ideal": waterfall_chart,
}
_FIGURES: Final[Mapping[str, Callable[[Result, PageContext], str]]] = {
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
    "flops": rooflines,
    "flops-kernels": rooflines,
    "tree": tree_figure,
    "function-stacks": tree_figure,
}
"""Figures that plotly draws. The charts need no script."""
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
class _Card:
    """A section of the page: its key, title, and HTML ("" if it has no content)."""

    key: str
    title: str
    html: str


def render_report(document: Document, trace: Trace | Ranks, options: Options) -> str:
    """Return the report as one HTML page that needs no other file and no network.

    Its size is bounded: tables show their first rows, and the timeline holds at most 300,000
    items (see `choose_extent`).

    Args:
        document: all results. The report measures nothing itself.
        trace: all ranks of the whole run, for the timeline.
        options: title of the page, and number of rows per table (default: 12).

    Raises:
        UsageError: a column that was chosen is in no table.
    """
    briefing, ranks = briefing_of(document), Ranks.of(trace)
    steps, findings = (document.results.get(name) for name in ("steps", _FINDINGS))
    places = [] if findings is None else places_of_findings(ranks, findings)
    extent = choose_extent(ranks, document.selection, steps, _MAX_ITEMS, places)
    encoded = encode_timeline(
        ranks, extent.window, extent.most, view=extent.view, exact=extent.exact
    )
    fragment = timeline_fragment(encoded.packed, is_embedded=True)
    rows = options.rows or _DEFAULT_ROWS
    has_several_ranks = max(len(ranks), len(document.ranks)) > 1
    context = PageContext(ranks, document.selection.window.hull, extent.window, document.ranks)
    sections = [
        _Card(section.name, section.title, _section(document, section, context, rows))
        for section in sections_of(document, options)
        if len(section.table) and section.name != _FINDINGS
        if has_several_ranks or section.name not in _OF_SEVERAL_RANKS
    ]
    stills = StillPictures(ranks)
    advice = "" if findings is None else findings_html(stills, findings, extent.window, briefing)
    first_page = "" if findings is None else first_page_html(stills, findings, extent.window)
    timeline = fragment.html + _printed_timeline(document, stills)
    notes = " · ".join(map(html_text, (*encoded.warnings, *encoded.notes)))
    missing = html_list(f"{name}: {reason}" for name, reason in document.missing.items())
    cards = [
        _Card("verdict", "Time breakdown", summary_html(document, briefing, first_page)),
        _Card(_FINDINGS, "Findings", advice),
        *sections,
        _Card("timeline", f"Timeline: {extent.label}", f'{timeline}<p class="note">{notes}</p>'),
        _environment(ranks),
        _Card("missing", "Not recorded", missing),
    ]
    shown = sorted(
        (item for item in cards if item.html), key=lambda item: _ORDER.get(item.key, len(_ORDER))
    )
    result = document.results.get(_STRAGGLERS)
    has_straggler = result is not None and any(result.table.get("is_straggler", ()))
    unfolded = _UNFOLDED | ({_RANK_STEPS, _STRAGGLERS} if has_straggler else set())
    title = options.title or document.info.path
    body = (
        f"<header><h1>{html_text(title)}</h1>{heading_html(document, briefing)}</header>"
        f'<div class="beside">{index_html(item.key for item in shown)}<main>'
        + "".join(
            card(item.key, item.title, item.html, is_folded=item.key not in unfolded)
            for item in shown
        )
        + "<footer>Generated by traceprof. This page loads nothing from the network. "
        f"Tables show at most {rows} rows.</footer></main></div>"
    )
    style, script = (
        (files(__package__) / name).read_text(encoding="utf-8")
        for name in ("report.css", "report.js")
    )
    styles = (category_style(), heat_style(), style)
    return write_document(title, body, styles, fragment, script + figures_script())


def _printed_timeline(document: Document, stills: StillPictures) -> str:
    """Return a picture of the whole window, which replaces the timeline in a printout."""
    steps = document.results.get("steps")
    starts: list[tuple[str, int]] = []
    if steps is not None and len(steps.table):
        run_start_ns = stills.ranks.span.start_ns
        starts = [
            (f"{step:.0f}", run_start_ns + int(step_rows["at_ns"][0]))
            for step, step_rows in split_by(steps.table, "step")
        ]
    picture = stills.of_whole(document.selection.window.hull, starts)
    note = '<p class="note">Printed version: activity of each GPU in the whole window, by step.</p>'
    return f'<div class="printed">{note}{parts_legend()}{picture}</div>' if picture else ""


def _section(document: Document, section: Section, context: PageContext, rows: int) -> str:
    """Return one result: its chart, its notes, its tables, and a remark if it has one."""
    result = section.result
    chart = _CHARTS[section.name](result) if section.name in _CHARTS else ""
    remark = explain_command_html(document) if section.name == "steps" else ""
    if section.name == _RANK_STEPS:
        chart = heat_chart(result, context.step_link(document.results.get("steps")))
        remark = stragglers_html(document)
    if figure := _FIGURES.get(section.name):
        chart += figure(result, context)
    tables = "".join(_tables(document, section, context, rows))
    return f"{chart}{html_list(sentences(result.notes))}{remark}{tables}"


def _tables(document: Document, section: Section, context: PageContext, rows: int) -> Iterator[str]:
    """Yield the tables of a section; rows with a time or a step link to the timeline."""
    captions = [shown_by(section.name), *(table.about or table.name for table in section.more)]
    for table, caption in zip((section.table, *section.more), captions, strict=True):
        if table is section.table and section.name == _RANK_STEPS:
            title, link = f"{caption}: slowest first", _step_links(document, context)
            yield html_table(_slowest_first(table), title, rows, link)
            continue
        time_link = links_of_rows(document.span, context.shown) if table.has("at_ns") else None
        yield html_table(table, caption, rows, time_link)


def _slowest_first(table: ShownTable) -> ShownTable:
    slower = np.nan_to_num(table.values["slower_ratio"], nan=-np.inf)
    return replace(table, values=table.values.take(np.argsort(-slower, kind="stable")))


def _step_links(document: Document, context: PageContext) -> Link:
    """Return a function that gives the address of the step of a row with a rank or process."""
    address_of_step = context.step_link(document.results.get("steps"))
    processes = {rank: process for process, rank in document.ranks.items()}

    def link(row: Row) -> str | None:
        process = row.get("process", processes.get(row.get("rank", ABSENT)))
        if not is_known(process):
            return None
        return address_of_step(int(process), int(row["step"])) or None

    return link


def _environment(ranks: Ranks) -> _Card:
    """Return the section with the GPUs of the machine and the environment of the program."""
    recorded = ranks.table("devices").select(*(column.name for column in _DEVICES))
    rows = [
        {name: None if value == ABSENT else value for name, value in row.items()}
        for row in recorded.rows()
    ]
    devices = Table.of_rows(rows, list(recorded))
    tables: list[tuple[ShownTable, str, int]] = [
        (shown_table(_DEVICES, devices), "GPUs", 64),
        (shown_table(_SETTINGS, ranks.table("environment")), "Environment", 200),
    ]
    html = "".join(
        html_table(table, title, max_rows) for table, title, max_rows in tables if len(table)
    )
    return _Card("environment", "Environment", html)
