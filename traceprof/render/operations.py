"""Operations one by one, as they come: aligned text, CSV, or JSON lines."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import pandas as pd

from traceprof.model.results import Column, TableSpec, Unit
from traceprof.model.tables import ABSENT
from traceprof.render.csv_text import safe_cell
from traceprof.render.escape import plain_text
from traceprof.units import format_bytes, format_duration, format_rate, format_ratio

__all__ = ["FORMS", "csv_lines", "json_lines", "text_lines"]


def csv_lines(spec: TableSpec, chunks: Iterable[pd.DataFrame]) -> Iterator[str]:
    """Yield the operations as CSV: a header, then a line each; what is not known is empty."""
    yield _written([[column.name for column in spec]])
    for chunk in chunks:
        columns = [_plain(chunk, column) for column in spec]
        yield _written([[safe_cell(value) for value in row] for row in zip(*columns, strict=True)])


def json_lines(spec: TableSpec, chunks: Iterable[pd.DataFrame]) -> Iterator[str]:
    """Yield the operations as JSON, an object a line; what is not known is left out."""
    names = [column.name for column in spec]
    for chunk in chunks:
        rows = zip(*(_plain(chunk, column) for column in spec), strict=True)
        lines = (
            json.dumps({n: v for n, v in zip(names, row, strict=True) if v not in (None, "")})
            for row in rows
        )
        yield "".join(f"{line}\n" for line in lines)


def text_lines(spec: TableSpec, chunks: Iterable[pd.DataFrame]) -> Iterator[str]:
    """Yield the operations as aligned text, in the columns of ``nvprof --print-gpu-trace``.

    Columns that the first operations leave empty are left out; a later one that has such a value
    begins a table of its own.
    """
    shown: list[_TextColumn] = []
    for chunk in chunks:
        values = {column.name: _plain(chunk, column) for column in spec}
        filled = [column for column in _COLUMNS if any(map(column.is_filled, _rows(values)))]
        if not {column.title for column in filled} <= {column.title for column in shown}:
            shown = filled
            yield _line(column.title.rjust(column.width) for column in shown)
        yield "".join(
            _line(column.text(row).rjust(column.width) for column in shown) for row in _rows(values)
        )


def _line(cells: Iterable[str]) -> str:
    return "  ".join(cells).rstrip() + "\n"


def _rows(values: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    return (dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True))


def _plain(chunk: pd.DataFrame, column: Column) -> list[Any]:
    """Return the values of a column, None in the place of what is not known."""
    if column.name not in chunk:
        return [None] * len(chunk)
    values = chunk[column.name]
    if column.unit is Unit.TEXT:
        return [None if value is None or value != value else str(value) for value in values]
    is_float = column.unit in (Unit.BYTES_PER_S, Unit.RATIO)
    known = values.notna() & (values != ABSENT)
    return [
        (value if is_float else int(value)) if is_known else None
        for value, is_known in zip(values.tolist(), known.tolist(), strict=True)
    ]


def _written(rows: Iterable[Iterable[Any]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


class _TextColumn:
    """A column of the text: its title, its width, and what stands in it."""

    def __init__(self, title: str, width: int, text: Callable[[dict[str, Any]], str]) -> None:
        self.title, self.width, self.text = title, width, text

    def is_filled(self, row: dict[str, Any]) -> bool:
        """Return whether it says something of a row."""
        return bool(self.text(row))


def _value(name: str, write: Callable[[Any], str] = str) -> Callable[[dict[str, Any]], str]:
    return lambda row: "" if row[name] is None else write(row[name])


def _size(of: str) -> Callable[[dict[str, Any]], str]:
    def text(row: dict[str, Any]) -> str:
        sizes = [row[f"{of}_{axis}"] for axis in "xyz"]
        return "" if None in sizes else "({} {} {})".format(*sizes)

    return text


def _shared(row: dict[str, Any]) -> str:
    parts = row["static_shared_bytes"], row["dynamic_shared_bytes"]
    if None in parts:
        return "" if row["shared_bytes"] is None else format_bytes(row["shared_bytes"])
    return "+".join(format_bytes(part) for part in parts)


_COLUMNS: Final = (
    _TextColumn("start", 10, _value("at_ns", format_duration)),
    _TextColumn("duration", 9, _value("duration_ns", format_duration)),
    _TextColumn("grid", 15, _size("grid")),
    _TextColumn("block", 13, _size("block")),
    _TextColumn("regs", 4, _value("registers")),
    _TextColumn("shared memory", 18, _shared),
    _TextColumn("occ. %", 7, _value("occupancy_ratio", format_ratio)),
    _TextColumn("size", 9, _value("n_bytes", format_bytes)),
    _TextColumn("throughput", 11, _value("bytes_per_s", format_rate)),
    _TextColumn("from", 9, _value("src_kind")),
    _TextColumn("to", 9, _value("dst_kind")),
    _TextColumn("rank", 4, _value("rank")),
    _TextColumn("device", 6, _value("device")),
    _TextColumn("stream", 6, _value("stream")),
    _TextColumn("id", 7, _value("correlation")),
    _TextColumn("name", 0, _value("name", plain_text)),
)
FORMS: Final[Mapping[str, Callable[[TableSpec, Iterable[pd.DataFrame]], Iterator[str]]]] = {
    "text": text_lines,
    "csv": csv_lines,
    "json": json_lines,
}
