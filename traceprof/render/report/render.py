"""From results to the report page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

import pandas as pd

from traceprof import analysis
from traceprof.analysis.advice.findings import Findings
from traceprof.analysis.advice.verdict import Verdict
from traceprof.analysis.base import Result
from traceprof.analysis.device.breakdown import Breakdown
from traceprof.analysis.ranks.peers import Peers
from traceprof.analysis.ranks.rank_steps import RankSteps
from traceprof.analysis.training.steps import StepTimes
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace
from traceprof.model.window import TimeWindow
from traceprof.render.columns import shown_table
from traceprof.render.document import write_document
from traceprof.render.escape import html_list, html_text
from traceprof.render.report.charts import breakdown_bars, category_style, step_chart
from traceprof.render.report.heat_chart import heat_chart, heat_style
from traceprof.render.report.links import links_of_rows
from traceprof.render.report.matrix import peer_matrix
from traceprof.render.report.opening import findings_html, summary_html
from traceprof.render.report.tables import html_table
from traceprof.render.report.typical import choose_extent
from traceprof.render.timeline.page import timeline_fragment
from traceprof.render.timeline.render import EncodedTimeline, encode_timeline
from traceprof.session.selection import Selection
from traceprof.units import format_duration

__all__ = ["REPORT", "render_report"]

REPORT: Final = tuple(entry.name for entry in analysis.ANALYSES)
"""The analyses that the page shows, in this order, as far as they were recorded."""

_ROWS: Final = 12
_MAX_ITEMS: Final = 300_000
_FIRST: Final = frozenset({"findings", "breakdown", "steps"})


@dataclass(frozen=True, slots=True)
class _Section:
    """One part of the page."""

    key: str
    title: str
    html: str


def render_report(
    trace: Trace,
    selection: Selection,
    verdict: Verdict,
    results: Mapping[str, Result],
    *,
    missing: Mapping[str, str],
    title: str,
) -> str:
    """Return the report as one HTML page that needs nothing else and no network.

    Its size is bounded: tables show their first rows, and the timeline holds at most 300,000
    items: those of the window, or else of one typical step, condensed if need be.

    Args:
        trace: the whole trace.
        selection: the window that the results are about.
        verdict: the answer in a few sentences.
        results: by name of the analysis.
        missing: why the other analyses have no result.
        title: the heading; untrusted text is fine.
    """
    extent = choose_extent(trace, selection, results.get("steps"), _MAX_ITEMS)
    encoded = encode_timeline(trace, extent.window, _MAX_ITEMS, view=extent.view)
    fragment = timeline_fragment(encoded.data, is_embedded=True)
    found = _result_sections(trace, results, extent.window)
    sections = [
        _Section("verdict", "Where the time went", summary_html(verdict, results)),
        *(section for section in found if section.key in _FIRST),
        _timeline(extent.label, fragment.html, encoded),
        *(section for section in found if section.key not in _FIRST),
        _environment(trace),
        _missing(missing),
    ]
    shown = [section for section in sections if section.html]
    links = "".join(f'<a href="#{s.key}">{html_text(s.key.capitalize())}</a>' for s in shown)
    body = (
        f"<header><h1>{html_text(title)}</h1>{_where(trace, selection)}</header>"
        f'<nav aria-label="Contents">{links}</nav><main>'
        + "".join(map(_card, shown))
        + "<footer>Written by traceprof. Nothing is loaded from elsewhere. "
        f"Tables show at most {_ROWS} rows.</footer></main>"
    )
    style = (files(__package__) / "report.css").read_text(encoding="utf-8")
    return write_document(title, body, (category_style(), heat_style(), style), fragment)


def _card(section: _Section) -> str:
    return (
        f'<section class="card" id="{section.key}" aria-labelledby="{section.key}-title">'
        f'<h2 id="{section.key}-title">{html_text(section.title)}</h2>{section.html}</section>'
    )


def _where(trace: Trace, selection: Selection) -> str:
    window = selection.window
    words = [trace.info.profiler, trace.info.host]
    words.append(
        f"window {selection.label}: {format_duration(window.start_ns - trace.span.start_ns)} to "
        f"{format_duration(window.end_ns - trace.span.start_ns)} "
        f"of {format_duration(trace.span.duration_ns)}"
    )
    text = html_text(" · ".join(word for word in words if word), 400)
    notes = html_list([*selection.notes, *trace.info.warnings])
    return f'<div class="sub">{text}</div>{notes}'


def _result_sections(
    trace: Trace, results: Mapping[str, Result], window: TimeWindow
) -> list[_Section]:
    titles = {entry.name: entry.summary for entry in analysis.ANALYSES}
    sections = []
    for name, result in results.items():
        frame = shown_table(result, trace)
        if frame.empty:
            continue
        summary = titles.get(name, name)
        link = links_of_rows(trace, window) if "at_ns" in frame else None
        if isinstance(result, Findings):
            html = findings_html(trace, result, window)
            sections.append(_Section(name, summary[0].upper() + summary[1:], html))
            continue
        table = html_table(_readable(frame), f"traceprof {name}", _ROWS, link)
        html = f"{_chart(result)}{html_list(result.notes)}{table}"
        sections.append(_Section(name, summary[0].upper() + summary[1:], html))
    return sections


def _chart(result: Result) -> str:
    if isinstance(result, Breakdown):
        return breakdown_bars(result)
    if isinstance(result, RankSteps):
        return heat_chart(result)
    if isinstance(result, Peers):
        return peer_matrix(result)
    return step_chart(result) if isinstance(result, StepTimes) and len(result.table) else ""


def _readable(frame: pd.DataFrame) -> pd.DataFrame:
    """Return ``frame`` without columns in which no row says anything."""
    said = [c for c in frame if not (frame[c].isna() | (frame[c].astype(object) == "")).all()]
    return frame[said]


def _timeline(label: str, html: str, encoded: EncodedTimeline) -> _Section:
    notes = " · ".join(map(html_text, encoded.notes))
    return _Section("timeline", f"Timeline: {label}", f'{html}<p class="note">{notes}</p>')


def _environment(trace: Trace) -> _Section:
    devices = trace.devices[["device", "name", "memory_bytes", "sm_count"]].replace(ABSENT, pd.NA)
    rows = trace.environment
    html = html_table(_readable(devices), "Devices", 64) if len(devices) else ""
    html += html_table(rows, "Environment", 200) if len(rows) else ""
    return _Section("environment", "Environment", html)


def _missing(missing: Mapping[str, str]) -> _Section:
    items = html_list(f"{name}: {reason}" for name, reason in missing.items())
    return _Section("missing", "What was not recorded", items)
