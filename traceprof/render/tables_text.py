"""Render results as CSV that is safe to open in a spreadsheet, and as Markdown for issues."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final
from unicodedata import category, normalize

from traceprof.comparison import Comparison
from traceprof.errors import UsageError
from traceprof.model.results import Note, Result, Unit
from traceprof.render.briefing import head_of, sections_of
from traceprof.render.escape import escaped_text, plain_text
from traceprof.render.formatting import STYLES, column_texts, headings, plain, sentences, value_text
from traceprof.render.registry import Answered, Options
from traceprof.render.shown import ShownTable, columns_of, table_of


def to_csv(table: ShownTable) -> str:
    """Return a table as CSV with a header; unknown values are empty (see `csv_cell`)."""
    units = [column.unit for column in table]
    rows = (
        [_cell(unit, value) for unit, value in zip(units, row.values(), strict=True)]
        for row in table.rows()
    )
    return csv_lines([[column.name for column in table], *rows])


def csv_lines(rows: Iterable[Iterable[Any]]) -> str:
    """Return rows of plain values as CSV, escaped so that every reader finds one line per row."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(map(csv_cell, row) for row in rows)
    return out.getvalue()


def _cell(unit: Unit, value: Any) -> Any:
    return value_text(unit, value) if isinstance(value, Note | tuple | list) else plain(value)


def csv_cell(value: Any) -> Any:
    """Return a plain value for a CSV cell: empty if unknown, not a formula, no control characters.

    A text that a spreadsheet may interpret as a formula gets a leading apostrophe. Characters are
    escaped as in JSON if they end a row or a text in some readers (carriage return, NUL), cannot be
    encoded, or control a terminal. To restore the text, undo the escapes, then remove the
    apostrophe before a formula.
    """
    if not isinstance(value, str):
        return "" if value is None else value
    return escaped_text(f"'{value}" if _is_formula(value) else value)


def _is_formula(text: str) -> bool:
    """Return whether a spreadsheet may interpret ``text`` as a formula.

    A formula may start with spaces, control characters, apostrophes, and invisible characters, and
    its sign may be a full-width character.
    """
    letters = (letter for letter in text if letter != "'" and category(letter)[0] not in "CZ")
    return normalize("NFKC", next(letters, ""))[:1] in ("=", "+", "-", "@", "\u2212")


def _result_with(document: Comparison, table: str | None) -> Result:
    """Return the first result that has ``table``, or the first result if ``table`` is None.

    Raises:
        UsageError: no result has such a table.
    """
    for result in document.results.values():
        if table is None or table in result.tables:
            return result
    known = sorted({name for result in document.results.values() for name in result.tables})
    raise UsageError(f"unknown table {table!r}; use {', '.join(known)}")


def render_csv(document: Answered, options: Options) -> str:
    """Return the requested table as CSV, or the first table of a single result.

    Raises:
        UsageError: there are several results, or the result has no such table or column.
    """
    name = options.tables[0] if options.tables else None
    if isinstance(document, Comparison):
        result = _result_with(document, name)
    elif len(document.results) == 1 and len(options.tables) <= 1:
        (result,) = document.results.values()
    else:
        raise UsageError("--csv prints only one table. Name one table, for example `show kernels`")
    known = [spec.name for spec in result.spec.tables if spec.name in result.tables]
    if name is not None and name not in known:
        raise UsageError(f"{result.name} has no table {name!r}; use {', '.join(known)}")
    table = table_of(result, document.ranks, name)
    chosen = columns_of([result], document.ranks, options.columns)
    return to_csv(table.chosen(chosen) if chosen else table)


_SPECIAL: Final = re.compile(r"([\\`*_{}\[\]<>#|~$&!])")
_DEFAULT_ROWS: Final = 100
_ACTIVE: Final = re.compile(r"[<`\\]|!\[|\]\(\s*(?!https?:)[\w+.-]*:")
"""Markdown that is more than text or a link to a web page or file, such as HTML or an image."""


def markdown_text(text: object) -> str:
    """Return ``text`` for a paragraph or a cell, escaped so that Markdown shows it unchanged."""
    return _SPECIAL.sub(r"\\\1", plain_text(text))


def typed_text(text: object) -> str:
    """Return Markdown that a user typed into a table, unchanged unless it has active content."""
    clean = plain_text(text)
    return markdown_text(clean) if _ACTIVE.search(clean) else clean.replace("|", "\\|")


def markdown_table(table: ShownTable, most_rows: int) -> str:
    """Return the first ``most_rows`` rows of a table and the number of rows left out."""
    if not len(table):
        return "no data in this window"
    alignments = ["---:" if STYLES[column.unit].is_number else ":---" for column in table]
    rows = table.rows(most_rows)
    texts = [column_texts(column.unit, [row[column.name] for row in rows]) for column in table]
    forms = [typed_text if column.is_typed else markdown_text for column in table]
    pairs = zip(forms, texts, strict=True)
    columns = [[form(text.rstrip()) for text in column_cells] for form, column_cells in pairs]
    lines = [
        [form(title) for form, title in zip(forms, headings(table).values(), strict=True)],
        alignments,
        *zip(*columns, strict=True),
    ]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    left_out = len(table) - most_rows
    return f"{text}\n\n… {left_out} more rows" if left_out > 0 else text


def render_markdown(document: Answered, options: Options) -> str:
    """Return all results as Markdown: title, tables, and notes of each.

    Raises:
        UsageError: a column that was chosen is in no table.
    """
    return "\n\n".join(filter(None, _blocks(document, options))) + "\n"


def _blocks(document: Answered, options: Options) -> Iterator[str]:
    """Yield the blocks of the document, which empty lines separate; "" for a missing block."""
    most_rows = options.rows or _DEFAULT_ROWS
    head = head_of(document)
    yield f"# {markdown_text(options.title or head.title)}"
    yield markdown_text(head.where)
    yield _list(head.remarks)
    yield _list(head.caveats)
    yield from map(markdown_text, head.sentences)
    for section in sections_of(document, options):
        yield f"## {markdown_text(section.title)}"
        if not section.is_explained:
            yield markdown_table(section.table, most_rows)
        for table in section.more:
            yield f"### {markdown_text(table.about or table.name)}"
            yield markdown_table(table, most_rows)
        yield _list(sentences(section.result.notes))
    yield _list(f"{name}: {reason}" for name, reason in document.missing.items())


def _list(items: Iterable[str]) -> str:
    return "\n".join(f"- {markdown_text(item)}" for item in items)
