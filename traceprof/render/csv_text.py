"""A result as CSV, safe to open in a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Any, Final
from unicodedata import category, normalize

from traceprof.comparison import Comparison
from traceprof.errors import UsageError
from traceprof.model.results import Note, Result, Unit
from traceprof.render.briefing import ranks_of
from traceprof.render.formatting import plain, value_text
from traceprof.render.registry import Answered, Options
from traceprof.render.shown import ShownTable, table_of


def to_csv(table: ShownTable) -> str:
    """Return a table as CSV with a header; unknown values are empty.

    Text that a spreadsheet would take for a formula gets a quotation mark in front.
    """
    units = [column.unit for column in table]
    rows = (
        [_cell(unit, value) for unit, value in zip(units, row.values(), strict=True)]
        for row in table.rows()
    )
    return csv_lines([[column.name for column in table], *rows])


def csv_lines(rows: Iterable[Iterable[Any]]) -> str:
    """Return rows of cells as lines of CSV; cells are written as they are."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def _cell(unit: Unit, value: Any) -> Any:
    return safe_cell(
        value_text(unit, value) if isinstance(value, Note | tuple | list) else plain(value)
    )


def safe_cell(value: Any) -> Any:
    """Return a plain value for a cell: no formula, and empty where it is not known."""
    if isinstance(value, str) and _is_formula(value):
        return "'" + value
    return "" if value is None else value


def _is_formula(text: str) -> bool:
    """Return whether a spreadsheet may take ``text`` for a formula, in whatever script.

    Spaces, controls and what is not drawn may stand in front, and signs may be full-width ones.
    """
    shown = next((one for one in text if category(one)[0] not in "CZ"), "")
    return normalize("NFKC", shown)[:1] in ("=", "+", "-", "@", "\u2212")


def _holding(document: Comparison, table: str | None) -> Result:
    """Return the result that has ``table``, the one that answers where none is named."""
    for result in document.results.values():
        if table is None or table in result.tables:
            return result
    known = sorted({name for result in document.results.values() for name in result.tables})
    raise UsageError(f"there is no table {table!r}: there are {', '.join(known)}")


def render_csv(document: Answered, options: Options) -> str:
    """Return the one table that is asked for.

    Raises:
        UsageError: there are several results, or the result has no such table.
    """
    name = options.tables[0] if options.tables else None
    if isinstance(document, Comparison):
        result = _holding(document, name)
    elif len(document.results) == 1 and len(options.tables) <= 1:
        (result,) = document.results.values()
    else:
        raise UsageError("--csv prints one table: name one analysis, such as `show kernels`")
    known = [spec.name for spec in result.spec.tables if spec.name in result.tables]
    if name is not None and name not in known:
        raise UsageError(f"{result.name} has no table {name!r}: it has {', '.join(known)}")
    return to_csv(table_of(result, ranks_of(document), name))


RENDER: Final = render_csv
