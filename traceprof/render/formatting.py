"""How values are written, for people by their units and for programs as JSON; and sentences."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from functools import cache
from typing import Any, Final

import numpy as np

from traceprof.model.results import Column, Note, Unit, columns
from traceprof.model.table import Table, is_unknown, objects
from traceprof.render.escape import plain_text, visible_text
from traceprof.render.palette import PART_STYLES
from traceprof.units import (
    format_bytes,
    format_count,
    format_duration,
    format_factor,
    format_flop,
    format_flop_rate,
    format_instants,
    format_number,
    format_per_s,
    format_rate,
    format_ratio,
)

_UNKNOWN: Final = "–"
_SENTENCE_LENGTH: Final = 2_000


def _text(value: Any) -> str:
    return plain_text(value).removeprefix("void ")


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
    Unit.FLOP: UnitStyle(format_flop, "_flop"),
    Unit.FLOP_PER_S: UnitStyle(format_flop_rate, "_flop_per_s"),
    Unit.PER_S: UnitStyle(format_per_s, "_per_s"),
    Unit.RATIO: UnitStyle(format_ratio, "_ratio", " %", has_bar=True),
    Unit.FACTOR: UnitStyle(format_factor),
    Unit.COUNT: UnitStyle(format_count),
    Unit.NUMBER: UnitStyle(format_number),
    Unit.TEXT: UnitStyle(_text, is_number=False),
    Unit.FLAG: UnitStyle(lambda value: "yes" if value else "", is_number=False),
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


_ZEROS: Final = re.compile(r"(\.\d*?)0+(?!\d)")


def round_text(unit: Unit, value: Any) -> str:
    """Return a round value, as it stands at an axis: without zeros behind the point."""
    return _ZEROS.sub(lambda found: found[1].rstrip("."), value_text(unit, value)) if value else "0"


def column_texts(unit: Unit, values: Sequence[Any]) -> list[str]:
    """Return the values of a column as `value_text` does, different instants told apart."""
    if unit is not Unit.AT_NS or any(isinstance(value, str | Note) for value in values):
        return [value_text(unit, value) for value in values]
    return format_instants([value if is_known(value) else None for value in values])


def is_known(value: object) -> bool:
    """Return whether a cell holds anything: neither None nor NaN."""
    return not is_unknown(value)


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
        kind, value = Unit(unit) if unit in _UNITS else Unit.TEXT, note.values[name]
        is_plain = kind is Unit.TEXT and not isinstance(value, Note | tuple | list | None)
        return str(value) if is_plain else value_text(kind, value)

    return plain_text(with_one_unit(_FIELD.sub(filled, note.text)), _SENTENCE_LENGTH)


_RANGE: Final = re.compile(
    r"(?<![\w.,])(?P<low>\d[\d.,]*+)(?P<unit> ?[^\W\d]++|%)–(?P<high>\d[\d.,]*+(?P=unit))(?!\w)"
)


def with_one_unit(text: str) -> str:
    """Return ``text`` with the unit of a range only at its end: "5.2 ms–11 ms" is "5.2–11 ms"."""
    return _RANGE.sub(r"\g<low>–\g<high>", text)


def sentences(notes: Iterable[Note]) -> list[str]:
    """Return the sentences of ``notes``, each once, in their order."""
    return list(dict.fromkeys(map(note_text, notes)))


_PARTS: Final = {part.key: part.label for part in PART_STYLES}
_PHASES: Final = {"profiler": "the profiler itself"}


def _word_step(row: Mapping[str, Any]) -> str:
    """Return by how much a step differs and what grew in it; "" for an ordinary one."""
    excess_ns = row["excess_ns"]
    if not is_known(excess_ns) or not excess_ns:
        return ""
    if cause := _name(row.get("excess_cause")):
        return f"longer by {format_duration(excess_ns)}: {cause}"
    grown = [
        f"{words.get(name, name.replace('_', ' '))} {signed_duration(row.get(f'{column}_ns'))}"
        for column, words in (("grown_part", _PARTS), ("grown_phase", _PHASES))
        if (name := _name(row.get(column)))
    ]
    word = "slow" if excess_ns > 0 else "fast"
    why = ", ".join(grown) or "no part of it stands out"
    return f"{word} by {format_duration(abs(excess_ns))}: {why}"


def _name(value: object) -> str:
    return str(value).removesuffix("_ns") if is_known(value) else ""


def signed_duration(ns: float | None) -> str:
    """Return a difference of times with its sign, "" where it is not known."""
    if ns is None or not is_known(ns):
        return ""
    return f"{'+' if ns > 0 else '-'}{format_duration(abs(ns))}"


(_REMARK,) = columns("derived remark: by how much an outlier differs, and what grew in it")
_OF_REMARK: Final = (
    *("excess_ns", "grown_part", "grown_part_ns", "grown_phase", "grown_phase_ns", "excess_cause"),
)
"""The columns that a remark stands for."""


_NAMES_OF_THINGS: Final = frozenset({"measure", "measures", "rule", "rules", "loss"})
"""Columns whose cells are names of ours, which people read as words."""


def names_in_words(names: Sequence[Any]) -> list[Any]:
    """Return names such as "step_period_ns" in words: "step period"; what is no text stays.

    Where two would be alike they keep their units.
    """
    suffixes = sorted((style.suffix for style in STYLES.values() if style.suffix), key=len)
    short = {
        name: next((name.removesuffix(s) for s in reversed(suffixes) if name.endswith(s)), name)
        for name in names
        if isinstance(name, str)
    }
    counts = Counter(short.values())
    words = {
        name: (text if counts[text] == 1 else name).replace("_", " ")
        for name, text in short.items()
    }
    return [words[name] if isinstance(name, str) else name for name in names]


def in_words(columns: tuple[Column, ...], table: Table) -> tuple[tuple[Column, ...], Table]:
    """Return columns and table with sentences, at the end, for what is read together.

    Where each row says its unit in a column of that name, numbers are written in these units and
    the column is left out.
    """
    for name in _NAMES_OF_THINGS.intersection(table, (column.name for column in columns)):
        table = table.assign(**{name: objects(names_in_words(table[name].tolist()))})
    remark_names = [column.name for column in columns if column.name in _OF_REMARK]
    if len(remark_names) > 1 and _OF_REMARK[0] in table:
        rows = zip(*(table[name].tolist() for name in remark_names), strict=True)
        words = [_word_step(dict(zip(remark_names, row, strict=True))) for row in rows]
        table = table.without(*remark_names).assign(**{_REMARK.name: objects(words)})
        columns = (*(column for column in columns if column.name not in remark_names), _REMARK)
    numbers = [c.name for c in columns if c.unit is Unit.NUMBER and not c.is_key]
    if not numbers or all(column.name != "unit" for column in columns):
        return columns, table
    units = [Unit(name) if name in _UNITS else Unit.NUMBER for name in table["unit"]]
    table = table.without("unit")
    for name in numbers:
        words = [value_text(u, v) for u, v in zip(units, table[name].tolist(), strict=True)]
        table = table.assign(**{name: objects(words)})
    return tuple(column for column in columns if column.name != "unit"), table


_SAVES: Final = {
    "measured": "saves {} of {} {} ({}, measured)",
    "bounded": "saves up to {} of {} {} ({})",
    "estimated": "saves about {} of {} {} ({}, estimated{})",
}
_PER: Final = {
    "a step": "per step",
    "an iteration": "per iteration",
    "the mean step with slow steps": "per step including slow steps",
    "the window": "in the window",
}
"""What follows the length of the base of a saving."""


def saving_words(finding: Mapping[str, Any]) -> str:
    """Return what a finding saves, of which base, how certain that is, and its range.

    "" if the saving is not known.
    """
    if is_known(once_ns := finding.get("once_ns")):
        return f"costs {format_duration(once_ns)} once"
    words, base_ns = _SAVES.get(str(finding.get("kind"))), finding.get("base_ns")
    if words is None or not base_ns or not finding["saving_ns"] > 0:
        return ""
    ends = [finding.get(f"{end}_saving_ns") for end in ("least", "most")]
    bounds = dict.fromkeys(map(format_duration, ends)) if all(map(is_known, ends)) else ()
    range_text = f", range {with_one_unit('–'.join(bounds))}" if len(bounds) > 1 else ""
    return words.format(
        format_duration(finding["saving_ns"]),
        format_duration(base_ns),
        _PER[finding["base"]],
        format_ratio(finding["saving_ns"] / base_ns),
        range_text,
    )


def note_of(note: Note) -> dict[str, Any]:
    """Return a note: the sentence, and exactly what it says in numbers.

    ``template`` is the sentence with the names and units of the values.
    """
    return {
        "text": note_text(note),
        "template": note.text,
        "values": {name: plain(value) for name, value in note.values.items()},
    }


def plain(value: Any) -> Any:
    """Return ``value`` as JSON has it; what is not known, and no finite number, is null."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or type(value) in _PLAIN:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Note):
        return note_of(value)
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, tuple | list):
        return [plain(part) for part in value]
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    return value


_PLAIN: Final = frozenset({str, int, bool})


def to_json(document: Any) -> str:
    """Return ``document`` as text that ends with a newline; controls in it are escaped."""
    return visible_text(_text_of(document, "\n")) + "\n"


def _text_of(value: Any, line: str) -> str:
    """Return what json.dumps makes of ``value`` with an indent of 2, at a third of its cost.

    ``line`` is a line break with the indent around ``value``. json writes indented text in Python,
    but with separators of ours in C: so are written all mappings and lists of plain values.
    """
    if not isinstance(value, _NESTED) or not value:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    inner = line + "  "
    parts = list(value.values()) if isinstance(value, dict) else list(value)
    if not any(isinstance(part, _NESTED) for part in parts):
        text = _encoder(inner).encode(value)
        return f"{text[0]}{inner}{text[1:-1]}{line}{text[-1]}"
    texts = [_text_of(part, inner) for part in parts]
    if isinstance(value, dict):
        names = [_encoder(inner).encode(str(name)) for name in value]
        texts = [f"{name}: {text}" for name, text in zip(names, texts, strict=True)]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}{inner}{f',{inner}'.join(texts)}{line}{closing}"


_NESTED: Final = (dict, list, tuple)


@cache
def _encoder(line: str) -> json.JSONEncoder:
    return json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(f",{line}", ": "))
