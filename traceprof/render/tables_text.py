"""Results as CSV, safe to open in a spreadsheet, and as Markdown, to paste into an issue."""

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
    """Return a table as CSV with a header; unknown values are empty (`csv_lines`)."""
    units = [column.unit for column in table]
    rows = (
        [_cell(unit, value) for unit, value in zip(units, row.values(), strict=True)]
        for row in table.rows()
    )
    return csv_lines([[column.name for column in table], *rows])


def csv_lines(rows: Iterable[Iterable[Any]]) -> str:
    """Return rows of plain values as lines of CSV: a row for each in every reader (`csv_cell`)."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(map(csv_cell, row) for row in rows)
    return out.getvalue()


def _cell(unit: Unit, value: Any) -> Any:
    return value_text(unit, value) if isinstance(value, Note | tuple | list) else plain(value)


def csv_cell(value: Any) -> Any:
    """Return a plain value for a cell of CSV: empty if unknown, no formula, and without controls.

    A text that a spreadsheet may take for a formula gets an apostrophe in front. Characters that
    end a row or a text in some readers (carriage return, NUL), that cannot be encoded, or that a
    terminal obeys are escaped as in JSON. Undoing the escapes and then removing the apostrophe in
    front of a formula restores the text.
    """
    if not isinstance(value, str):
        return "" if value is None else value
    return escaped_text(f"'{value}" if _is_formula(value) else value)


def _is_formula(text: str) -> bool:
    """Return whether a spreadsheet may take ``text`` for a formula, in whatever script.

    Spaces, controls, apostrophes and undrawn characters may stand in front, and signs may be
    full-width ones.
    """
    shown = next((one for one in text if one != "'" and category(one)[0] not in "CZ"), "")
    return normalize("NFKC", shown)[:1] in ("=", "+", "-", "@", "\u2212")


def _holding(document: Comparison, table: str | None) -> Result:
    """Return the result that has ``table``, the one that answers where none is named."""
    for result in document.results.values():
        if table is None or table in result.tables:
            return result
    known = sorted({name for result in document.results.values() for name in result.tables})
    raise UsageError(f"unknown table {table!r}; use {', '.join(known)}")


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
        raise UsageError("--csv prints only one table. Name one table, for example `show kernels`")
    known = [spec.name for spec in result.spec.tables if spec.name in result.tables]
    if name is not None and name not in known:
        raise UsageError(f"{result.name} has no table {name!r}; use {', '.join(known)}")
    table = table_of(result, document.ranks, name)
    chosen = columns_of([result], document.ranks, options.columns)
    return to_csv(table.chosen(chosen) if chosen else table)


_SPECIAL: Final = re.compile(r"([\\`*_{}\[\]<>#|~$&!])")
_MOST_ROWS: Final = 100
_ACTIVE: Final = re.compile(r"[<`\\]|!\[|\]\(\s*(?!https?:)[\w+.-]*:")
"""What would be more than text or a link to a page or a file."""


def markdown_text(text: object) -> str:
    """Return ``text`` for a paragraph or a cell: shown as it is, nothing in it interpreted."""
    return _SPECIAL.sub(r"\\\1", plain_text(text))


def typed_text(text: object) -> str:
    """Return ``text``, which a user typed into such a table, as it was; nothing in it may run."""
    plain = plain_text(text)
    return markdown_text(plain) if _ACTIVE.search(plain) else plain.replace("|", "\\|")


def markdown_table(table: ShownTable, most_rows: int) -> str:
    """Return the first ``most_rows`` rows of a table, and how many more there are."""
    if not len(table):
        return "no data in this window"
    rules = ["---:" if STYLES[column.unit].is_number else ":---" for column in table]
    rows = table.rows(most_rows)
    texts = [column_texts(column.unit, [row[column.name] for row in rows]) for column in table]
    forms = [typed_text if column.is_typed else markdown_text for column in table]
    pairs = zip(forms, texts, strict=True)
    columns = [[form(text.rstrip()) for text in column_cells] for form, column_cells in pairs]
    lines = [
        [form(title) for form, title in zip(forms, headings(table).values(), strict=True)],
        rules,
        *zip(*columns, strict=True),
    ]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    left_out = len(table) - most_rows
    return f"{text}\n\n… {left_out} more rows" if left_out > 0 else text


def render_markdown(document: Answered, options: Options) -> str:
    """Return all results: a heading, a table and the notes of each."""
    return "\n\n".join(filter(None, _blocks(document, options))) + "\n"


def _blocks(document: Answered, options: Options) -> Iterator[str]:
    most = options.rows or _MOST_ROWS
    head = head_of(document)
    yield f"# {markdown_text(options.title or head.title)}"
    yield markdown_text(head.where)
    yield _list(head.remarks)
    yield _list(head.doubts)
    yield from map(markdown_text, head.sentences)
    for section in sections_of(document, options):
        yield f"## {markdown_text(section.title)}"
        yield markdown_table(section.table, most)
        for table in section.more:
            yield f"### {markdown_text(table.about or table.name)}"
            yield markdown_table(table, most)
        yield _list(sentences(section.result.notes))
    yield _list(f"{name}: {reason}" for name, reason in document.missing.items())


def _list(items: Iterable[str]) -> str:
    return "\n".join(f"- {markdown_text(item)}" for item in items)
