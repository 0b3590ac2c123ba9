"""Write the tables below the timelines: analyses of a window, and differences between runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import Any, Final

from dash import html

from traceprof import measures
from traceprof.comparison import Comparison
from traceprof.comparison.comparing import brief, compare
from traceprof.errors import TraceprofError
from traceprof.model.results import Column, Result, Unit
from traceprof.model.summary import Summary
from traceprof.render.briefing import briefing_of, findings_for_people, head_of, sections_of
from traceprof.render.escape import plain_text
from traceprof.render.formatting import (
    STYLES,
    heading,
    is_known,
    saving_words,
    sentences,
    value_text,
)
from traceprof.render.registry import Options
from traceprof.render.report.places import address_of, places_of_row, ranks_named
from traceprof.render.shown import Row, ShownTable, further_tables, table_for_people
from traceprof.session.answer import Document
from traceprof.units import format_duration, parse_duration
from traceprof.viewer.panes import FINDINGS, Pane

TABLE_NAMES: Final = measures.analysis_names()
DEFAULT_TABLES: Final = ("breakdown", "findings", "phases", "kernels", "copies")
MAX_ROWS: Final = 20
_SPAN: Final = re.compile(r"(\d+(?:\.\d+)?[nuµm]?s)\.\.(\d+(?:\.\d+)?[nuµm]?s)")
_MAX_WINDOW_TEXT: Final = 200
_MAX_NAME_LENGTH: Final = 60
_MAX_TEXT_LENGTH: Final = 300


def show_tables(
    panes: Sequence[Pane], window: str | None, names: Sequence[str]
) -> list[html.Section]:
    """Return one section per run with the analyses ``names`` of ``window``, which a user typed."""
    text = window_text(window)
    known = [name for name in names if name in TABLE_NAMES]
    return [_section(place, pane, text, known) for place, pane in enumerate(panes)]


def window_text(window: str | None) -> str | None:
    """Return the window that a user typed, cut to a maximum length; None for the default window."""
    return (window or "").strip()[:_MAX_WINDOW_TEXT] or None


def _section(place: int, pane: Pane, text: str | None, names: Sequence[str]) -> html.Section:
    """Return the analyses ``names`` of a run in the window ``text``, or an error message."""
    title = html.H2(plain_text(pane.title, 200))
    try:
        document = pane.answer(text, names)
    except TraceprofError as error:
        return html.Section([title, html.P(plain_text(error, 400), className="missing")])
    shown = [_analysis(place, document, name) for name in names]
    return html.Section([title, _about(place, document), *_briefing(document), *shown])


def _about(place: int, document: Document) -> html.P:
    """Return a line with the analyzed window, its start, and notes on it."""
    window, label = document.selection.window.hull, document.selection.label
    start = document.ns_after_start(window.start_ns)
    title = f"{label}: {format_duration(window.duration_ns)}"
    return html.P(
        [
            _link(place, f"#at={start}..{start + window.duration_ns}", title),
            f", starting at {format_duration(start)} · ",
            plain_text("; ".join(sentences(document.selection.notes)), 400),
        ],
        className="sub",
    )


def _briefing(document: Document) -> Iterator[Any]:
    """Yield the verdict in the sentences of the terminal's page, if findings were requested."""
    if document.verdict is None:
        return
    briefing = briefing_of(document)
    first = (briefing.workload and briefing.workload_line, *briefing.lost, briefing.pace)
    yield from (html.P(plain_text(sentence)) for sentence in first if sentence)
    if briefing.answer:
        yield html.P(html.Strong(plain_text(briefing.answer)))
    yield from (html.P(plain_text(sentence)) for sentence in briefing.made_of)
    remarks = [f"{label}: {text}" for label, text in briefing.remarks]
    yield html.Ul([html.Li(plain_text(remark)) for remark in remarks], className="remarks")


def _analysis(place: int, document: Document, name: str) -> html.Div:
    """Return the result of an analysis, or why it is missing."""
    result = document.results.get(name)
    if result is None:
        body: list[Any] = [html.P(plain_text(document.missing[name], 400), className="missing")]
    elif name == FINDINGS and (rows := findings_for_people(result)):
        body = list(_cards(place, document, rows))
    else:
        body = list(_result(place, document, result))
    return html.Div([html.H3(name), *body], className="result", id=f"table-{place}-{name}")


def _cards(place: int, document: Document, rows: Sequence[Row]) -> Iterator[Any]:
    """Yield the list of findings, each with a link to its worst case, and the unchecked rules."""
    yield html.Ol([_card(place, row) for row in rows], className="findings")
    notes = sentences(document.results[FINDINGS].notes)
    if notes:
        items = [html.Li(plain_text(note, 400)) for note in notes]
        yield html.Details([html.Summary("Not checked"), html.Ul(items)])


def _card(place: int, row: Row) -> html.Li:
    """Return a finding: title, saving, evidence, action, caveat, and worst case."""
    saving = saving_words(row)
    head: list[Any] = [plain_text(_title(row), 300)]
    if saving:
        head += [" ", html.Span(saving, className="saving")]
    facts = row["evidence"] if isinstance(row["evidence"], tuple | list) else (row["evidence"],)
    evidence = [html.Li(plain_text(value_text(Unit.TEXT, fact), 400)) for fact in facts]
    body: list[Any] = [
        html.H4(head),
        html.Ul(evidence),
        html.P(f"→ {plain_text(value_text(Unit.TEXT, row['action']), 600)}", className="action"),
        html.P(
            f"Caveat: {plain_text(value_text(Unit.TEXT, row['caveat']), 400)}",
            className="note",
        ),
    ]
    if span := _span_of(str(row["window"] or "")):
        start, end = span
        words = f"worst case at {format_duration(start)}, duration {format_duration(end - start)}"
        address = address_of(start, end, ranks_named(_title(row)))
        body.append(html.P(_link(place, address, words)))
    return html.Li(body)


def _span_of(window: str) -> tuple[int, int] | None:
    """Return start and end of a window "1.2s..1.3s" in ns; None for any other window."""
    match = _SPAN.fullmatch(window)
    return (parse_duration(match[1]), parse_duration(match[2])) if match else None


def _result(place: int, document: Document, result: Result) -> Iterator[Any]:
    """Yield the tables and notes of a result."""
    yield _table(table_for_people(result, document.ranks), place)
    for name in further_tables(result, ()):
        table = table_for_people(result, document.ranks, name)
        yield html.P(plain_text(table.about or name, 400), className="note")
        yield _table(table, place)
    for note in sentences(result.notes):
        yield html.P(plain_text(note, 400), className="note")


def _table(table: ShownTable, place: int | None) -> html.Div:
    """Return the first rows of a table; times link to the pane ``place`` unless it is None."""
    rows = [html.Tr(list(_cells(table, row, place))) for row in table.rows(MAX_ROWS)]
    left_out = len(table) - len(rows)
    more = [html.P(f"first {len(rows)} of {len(table)} rows")] if left_out else []
    head = html.Tr([_heading(column) for column in table])
    label = plain_text(table.about or table.name, 200)
    # The keyboard can scroll only an element that it can reach.
    attributes: dict[str, Any] = {"tabIndex": "0", "role": "region", "aria-label": label}
    body = html.Table([html.Thead(head), html.Tbody(rows)])
    return html.Div([body, *more], className="scroll", **attributes)


def _heading(column: Column) -> html.Th:
    return html.Th(
        plain_text(heading(column)),
        scope="col",
        title=plain_text(column.meaning, 400),
        className="number" if STYLES[column.unit].is_number else None,
    )


def _cells(table: ShownTable, row: Row, place: int | None) -> Iterator[html.Td]:
    for column in table:
        value = row[column.name]
        text = plain_text(value_text(column.unit, value))
        max_length = _MAX_NAME_LENGTH if column.name.endswith("name") else _MAX_TEXT_LENGTH
        content: Any = plain_text(text, max_length)
        if place is None:
            pass
        elif column.name == "at_ns" and is_known(value):
            start, length = int(value), row.get("duration_ns", 0)
            end = start + (int(length) if is_known(length) else 0)
            content = _link(place, address_of(start, end, places_of_row(row)), text)
        elif column.name == "window" and (span := _span_of(text)):
            content = _link(place, address_of(*span, ranks_named(_title(row))), text)
        kind = "number" if STYLES[column.unit].is_number else None
        yield html.Td(content, title=text if len(text) > max_length else None, className=kind)


def _title(row: Row) -> str:
    return value_text(Unit.TEXT, row.get("title", ""))


def _link(place: int, address: str, text: str) -> html.A:
    """Return a link that moves the timeline of the pane ``place`` to ``address``."""
    marks: dict[str, Any] = {"data-pane": str(place)}
    return html.A(plain_text(text), href=address, **marks)


_MAX_SUMMARIES: Final = 8


class Differences:
    """Compares every run with the first run, and keeps the summaries of the last windows."""

    def __init__(self, panes: Sequence[Pane]) -> None:
        self._panes = panes
        self._summaries: dict[tuple[int, str | None], Summary] = {}
        self._lock = Lock()

    def show(self, window: str | None) -> list[html.Section]:
        """Return the differences in ``window``, one section for each run except the first."""
        text = window_text(window)
        return [self._compare_with_first(place, text) for place in range(1, len(self._panes))]

    def _compare_with_first(self, place: int, window: str | None) -> html.Section:
        try:
            comparison = compare([self._summary(0, window)], [self._summary(place, window)])
        except TraceprofError as error:
            title = html.H2(plain_text(self._panes[place].title, 200))
            return html.Section([title, html.P(plain_text(error, 400), className="missing")])
        title = html.H2(plain_text(comparison.title, 200))
        return html.Section([title, *_comparison(brief(comparison))])

    def _summary(self, place: int, window: str | None) -> Summary:
        """Return the summary of a run, from the last summaries if it is there."""
        with self._lock:
            summary = self._summaries.get((place, window))
            if summary is None:
                summary = self._panes[place].summary(window, self._name(place))
                while len(self._summaries) >= _MAX_SUMMARIES:
                    del self._summaries[next(iter(self._summaries))]
                self._summaries[place, window] = summary
        return summary

    def _name(self, place: int) -> str:
        """Return the title of a run, with its number if several runs have this title."""
        title = self._panes[place].title
        titles = [pane.title for pane in self._panes]
        return f"{title} ({place + 1})" if titles.count(title) > 1 else title


def _comparison(comparison: Comparison) -> Iterator[Any]:
    """Yield verdict, remarks, and tables of a comparison."""
    head = head_of(comparison)
    for number, sentence in enumerate(head.sentences):
        text = plain_text(sentence, 400)
        yield html.P(text if number else html.Strong(text))
    for remark in (*head.remarks, *head.warnings, *head.lost):
        yield html.P(plain_text(remark, 400), className="note")
    for section in sections_of(comparison, Options()):
        yield html.H3(plain_text(section.title, 200))
        yield from (_table(table, None) for table in (section.table, *section.more) if len(table))
