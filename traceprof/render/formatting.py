"""Format values for people by their units and for programs as JSON, and format sentences."""

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
from traceprof.model.tables import ABSENT
from traceprof.render.escape import plain_text, visible_text
from traceprof.render.palette import PART_STYLES
from traceprof.units import (
    SENTENCE_DIGITS,
    TABLE_DIGITS,
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
    sentence_duration,
)

_UNKNOWN: Final = "–"
_SENTENCE_LENGTH: Final = 2_000


def _text(value: Any) -> str:
    return plain_text(value).removeprefix("void ")


@dataclass(frozen=True, slots=True)
class UnitStyle:
    """How values of a unit are shown.

    Attributes:
        write: formats a known value; that of a measured unit also takes the number of digits.
        suffix: the end of the names of columns with this unit. A heading leaves it out.
        mark: the end of the heading.
        is_number: align the values to the right.
        has_bar: draw a bar behind the number (for shares).
    """

    write: Callable[..., str]
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
"""The style of every unit."""
_MEASURED: Final = frozenset(
    [
        Unit.NS,
        Unit.BYTES,
        Unit.BYTES_PER_S,
        Unit.FLOP,
        Unit.FLOP_PER_S,
        Unit.PER_S,
        Unit.COUNT,
        Unit.NUMBER,
    ]
)
"""Units whose values have fewer digits in sentences than in tables."""


def capitalized(text: str) -> str:
    """Return ``text`` with an uppercase first letter. The other letters stay unchanged."""
    return text[:1].upper() + text[1:]


def heading(column: Column) -> str:
    """Return the heading of ``column``: its name without the unit, with spaces."""
    if column.is_proper:
        return column.name
    style = STYLES[column.unit]
    return column.name.removesuffix(style.suffix).replace("_", " ") + style.mark


def headings(columns: Iterable[Column]) -> dict[Column, str]:
    """Return the heading of each column of a table; two equal headings keep their units."""
    found = {column: heading(column) for column in columns}
    counts = Counter(found.values())
    return {
        column: text if counts[text] == 1 else column.name.replace("_", " ")
        for column, text in found.items()
    }


def value_text(unit: Unit, value: Any) -> str:
    """Return ``value`` for people, on one line; an unknown value is a dash.

    A value may also be a note or several notes, which become sentences.
    """
    if isinstance(value, Note):
        return note_text(value)
    if isinstance(value, tuple | list):
        return "; ".join(value_text(unit, part) for part in value)
    if not is_known(value):
        return _UNKNOWN
    style = STYLES[unit]
    return _text(value) if isinstance(value, str) and style.is_number else style.write(value)


def sentence_value(unit: Unit, value: Any) -> str:
    """Return ``value`` as `value_text` does, with the digits of a sentence."""
    if unit not in _MEASURED or isinstance(value, str | Note | tuple | list) or not is_known(value):
        return value_text(unit, value)
    return STYLES[unit].write(value, SENTENCE_DIGITS)


_ZEROS: Final = re.compile(r"(\.\d*?)0+(?!\d)")


def round_text(unit: Unit, value: Any) -> str:
    """Return a round value as the label of an axis: without trailing zeros after the point."""
    return _ZEROS.sub(lambda found: found[1].rstrip("."), value_text(unit, value)) if value else "0"


def column_texts(unit: Unit, values: Sequence[Any]) -> list[str]:
    """Return the values of a column as `value_text` does, with enough digits to tell times apart.

    Only instants (`Unit.AT_NS`) get more digits.
    """
    if unit is not Unit.AT_NS or any(isinstance(value, str | Note) for value in values):
        return [value_text(unit, value) for value in values]
    return format_instants([value if is_known(value) else None for value in values])


def is_known(value: object) -> bool:
    """Return whether a value is known: neither None nor NaN."""
    return not is_unknown(value)


def process_label(process: int, rank: float | None) -> str:
    """Return "rank N", or "process N" if the rank is unknown."""
    return f"rank {rank:.0f}" if rank is not None and is_known(rank) else f"process {process}"


_FIELD: Final = re.compile(
    r"\{\{|\}\}|\{(?P<name>\w+)(?::(?P<unit>[^{}]*))?\}|\((?:(?P<one>\w+)\|)?(?P<more>s|es|ies)\)"
)
_UNITS: Final = frozenset(Unit)


def note_text(note: Note) -> str:
    """Return the sentence of ``note`` with its values: ``{lost:ns}`` is "lost" in nanoseconds.

    Plurals follow the last count: "{n:count} step(s)", "{n:count} cop(y|ies)". A placeholder whose
    name has no value stays unchanged. A value without a known unit is text. A note that consists of
    a value is a cell of a table with mixed units. The sentence is not escaped; renderers do that.
    """
    count: Any = None
    formatted = value_text if _FIELD.fullmatch(note.text) else sentence_value

    def fill(match: re.Match[str]) -> str:
        nonlocal count
        name, unit_name = match["name"], match["unit"] or Unit.TEXT.value
        if match["more"] is not None:  # a plural
            if count is None:
                return match[0]
            return (match["one"] or "") if count == 1 else match["more"]
        if name is None:  # "{{" or "}}"
            return match[0][0]
        if name not in note.values:
            return match[0]
        value = note.values[name]
        if unit_name == Unit.COUNT.value:
            count = value
        unit = Unit(unit_name) if unit_name in _UNITS else Unit.TEXT
        is_plain = unit is Unit.TEXT and not isinstance(value, Note | tuple | list | None)
        return str(value) if is_plain else formatted(unit, value)

    return plain_text(with_one_unit(_FIELD.sub(fill, note.text)), _SENTENCE_LENGTH)


_RANGE: Final = re.compile(
    r"(?<![\w.,])(?P<low>\d[\d.,]*+)(?P<unit> ?[^\W\d]++|%)–(?P<high>\d[\d.,]*+)(?P=unit)(?!\w)"
)


def with_one_unit(text: str) -> str:
    """Return ``text`` with units only at the end of ranges: "5.2 ms–11 ms" -> "5.2–11 ms".

    A range whose ends are equal as printed becomes one value.
    """
    return _RANGE.sub(_with_one_unit, text)


def _with_one_unit(found: re.Match[str]) -> str:
    low = "" if found["low"] == found["high"] else f"{found['low']}–"
    return low + found["high"] + found["unit"]


def sentences(notes: Iterable[Note]) -> list[str]:
    """Return the distinct sentences of ``notes``, in their order."""
    return list(dict.fromkeys(map(note_text, notes)))


_PARTS: Final = {part.key: part.label for part in PART_STYLES}
_PHASES: Final = {
    "eval": "forward without gradients",
    "logprobs": "log-probabilities",
    "profiler": "the profiler itself",
    "cpu_wait": "waiting for a CPU core",
}


def _step_remark(row: Mapping[str, Any]) -> str:
    """Return by how much the duration of an outlier differs, and why; "" for an ordinary step."""
    excess_ns = row["excess_ns"]
    if not is_known(excess_ns) or not excess_ns:
        return ""
    if cause := _name(row.get("excess_cause")):
        return f"longer by {sentence_duration(excess_ns)}: {cause}"
    grown = [
        f"{labels.get(name, name.replace('_', ' '))} "
        f"{signed_duration(row.get(f'{column}_ns'), SENTENCE_DIGITS)}"
        for column, labels in (("grown_part", _PARTS), ("grown_phase", _PHASES))
        if (name := _name(row.get(column)))
    ]
    kind = "slow" if excess_ns > 0 else "fast"
    why = ", ".join(grown) or "no part of it stands out"
    return f"{kind} by {sentence_duration(abs(excess_ns))}: {why}"


def _name(value: object) -> str:
    return str(value).removesuffix("_ns") if is_known(value) else ""


def signed_duration(ns: float | None, digits: int = TABLE_DIGITS) -> str:
    """Return a time difference with its sign; "" if it is unknown."""
    if ns is None or not is_known(ns):
        return ""
    return f"{'+' if ns > 0 else '-'}{format_duration(abs(ns), digits)}"


(_REMARK,) = columns("derived remark: by how much an outlier differs, and what grew in it")
_REMARK_COLUMNS: Final = (
    *("excess_ns", "grown_part", "grown_part_ns", "grown_phase", "grown_phase_ns", "excess_cause"),
)
"""The columns that the column "remark" replaces."""


_IDENTIFIER_COLUMNS: Final = frozenset({"measure", "measures", "rule", "rules", "loss"})
"""Columns whose cells are identifiers of traceprof. People read them as words."""


def names_in_words(names: Sequence[Any]) -> list[Any]:
    """Return names such as "step_period_ns" as words: "step period". Other types stay unchanged.

    Two names that would be equal keep their units.
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
    """Return columns and table with words instead of identifiers and of some numbers.

    A key of -1, such as the step of a window, becomes unknown.
    A remark in the last column replaces the columns about an outlier. If a table has a column
    "unit", numbers are formatted in the unit of their row and the column is left out.
    """
    for name in _IDENTIFIER_COLUMNS.intersection(table, (column.name for column in columns)):
        table = table.assign(**{name: objects(names_in_words(table[name].tolist()))})
    for name in (c.name for c in columns if c.is_key and c.unit is Unit.NUMBER and not c.is_typed):
        keys = np.asarray(table[name])
        if keys.dtype.kind == "i" and (keys == ABSENT).any():
            table = table.assign(
                **{name: objects(None if k == ABSENT else k for k in keys.tolist())}
            )
    remark_names = [column.name for column in columns if column.name in _REMARK_COLUMNS]
    if len(remark_names) > 1 and _REMARK_COLUMNS[0] in table:
        rows = zip(*(table[name].tolist() for name in remark_names), strict=True)
        remarks = [_step_remark(dict(zip(remark_names, row, strict=True))) for row in rows]
        table = table.without(*remark_names).assign(**{_REMARK.name: objects(remarks)})
        columns = (*(column for column in columns if column.name not in remark_names), _REMARK)
    numbers = [c.name for c in columns if c.unit is Unit.NUMBER and not c.is_key]
    if not numbers or all(column.name != "unit" for column in columns):
        return columns, table
    units = [Unit(name) if name in _UNITS else Unit.NUMBER for name in table["unit"]]
    table = table.without("unit")
    for name in numbers:
        texts = [value_text(u, v) for u, v in zip(units, table[name].tolist(), strict=True)]
        table = table.assign(**{name: objects(texts)})
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
    "the mean step with checkpoints": "per step including checkpoints",
    "the mean step with compilations": "per step including compilations",
    "the window": "in the window",
}
"""The words after the length of a saving's base."""


def saving_share(finding: Mapping[str, Any]) -> str:
    """Return a saving as a share of its base, such as "up to 12.3%"; "" if it is unknown."""
    template, base_ns = _SAVES.get(str(finding.get("kind"))), finding.get("base_ns")
    if template is None or not base_ns or not finding["saving_ns"] > 0:
        return ""
    certainty = template.partition("{}")[0].removeprefix("saves ")
    return f"{certainty}{format_ratio(finding['saving_ns'] / base_ns)}"


def saving_words(finding: Mapping[str, Any]) -> str:
    """Return the saving of a finding with its base, certainty, and range; "" if it is unknown.

    A one-time cost is returned instead of a saving.
    """
    if is_known(one_time_ns := finding.get("one_time_ns")):
        return f"costs {sentence_duration(one_time_ns)} once"
    template, base_ns = _SAVES.get(str(finding.get("kind"))), finding.get("base_ns")
    if template is None or not base_ns or not finding["saving_ns"] > 0:
        return ""
    ends = [finding.get(f"{end}_saving_ns") for end in ("min", "max")]
    bounds = dict.fromkeys(map(sentence_duration, ends)) if all(map(is_known, ends)) else ()
    range_text = f", range {with_one_unit('–'.join(bounds))}" if len(bounds) > 1 else ""
    return template.format(
        sentence_duration(finding["saving_ns"]),
        sentence_duration(base_ns),
        _PER[finding["base"]],
        format_ratio(finding["saving_ns"] / base_ns),
        range_text,
    )


def note_of(note: Note) -> dict[str, Any]:
    """Return a note as JSON: its sentence, and the exact values in the sentence.

    "template" is the sentence with the names and units of the values.
    """
    return {
        "text": note_text(note),
        "template": note.text,
        "values": {name: plain(value) for name, value in note.values.items()},
    }


def plain(value: Any) -> Any:
    """Return ``value`` as JSON types; an unknown value or a number that is not finite is null."""
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
    """Return ``document`` as JSON text with a final newline; control characters are escaped."""
    return visible_text(_indented_json(document, "\n")) + "\n"


def _indented_json(value: Any, line: str) -> str:
    """Return the text of ``json.dumps(value, indent=2)`` in a third of its time.

    ``line`` is a line feed followed by the indentation of ``value``. With ``indent``, json runs in
    Python. Without it json runs in C, also with separators that contain a line break, so this
    function uses such separators for every container that has no containers in it.
    """
    if not isinstance(value, _CONTAINERS) or not value:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    inner = line + "  "
    parts = list(value.values()) if isinstance(value, dict) else list(value)
    if not any(isinstance(part, _CONTAINERS) for part in parts):
        text = _encoder(inner).encode(value)
        return f"{text[0]}{inner}{text[1:-1]}{line}{text[-1]}"
    texts = [_indented_json(part, inner) for part in parts]
    if isinstance(value, dict):
        names = [_encoder(inner).encode(str(name)) for name in value]
        texts = [f"{name}: {text}" for name, text in zip(names, texts, strict=True)]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}{inner}{f',{inner}'.join(texts)}{line}{closing}"


_CONTAINERS: Final = (dict, list, tuple)


@cache
def _encoder(line: str) -> json.JSONEncoder:
    return json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(f",{line}", ": "))
