"""A comparison of runs as one page: the answer, the main numbers side by side, charts, tables."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from typing import Any, Final

from traceprof.comparison import Comparison
from traceprof.model.results import Result, Unit
from traceprof.render.base import Options
from traceprof.render.escape import html_list, html_text
from traceprof.render.formatting import is_known, sentences, value_text
from traceprof.render.page.document import write_document
from traceprof.render.page.tables import html_table
from traceprof.render.report.charts import category_style
from traceprof.render.report.compared_charts import (
    compared_style,
    parts_chart,
    steps_chart,
    waterfall_chart,
)
from traceprof.render.sections import Section, head_of, sections_of
from traceprof.render.shown import rows_of
from traceprof.units import format_ratio

__all__ = ["delta", "render_compared"]

_ROWS: Final = 15
_FIGURES: Final = (
    ("samples_per_s", "samples per second"),
    ("step_period_ns", "a step"),
    ("turn_ns", "a turn of the pattern"),
    ("step_own_ns", "a step without waiting"),
)
_MORE_FIGURES: Final = (
    ("compute_ratio", "compute"),
    ("idle_ratio", "idle"),
    ("exposed_communication_ratio", "exposed communication"),
    ("exposed_transfer_ratio", "exposed transfers"),
    ("utilisation_ratio", "GPU-Util"),
)
_UNITS: Final = frozenset(Unit)


def render_compared(found: Comparison, options: Options) -> str:
    """Return the page; it needs nothing else and no network."""
    head = head_of(found)
    title = options.title or head.title
    rows = options.rows or _ROWS
    answer = "".join(f"<p>{html_text(sentence)}</p>" for sentence in head.sentences)
    cards = [
        _card(
            "answer", "Faster or slower", f'<div class="verdict">{answer}</div>{_figures(found)}'
        ),
        *_charts(found),
        *(
            _card(section.name, section.title, "".join(_tables(section, rows)))
            for section in sections_of(found, options)
            if section.name != "steps"
        ),
    ]
    missing = html_list(f"{name}: {reason}" for name, reason in found.missing.items())
    body = (
        f"<header><h1>{html_text(title)}</h1>{html_list([*head.warnings, *head.remarks])}</header>"
        f"<main>{''.join(cards)}{missing}<footer>Written by traceprof. Nothing is loaded from "
        f"elsewhere. Tables show at most {rows} rows.</footer></main>"
    )
    style = (files(__package__) / "report.css").read_text(encoding="utf-8")
    return write_document(title, body, (category_style(), style, compared_style()))


def _card(key: str, title: str, html: str) -> str:
    return (
        f'<section class="card" id="{html_text(key)}" aria-labelledby="{html_text(key)}-title">'
        f'<h2 id="{html_text(key)}-title">{html_text(title)}</h2>{html}</section>'
    )


def _charts(found: Comparison) -> Iterator[str]:
    difference = found.results.get("difference")
    if difference is not None and len(difference.to_frame("parts")):
        yield _card("sum", "From the base to the new one", waterfall_chart(difference))
        yield _card("parts", "The parts of the mean step", parts_chart(difference))
    steps = found.results.get("steps")
    if steps is not None and len(steps.table):
        yield _card("steps", "The steps of both", steps_chart(steps.table))


def _tables(section: Section, rows: int) -> Iterator[str]:
    result = section.result
    for table in (section.table, *section.more):
        if len(table):
            yield html_table(table, table.about or section.name, rows)
    yield html_list(sentences(result.notes))


def _figures(found: Comparison) -> str:
    """Return the main numbers of both, beside one another."""
    judged = {row["measure"]: row for row in _rows(found.results.get("judged"))}
    measures = {row["measure"]: row for row in _rows(found.results.get("measures"))}
    shown = [_figure(judged[name], label) for name, label in _FIGURES if name in judged]
    shown += [_figure(measures[name], label) for name, label in _MORE_FIGURES if name in measures]
    return f'<div class="figures">{"".join(shown)}</div>' if shown else ""


def _rows(result: Result | None) -> list[Any]:
    return [] if result is None else list(rows_of(result.table))


def _figure(row: Any, label: str) -> str:
    unit = Unit(row["unit"]) if row["unit"] in _UNITS else Unit.NUMBER
    base, new = (html_text(value_text(unit, row[side])) for side in ("base", "new"))
    return (
        f'<div class="figure"><b>{base} → {new}</b> {delta(row, unit)} '
        f"<span>{html_text(label)}</span></div>"
    )


def delta(row: Any, unit: Unit) -> str:
    """Return the change, coloured where it is known to be better or worse; of shares in points."""
    change = row["new"] - row["base"] if unit is Unit.RATIO else row["change_ratio"]
    if not is_known(change) or not change:
        return ""
    verdict = row.get("verdict")
    is_worse = (change > 0) == (row["better"] == "lower")
    kind = "worse" if is_worse else "better"
    # Of shares no verdict is made: whether they changed by more than chance is not known.
    is_plain = not row["better"] or not verdict or verdict in ("no difference shown", "not judged")
    sign = "+" if change > 0 else ""
    points = " points" if unit is Unit.RATIO else ""
    words = f"{sign}{format_ratio(change)}{points}"
    told = f" ({verdict})" if verdict in ("no difference shown", "not judged") else ""
    return f'<span class="delta{"" if is_plain else f" {kind}"}">{html_text(words + told)}</span>'
