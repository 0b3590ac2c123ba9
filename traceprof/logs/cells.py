"""Tables as people type them: their rows, and the numbers and units of their cells.

Rows are those of a CSV file, whatever parts them, or of Markdown tables, which may stand in a text.
"""

from __future__ import annotations

import csv
import math
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

COLUMNS: Final[dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("columns.toml").read_text("utf-8")
)
"""What columns are called, and the units of cells."""

_DELIMITERS: Final = ",;\t|"
_MOST_COLUMNS: Final = 500
_LONGEST: Final = 20_000
_RULE: Final = re.compile(r"\s*+\|?(?:\s*+:?-{1,100}+:?\s*+\|)*+\s*+(?::?-{1,100}+:?)?+\s*+")
_HEADING: Final = re.compile(r"#{1,6}\s++(?P<title>.*)")
_NO_NAME: Final = re.compile(r"[{}=]|:\s")
"""What stands in lines of logs and in objects, and in no name of a column."""
_EDGE: Final = re.compile(r"(?<!\\)\|")
_UNKNOWN: Final = frozenset(
    {"", "-", "--", "–", "—", "na", "n/a", "nan", "none", "null", "?", "tbd", "…", "..."}
)
_NUMBER: Final = re.compile(
    r"[~≈<>±]{0,2}+\s{0,3}+(?P<number>[-+]?+\d[\d.,' _]*+(?:e[-+]?\d{1,3}+)?+)"
    r"\s{0,3}+(?P<unit>[^\d\s].{0,40}+)?+",
    re.IGNORECASE,
)
_GROUPS: Final = re.compile(r"[-+]?+\d{1,3}+(?:[, '_]\d{3})++(?:\.\d++)?+")
_RATE: Final = re.compile(
    r"(?P<what>[a-z]++)\s?+(?:/\s?+s(?:ec(?:ond)?)?|per\s?+s(?:ec(?:ond)?)?|ps)"
    r"(?:\s?+(?:/|per)\s?+(?P<each>gpu|device|rank|worker|node))?+",
    re.IGNORECASE,
)
_MARKS: Final = " \t*`"
"""What makes a cell bold, or code, in Markdown."""
_WHAT: Final = {word: what for what, words in COLUMNS["rates"].items() for word in words}
_EACH: Final = {"gpu": "device", "worker": "rank"}
_FAILURES: Final[dict[str, str]] = {
    word: why for why, words in COLUMNS["failures"].items() for word in (*words, why)
}
_SHARED: Final = ("time", "duration", "took", "hours", "latency", "elapsed")


@dataclass(frozen=True, slots=True)
class TypedTable:
    """A table as it was typed; ``title`` is the heading above it, and ``has_decimal_commas``."""

    heading: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    is_markdown: bool = False
    has_decimal_commas: bool = False

    def column(self, place: int) -> list[str]:
        """Return the cells of a column."""
        return [row[place] for row in self.rows]


class TypedUnit(NamedTuple):
    """What a number is of: ``kind`` is ns, bytes, percent, factor or a rate (samples_per_s)."""

    kind: str
    times: float = 1.0


class TypedCell(NamedTuple):
    """A number and its unit, if it has one; NaN where a cell says that it is not known."""

    value: float
    unit: str = ""


def tables_in(lines: Sequence[str]) -> list[TypedTable]:
    """Return the Markdown tables in a text, else the one table that all of it is."""
    found = list(_markdown(lines))
    if found:
        return found
    kept = [line for line in lines if line.strip() and not line.startswith("#")]
    if not kept or len(kept[0]) > _LONGEST:
        return []
    delimiter = max(_DELIMITERS, key=kept[0].count)
    try:
        rows = list(csv.reader(kept, delimiter=delimiter, skipinitialspace=True))
    except csv.Error:
        return []
    own = _table(rows, delimiter=delimiter)
    return [] if own is None else [own]


def _markdown(lines: Sequence[str]) -> Iterator[TypedTable]:
    title, block = "", list[str]()
    for line in [*lines, ""]:
        if "|" in line and len(line) <= _LONGEST:
            block.append(line)
            continue
        rule = block[1] if len(block) > 1 else ""
        if "-" in rule and _RULE.fullmatch(rule):
            rows = [_cells(row) for row in (block[0], *block[2:])]
            own = _table(rows, title=title)
            if own is not None:
                yield own
        block = []
        if (heading := _HEADING.fullmatch(line.strip())) is not None:
            title = heading["title"].strip().rstrip("#").strip()


def _cells(line: str) -> list[str]:
    parts = _EDGE.split(line.strip())
    first, last = int(not parts[0].strip()), len(parts) - int(not parts[-1].strip())
    return [part.strip().replace("\\|", "|") for part in parts[first : max(first, last)]]


def _table(rows: list[list[str]], *, title: str = "", delimiter: str = "") -> TypedTable | None:
    width = len(rows[0])
    body = [row for row in rows[1:] if any(cell.strip() for cell in row)]
    if not 1 < width <= _MOST_COLUMNS or any(len(row) > width for row in body) or not body:
        return None
    heading = tuple(cell.strip() for cell in rows[0])
    numbers = map(number_of, heading)
    if any(_NO_NAME.search(cell) for cell in heading):
        return None
    if "" in heading or any(one is not None and not one.unit for one in numbers):
        return None
    full = tuple(tuple(cell.strip() for cell in [*row, *[""] * (width - len(row))]) for row in body)
    cells = [cell for row in full for cell in row]
    has_commas = delimiter in (";", "\t") and _has_decimal_commas(cells, delimiter)
    return TypedTable(heading, full, title, not delimiter, has_commas)


def _has_decimal_commas(cells: Sequence[str], delimiter: str) -> bool:
    """Return whether commas are decimal points where they part no cells: no number has a point.

    Semicolons part cells where commas are; with tabs one must be no comma of thousands.
    """
    numbers = [match["number"] for cell in cells if (match := _NUMBER.fullmatch(cell))]
    with_comma = [text for text in numbers if "," in text]
    if delimiter == "\t" and all(_GROUPS.fullmatch(text.strip()) for text in with_comma):
        return False
    return bool(with_comma) and not any(
        "." in text and ("," not in text or text.rfind(".") > text.rfind(",")) for text in numbers
    )


def number_of(text: str, *, has_decimal_commas: bool = False) -> TypedCell | None:
    """Return a cell as a number; NaN where it says that it is not known, None: it is a text."""
    text = text.strip(_MARKS)
    if text.lower() in _UNKNOWN:
        return TypedCell(math.nan)
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    number = match["number"].strip()
    if has_decimal_commas:
        number = number.replace(".", "").replace(",", ".")
    elif _GROUPS.fullmatch(number):
        number = re.sub(r"[, '_]", "", number)
    try:
        return TypedCell(float(number), (match["unit"] or "").strip())
    except ValueError:
        return None


def failure_of(text: str) -> str:
    """Return why a run ended for what its cell says; "": it says no such thing."""
    return _FAILURES.get(text.strip(_MARKS).lower(), "")


def unit_named(text: str, column: str = "") -> TypedUnit | None:
    """Return the unit that ``text`` is; None: none that is known. ``column`` is what is measured.

    A single m is minutes in a column of times, else a million bytes.
    """
    text = text.strip().strip("()[]").strip().lower().rstrip(".")
    rate = _RATE.fullmatch(text)
    if rate is not None and rate["what"] in _WHAT:
        each = (rate["each"] or "").lower()
        suffix = f"_per_{_EACH.get(each, each)}" if each else ""
        return TypedUnit(f"{_WHAT[rate['what']]}_per_s{suffix}")
    if text in COLUMNS["units"]["short"]:
        is_time = any(word in column.lower() for word in _SHARED)
        of_time, of_memory = COLUMNS["units"]["short"][text]
        is_memory = not (is_time and of_time)
        return TypedUnit("bytes", of_memory) if is_memory else TypedUnit("ns", of_time)
    for kind in ("ns", "bytes", "percent", "factor"):
        if text in COLUMNS["units"][kind]:
            return TypedUnit(kind, COLUMNS["units"][kind][text])
    return None
