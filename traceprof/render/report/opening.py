"""The first screen of the report: the window, the verdict, the advice, what stands apart.

It says the same as the page of the terminal, in the same words.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from traceprof.errors import UsageError
from traceprof.model.ranks import Ranks
from traceprof.model.results import Result, Unit
from traceprof.model.timing import TimeWindow
from traceprof.render.briefing import Briefing, findings_for_people
from traceprof.render.escape import html_list, html_prose, html_text
from traceprof.render.formatting import is_known, saving_words, sentences, value_text
from traceprof.render.report.charts import parts_bar
from traceprof.render.report.places import StillPictures, link_to, ranks_named
from traceprof.render.shown import Row
from traceprof.session.answer import Document
from traceprof.session.selection import select
from traceprof.units import format_duration

_SHOWN: Final = 5


def heading_html(document: Document, words: Briefing) -> str:
    """Return what was looked at, which window of it, and why: the first lines of the page."""
    about = " · ".join(word for word in (words.profiler, document.info.host) if word)
    return (
        f'<div class="sub">{html_text(about, 400)}</div>'
        + (f'<p class="what">{html_text(words.workload_line)}</p>' if words.workload else "")
        + f'<p class="what">Window <b>{html_text(words.window)}</b> {html_text(words.times)}</p>'
        + html_list([*words.notes, *(f"warning: {text}" for text in words.warnings)])
    )


def summary_html(document: Document, words: Briefing, advice: str) -> str:
    """Return the verdict in words and as a bar, and what stands apart; "" for nothing known.

    ``advice`` is what paper has of the findings on its first page.
    """
    parts = {} if document.verdict is None else document.verdict.parts
    every = (*words.lost, words.pace, words.answer)
    text = "".join(f'<p class="answer">{html_text(own)}</p>' for own in filter(None, every))
    items = "".join(
        f"<dt>{html_text(label)}</dt><dd>{html_text(about)}</dd>" for label, about in words.remarks
    )
    remarks = f'<dl class="remarks">{items}</dl>' if items else ""
    made_of = "".join(f'<p class="note">{html_text(own)}</p>' for own in words.made_of)
    return f"{text}{parts_bar(parts) if parts else ''}{advice}{made_of}{remarks}"


_ON_FIRST_PAGE: Final = 3


def first_page_html(stills: StillPictures, findings: Result, window: TimeWindow) -> str:
    """Return the first findings for the first page of paper: what, how much, what to do, where."""
    items = "".join(
        f"<li><h3>{_text(row['title'], 300)} {_saving(row)}</h3>"
        f'<p class="action">→ {_text(row["action"], 600)}</p>{_place(stills, window, row)}</li>'
        for row in findings_for_people(findings)[:_ON_FIRST_PAGE]
    )
    return f'<div class="printed"><ol class="findings">{items}</ol></div>' if items else ""


def explaining_html(document: Document) -> str:
    """Return the command that tells why the slowest of the slow steps is slow; "" without any."""
    table = document.results["steps"].table
    slow = table.take((table["excess_ns"] > 0) & (table["excess_cause"] == ""))
    if slow.empty:
        return ""
    step = int(slow["step"][slow["excess_ns"].argmax()])
    command = f"traceprof explain {shlex.quote(document.info.path)} step:{step}"
    return f'<p class="note">To explain why step {step} is slow: {html_text(command)}</p>'


def late_html(document: Document) -> str:
    """Return whom the others wait for, as the finding names him; "" where nobody is."""
    found = document.results.get("stragglers")
    if found is None or found.table.empty:
        return ""
    late = [row for row in found.table.rows() if row["is_straggler"]]
    if not late:
        return '<p class="note">No straggler found.</p>'
    names = ", ".join(
        f"rank {row['rank']}" if is_known(row["rank"]) else f"process {row['process']}"
        for row in late
    )
    return f'<p class="note">The other ranks wait for <b>{html_text(names)}</b>.</p>'


def findings_html(
    stills: StillPictures, findings: Result, window: TimeWindow, words: Briefing
) -> str:
    """Return the advice as a list; ``window`` is what the timeline of the page shows."""
    nothing = words.nothing
    rows = findings_for_people(findings)
    items = [_finding(row, _place(stills, window, row)) for row in rows]
    advice = _list(items[:_SHOWN], 1) if items else ""
    if len(items) > _SHOWN:
        rest = _list(items[_SHOWN:], _SHOWN + 1)
        advice += f"<details><summary>{len(items) - _SHOWN} more</summary>{rest}</details>"
    if nothing:
        advice = f"<p>{html_text(nothing)}</p>"
    notes = html_list(note for note in sentences(findings.notes) if note != nothing)
    folded = f"<details><summary>Not checked</summary>{notes}</details>" if notes else ""
    return advice + folded


def _list(items: Sequence[str], first: int) -> str:
    return f'<ol class="findings" start="{first}">{"".join(items)}</ol>'


def _finding(finding: Row, place: str) -> str:
    about = "Profile one launch with Nsight Compute (if the recording started with the program)"
    command = finding.get("ncu")
    code = f'<p class="note">{about}: <code>{_text(command, 600)}</code></p>'
    profiled = code if command else ""
    evidence = "".join(f"<li>{_text(fact, 400)}</li>" for fact in _facts(finding["evidence"]))
    return (
        f"<li><h3>{_text(finding['title'], 300)} {_saving(finding)}</h3><ul>{evidence}</ul>"
        f'<p class="action">→ {_text(finding["action"], 600)}</p>'
        f'<p class="note">Caveat: {_text(finding["caveat"], 400)}</p>'
        f"{profiled}{place}</li>"
    )


def places_of_findings(ranks: Ranks, findings: Result) -> list[TimeWindow]:
    """Return the worst place of each finding that has one."""
    places = (_window_of(ranks, finding) for finding in findings.table.rows())
    return [place for place in places if place is not None]


def _window_of(ranks: Ranks, finding: Row) -> TimeWindow | None:
    text = str(finding["window"] or "")
    with suppress(UsageError):
        return select(ranks, text).window if text else None
    return None


def _saving(finding: Row) -> str:
    words = saving_words(finding)
    return f'<span class="saving">{html_text(words)}</span>' if words else ""


def _place(stills: StillPictures, shown: TimeWindow, finding: Row) -> str:
    """Return a small picture of the worst place, which leads to it in the page's timeline."""
    text, span = str(finding["window"] or ""), stills.ranks.span
    place = _window_of(stills.ranks, finding)
    if place is None:
        return ""
    start = format_duration(place.start_ns - span.start_ns)
    words = html_text(f"worst case at {start}, duration {format_duration(place.duration_ns)}")
    named = ranks_named(value_text(Unit.TEXT, finding["title"]))
    address = link_to(span, place, shown, named)
    picture = stills.of_place(place, named)
    if address is not None:
        words = f'<a href="{html_text(address)}">{words}</a>'
        # The words are the link that is read out and reached by keys; the picture is another.
        picture = picture and (
            f'<a href="{html_text(address)}" tabindex="-1" aria-hidden="true">{picture}</a>'
        )
    window = f' <span class="window">--window {html_text(text, 80)}</span>'
    return f'<div class="place">{picture}<p class="note">{words}{window}</p></div>'


def _facts(evidence: Any) -> Sequence[Any]:
    if isinstance(evidence, str):
        return evidence.split("; ")
    return evidence if isinstance(evidence, tuple | list) else (evidence,)


def _text(value: Any, most: int) -> str:
    return html_prose(value_text(Unit.TEXT, value), most)
