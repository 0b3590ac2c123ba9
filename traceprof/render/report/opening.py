"""The first part of the report: the verdict in sentences, the main numbers, the advice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pandas as pd

from traceprof.errors import UsageError
from traceprof.model.ranks import Ranks
from traceprof.model.results import Result, Unit
from traceprof.model.trace import Trace
from traceprof.model.window import TimeWindow
from traceprof.render.escape import html_list, html_text
from traceprof.render.formatting import is_known, note_text, sentences, value_text
from traceprof.render.palette import PART_STYLES
from traceprof.render.report.links import link_to
from traceprof.render.shown import Row, rows_of
from traceprof.render.wording import saving_words
from traceprof.session.answer import Document
from traceprof.session.selection import select
from traceprof.units import format_count, format_duration, format_number, format_ratio

__all__ = ["findings_html", "summary_html"]

_SHOWN: Final = 5


def summary_html(document: Document) -> str:
    """Return the main numbers and the sentences of the verdict; "" where nothing is known."""
    figures = "".join(
        f'<div class="figure"><b>{html_text(number)}</b><span>{html_text(words)}</span></div>'
        for number, words in (*_of_steps(document.results), *_of_devices(document.results))
    )
    sentences = () if document.verdict is None else document.verdict.sentences
    text = "".join(f"<p>{html_text(note_text(sentence))}</p>" for sentence in sentences)
    if not figures and not text:
        return ""
    return f'<div class="figures">{figures}</div><div class="verdict">{text}</div>'


def _of_steps(results: Mapping[str, Result]) -> list[tuple[str, str]]:
    scalars = results["steps"].scalars if "steps" in results else {}
    figures = []
    if is_known(median_ns := scalars.get("median_ns")):
        count = format_count(scalars.get("steady_count"))
        figures.append((format_duration(median_ns), f"median of {count} steady steps"))
    if is_known(rate := scalars.get("mean_samples_per_s")):
        figures.append((format_number(rate), "samples per second"))
    return figures


def _of_devices(results: Mapping[str, Result]) -> list[tuple[str, str]]:
    total = results["breakdown"].to_frame("total") if "breakdown" in results else pd.DataFrame()
    if total.empty:
        return []
    row = total.iloc[0]
    return [
        (format_ratio(row[part.column] / max(1, row["duration_ns"])), part.label)
        for part in PART_STYLES
    ]


def findings_html(trace: Trace, findings: Result, window: TimeWindow) -> str:
    """Return the advice as a list; ``window`` is what the timeline of the page shows."""
    run = Ranks.of(trace)
    items = [_finding(run, row, window) for row in rows_of(findings.table) if not row["is_minor"]]
    advice = _list(items[:_SHOWN], 1) if items else ""
    if len(items) > _SHOWN:
        rest = _list(items[_SHOWN:], _SHOWN + 1)
        advice += f"<details><summary>{len(items) - _SHOWN} more</summary>{rest}</details>"
    notes = html_list(sentences(findings.notes))
    folded = f"<details><summary>What was not judged</summary>{notes}</details>" if notes else ""
    return advice + (folded if advice else notes)


def _list(items: Sequence[str], first: int) -> str:
    return f'<ol class="findings" start="{first}">{"".join(items)}</ol>'


def _finding(run: Ranks, finding: Row, window: TimeWindow) -> str:
    words = saving_words(finding)
    saving = f'<span class="saving">{html_text(words)}</span>' if words else ""
    evidence = "".join(f"<li>{_text(fact, 400)}</li>" for fact in _facts(finding["evidence"]))
    return (
        f"<li><h3>{_text(finding['title'], 300)} {saving}</h3><ul>{evidence}</ul>"
        f'<p class="action">→ {_text(finding["action"], 600)}</p>'
        f'<p class="note">Not if: {_text(finding["caveat"], 400)}</p>'
        f"{_place(run, str(finding['window'] or ''), window)}</li>"
    )


def _facts(evidence: Any) -> Sequence[Any]:
    if isinstance(evidence, str):
        return evidence.split("; ")
    return evidence if isinstance(evidence, tuple | list) else (evidence,)


def _text(value: Any, most: int) -> str:
    return html_text(value_text(Unit.TEXT, value), most)


def _place(run: Ranks, place: str, window: TimeWindow) -> str:
    """Return a link to the worst place, where the page's timeline shows it."""
    if not place:
        return ""
    try:
        found = select(run, place).window
    except UsageError:
        return ""
    address = link_to(run.span, found, window)
    text = html_text(f"worst at {place}")
    if address is None:
        return f'<p class="note">{text}</p>'
    return f'<p class="note"><a href="{html_text(address)}">{text}</a></p>'
