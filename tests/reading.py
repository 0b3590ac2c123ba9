"""Reading results in tests: rows by attribute, notes as sentences."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, Final

from traceprof.model.results import Note, Result
from traceprof.units import format_bytes, format_count, format_duration, format_rate, format_ratio

__all__ = ["rows", "said"]

_FORMATS: Final[Mapping[str, Callable[[Any], str]]] = {
    "": str,
    "ns": format_duration,
    "count": format_count,
    "ratio": format_ratio,
    "bytes": format_bytes,
    "bytes/s": format_rate,
}


def rows(result: Result, table: str | None = None) -> list[Any]:
    """Return the rows of a table, with a column as an attribute; the table that answers."""
    records = result.to_frame(table).astype(object).to_dict("records")
    return [SimpleNamespace(**{str(name): row[name] for name in row}) for row in records]


def said(result: Result) -> list[str]:
    """Return the notes as sentences."""
    return [_sentence(note) for note in result.notes]


def _sentence(note: Note) -> str:
    def shown(match: re.Match[str]) -> str:
        return _FORMATS[match["unit"] or ""](note.values[match["name"]])

    return re.sub(r"\{(?P<name>\w+)(?::(?P<unit>[\w/]+))?\}", shown, note.text)
