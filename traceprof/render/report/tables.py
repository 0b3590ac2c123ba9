"""Results as HTML tables: few rows, names cut to the width of the screen, bars for shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import pandas as pd

from traceprof.render.columns import format_cell, is_number, title_of
from traceprof.render.escape import html_text

__all__ = ["Link", "Row", "html_table"]

_SHORT: Final = 60
Row = Mapping[str, Any]
Link = Callable[[Row], str | None]


def html_table(frame: pd.DataFrame, caption: str, max_rows: int, link: Link | None = None) -> str:
    """Return the first ``max_rows`` rows of ``frame`` as a table that says what it leaves out.

    ``link`` gives, for a row, an address within the page (or None) for its first time.
    """
    shown = frame.head(max_rows)
    head = "".join(
        f'<th scope="col"{_align(frame, str(column))}>{html_text(title_of(str(column)))}</th>'
        for column in frame
    )
    body = "".join("<tr>" + "".join(_cells(frame, row, link)) + "</tr>" for row in _rows(shown))
    left_out = len(frame) - len(shown)
    more = f" · the first {len(shown)} of {len(frame)} rows" if left_out > 0 else ""
    return (
        '<div class="scroll"><table>'
        f"<caption>{html_text(caption)}{more}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _rows(frame: pd.DataFrame) -> list[Row]:
    columns = [str(column) for column in frame]
    return [dict(zip(columns, row, strict=True)) for row in frame.itertuples(index=False)]


def _cells(frame: pd.DataFrame, row: Row, link: Link | None) -> list[str]:
    address = link(row) if link else None
    cells = []
    for name, value in row.items():
        text = _text(name, value)
        if address and name == "at_ns":
            text = f'<a href="{html_text(address)}">{text}</a>'
        cells.append(f"<td{_align(frame, name)}{_bar(name, value)}>{text}</td>")
    return cells


def _text(column: str, value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return "yes" if value else ""
    text = format_cell(column, value)
    if len(text) <= _SHORT:
        return html_text(text)
    return f'<span class="long" title="{html_text(text)}">{html_text(text, 400)}</span>'


def _align(frame: pd.DataFrame, column: str) -> str:
    return ' class="number"' if is_number(frame, column) else ""


def _bar(column: str, value: Any) -> str:
    """Return the style that draws a share behind its number."""
    if not column.endswith("_ratio") or pd.isna(value):
        return ""
    return f' style="--part:{100 * min(1.0, max(0.0, float(value))):.1f}%"'
