"""Results as Markdown: tables to paste into an issue, a pull request or notes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from traceprof.render.briefing import head_of, sections_of
from traceprof.render.escape import plain_text
from traceprof.render.formatting import STYLES, column_texts, headings, sentences
from traceprof.render.registry import Answered, Options
from traceprof.render.shown import ShownTable

__all__ = ["RENDER", "markdown_table", "markdown_text"]

_SPECIAL: Final = re.compile(r"([\\`*_{}\[\]<>#|~$&!])")
_MOST_ROWS: Final = 100


def markdown_text(text: object) -> str:
    """Return ``text`` for a paragraph or a cell: shown as it is, nothing in it interpreted."""
    return _SPECIAL.sub(r"\\\1", plain_text(text))


def markdown_table(table: ShownTable, most_rows: int) -> str:
    """Return the first ``most_rows`` rows of a table, and how many more there are."""
    if not len(table):
        return "nothing in this window"
    rules = ["---:" if STYLES[column.unit].is_number else ":---" for column in table]
    rows = table.rows(most_rows)
    texts = [column_texts(column.unit, [row[column.name] for row in rows]) for column in table]
    columns = [[markdown_text(text.rstrip()) for text in own] for own in texts]
    lines = [
        [markdown_text(title) for title in headings(table).values()],
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
    yield _list(f"warning: {warning}" for warning in head.warnings)
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


RENDER: Final = render_markdown
