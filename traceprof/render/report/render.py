"""From results to the report page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

import pandas as pd

from traceprof import analysis
from traceprof.analysis.base import Result
from traceprof.analysis.breakdown import Breakdown
from traceprof.analysis.steps import StepTimes
from traceprof.model.selection import Selection
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace
from traceprof.model.window import TimeWindow
from traceprof.render.document import write_document
from traceprof.render.escape import html_list, html_text
from traceprof.render.report.charts import breakdown_bars, category_style, step_chart
from traceprof.render.report.tables import Link, Row, html_table
from traceprof.render.report.typical import typical_window
from traceprof.render.report.verdict import key_figures, verdict
from traceprof.render.timeline.page import timeline_fragment
from traceprof.render.timeline.render import EncodedTimeline, encode_timeline
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
    results: Mapping[str, Result],
    missing: Mapping[str, str],
    *,
    title: str,
) -> str:
    """Return the report as one HTML page that needs nothing else and no network.

    Its size is bounded: tables show their first rows, and the timeline is that of one typical
    step, condensed above 300,000 events.

    Args:
        trace: the whole trace.
        selection: the window that the results are about.
        results: by name of the analysis.
        missing: why the other analyses have no result.
        title: the heading; untrusted text is fine.
    """
    window, label = typical_window(trace, selection, results.get("steps"))
    encoded = encode_timeline(trace, window, _MAX_ITEMS)
    fragment = timeline_fragment(encoded.data, is_embedded=True)
    found = _result_sections(trace, results, window)
    sections = [
        _summary(results),
        *(section for section in found if section.key in _FIRST),
        _timeline(label, fragment.html, encoded),
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
    return write_document(title, body, (category_style(), style), fragment)


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


def _summary(results: Mapping[str, Result]) -> _Section:
    sentences = "".join(f"<p>{html_text(text)}</p>" for text in verdict(results))
    figures = "".join(
        f'<div class="figure"><b>{html_text(number)}</b><span>{html_text(words)}</span></div>'
        for number, words in key_figures(results)
    )
    html = f'<div class="figures">{figures}</div><div class="verdict">{sentences}</div>'
    return _Section("verdict", "Where the time went", html if sentences or figures else "")


def _result_sections(
    trace: Trace, results: Mapping[str, Result], window: TimeWindow
) -> list[_Section]:
    titles = {entry.name: entry.summary for entry in analysis.ANALYSES}
    sections = []
    for name, result in results.items():
        frame = result.to_frame()
        if frame.empty:
            continue
        summary = titles.get(name, name)
        link = _links_into(trace, window) if "at_ns" in frame else None
        table = html_table(_readable(frame), f"traceprof {name}", _ROWS, link)
        html = f"{_chart(result)}{html_list(result.notes)}{table}"
        sections.append(_Section(name, summary[0].upper() + summary[1:], html))
    return sections


def _chart(result: Result) -> str:
    if isinstance(result, Breakdown):
        return breakdown_bars(result)
    return step_chart(result) if isinstance(result, StepTimes) and len(result.table) else ""


def _readable(frame: pd.DataFrame) -> pd.DataFrame:
    """Return ``frame`` without columns in which no row says anything."""
    said = [c for c in frame if not (frame[c].isna() | (frame[c].astype(object) == "")).all()]
    return frame[said]


def _links_into(trace: Trace, window: TimeWindow) -> Link:
    """Return a function that gives the place of a row in the timeline, where it is on it."""
    origin = trace.span.start_ns

    def link(row: Row) -> str | None:
        start = int(row["at_ns"])
        end = start + int(row.get("duration_ns", 0))
        if start + origin < window.start_ns or end + origin > window.end_ns:
            return None
        margin = max(1_000, (end - start) // 2)
        return f"#at={start - margin}..{end + margin}"

    return link


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
