"""The rows that a query gives: aligned text, CSV, JSON, Markdown; and the views it may read."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from traceprof.query.engine import QueryRows
from traceprof.query.views import View
from traceprof.render.csv_text import safe_cell
from traceprof.render.escape import plain_text
from traceprof.render.markdown_text import markdown_text

__all__ = ["FORMS", "rows_text", "schema_text"]

_NARROWEST: Final = 12


def rows_text(answer: QueryRows, width: int = 80) -> str:
    """Return aligned text at most ``width`` wide, as far as its numbers leave room for names."""
    if not answer.rows:
        return "no rows\n"
    cells = [[plain_text(_shown(value)) for value in row] for row in answer.rows]
    columns = list(zip(*answer.rows, strict=True))
    is_text = [any(isinstance(value, str | bytes) for value in column) for column in columns]
    titles = [plain_text(name) for name in answer.columns]
    widths = [max(map(len, column)) for column in zip(titles, *cells, strict=True)]
    widths = _narrowed(widths, is_text, width - 2 * (len(widths) - 1))
    lines = [titles, ["─" * n for n in widths], *cells]
    return "".join(_line(line, widths, is_text) for line in lines)


def _narrowed(widths: list[int], is_text: list[bool], room: int) -> list[int]:
    """Return the widths of columns, the widest texts made narrower until they fit."""
    widths = list(widths)
    while sum(widths) > room:
        most = max((n for n, text in zip(widths, is_text, strict=True) if text), default=0)
        if most <= _NARROWEST:
            break
        place = next(i for i, n in enumerate(widths) if is_text[i] and n == most)
        widths[place] = max(_NARROWEST, most - max(1, (sum(widths) - room) // len(widths)))
    return widths


def _line(cells: Iterable[str], widths: list[int], is_text: list[bool]) -> str:
    shown = (
        plain_text(cell, n).ljust(n) if text else cell.rjust(n)
        for cell, n, text in zip(cells, widths, is_text, strict=True)
    )
    return "  ".join(shown).rstrip() + "\n"


def _shown(value: Any) -> str:
    """Return a value for people; what is not known is a dash, as in all tables."""
    if value is None:
        return "–"
    return _hex(value) if isinstance(value, bytes) else str(value)


def _hex(data: bytes) -> str:
    return f"x'{data.hex()}'"


def _csv(answer: QueryRows, _width: int) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([safe_cell(name) for name in answer.columns])
    for row in answer.rows:
        writer.writerow([safe_cell(_hex(v) if isinstance(v, bytes) else v) for v in row])
    return out.getvalue()


def _json(answer: QueryRows, _width: int) -> str:
    rows = (
        json.dumps(dict(zip(answer.columns, map(_plain, row), strict=True)), allow_nan=False)
        for row in answer.rows
    )
    return "[" + ",\n ".join(rows) + "]\n"


def _plain(value: Any) -> Any:
    """Return a value as JSON knows it: it has no bytes, and no numbers without end."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return _hex(value) if isinstance(value, bytes) else value


def _markdown(answer: QueryRows, _width: int) -> str:
    columns = list(zip(*answer.rows, strict=True)) or [()] * len(answer.columns)
    is_text = [any(isinstance(value, str | bytes) for value in column) for column in columns]
    lines = [
        [markdown_text(name) for name in answer.columns],
        [":---" if text else "---:" for text in is_text],
        *([markdown_text(_shown(value)) for value in row] for row in answer.rows),
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


FORMS: Final[Mapping[str, Callable[[QueryRows, int], str]]] = {
    "text": rows_text,
    "csv": _csv,
    "json": _json,
    "markdown": _markdown,
}


def schema_text(views: Iterable[View]) -> str:
    """Return the views and their columns."""
    return "\n".join(_view_text(view) for view in views)


def _view_text(view: View) -> str:
    wide = max(len(column.name) for column in view.columns)
    lines = [
        f"{view.name}: {view.summary}",
        *(f"  {one.name:{wide}}  {one.type:7}  {one.meaning}".rstrip() for one in view.columns),
    ]
    return "\n".join(lines) + "\n"
