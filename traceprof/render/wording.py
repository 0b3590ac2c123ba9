"""Columns that are read together become one sentence for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import pandas as pd

from traceprof.model.results import Column, Unit, derived
from traceprof.render.formatting import is_known, value_text
from traceprof.render.palette import PART_STYLES
from traceprof.units import format_duration, format_ratio
from traceprof.values import dataclass

__all__ = ["in_units", "in_words", "saving_words", "signed_duration"]

_PARTS: Final = {part.key: part.label for part in PART_STYLES}
_PHASES: Final = {"profiler": "the profiler itself"}


@dataclass(frozen=True, slots=True)
class _Sentence:
    """A column of words, and the columns that it stands for."""

    column: Column
    instead_of: tuple[str, ...]
    word: Callable[[Mapping[str, Any]], str]


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


_SENTENCES: Final = (
    _Sentence(
        derived("remark", Unit.TEXT, "by how much an outlier differs, and what grew in it"),
        (
            "excess_ns",
            "grown_part",
            "grown_part_ns",
            "grown_phase",
            "grown_phase_ns",
            "excess_cause",
        ),
        _word_step,
    ),
)


_UNITS: Final = frozenset(Unit)


def in_units(
    columns: tuple[Column, ...], frame: pd.DataFrame
) -> tuple[tuple[Column, ...], pd.DataFrame]:
    """Return columns and frame with numbers written in the unit that their row has, if it has one.

    Such a table says the unit of each row in a column of that name, which is left out.
    """
    numbers = [column for column in columns if column.unit is Unit.NUMBER and not column.is_key]
    unit = next((column for column in columns if column.name == "unit"), None)
    if unit is None or not numbers:
        return columns, frame
    units = [Unit(name) if name in _UNITS else Unit.NUMBER for name in frame["unit"]]
    frame = frame.drop(columns="unit")
    for column in numbers:
        words = [value_text(u, v) for u, v in zip(units, frame[column.name].tolist(), strict=True)]
        frame[column.name] = pd.Series(words, frame.index, object)
    return tuple(column for column in columns if column is not unit), frame


def in_words(
    columns: tuple[Column, ...], frame: pd.DataFrame
) -> tuple[tuple[Column, ...], pd.DataFrame]:
    """Return columns and frame with sentences, at the end, for what is read together."""
    for sentence in _SENTENCES:
        own = [column for column in columns if column.name in sentence.instead_of]
        if len(own) < 2 or sentence.instead_of[0] not in frame:
            continue
        parts = [frame[column.name].tolist() for column in own]
        names = [column.name for column in own]
        words = [
            sentence.word(dict(zip(names, row, strict=True))) for row in zip(*parts, strict=True)
        ]
        columns = (*(c for c in columns if c not in own), sentence.column)
        frame = frame.drop(columns=names)
        frame[sentence.column.name] = pd.Series(words, frame.index, object)
    return columns, frame


_SAVES: Final = {
    "measured": "saves {}{} ({}, measured)",
    "bounded": "saves at most {}{} ({})",
    "estimated": "saves about {}{} ({}, estimated)",
}


def saving_words(finding: Mapping[str, Any], per: str = "") -> str:
    """Return what a row of findings saves, and how sure that is; "" where nothing is known.

    ``per`` says of what it is a share, such as "a step"; "" where the reader knows.
    """
    if is_known(once_ns := finding.get("once_ns")):
        return f"costs {format_duration(once_ns)} once"
    words = _SAVES.get(str(finding.get("kind")))
    if words is None or not finding["saving_ratio"] > 0:
        return ""
    return words.format(
        format_duration(finding["saving_ns"]),
        f" of {per}" if per else "",
        format_ratio(finding["saving_ratio"]),
    )
