"""The tables under the timelines: analyses of the chosen window, one column per trace."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pandas as pd
from dash import html

from traceprof.analysis import ANALYSES, load_analysis, run_analysis
from traceprof.errors import TraceprofError, UsageError
from traceprof.model.trace import Trace
from traceprof.render.columns import format_cell, is_number, shown_table, title_of
from traceprof.render.escape import plain_text
from traceprof.session.selection import Selection, select
from traceprof.units import format_duration, parse_duration
from traceprof.viewer.panes import Pane

__all__ = ["DEFAULT_TABLES", "TABLE_NAMES", "Tables"]

TABLE_NAMES: Final = tuple(entry.name for entry in ANALYSES)
DEFAULT_TABLES: Final = ("breakdown", "findings", "phases", "kernels", "copies")
MAX_ROWS: Final = 20
_LEAST_MARGIN_NS: Final = 1_000
_SPAN: Final = re.compile(r"(\d+(?:\.\d+)?[nuµm]?s)\.\.(\d+(?:\.\d+)?[nuµm]?s)")
_MAX_WINDOW_TEXT: Final = 200
_MAX_NAME: Final = 60
_MAX_SENTENCE: Final = 300


class Tables:
    """Runs analyses on windows of the panes; the last windows are kept."""

    def __init__(self, panes: Sequence[Pane]) -> None:
        self._panes = panes
        self._part = lru_cache(maxsize=2 * len(panes))(self._clip)

    def show(self, window: str | None, names: Sequence[str]) -> list[html.Section]:
        """Return one section per trace: the analyses ``names`` within ``window``, as text."""
        text = (window or "").strip()[:_MAX_WINDOW_TEXT] or None
        known = [name for name in names if name in TABLE_NAMES]
        return [self._section(place, text, known) for place in range(len(self._panes))]

    def _clip(self, place: int, text: str | None) -> tuple[Selection, Trace]:
        trace = self._panes[place].trace
        selection = select(trace, text)
        return selection, trace.within(selection.window)

    def _section(self, place: int, text: str | None, names: Sequence[str]) -> html.Section:
        pane = self._panes[place]
        title = html.H2(plain_text(pane.title, 200))
        try:
            selection, part = self._part(place, text)
        except UsageError as error:
            return html.Section([title, html.P(plain_text(error), className="missing")])
        start = selection.window.start_ns - pane.trace.span.start_ns
        words = f"{selection.label}: {format_duration(selection.window.duration_ns)}"
        about = html.P(
            [
                _link(place, start, selection.window.duration_ns, words, margin=0),
                f" from {format_duration(start)} · ",
                plain_text("; ".join(selection.notes), 400),
            ],
            className="sub",
        )
        shown = [_analysis(place, part, name) for name in names]
        return html.Section([title, about, *shown])


def _analysis(place: int, part: Trace, name: str) -> html.Div:
    try:
        result = run_analysis(load_analysis(name), part)
    except TraceprofError as error:
        body: list[Any] = [html.P(plain_text(error, 400), className="missing")]
    else:
        body = [
            _table(shown_table(result, part), place),
            *(html.P(plain_text(note, 400), className="note") for note in result.notes),
        ]
    return html.Div([html.H3(name), *body], className="result", id=f"table-{place}-{name}")


def _table(frame: pd.DataFrame, place: int) -> html.Div:
    shown = frame.head(MAX_ROWS)
    columns = [str(column) for column in frame]
    numbers = {column for column in columns if is_number(frame, column)}
    head = html.Tr([_heading(column, column in numbers) for column in columns])
    rows = [
        html.Tr(list(_cells(dict(zip(columns, row, strict=True)), numbers, place)))
        for row in shown.itertuples(index=False)
    ]
    left_out = len(frame) - len(shown)
    more = [html.P(f"the first {len(shown)} of {len(frame)} rows")] if left_out else []
    table = html.Table([html.Thead(head), html.Tbody(rows)])
    return html.Div([table, *more], className="scroll")


def _heading(column: str, is_number: bool) -> html.Th:
    return html.Th(title_of(column), scope="col", className="number" if is_number else None)


def _cells(row: dict[str, Any], numbers: set[str], place: int) -> Iterator[html.Td]:
    for column, value in row.items():
        if isinstance(value, bool | np.bool_):
            text = "yes" if value else ""
        else:
            text = plain_text(format_cell(column, value))
        most = _MAX_NAME if column.endswith("name") else _MAX_SENTENCE
        is_cut = len(text) > most
        content: Any = text[: most - 1] + "…" if is_cut else text
        if column == "at_ns" and pd.notna(value):
            length = row.get("duration_ns", 0)
            content = _link(place, int(value), 0 if pd.isna(length) else int(length), text)
        elif column == "window" and (match := _SPAN.fullmatch(text)):
            start, end = map(parse_duration, match.groups())
            content = _link(place, start, end - start, text)
        kind = "number" if column in numbers else None
        yield html.Td(content, title=text if is_cut else None, className=kind)


def _link(
    place: int, start_ns: int, duration_ns: int, text: str, margin: int | None = None
) -> html.A:
    """Return a link that moves the timeline of the pane ``place`` there."""
    around = max(_LEAST_MARGIN_NS, duration_ns // 4) if margin is None else margin
    address = f"#at={start_ns - around}..{start_ns + duration_ns + around}"
    marks: dict[str, Any] = {"data-pane": str(place)}
    return html.A(plain_text(text), href=address, **marks)
