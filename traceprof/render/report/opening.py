"""The first screen of the report: what was judged, the verdict, the advice, what stands apart.

It says the same as the page of the terminal, in the same words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from traceprof.errors import UsageError
from traceprof.model.ranks import Ranks
from traceprof.model.results import Result, Unit
from traceprof.model.trace import Trace
from traceprof.model.window import TimeWindow
from traceprof.render.briefing import Briefing, findings_for_people
from traceprof.render.escape import html_list, html_text
from traceprof.render.formatting import is_known, sentences, value_text
from traceprof.render.palette import PART_STYLES
from traceprof.render.report.charts import parts_bar
from traceprof.render.report.links import link_to
from traceprof.render.shown import Row
from traceprof.render.wording import saving_words
from traceprof.session.answer import Document
from traceprof.session.selection import select
from traceprof.units import format_count, format_duration, format_number, format_ratio

__all__ = ["findings_html", "heading_html", "remarks_html", "summary_html"]

_SHOWN: Final = 5


def heading_html(document: Document, words: Briefing) -> str:
    """Return what was looked at and judged, and why: the first lines of the page."""
    about = " · ".join(word for word in (words.profiler, document.info.host) if word)
    return (
        f'<div class="sub">{html_text(about, 400)}</div>'
        + (f'<p class="what">{html_text(words.workload_line)}</p>' if words.workload else "")
        + f'<p class="what">judged <b>{html_text(words.window)}</b> {html_text(words.times)}</p>'
        + html_list([*words.notes, *words.warnings])
    )


def summary_html(document: Document, words: Briefing) -> str:
    """Return the verdict in words, as a bar and in the main numbers; "" where nothing is known."""
    parts = {} if document.verdict is None else document.verdict.parts
    figures = "".join(
        f'<div class="figure"><b>{html_text(number)}</b><span>{html_text(about)}</span></div>'
        for number, about in (*_of_steps(document), *_of_devices(parts))
    )
    text = f"<p>{html_text(words.answer)}</p>" if words.answer else ""
    if not figures and not text:
        return ""
    bar = parts_bar(parts) if parts else ""
    return f'<div class="verdict">{text}</div>{bar}<div class="figures">{figures}</div>'


def remarks_html(words: Briefing) -> str:
    """Return what costs time apart, what is fine, what is not known, and what to run next."""
    items = "".join(
        f"<dt>{html_text(label)}</dt><dd>{html_text(text)}</dd>" for label, text in words.remarks
    )
    return f'<dl class="remarks">{items}</dl>' if items else ""


def _of_steps(document: Document) -> list[tuple[str, str]]:
    """Return how long the steps are of which the window is made, and their throughput."""
    if document.verdict is None or not document.verdict.has_steps:
        return []
    scalars = document.results["steps"].scalars
    figures = []
    if is_known(median_ns := scalars.get("median_ns")):
        count = format_count(scalars.get("steady_count"))
        what = "turns of the pattern" if scalars.get("is_pattern") else "steady steps"
        figures.append((format_duration(median_ns), f"median of {count} {what}"))
    if is_known(rate := scalars.get("mean_samples_per_s")):
        figures.append((format_number(rate), "samples per second"))
    return figures


def _of_devices(parts: Mapping[str, float]) -> list[tuple[str, str]]:
    return [(format_ratio(parts[part.key]), part.label) for part in PART_STYLES if parts]


def findings_html(trace: Trace, findings: Result, window: TimeWindow, nothing: str) -> str:
    """Return the advice as a list; ``window`` is what the timeline of the page shows.

    ``nothing`` stands instead of it where there is none.
    """
    run = Ranks.of(trace)
    items = [_finding(run, row, window) for row in findings_for_people(findings)]
    advice = _list(items[:_SHOWN], 1) if items else ""
    if len(items) > _SHOWN:
        rest = _list(items[_SHOWN:], _SHOWN + 1)
        advice += f"<details><summary>{len(items) - _SHOWN} more</summary>{rest}</details>"
    if nothing:
        advice = f"<p>{html_text(nothing)}</p>"
    notes = html_list(note for note in sentences(findings.notes) if note != nothing)
    folded = f"<details><summary>What was not judged</summary>{notes}</details>" if notes else ""
    return advice + folded


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
