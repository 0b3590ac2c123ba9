"""Figures as a door shows them, and what finds them in its text and in its tables."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tests.truth.door_exhibits import Exhibit, Row, cell, is_known
from traceprof.units import (
    SENTENCE_DIGITS,
    format_count,
    format_duration,
    format_per_s,
    format_ratio,
)

__all__ = ["Prose", "Reading", "Rows", "Shown", "figures_in", "printed"]

FORMATTERS: Final[Mapping[str, Callable[[float], str]]] = {
    "ns": format_duration,
    "ratio": format_ratio,
    "rate": format_per_s,
    "count": format_count,
    "text": str,
}
"""How a value that is no text yet is printed, by the kind of the figure."""
UNITS: Final = {
    "ns": 1.0,
    "µs": 1e3,
    "us": 1e3,
    "ms": 1e6,
    "s": 1e9,
    "min": 6e10,
    "h": 3.6e12,
    "%": 0.01,
    "/s": 1.0,
    "": 1.0,
}
_PRINTED: Final = re.compile(
    r"(?P<number>[+−-]?\d[\d ,\u00a0\u202f\u2009]*(?:\.\d+)?) ?(?P<unit>%|/s|[a-zµ]*)"
)


@dataclass(frozen=True, slots=True)
class Shown:
    """One figure as a door prints it: the text, the value, and what one in its last digit is.

    A text that is no number has the value NaN. Times are in ns, shares from 0 to 1.
    """

    text: str
    value: float = math.nan
    digit: float = 0.0

    @classmethod
    def of(cls, text: str) -> Shown:
        """Return the figure that ``text`` prints."""
        text = " ".join(text.split())
        found = _PRINTED.fullmatch(text)
        if not found or found["unit"] not in UNITS:
            return cls(text)
        number = re.sub(r"[^\d.+-]", "", found["number"].replace("−", "-"))
        factor = UNITS[found["unit"]]
        digit = 10.0 ** -len(number.partition(".")[2])
        return cls(text, float(number) * factor, digit * factor)

    def agrees(self, other: Shown) -> bool:
        """Return whether both may be the same figure, to the digits that both print."""
        if math.isnan(self.value) or math.isnan(other.value):
            return self.text == other.text
        apart = abs(self.value - other.value)
        if math.isclose(self.digit, other.digit):
            return apart < self.digit / 2
        return apart <= (self.digit + other.digit) / 2 * (1 + 1e-9)


Reading = tuple[Shown, ...]
"""What a door shows in one place: one figure; several where either is as good (mean, median)."""


def printed(kind: str, value: Any) -> Shown:
    """Return ``value`` as it is printed: a text as it stands, a number by its formatter.

    A large rate in a sentence has three significant digits: the last digit of "2,770" is a ten.
    """
    if not isinstance(value, str):
        return Shown.of(FORMATTERS[kind](value))
    shown = Shown.of(value)
    if kind == "rate" and "." not in value and math.isfinite(shown.value):
        n_digits = len(re.sub(r"\D", "", value))
        place = 10.0 ** max(0, n_digits - SENTENCE_DIGITS)
        return replace(shown, digit=place) if shown.value % place == 0 else shown
    return shown


@dataclass(frozen=True, slots=True)
class Prose:
    """A figure in a text: what ``pattern`` calls ``v``, of each place where it matches.

    ``w`` in it is as good (a median beside a mean); other groups complete the name of the figure.
    ``within`` bounds where it is looked for; ``missing`` is the text where the group took no part
    in the match. ``take`` is "each" match, the "first" alone, or what `TAKES` makes of all.
    """

    figure: str
    pattern: str
    within: str = ""
    missing: str = ""
    take: str = "each"

    def readings(self, shown: Exhibit, kind: str) -> Iterator[tuple[str, Reading]]:
        """Yield the name of the figure and what is shown of it."""
        found: dict[str, list[list[str]]] = {}
        for match in self._matches(shown.text):
            groups = match.groupdict()
            texts = [groups["v"] or self.missing, *filter(None, [groups.get("w")])]
            found.setdefault(self.figure.format(**groups), []).append(texts)
        for figure, every in found.items():
            if self.take not in ("each", "first"):
                yield figure, TAKES[self.take](kind, [texts[0] for texts in every], ())
                continue
            for texts in every[: 1 if self.take == "first" else None]:
                yield figure, tuple(printed(kind, text) for text in texts)

    def _matches(self, text: str) -> Iterator[re.Match[str]]:
        parts = [text]
        if self.within:
            parts = [found[0] for found in re.finditer(self.within, text, re.MULTILINE)]
        for part in parts:
            yield from re.finditer(self.pattern, part, re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Rows:
    """A figure in a table: of the cells of ``column`` in the rows that ``where`` takes.

    ``take`` names what is made of the cells: "each" is a figure for each row, whose other cells
    complete its name ({n}: the place of the row, from 1); "share" is their sum of that of ``of``,
    where ``of_all`` says so of all rows, or of those of another table ("idle.devices:idle_ns"); see
    `TAKES` for more. Of a row in which the column ``unless`` is known, "each" takes nothing.
    """

    figure: str
    table: str
    column: str
    of: str = ""
    take: str = "each"
    where: Callable[[Row], bool] | None = None
    of_all: bool = False
    unless: str = ""

    def readings(self, shown: Exhibit, kind: str) -> Iterator[tuple[str, Reading]]:
        """Yield the name of the figure and what is shown of it."""
        every = shown.tables.get(self.table, ())
        rows = [row for row in every if self.where is None or self.where(row)]
        known = [row for row in rows if is_known(cell(row, self.column))]
        if self.take == "each":
            for n, row in enumerate(rows, 1):
                is_told = not self.unless or not is_known(cell(row, self.unless))
                if is_told and is_known(value := cell(row, self.column)):
                    names = {str(key): part for key, part in row.items()}
                    yield self.figure.format(**{**names, "n": n}), (printed(kind, value),)
        elif known or (every and self.take in ("distinct", "list")):
            values = [cell(row, self.column) for row in known]
            if reading := TAKES[self.take](kind, values, self._wholes(shown, known)):
                yield self.figure, reading

    def _wholes(self, shown: Exhibit, known: Sequence[Row]) -> list[Any]:
        """Return the cells of ``of``: of the same rows, of all, or of another table."""
        table, _, column = self.of.rpartition(":")
        rows = shown.tables.get(table or self.table, ()) if table or self.of_all else known
        return [cell(row, column) for row in rows] if column else []


def number_of(value: Any) -> tuple[float, float]:
    """Return the number in a cell, and by how much it may be wrong as it was rounded."""
    if isinstance(value, str):
        shown = Shown.of(value)
        return shown.value, shown.digit / 2
    return float(value), 0.0


def _derived(kind: str, value: float, error: float) -> Shown:
    if not error:
        return printed(kind, value)
    # Never quite a digit: what was rounded before is not held to the same last digit.
    return Shown(f"≈ {FORMATTERS[kind](value)}", value, 2.02 * error)


def _sum(cells: Sequence[Any]) -> tuple[float, float]:
    numbers = [number_of(value) for value in cells]
    return sum(value for value, _ in numbers), sum(error for _, error in numbers)


def _share(kind: str, values: Sequence[Any], wholes: Sequence[Any]) -> Reading:
    (part, error), (whole, more) = _sum(values), _sum(wholes)
    if not whole:
        return ()
    return (_derived(kind, part / whole, (error + more * part / whole) / whole),)


def _of_one(kind: str, values: Sequence[Any], owners: Sequence[Any]) -> Reading:
    """Return the sum where all is of one owner; nothing where shares of several have no mean."""
    return (_derived(kind, *_sum(values)),) if len(set(owners)) == 1 else ()


def _largest_of(kind: str, values: Sequence[Any], _: Sequence[Any]) -> Reading:
    return (printed(kind, max(values, key=lambda value: number_of(value)[0])),)


def _mean(kind: str, values: Sequence[Any], _: Sequence[Any]) -> Reading:
    total, error = _sum(values)
    return (_derived(kind, total / len(values), error / len(values)),)


def _middle(kind: str, values: Sequence[Any], _: Sequence[Any]) -> Reading:
    numbers = sorted(number_of(value) for value in values)
    places = ((len(numbers) - 1) // 2, len(numbers) // 2)
    value = sum(numbers[place][0] for place in places) / 2
    return (_derived(kind, value, max(numbers[place][1] for place in places)),)


def _list(_: str, values: Sequence[Any], __: Sequence[Any]) -> Reading:
    """Return the numbers in their order, those that follow one another as "3..7"."""
    spans: list[list[int]] = []
    for number in dict.fromkeys(int(number_of(value)[0]) for value in values):
        if spans and number == spans[-1][-1] + 1:
            spans[-1][1:] = [number]
        else:
            spans.append([number])
    return (Shown(" ".join("..".join(map(str, span)) for span in spans) or "none"),)


def _largest(_: str, values: Sequence[Any], keys: Sequence[Any]) -> Reading:
    ranked = sorted(zip(keys, values, strict=True), key=lambda pair: -pair[0])
    numbers = dict.fromkeys(int(value) for _, value in ranked)
    return _list(_, list(numbers)[:MOST_NAMED], ())


MOST_NAMED: Final = 3
"""How many slow steps a page names."""

TAKES: Final[Mapping[str, Callable[[str, Sequence[Any], Sequence[Any]], Reading]]] = {
    "share": _share,
    "sum": lambda kind, values, _: (_derived(kind, *_sum(values)),),
    "mean": _mean,
    "mean or median": lambda kind, values, _: (*_mean(kind, values, _), *_middle(kind, values, _)),
    "distinct": lambda kind, values, _: (printed(kind, len(set(values))),),
    "of one": _of_one,
    "maximum": _largest_of,
    "minimum": lambda kind, values, _: (printed(kind, min(values)),),
    "list": _list,
    "largest": _largest,
}
"""What is made of the cells of a column and of those that they are a part of."""


def figures_in(
    shown: Exhibit, finders: Iterable[Prose | Rows], kind_of: Callable[[str], str]
) -> dict[str, list[Reading]]:
    """Return all that ``finders`` find, by the names of the figures."""
    found: dict[str, list[Reading]] = {}
    for finder in finders:
        for name, reading in finder.readings(shown, kind_of(finder.figure)):
            found.setdefault(name, []).append(reading)
    return found
