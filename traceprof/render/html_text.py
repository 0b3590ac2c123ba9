"""Render results as HTML tables: a page without scripts, and fragments for notebooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Final

from traceprof.comparison import CURVE_NAME, NODES_NAME, SCALING, TIMELINE_NAME, TRIED
from traceprof.model.results import Result, Unit
from traceprof.model.summary import Summary
from traceprof.render.briefing import Section, findings_for_people, head_of, sections_of
from traceprof.render.charts.curves import (
    accuracy_chart,
    curves_style,
    pace_chart,
    scaling_charts,
)
from traceprof.render.charts.elastic import elastic_chart, elastic_style
from traceprof.render.charts.flame import flame_script, flame_style
from traceprof.render.charts.memory import (
    memory_chart,
    memory_flame,
    memory_script,
    memory_style,
)
from traceprof.render.charts.nodes import nodes_chart, nodes_style
from traceprof.render.charts.parts import parts_bar
from traceprof.render.charts.svg import scrolling
from traceprof.render.charts.tried import tried_chart, tried_style
from traceprof.render.escape import html_list, html_prose, html_sentence, html_text
from traceprof.render.formatting import saving_words, sentences, value_text
from traceprof.render.page.document import WARNINGS_TITLE, html_table, write_document
from traceprof.render.palette import CATEGORIES, ink_on
from traceprof.render.registry import Answered, Options
from traceprof.render.shown import Row, further_tables, table_for_people
from traceprof.snapshots import MEMORY_NAME

_DEFAULT_ROWS: Final = 100
_CHARTS: Final[Mapping[str, tuple[Callable[[Result], str], Callable[[], str]]]] = {
    SCALING: (scaling_charts, curves_style),
    TIMELINE_NAME: (elastic_chart, elastic_style),
    CURVE_NAME: (accuracy_chart, curves_style),
    NODES_NAME: (nodes_chart, nodes_style),
    TRIED: (tried_chart, tried_style),
    MEMORY_NAME: (memory_chart, memory_style),
    "holders": (memory_flame, flame_style),
}
"""Functions that return the chart above the tables of a result, and its style."""

_FRAGMENT: Final = 'class="traceprof"'
_FRAGMENT_STYLE: Final = (
    f"<style>{(files(__package__) / 'page' / 'fragment.css').read_text(encoding='utf-8')}</style>"
)
"""The style of a fragment: that of the pages, in the colors of the notebook's theme."""


_MAX_NOTES: Final = 4
"""More notes than this are folded in a notebook."""


def result_html(result: Result, ranks: Mapping[int, int], most_rows: int = 12) -> str:
    """Return a result as an HTML fragment for notebooks: the start of its tables, and its notes.

    Wide tables scroll, so the fragment is not wider than the page. Findings are a list.
    """
    if result.name == "findings" and (rows := findings_for_people(result)):
        body = f"<ol>{''.join(map(_finding, rows[:most_rows]))}</ol>"
    else:
        names = [None, *further_tables(result, ())]
        shown = (table_for_people(result, ranks, name) for name in names)
        body = "".join(html_table(table, table.about or table.name, most_rows) for table in shown)
    notes = html_list(told := sentences(result.notes))
    if len(told) > _MAX_NOTES:
        notes = f"<details><summary>{len(told)} notes</summary>{notes}</details>"
    return f"<div {_FRAGMENT}>{_FRAGMENT_STYLE}{body}{notes}</div>"


def _finding(row: Row) -> str:
    """Return the list item of a finding: title, saving, evidence, action, and window."""
    texts = {name: value_text(Unit.TEXT, row[name]) for name in ("title", "evidence", "action")}
    window = f"<br>--window {html_text(row['window'])}" if row["window"] else ""
    return (
        f"<li><b>{html_text(texts['title'], 300)}</b> {html_text(saving_words(row))}"
        f"<br>{html_text(texts['evidence'])}<br>→ {html_prose(texts['action'])}{window}</li>"
    )


def answer_html(
    title: str,
    where: str,
    sentences: Sequence[str],
    remarks: Sequence[str],
    parts: Mapping[str, float] | None = None,
) -> str:
    """Return the answer of a page or a comparison as an HTML fragment for notebooks.

    The first sentence is the heading. ``parts`` (key of a part to its share) adds a bar.
    """
    answer = "".join(f"<p>{html_sentence(sentence)}</p>" for sentence in sentences)
    bar = ""
    if parts:
        colors = "".join(f"--{p.key}:{p.light};--on-{p.key}:{ink_on(p.light)};" for p in CATEGORIES)
        bar = f'<div style="{colors}">{parts_bar(parts)}</div>'
    return (
        f'<div {_FRAGMENT}>{_FRAGMENT_STYLE}<div class="title">{html_text(title)}</div>'
        f'<div class="where">{html_text(where, 400)}</div><div class="answer">{answer}</div>{bar}'
        f"{html_list(remarks)}</div>"
    )


def facts_html(title: str, facts: Iterable[tuple[str, str]]) -> str:
    """Return a table of named facts as an HTML fragment for notebooks."""
    rows = "".join(
        f'<tr><th scope="row">{html_text(name)}</th><td>{html_text(value)}</td></tr>'
        for name, value in facts
    )
    table = f"<table><caption>{html_text(title)}</caption>{rows}</table>"
    return f"<div {_FRAGMENT}>{_FRAGMENT_STYLE}{table}</div>"


def render_html(document: Answered, options: Options, runs: Sequence[Summary] = ()) -> str:
    """Return all results as one HTML page that needs no other file.

    The page has the verdict, charts, warnings and notes, and tables, in this order. ``runs`` are
    logs, whose pace is drawn as well.

    Raises:
        UsageError: a column that was chosen is in no table.
    """
    head = head_of(document)
    title = options.title or head.title
    answer = "".join(f"<p>{html_sentence(sentence)}</p>" for sentence in head.sentences)
    top = (
        f"<header><h1>{html_text(title)}</h1>"
        f'<div class="sub">{html_text(head.where, 400)}</div>'
        f'<div class="verdict">{answer}</div></header>'
    )
    sections = list(sections_of(document, options))
    charts = {
        section.name: chart
        for section in sections
        if section.name in _CHARTS and (chart := _CHARTS[section.name][0](section.result))
    }
    warnings = html_list([*head.warnings, *head.lost, *head.remarks])
    pace = pace_chart(runs) if runs else ""
    body = [
        _card("Pace", scrolling("Pace", pace)) if pace else "",
        *(
            _card(section.title, scrolling(section.title, charts[section.name]))
            for section in sections
            if section.name in charts
        ),
        _card(WARNINGS_TITLE, warnings) if warnings else "",
        *(_tables(section, options.rows or _DEFAULT_ROWS, charts) for section in sections),
        html_list(f"{name}: {reason}" for name, reason in document.missing.items()),
    ]
    styles = [style() for name, (_, style) in _CHARTS.items() if name in document.results]
    styles += [curves_style()] if pace else []
    script = memory_script() + flame_script() if MEMORY_NAME in document.results else ""
    return write_document(title, f"{top}<main>{''.join(body)}</main>", styles, script=script)


def _card(title: str, html: str) -> str:
    return f'<section class="card"><h2>{html_text(title)}</h2>{html}</section>'


def _tables(section: Section, max_rows: int, charts: Mapping[str, str]) -> str:
    title = f"{section.title}: tables" if section.name in charts else section.title
    return _card(title, tables_html(section, max_rows))


def tables_html(section: Section, max_rows: int, *, is_first_left_out: bool = False) -> str:
    """Return the tables and notes of a result; without its first table, also without its notes."""
    shown = section.more if is_first_left_out else (section.table, *section.more)
    tables = "".join(html_table(table, table.about or section.name, max_rows) for table in shown)
    return tables if is_first_left_out else tables + html_list(sentences(section.result.notes))
