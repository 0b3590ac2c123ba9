"""Results as HTML tables: few rows, names cut to the width of the screen, bars for shares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from traceprof.model.results import Column
from traceprof.render.escape import html_text
from traceprof.render.formatting import STYLES, column_texts, headings, is_known
from traceprof.render.shown import Row, ShownTable

__all__ = ["Link", "html_table"]

_SHORT: Final = 60
_CROWDED: Final = 13
"""From more columns on paper needs smaller letters."""

Link = Callable[[Row], str | None]


def html_table(table: ShownTable, caption: str, max_rows: int, link: Link | None = None) -> str:
    """Return the first ``max_rows`` rows of a table, which says what it leaves out.

    ``link`` gives, for a row, an address within the page (or None) for its first time.
    """
    head = "".join(
        f'<th scope="col"{_align(column)} title="{html_text(column.meaning)}">'
        f"{html_text(title)}</th>"
        for column, title in headings(table).items()
    )
    rows = table.rows(max_rows)
    texts = [column_texts(column.unit, [row[column.name] for row in rows]) for column in table]
    body = "".join(
        f"<tr>{_cells(table, row, own, link)}</tr>"
        for row, own in zip(rows, zip(*texts, strict=True), strict=True)
    )
    left_out = len(table) - max_rows
    more = f" · the first {max_rows} of {len(table)} rows" if left_out > 0 else ""
    crowded = " crowded" if len(table.columns) > _CROWDED else ""
    return (
        f'<div class="scroll{crowded}" tabindex="0" role="region" '
        f'aria-label="{html_text(caption)}"><table>'
        f"<caption>{html_text(caption)}{more}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cells(table: ShownTable, row: Row, texts: Sequence[str], link: Link | None) -> str:
    address = link(row) if link else None
    cells = []
    for column, written in zip(table, texts, strict=True):
        text = _text(written)
        if address and column.name == "at_ns":
            text = f'<a href="{html_text(address)}">{text}</a>'
        cells.append(f"<td{_align(column)}{_bar(column, row[column.name])}>{text}</td>")
    return "".join(cells)


def _text(text: str) -> str:
    if len(text) <= _SHORT:
        return html_text(text)
    return f'<span class="long" title="{html_text(text)}">{html_text(text, 400)}</span>'


def _align(column: Column) -> str:
    return ' class="number"' if STYLES[column.unit].is_number else ""


def _bar(column: Column, value: Any) -> str:
    """Return the style that draws a share behind its number."""
    if not STYLES[column.unit].has_bar or not is_known(value):
        return ""
    return f' style="--part:{100 * min(1.0, max(0.0, float(value))):.1f}%"'
