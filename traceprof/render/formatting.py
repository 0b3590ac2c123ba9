"""How a value of each unit is written, aligned and drawn, and how a note becomes a sentence."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from traceprof.model.results import Column, Note, Unit
from traceprof.render.escape import plain_text
from traceprof.units import (
    format_bytes,
    format_count,
    format_duration,
    format_factor,
    format_instants,
    format_number,
    format_per_s,
    format_rate,
    format_ratio,
)
from traceprof.values import dataclass

__all__ = [
    "STYLES",
    "UnitStyle",
    "column_texts",
    "heading",
    "headings",
    "is_known",
    "note_text",
    "sentences",
    "value_text",
]

_UNKNOWN: Final = "–"
_SENTENCE_LENGTH: Final = 2_000


def _text(value: Any) -> str:
    return plain_text(value).removeprefix("void ")


def _flag(value: Any) -> str:
    return "yes" if value else ""


@dataclass(frozen=True, slots=True)
class UnitStyle:
    """How the values of a unit look: ``suffix`` is what names of such columns end with.

    A heading leaves the suffix out and ends with ``mark``. Shares draw a bar behind the number.
    """

    write: Callable[[Any], str]
    suffix: str = ""
    mark: str = ""
    is_number: bool = True
    has_bar: bool = False


STYLES: Final[Mapping[Unit, UnitStyle]] = {
    Unit.NS: UnitStyle(format_duration, "_ns"),
    Unit.AT_NS: UnitStyle(format_duration, "_ns"),
    Unit.BYTES: UnitStyle(format_bytes, "_bytes"),
    Unit.BYTES_PER_S: UnitStyle(format_rate, "_bytes_per_s"),
    Unit.PER_S: UnitStyle(format_per_s, "_per_s"),
    Unit.RATIO: UnitStyle(format_ratio, "_ratio", " %", has_bar=True),
    Unit.FACTOR: UnitStyle(format_factor),
    Unit.COUNT: UnitStyle(format_count),
    Unit.NUMBER: UnitStyle(format_number),
    Unit.TEXT: UnitStyle(_text, is_number=False),
    Unit.FLAG: UnitStyle(_flag, is_number=False),
}
"""Every unit; numbers are aligned to the right."""


def heading(column: Column) -> str:
    """Return the heading of ``column``: its name without the unit, in words."""
    if column.is_proper:
        return column.name
    style = STYLES[column.unit]
    return column.name.removesuffix(style.suffix).replace("_", " ") + style.mark


def headings(columns: Iterable[Column]) -> dict[Column, str]:
    """Return the heading of each column of a table; where two would be alike, with their units."""
    found = {column: heading(column) for column in columns}
    counts = Counter(found.values())
    return {
        column: text if counts[text] == 1 else column.name.replace("_", " ")
        for column, text in found.items()
    }


def value_text(unit: Unit, value: Any) -> str:
    """Return ``value`` for people, on one line; what is not known is a dash.

    A cell may hold a note, or several: they become sentences.
    """
    if isinstance(value, Note):
        return note_text(value)
    if isinstance(value, tuple | list):
        return "; ".join(value_text(unit, part) for part in value)
    if not is_known(value):
        return _UNKNOWN
    style = STYLES[unit]
    return _text(value) if isinstance(value, str) and style.is_number else style.write(value)


def column_texts(unit: Unit, values: Sequence[Any]) -> list[str]:
    """Return the values of a column as `value_text` does, different instants told apart."""
    if unit is not Unit.AT_NS or any(isinstance(value, str | Note) for value in values):
        return [value_text(unit, value) for value in values]
    return format_instants([value if is_known(value) else None for value in values])


def is_known(value: object) -> bool:
    """Return whether a cell holds anything: not None, NaN or their like."""
    if value is None or value is pd.NA or value is pd.NaT:
        return False
    return not (isinstance(value, float | np.floating) and math.isnan(value))


_FIELD: Final = re.compile(
    r"\{\{|\}\}|\{(?P<name>\w+)(?::(?P<unit>[^{}]*))?\}|\((?:(?P<one>\w+)\|)?(?P<more>s|es|ies)\)"
)
_UNITS: Final = frozenset(Unit)


def note_text(note: Note) -> str:
    """Return the sentence of ``note``: ``{lost:ns}`` is its value "lost" as nanoseconds.

    What follows a count is written as it asks: "{n:count} step(s)", "{n:count} cop(y|ies)".
    Nothing is escaped; renderers do that. A name that has no value stays as it is written, and a
    value of no known unit is text.
    """
    count: Any = None

    def filled(match: re.Match[str]) -> str:
        nonlocal count
        name, unit = match["name"], match["unit"] or Unit.TEXT.value
        if match["more"] is not None:
            return (
                match[0] if count is None else (match["one"] or "") if count == 1 else match["more"]
            )
        if unit == Unit.COUNT.value and name in note.values:
            count = note.values[name]
        if name is None:
            return match[0][0]
        if name not in note.values:
            return match[0]
        return _worded(Unit(unit) if unit in _UNITS else Unit.TEXT, note.values[name])

    return plain_text(_FIELD.sub(filled, note.text), _SENTENCE_LENGTH)


def _worded(unit: Unit, value: Any) -> str:
    if unit is Unit.TEXT and not isinstance(value, Note | tuple | list) and value is not None:
        return str(value)
    return value_text(unit, value)


def sentences(notes: Iterable[Note]) -> list[str]:
    """Return the sentences of ``notes``, each once, in their order."""
    return list(dict.fromkeys(map(note_text, notes)))
