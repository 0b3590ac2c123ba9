"""Replies of the MCP server: text, and structured content that a token limit bounds.

An assistant reads either the text or the structured content. Each stays within the limit. A reply
that was cut reports what it omits.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from mcp_types import CallToolResult, TextContent
from typing_extensions import TypedDict

from traceprof.model.results import Note, Unit
from traceprof.names.kernels import short_name
from traceprof.query.engine import QueryRows
from traceprof.render.escape import plain_text
from traceprof.render.formatting import plain, value_text
from traceprof.render.registry import Answered
from traceprof.render.shown import Row, ShownTable, table_for_people
from traceprof.render.text.tables import shorten_all

DEFAULT_TOKENS: Final = 2000
MIN_TOKENS: Final = 200
MAX_TOKENS: Final = 10_000
_CHARACTERS_PER_TOKEN: Final = 3
"""English has about 4 characters per token; tables of numbers and kernel names have about 3."""
_MAX_NAME_WIDTH: Final = 60
_CUT: Final = "… cut here: use a smaller window, fewer rows, or a larger max_tokens"


class ReplyFinding(TypedDict, total=False):
    """A finding: its ``id`` is the rule, and a number if the rule found several problems."""

    id: str
    title: str
    kind: str
    saving_ns: float | None
    base: str
    base_ns: float | None
    evidence: str
    action: str
    caveat: str


class ReplyTable(TypedDict):
    """A table: values in the order of ``columns``; null is unknown."""

    name: str
    columns: list[str]
    rows: list[list[Any]]
    omitted_row_count: int


class ReplyContent(TypedDict):
    """The structured content of every tool."""

    text: str
    findings: list[ReplyFinding]
    tables: list[ReplyTable]
    is_cut: bool


@dataclass(frozen=True, slots=True)
class Reply:
    """The result of a tool; ``text`` is structured, ``body`` is the whole text if longer."""

    text: str
    body: str = ""
    findings: Sequence[ReplyFinding] = ()
    tables: Sequence[ReplyTable] = ()
    is_cut: bool = False

    def within(self, max_tokens: int) -> CallToolResult:
        """Return the reply with text and structured content of about ``max_tokens`` each."""
        limit = max_tokens * _CHARACTERS_PER_TOKEN
        answer: ReplyContent = {
            "text": self.text,
            "findings": list(self.findings),
            "tables": [{**table, "rows": [*table["rows"]]} for table in self.tables],
            "is_cut": self.is_cut,
        }
        _shrink(answer, limit)
        content = [TextContent(type="text", text=_cut(self.body or self.text, limit))]
        return CallToolResult(content=[*content], structured_content={**answer})


def findings_of(rows: Iterable[Row], names: Iterable[str] | None = None) -> list[ReplyFinding]:
    """Return findings with their known properties ``names`` (default: all), texts as sentences."""
    wanted = tuple(ReplyFinding.__annotations__ if names is None else names)
    found = []
    for row in rows:
        number = int(row["number"])
        values = {**row, "id": row["rule"] if number == 1 else f"{row['rule']}:{number}"}
        texts = ((name, _value(Unit.TEXT, values.get(name))) for name in wanted)
        known = {name: value for name, value in texts if value not in (None, "")}
        found.append(cast("ReplyFinding", known))
    return found


def tables_of_document(
    document: Answered, n_rows: int, *, full_names: bool = False
) -> list[ReplyTable]:
    """Return the first table of each result that has rows, with its first ``n_rows`` rows."""
    tables = (table_for_people(result, document.ranks) for result in document.results.values())
    return [_table(table, n_rows, full_names=full_names) for table in tables if len(table)]


def _table(table: ShownTable, n_rows: int, *, full_names: bool) -> ReplyTable:
    rows = [
        tuple(_value(column.unit, value) for column, value in zip(table, row.values(), strict=True))
        for row in table.rows(n_rows)
    ]
    shown = QueryRows(tuple(column.name for column in table), rows)
    found = table_of_rows(shown if full_names else with_short_names(shown), table.name)
    return {**found, "omitted_row_count": max(len(table) - n_rows, 0)}


def table_of_rows(rows: QueryRows, name: str = "rows") -> ReplyTable:
    """Return the rows of a query as a table."""
    values = [[*map(plain, row)] for row in rows.rows]
    return ReplyTable(name=name, columns=[*rows.columns], rows=values, omitted_row_count=0)


def with_short_names(rows: QueryRows) -> QueryRows:
    """Return ``rows`` with long texts shortened; different texts of a column stay different."""
    columns = zip(*rows.rows, strict=True)
    return replace(rows, rows=[*zip(*map(_short_column, columns), strict=True)])


def _short_column(values: Sequence[Any]) -> list[Any]:
    """Return ``values``; a long kernel name becomes its function if this keeps it different."""
    texts = dict.fromkeys(
        value for value in values if isinstance(value, str) and len(value) > _MAX_NAME_WIDTH
    )
    functions = {text: short_name(text) for text in texts if "(" in text}
    counts = Counter(functions.values())
    short = {
        text: functions[text] if counts[functions.get(text, "")] == 1 else text for text in texts
    }
    short = dict(zip(short, shorten_all([*short.values()], _MAX_NAME_WIDTH), strict=True))
    return [short.get(value, value) if isinstance(value, str) else value for value in values]


def _value(unit: Unit, value: Any) -> Any:
    """Return ``value`` as JSON types; notes and lists become text without control characters.

    Means and ratios have 6 significant digits.
    """
    if isinstance(value, Note | tuple | list):
        value = value_text(unit, value)
    value = plain_text(value) if isinstance(value, str) else plain(value)
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _shrink(answer: ReplyContent, n_characters: int) -> None:
    """Omit rows of the longest table, then findings, then text, until ``answer`` fits."""
    while (excess := len(json.dumps(answer, ensure_ascii=False)) - n_characters) > 0:
        answer["is_cut"] = True
        longest = max(answer["tables"], key=lambda table: len(str(table)), default=None)
        if longest is not None and longest["rows"]:
            n_kept = len(longest["rows"]) * 4 // 5
            longest["omitted_row_count"] += len(longest["rows"]) - n_kept
            del longest["rows"][n_kept:]
        elif answer["findings"]:
            answer["findings"].pop()
        elif answer["tables"]:
            answer["tables"].pop()
        else:
            n_kept = max(len(answer["text"]) - excess - len(_CUT), 0)
            answer["text"] = _cut(answer["text"], n_kept)
            return


def _cut(text: str, n_characters: int) -> str:
    """Return the first lines of ``text``, and a note if it is longer than ``n_characters``."""
    if len(text) <= n_characters:
        return text
    kept = text[: max(n_characters - len(_CUT) - 1, 0)]
    lines = kept[: kept.rfind("\n") + 1] or kept
    return f"{lines.rstrip()}\n{_CUT}"
