"""A result as CSV, safe to open in a spreadsheet."""

from __future__ import annotations

import csv
import io
from typing import Any, Final

from traceprof.errors import UsageError
from traceprof.model.results import Note, Unit
from traceprof.render.base import Options
from traceprof.render.formatting import value_text
from traceprof.render.json_text import plain
from traceprof.render.shown import ShownTable, table_of
from traceprof.session.answer import Document

__all__ = ["RENDER", "to_csv"]


def to_csv(table: ShownTable) -> str:
    """Return a table as CSV with a header; unknown values are empty.

    Text that a spreadsheet would take for a formula gets a quotation mark in front.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([column.name for column in table])
    units = [column.unit for column in table]
    for row in table.rows():
        writer.writerow(
            [_cell(unit, value) for unit, value in zip(units, row.values(), strict=True)]
        )
    return out.getvalue()


def _cell(unit: Unit, value: Any) -> Any:
    value = value_text(unit, value) if isinstance(value, Note | tuple | list) else plain(value)
    if isinstance(value, str) and value.lstrip().startswith(("=", "+", "-", "@")):
        return "'" + value
    return "" if value is None else value


def render_csv(document: Document, options: Options) -> str:
    """Return the one table that is asked for.

    Raises:
        UsageError: there are several results, or the result has no such table.
    """
    if len(document.results) != 1 or len(options.tables) > 1:
        raise UsageError("--csv prints one table: name one analysis, such as `show kernels`")
    (result,) = document.results.values()
    known = [spec.name for spec in result.spec.tables if spec.name in result.tables]
    name = options.tables[0] if options.tables else None
    if name is not None and name not in known:
        raise UsageError(f"{result.name} has no table {name!r}: it has {', '.join(known)}")
    return to_csv(table_of(result, document.ranks, name))


RENDER: Final = render_csv
