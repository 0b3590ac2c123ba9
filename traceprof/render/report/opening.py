"""The first part of the report: the verdict in sentences, the main numbers, the advice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

from traceprof.analysis.advice.findings import Finding, Findings
from traceprof.analysis.advice.verdict import Verdict
from traceprof.analysis.base import Result
from traceprof.analysis.device.breakdown import Breakdown
from traceprof.analysis.training.steps import StepTimes
from traceprof.errors import UsageError
from traceprof.model.trace import Trace
from traceprof.model.window import TimeWindow
from traceprof.render.escape import html_list, html_text
from traceprof.render.report.links import link_to
from traceprof.session.selection import select
from traceprof.units import format_duration, format_ratio

__all__ = ["findings_html", "summary_html"]

_R = TypeVar("_R")
_SHOWN: Final = 5
_PARTS: Final = {
    "compute_ns": "of the devices' time computes",
    "exposed_communication_ns": "exposed communication",
    "exposed_transfer_ns": "exposed transfers",
    "idle_ns": "idle",
}


def summary_html(verdict: Verdict, results: Mapping[str, Result]) -> str:
    """Return the main numbers and the sentences of the verdict; "" where nothing is known."""
    figures = "".join(
        f'<div class="figure"><b>{html_text(number)}</b><span>{html_text(words)}</span></div>'
        for number, words in _figures(results)
    )
    sentences = filter(None, (verdict.where, verdict.steadiness))
    text = "".join(f"<p>{html_text(sentence)}</p>" for sentence in sentences)
    if not figures and not text:
        return ""
    return f'<div class="figures">{figures}</div><div class="verdict">{text}</div>'


def _figures(results: Mapping[str, Result]) -> list[tuple[str, str]]:
    figures: list[tuple[str, str]] = []
    steps = _found(results, "steps", StepTimes)
    if steps is not None and steps.steadiness is not None:
        median = format_duration(steps.steadiness.median_ns)
        figures.append((median, f"median of {steps.steadiness.count} steady steps"))
    if steps is not None and steps.throughput is not None:
        figures.append((f"{steps.throughput.mean_per_s:,.1f}", "samples per second"))
    breakdown = _found(results, "breakdown", Breakdown)
    if breakdown is not None and breakdown.total is not None:
        whole = max(1, breakdown.total.duration_ns)
        figures += [
            (format_ratio(getattr(breakdown.total, part) / whole), words)
            for part, words in _PARTS.items()
        ]
    return figures


def _found(results: Mapping[str, Result], name: str, kind: type[_R]) -> _R | None:
    result = results.get(name)
    return result if isinstance(result, kind) else None


def findings_html(trace: Trace, findings: Findings, window: TimeWindow) -> str:
    """Return the advice as a list; ``window`` is what the timeline of the page shows."""
    items = [_finding(trace, finding, window) for finding in findings.findings]
    advice = _list(items[:_SHOWN], 1) if items else ""
    if len(items) > _SHOWN:
        rest = _list(items[_SHOWN:], _SHOWN + 1)
        advice += f"<details><summary>{len(items) - _SHOWN} more</summary>{rest}</details>"
    notes = html_list(findings.notes)
    folded = f"<details><summary>What was not judged</summary>{notes}</details>" if notes else ""
    return advice + (folded if advice else notes)


def _list(items: Sequence[str], first: int) -> str:
    return f'<ol class="findings" start="{first}">{"".join(items)}</ol>'


def _finding(trace: Trace, finding: Finding, window: TimeWindow) -> str:
    saving = ""
    if finding.saving_ratio > 0:
        words = f"up to {format_ratio(finding.saving_ratio)} ({format_duration(finding.saving_ns)})"
        saving = f'<span class="saving">{words}</span>'
    evidence = "".join(f"<li>{html_text(fact, 400)}</li>" for fact in finding.evidence)
    return (
        f"<li><h3>{html_text(finding.title, 300)} {saving}</h3><ul>{evidence}</ul>"
        f'<p class="action">→ {html_text(finding.action, 600)}</p>'
        f'<p class="note">Not if: {html_text(finding.caveat, 400)}</p>'
        f"{_place(trace, finding, window)}</li>"
    )


def _place(trace: Trace, finding: Finding, window: TimeWindow) -> str:
    """Return a link to the worst place, where the page's timeline shows it."""
    if not finding.window:
        return ""
    try:
        place = select(trace, finding.window).window
    except UsageError:
        return ""
    address = link_to(trace, place, window)
    text = f"worst at {finding.window}"
    if address is None:
        return f'<p class="note">{html_text(text)}</p>'
    return f'<p class="note"><a href="{html_text(address)}">{html_text(text)}</a></p>'
