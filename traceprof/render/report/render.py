"""From answers to the report page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

import pandas as pd

from traceprof.model.results import Result, TableSpec, Unit, key, same
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace
from traceprof.model.window import TimeWindow
from traceprof.render.base import Options
from traceprof.render.briefing import Briefing, briefing_of
from traceprof.render.escape import html_list, html_text
from traceprof.render.formatting import sentences
from traceprof.render.page.document import write_document
from traceprof.render.page.tables import html_table
from traceprof.render.report.charts import breakdown_bars, category_style, step_chart
from traceprof.render.report.heat_chart import heat_chart, heat_style
from traceprof.render.report.links import links_of_rows
from traceprof.render.report.matrix import peer_matrix
from traceprof.render.report.opening import (
    explaining_html,
    findings_html,
    heading_html,
    summary_html,
)
from traceprof.render.report.typical import choose_extent
from traceprof.render.sections import Section, sections_of
from traceprof.render.shown import ShownTable, shown_frame
from traceprof.render.timeline.page import timeline_fragment
from traceprof.render.timeline.render import EncodedTimeline, encode_timeline
from traceprof.session.answer import Document

__all__ = ["render_report"]

_ROWS: Final = 12
_MAX_ITEMS: Final = 300_000
_ADVICE: Final = "findings"
_FIRST: Final = frozenset({"breakdown", "steps"})
_CHARTS: Final[Mapping[str, Callable[[Result], str]]] = {
    "breakdown": breakdown_bars,
    "rank-steps": heat_chart,
    "peers": peer_matrix,
    "steps": step_chart,
}
_DEVICES: Final = TableSpec(
    "devices",
    "the devices of the machine",
    (
        key("device", "the number of the device in the run", Unit.NUMBER),
        same("name", Unit.TEXT, "what the device is"),
        same("memory_bytes", Unit.BYTES, "how much memory it has"),
        same("sm_count", Unit.COUNT, "how many streaming multiprocessors it has"),
    ),
)
_SETTINGS: Final = TableSpec(
    "environment",
    "what the program ran with",
    (
        key("name", "the name of the setting"),
        same("value", Unit.TEXT, "its value"),
    ),
)


@dataclass(frozen=True, slots=True)
class _Part:
    """One part of the page."""

    key: str
    title: str
    html: str


def render_report(document: Document, trace: Trace, options: Options) -> str:
    """Return the report as one HTML page that needs nothing else and no network.

    Its size is bounded: tables show their first rows, and the timeline holds at most 300,000
    items: those of the window, or else of one typical step, condensed if need be.

    Args:
        document: everything that was measured; nothing is measured here.
        trace: all ranks of the whole run, for the timeline.
        options: the heading of the page, and how many rows a table shows (12).
    """
    words, steps = briefing_of(document), document.results.get("steps")
    extent = choose_extent(trace, document.selection, steps, _MAX_ITEMS)
    encoded = encode_timeline(trace, extent.window, _MAX_ITEMS, view=extent.view)
    fragment = timeline_fragment(encoded.data, is_embedded=True)
    rows = options.rows or _ROWS
    found = [
        _Part(section.name, section.title, _section(document, section, extent.window, rows))
        for section in sections_of(document, options)
        if len(section.table) and section.name != _ADVICE
    ]
    parts = [
        _Part("verdict", "Where the time went", summary_html(document, words)),
        *_advice(document, trace, extent.window, words),
        *(part for part in found if part.key in _FIRST),
        _timeline(extent.label, fragment.html, encoded),
        *(part for part in found if part.key not in _FIRST),
        _environment(trace),
        _missing(document.missing),
    ]
    shown = [part for part in parts if part.html]
    links = "".join(f'<a href="#{p.key}">{html_text(p.key.capitalize())}</a>' for p in shown)
    title = options.title or document.info.path
    body = (
        f"<header><h1>{html_text(title)}</h1>{heading_html(document, words)}</header>"
        f'<nav aria-label="Contents">{links}</nav><main>'
        + "".join(map(_card, shown))
        + "<footer>Written by traceprof. Nothing is loaded from elsewhere. "
        f"Tables show at most {rows} rows.</footer></main>"
    )
    style = (files(__package__) / "report.css").read_text(encoding="utf-8")
    return write_document(title, body, (category_style(), heat_style(), style), fragment)


def _card(part: _Part) -> str:
    return (
        f'<section class="card" id="{part.key}" aria-labelledby="{part.key}-title">'
        f'<h2 id="{part.key}-title">{html_text(part.title)}</h2>{part.html}</section>'
    )


def _advice(
    document: Document, trace: Trace, shown: TimeWindow, words: Briefing
) -> Iterator[_Part]:
    findings = document.results.get(_ADVICE)
    if findings is not None:
        yield _Part(_ADVICE, "Findings", findings_html(trace, findings, shown, words.nothing))


def _section(document: Document, section: Section, shown: TimeWindow, rows: int) -> str:
    """Return one result: its chart, its notes, its tables; ``shown`` is what the timeline has."""
    result = section.result
    chart = _CHARTS[section.name](result) if section.name in _CHARTS else ""
    tables = "".join(_tables(document, section, shown, rows))
    more = explaining_html(document) if section.name == "steps" else ""
    return f"{chart}{html_list(sentences(result.notes))}{more}{tables}"


def _tables(document: Document, section: Section, shown: TimeWindow, rows: int) -> Iterator[str]:
    captions = [
        f"traceprof show {section.name}",
        *(table.about or table.name for table in section.more),
    ]
    for table, caption in zip((section.table, *section.more), captions, strict=True):
        link = links_of_rows(document.span, shown) if table.has("at_ns") else None
        yield html_table(table, caption, rows, link)


def _timeline(label: str, html: str, encoded: EncodedTimeline) -> _Part:
    notes = " · ".join(map(html_text, encoded.notes))
    return _Part("timeline", f"Timeline: {label}", f'{html}<p class="note">{notes}</p>')


def _environment(trace: Trace) -> _Part:
    devices = trace.devices[[column.name for column in _DEVICES]].replace(ABSENT, pd.NA)
    tables: list[tuple[ShownTable, str, int]] = [
        (shown_frame(_DEVICES, devices), "Devices", 64),
        (shown_frame(_SETTINGS, trace.environment), "Environment", 200),
    ]
    html = "".join(html_table(table, title, most) for table, title, most in tables if len(table))
    return _Part("environment", "Environment", html)


def _missing(missing: Mapping[str, str]) -> _Part:
    items = html_list(f"{name}: {reason}" for name, reason in missing.items())
    return _Part("missing", "What was not recorded", items)
