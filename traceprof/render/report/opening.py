"""Write the first screen of the report: window, verdict, findings, and remarks.

It uses the same sentences as the page in the terminal.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

from traceprof.errors import UsageError
from traceprof.model.ranks import Ranks
from traceprof.model.results import Result, Unit
from traceprof.model.timing import TimeWindow
from traceprof.render.briefing import NOT_CHECKED, Briefing, findings_for_people
from traceprof.render.charts.parts import parts_bar
from traceprof.render.escape import html_list, html_prose, html_sentence, html_text
from traceprof.render.formatting import (
    capitalized,
    process_label,
    saving_share,
    saving_words,
    sentence_value,
    sentences,
    value_text,
)
from traceprof.render.report.places import StillPictures, link_to, ranks_named
from traceprof.render.shown import Row
from traceprof.session.answer import Document
from traceprof.session.selection import select
from traceprof.units import format_duration

_UNFOLDED_FINDINGS: Final = 5
"""Further findings are folded."""


def heading_html(document: Document, briefing: Briefing) -> str:
    """Return the first lines of the page: profiler, host, workload, window, notes, and warnings."""
    source = " · ".join(filter(None, (briefing.profiler, document.info.host)))
    workload = f'<p class="what">{html_text(briefing.workload_line)}</p>'
    return (
        f'<div class="sub">{html_text(source, 400)}</div>'
        + (workload if briefing.workload else "")
        + f'<p class="what">Window <b>{html_text(briefing.window)}</b> '
        + f"{html_text(briefing.times)}</p>"
        + html_list([*briefing.notes, *(f"warning: {text}" for text in briefing.warnings)])
    )


def key_figures_html(document: Document) -> str:
    """Return step time, bottleneck, and largest saving in large letters, as far as known."""
    findings, verdict = document.results.get("findings"), document.verdict
    if verdict is None:
        return ""
    figures = [
        (sentence_value(Unit.NS, note.values["step"]), note.text.partition(" {")[0], "steps")
        for note in verdict.pace[:1]
    ]
    if verdict.bound_by:
        figures.append((capitalized(verdict.bound_by), "Bottleneck", "verdict"))
    rows = [row for row in (findings_for_people(findings) if findings else ()) if saving_share(row)]
    if rows:
        row = max(rows, key=lambda row: row["saving_ns"] / row["base_ns"])
        title = f"Largest saving: {value_text(Unit.TEXT, row['title'])}"
        figures.append((saving_share(row), title, "findings"))
    return figures_html(
        f'<b>{html_text(value)}</b> <span><a href="#{section}">{html_text(label, 160)}</a></span>'
        for value, label, section in figures
    )


def figures_html(contents: Iterable[str]) -> str:
    """Return large numbers side by side; ``contents`` is the HTML of each. "" if there are none."""
    shown = "".join(f'<div class="key-number">{content}</div>' for content in contents)
    return f'<div class="key-numbers">{shown}</div>' if shown else ""


def summary_html(document: Document, briefing: Briefing, advice: str) -> str:
    """Return the main numbers, the verdict, a bar, and remarks; "" if nothing is known.

    What was not checked follows the findings. ``advice`` is HTML with the findings for the first
    page of a printout.
    """
    parts = {} if document.verdict is None else document.verdict.parts
    lines = filter(None, (*briefing.lost, briefing.pace, briefing.answer))
    text = "".join(f'<p class="answer">{html_sentence(line)}</p>' for line in lines)
    remarks = _remarks(briefing, are_checked=True)
    made_of = "".join(
        f'<p class="note of">{html_sentence(sentence)}</p>' for sentence in briefing.made_of
    )
    bar = parts_bar(parts) if parts else ""
    return f"{key_figures_html(document)}{text}{bar}{advice}{made_of}{remarks}"


def _remarks(briefing: Briefing, *, are_checked: bool) -> str:
    """Return the remarks of the page, or those on what was not checked."""
    shown = [remark for remark in briefing.remarks if (remark[0] != NOT_CHECKED) == are_checked]
    items = "".join(
        f"<dt>{html_text(label)}</dt>"
        + "".join(f"<dd>{html_prose(text)}</dd>" for own, text in shown if own == label)
        for label in dict.fromkeys(label for label, _ in shown)
    )
    return f'<dl class="remarks">{items}</dl>' if items else ""


_PRINTED_FINDINGS: Final = 3
"""Findings on the first page of a printout."""


def first_page_html(stills: StillPictures, findings: Result, window: TimeWindow) -> str:
    """Return the most important findings, for the first page of a printout.

    Each has its title, saving, action, and worst case.
    """
    items = "".join(
        f"<li><h3>{_text(row['title'], 300)} {_saving(row)}</h3>"
        f'<p class="action">→ {_text(row["action"], 600)}</p>{_worst_case(stills, window, row)}'
        "</li>"
        for row in findings_for_people(findings)[:_PRINTED_FINDINGS]
    )
    return f'<div class="printed"><ol class="findings">{items}</ol></div>' if items else ""


def explain_command_html(document: Document) -> str:
    """Return the command that explains the slowest of the slow steps whose cause is unknown.

    Returns "" if there is no such step.
    """
    table = document.results["steps"].table
    slow = table.take((table["excess_ns"] > 0) & (table["excess_cause"] == ""))
    if slow.empty:
        return ""
    step = int(slow["step"][slow["excess_ns"].argmax()])
    command = f"traceprof explain {shlex.quote(document.info.path)} step:{step}"
    return f'<p class="note">To explain why step {step} is slow: {html_text(command)}</p>'


def stragglers_html(document: Document) -> str:
    """Return the ranks that the other ranks wait for; "" if stragglers were not analyzed."""
    result = document.results.get("stragglers")
    if result is None or result.table.empty:
        return ""
    names = ", ".join(
        process_label(row["process"], row["rank"])
        for row in result.table.rows()
        if row["is_straggler"]
    )
    if not names:
        return '<p class="note">No straggler found.</p>'
    return f'<p class="note">The other ranks wait for <b>{html_text(names)}</b>.</p>'


def findings_html(
    stills: StillPictures | None, findings: Result, window: TimeWindow, briefing: Briefing
) -> str:
    """Return the findings as a list; ``window`` is the time span that the timeline shows.

    Without ``stills``, the page has no timeline, and worst cases are windows to paste.
    """
    items = [
        _finding(row, _worst_case(stills, window, row)) for row in findings_for_people(findings)
    ]
    advice = _list(items[:_UNFOLDED_FINDINGS], 1) if items else ""
    if (n_more := len(items) - _UNFOLDED_FINDINGS) > 0:
        more = _list(items[_UNFOLDED_FINDINGS:], _UNFOLDED_FINDINGS + 1)
        advice += f"<details><summary>{n_more} more</summary>{more}</details>"
    if briefing.nothing:
        advice = f"<p>{html_text(briefing.nothing)}</p>"
    notes = html_list(note for note in sentences(findings.notes) if note != briefing.nothing)
    advice += _remarks(briefing, are_checked=False)
    return advice + (f"<details><summary>Notes</summary>{notes}</details>" if notes else "")


def _list(items: Sequence[str], first: int) -> str:
    return f'<ol class="findings" start="{first}">{"".join(items)}</ol>'


def _finding(finding: Row, worst_case: str) -> str:
    """Return the list item of a finding; ``worst_case`` is HTML."""
    command = finding.get("ncu")
    profile = (
        '<p class="note">Profile one launch with Nsight Compute (if the recording started with '
        f"the program): <code>{_text(command, 600)}</code></p>"
        if command
        else ""
    )
    evidence = "".join(f"<li>{_text(fact, 400)}</li>" for fact in _facts(finding["evidence"]))
    return (
        f"<li><h3>{_text(finding['title'], 300)} {_saving(finding)}</h3><ul>{evidence}</ul>"
        f'<p class="action">→ {_text(finding["action"], 600)}</p>'
        f'<p class="note">Caveat: {_text(finding["caveat"], 400)}</p>'
        f"{profile}{worst_case}</li>"
    )


def places_of_findings(ranks: Ranks, findings: Result) -> list[TimeWindow]:
    """Return the time span of the worst case of each finding that has one."""
    places = (_worst_window(ranks, finding) for finding in findings.table.rows())
    return [place for place in places if place is not None]


def _worst_window(ranks: Ranks, finding: Row) -> TimeWindow | None:
    """Return the time span of a finding's worst case; None if it has none in this run."""
    text = str(finding["window"] or "")
    with suppress(UsageError):
        return select(ranks, text).window if text else None
    return None


def _saving(finding: Row) -> str:
    words = saving_words(finding)
    return f'<span class="saving">{html_text(words)}</span>' if words else ""


def _worst_case(stills: StillPictures | None, shown: TimeWindow, finding: Row) -> str:
    """Return time and picture of a finding's worst case, linked to the page's timeline.

    Returns "" if the finding has no worst case. ``shown`` is the time span of the timeline.
    """
    if stills is None:
        worst = finding["window"] and html_text(f"worst case: --window {finding['window']}", 90)
        return f'<p class="note">{worst}</p>' if worst else ""
    place = _worst_window(stills.ranks, finding)
    if place is None:
        return ""
    span = stills.ranks.span
    start = format_duration(place.start_ns - span.start_ns)
    words = html_text(f"worst case at {start}, duration {format_duration(place.duration_ns)}")
    named = ranks_named(value_text(Unit.TEXT, finding["title"]))
    address = link_to(span, place, shown, named)
    picture = stills.of_place(place, named)
    if address is not None:
        words = f'<a href="{html_text(address)}">{words}</a>'
        # Screen readers and the Tab key use the link of the words, so the picture's is hidden.
        picture = picture and (
            f'<a href="{html_text(address)}" tabindex="-1" aria-hidden="true">{picture}</a>'
        )
    window = f' <span class="window">--window {html_text(str(finding["window"]), 80)}</span>'
    return f'<div class="place">{picture}<p class="note">{words}{window}</p></div>'


def _facts(evidence: Any) -> Sequence[Any]:
    """Return the facts of the evidence, which is a text or one or several notes."""
    if isinstance(evidence, str):
        return evidence.split("; ")
    return evidence if isinstance(evidence, tuple | list) else (evidence,)


def _text(value: Any, max_length: int) -> str:
    return html_prose(value_text(Unit.TEXT, value), max_length)
