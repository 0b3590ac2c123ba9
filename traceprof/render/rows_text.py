"""Format rows that are not results of an analysis: GPU operations one by one, and query rows."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from traceprof.measures.device.ncu import ncu_command
from traceprof.model.results import Column, TableSpec, Unit
from traceprof.model.table import Table, is_known
from traceprof.model.tables import ABSENT
from traceprof.query.engine import QueryRows, View
from traceprof.render.escape import plain_text
from traceprof.render.tables_text import csv_lines, markdown_text
from traceprof.units import format_bytes, format_duration, format_rate, format_ratio


def operations_csv(spec: TableSpec, chunks: Iterable[Table]) -> Iterator[str]:
    """Yield the operations as CSV with a header; unknown values are empty."""
    yield csv_lines([[column.name for column in spec]])
    for chunk in chunks:
        columns = [_plain_column(chunk, column) for column in spec]
        yield csv_lines(zip(*columns, strict=True))


def json_lines(spec: TableSpec, chunks: Iterable[Table]) -> Iterator[str]:
    """Yield the operations as JSON, one object per line, without unknown values."""
    names = [column.name for column in spec]
    for chunk in chunks:
        rows = zip(*(_plain_column(chunk, column) for column in spec), strict=True)
        lines = (
            json.dumps({n: v for n, v in zip(names, row, strict=True) if v not in (None, "")})
            for row in rows
        )
        yield "".join(f"{line}\n" for line in lines)


def text_lines(spec: TableSpec, chunks: Iterable[Table]) -> Iterator[str]:
    """Yield the operations as aligned text, in the columns of ``nvprof --print-gpu-trace``.

    A column is left out if it is empty in the first chunk. A later chunk with a value in this
    column starts a new table.
    """
    shown: list[_TextColumn] = []
    for chunk in chunks:
        values = {column.name: _plain_column(chunk, column) for column in spec}
        filled = [column for column in _COLUMNS if any(map(column.text, _rows(values)))]
        if not {column.title for column in filled} <= {column.title for column in shown}:
            shown = filled
            yield _joined_line(column.title.rjust(column.width) for column in shown)
        yield "".join(
            _joined_line(column.text(row).rjust(column.width) for column in shown)
            for row in _rows(values)
        )


def _joined_line(cells: Iterable[str]) -> str:
    return "  ".join(cells).rstrip() + "\n"


def _rows(values: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    return (dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True))


def _plain_column(chunk: Table, column: Column) -> list[Any]:
    """Return the values of a column; None if unknown."""
    if column.name not in chunk:
        return [None] * len(chunk)
    values = chunk[column.name]
    if column.unit is Unit.TEXT:
        return [None if value is None or value != value else str(value) for value in values]
    is_float = column.unit in (Unit.BYTES_PER_S, Unit.RATIO)
    known = is_known(values) & (values != ABSENT)
    return [
        (value if is_float else int(value)) if is_known else None
        for value, is_known in zip(values.tolist(), known.tolist(), strict=True)
    ]


class _TextColumn(NamedTuple):
    """A column of the text: its title, its width, and a function that formats its cell of a row."""

    title: str
    width: int
    text: Callable[[dict[str, Any]], str]


def _value(name: str, write: Callable[[Any], str] = str) -> Callable[[dict[str, Any]], str]:
    return lambda row: "" if row[name] is None else write(row[name])


def _dimensions(name: str) -> Callable[[dict[str, Any]], str]:
    def text(row: dict[str, Any]) -> str:
        sizes = [row[f"{name}_{axis}"] for axis in "xyz"]
        return "" if None in sizes else "({} {} {})".format(*sizes)

    return text


def _shared_memory(row: dict[str, Any]) -> str:
    """Return "static+dynamic" shared memory, or the sum if only the sum is known."""
    parts = row["static_shared_bytes"], row["dynamic_shared_bytes"]
    if None in parts:
        return "" if row["shared_bytes"] is None else format_bytes(row["shared_bytes"])
    return "+".join(format_bytes(part) for part in parts)


_COLUMNS: Final = (
    _TextColumn("start", 10, _value("at_ns", format_duration)),
    _TextColumn("duration", 9, _value("duration_ns", format_duration)),
    _TextColumn("grid", 15, _dimensions("grid")),
    _TextColumn("block", 13, _dimensions("block")),
    _TextColumn("regs", 4, _value("registers")),
    _TextColumn("shared memory", 18, _shared_memory),
    _TextColumn("occ. %", 7, _value("occupancy_ratio", format_ratio)),
    _TextColumn("size", 9, _value("n_bytes", format_bytes)),
    _TextColumn("throughput", 11, _value("bytes_per_s", format_rate)),
    _TextColumn("from", 9, _value("src_kind")),
    _TextColumn("to", 9, _value("dst_kind")),
    _TextColumn("rank", 4, _value("rank")),
    _TextColumn("device", 6, _value("device")),
    _TextColumn("stream", 6, _value("stream")),
    _TextColumn("id", 7, _value("correlation")),
    _TextColumn("launched in range", 28, _value("range", lambda name: plain_text(name, 28))),
    _TextColumn("name", 0, _value("name", plain_text)),
)
_Write = Callable[[TableSpec, Iterable[Table]], Iterator[str]]
OPERATION_FORMS: Final[Mapping[str, _Write]] = {
    "text": text_lines,
    "csv": operations_csv,
    "json": json_lines,
}


_MIN_TEXT_WIDTH: Final = 12


def rows_text(answer: QueryRows, width: int = 80) -> str:
    """Return the rows as aligned text of at most ``width`` characters.

    Columns of text are cut, but not below 12 characters. Columns of numbers are never cut.
    """
    if not answer.rows:
        return "no rows\n"
    cells = [[plain_text(_cell_text(value)) for value in row] for row in answer.rows]
    is_text = _text_columns(answer)
    titles = [plain_text(name) for name in answer.columns]
    widths = [max(map(len, column)) for column in zip(titles, *cells, strict=True)]
    widths = _narrowed(widths, is_text, width - 2 * (len(widths) - 1))
    lines = [titles, ["─" * n for n in widths], *cells]
    return "".join(_line(line, widths, is_text) for line in lines)


def _text_columns(answer: QueryRows) -> list[bool]:
    """Return which columns contain a text or bytes."""
    columns = zip(*answer.rows, strict=True) if answer.rows else [()] * len(answer.columns)
    return [any(isinstance(value, str | bytes) for value in column) for column in columns]


def _narrowed(widths: list[int], is_text: list[bool], room: int) -> list[int]:
    """Return ``widths``, in which the widest columns of text are narrowed until all columns fit."""
    widths = list(widths)
    while sum(widths) > room:
        widest = max((n for n, text in zip(widths, is_text, strict=True) if text), default=0)
        if widest <= _MIN_TEXT_WIDTH:
            break
        place = next(i for i, n in enumerate(widths) if is_text[i] and n == widest)
        widths[place] = max(_MIN_TEXT_WIDTH, widest - max(1, (sum(widths) - room) // len(widths)))
    return widths


def _line(cells: Iterable[str], widths: list[int], is_text: list[bool]) -> str:
    return _joined_line(
        plain_text(cell, n).ljust(n) if text else cell.rjust(n)
        for cell, n, text in zip(cells, widths, is_text, strict=True)
    )


def _cell_text(value: Any) -> str:
    """Return a value for people; an unknown value is a dash, as in all tables."""
    if value is None:
        return "–"
    return _hex(value) if isinstance(value, bytes) else str(value)


def _hex(data: bytes) -> str:
    return f"x'{data.hex()}'"


def _csv(answer: QueryRows, _width: int) -> str:
    rows = ([_hex(v) if isinstance(v, bytes) else v for v in row] for row in answer.rows)
    return csv_lines([answer.columns, *rows])


def _json(answer: QueryRows, _width: int) -> str:
    rows = (
        json.dumps(dict(zip(answer.columns, map(_plain, row), strict=True)), allow_nan=False)
        for row in answer.rows
    )
    return "[" + ",\n ".join(rows) + "]\n"


def _plain(value: Any) -> Any:
    """Return a value as a JSON type: bytes as hexadecimal text, numbers not finite as null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return _hex(value) if isinstance(value, bytes) else value


def _markdown(answer: QueryRows, _width: int) -> str:
    lines = [
        [markdown_text(name) for name in answer.columns],
        [":---" if text else "---:" for text in _text_columns(answer)],
        *([markdown_text(_cell_text(value)) for value in row] for row in answer.rows),
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


QUERY_FORMS: Final[Mapping[str, Callable[[QueryRows, int], str]]] = {
    "text": rows_text,
    "csv": _csv,
    "json": _json,
    "markdown": _markdown,
}


def schema_text(views: Iterable[View]) -> str:
    """Return the views of a query with their summaries and columns."""
    texts = []
    for view in views:
        width = max(len(column.name) for column in view.columns)
        lines = (f"  {c.name:{width}}  {c.type:7}  {c.meaning}" for c in view.columns)
        texts.append("\n".join([f"{view.name}: {view.summary}", *map(str.rstrip, lines)]) + "\n")
    return "\n".join(texts)


def ncu_lines(chunks: Iterable[Table]) -> Iterator[str]:
    """Yield, for each kernel, a comment with its time and rank, and its Nsight Compute command.

    The chunks have the columns at_ns, duration_ns, rank, function, skip, and command.
    """
    head = (
        "# --launch-skip counts from the first launch in the trace. It is correct only if the "
        "recording started with the program.\n"
    )
    for row in (row for chunk in chunks for row in chunk.rows()):
        rank = f", rank {row['rank']}" if row["rank"] >= 0 else ""
        took = format_duration(row["duration_ns"])
        yield f"{head}# at {format_duration(row['at_ns'])}{rank}, {took}\n"
        head = ""
        yield plain_text(ncu_command(row["function"], row["skip"], row["command"])) + "\n"
