"""Find tables that people typed; parse the numbers and units of cells, and the names of columns.

The input is a delimited file (CSV, TSV, semicolons, or pipes) or a text with Markdown tables.
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

from traceprof.model.results import Unit

COLUMNS: Final[dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("columns.toml").read_text("utf-8")
)
"""Known column names and cell units, from ``columns.toml``."""

_DELIMITERS: Final = ",;\t|"
_MAX_COLUMNS: Final = 500
_MAX_LINE_CHARS: Final = 20_000
_SEPARATOR_ROW: Final = re.compile(
    r"\s*+\|?(?:\s*+:?-{1,100}+:?\s*+\|)*+\s*+(?::?-{1,100}+:?)?+\s*+"
)
_HEADING: Final = re.compile(r"#{1,6}\s++(?P<title>.*)")
_NOT_A_NAME: Final = re.compile(r"[{}=]|:\s")
"""Characters that occur in log lines and in printed objects, but never in a column name."""
_CELL_EDGE: Final = re.compile(r"(?<!\\)\|")
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
_MARKDOWN_MARKS: Final = " \t*`"
"""Characters around a cell that is bold or code in Markdown."""
_RATE_UNITS: Final = {word: what for what, words in COLUMNS["rates"].items() for word in words}
_RATE_SCOPES: Final = {"gpu": "device", "worker": "rank"}
_FAILURES: Final[dict[str, str]] = {
    word: why for why, words in COLUMNS["failures"].items() for word in (*words, why)
}
_TIME_WORDS: Final = ("time", "duration", "took", "hours", "latency", "elapsed")
SIZES: Final = {name: what for what, names in COLUMNS["sizes"].items() for name in names}
"""The measure of each known column name for a number of GPUs, ranks, or nodes, or a batch size."""
_UNITS: Final = {"ns": Unit.NS, "bytes": Unit.BYTES}
_EFFICIENCY: Final = re.compile(
    r"(?:printed_)?(?:scaling_)?efficiency(?:_percent|_ratio|_in_percent)?"
)
_SPEEDUP: Final = re.compile(r"(?:printed_)?speed_?up(?:_factor)?")
_ACCURACY: Final = re.compile(r"(?:.*_)?(?:acc|accuracy|top_?[15])(?:_percent)?")
_PER_PART: Final = re.compile(r"_per_(?:gpu|device|rank|worker|node)$")
_PER_S: Final = re.compile(r"(?:_per)?_s$|(?<=[a-z])ps$")
_DURATION: Final = re.compile(r"(?P<base>.*?)_(?:in_)?(?P<unit>[a-z]+)")


@dataclass(frozen=True, slots=True)
class TypedTable:
    """A table as a person typed it.

    ``title`` is the heading above the table. ``has_decimal_commas`` is true if a comma is the
    decimal point of its numbers.
    """

    heading: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    is_markdown: bool = False
    has_decimal_commas: bool = False

    def column(self, place: int) -> list[str]:
        """Return the cells of the column at index ``place``."""
        return [row[place] for row in self.rows]


class TypedUnit(NamedTuple):
    """The unit of a number.

    ``kind`` is ns, bytes, percent, factor, or a rate such as samples_per_s. Multiply a typed number
    by ``times`` to convert it to ``kind``.
    """

    kind: str
    times: float = 1.0


class TypedCell(NamedTuple):
    """A number and its unit ("" if it has none); NaN if the cell marks an unknown value."""

    value: float
    unit: str = ""


class TypedMeasure(NamedTuple):
    """The measure that a column of numbers contains, in the unit of its name.

    Multiply a typed number by ``times`` to convert it to that unit.
    """

    name: str
    unit: Unit
    scope: str = "run"
    better: str = ""
    times: float = 1.0


def tables_in(lines: Sequence[str]) -> list[TypedTable]:
    """Return the Markdown tables of a text; if it has none, the whole text parsed as one table."""
    found = list(_markdown_tables(lines))
    if found:
        return found
    kept = [line for line in lines if line.strip() and not line.startswith("#")]
    if not kept or len(kept[0]) > _MAX_LINE_CHARS:
        return []
    delimiter = max(_DELIMITERS, key=kept[0].count)
    try:
        rows = list(csv.reader(kept, delimiter=delimiter, skipinitialspace=True))
    except csv.Error:
        return []
    table = _make_table(rows, delimiter=delimiter)
    return [] if table is None else [table]


def _markdown_tables(lines: Sequence[str]) -> Iterator[TypedTable]:
    """Yield the Markdown tables of a text, each with the heading above it."""
    title, block = "", list[str]()
    for line in [*lines, ""]:
        if "|" in line and len(line) <= _MAX_LINE_CHARS:
            block.append(line)
            continue
        rule = block[1] if len(block) > 1 else ""
        if "-" in rule and _SEPARATOR_ROW.fullmatch(rule):
            rows = [_split_row(row) for row in (block[0], *block[2:])]
            table = _make_table(rows, title=title)
            if table is not None:
                yield table
        block = []
        if (heading := _HEADING.fullmatch(line.strip())) is not None:
            title = heading["title"].strip().rstrip("#").strip()


def _split_row(line: str) -> list[str]:
    """Return the cells of a Markdown row, without the empty parts outside the outer pipes."""
    parts = _CELL_EDGE.split(line.strip())
    first, last = int(not parts[0].strip()), len(parts) - int(not parts[-1].strip())
    return [part.strip().replace("\\|", "|") for part in parts[first : max(first, last)]]


def _make_table(
    rows: list[list[str]], *, title: str = "", delimiter: str = ""
) -> TypedTable | None:
    """Return a table, or None if the first row is not a heading or a row is too long.

    Short rows are filled with empty cells. An empty ``delimiter`` means Markdown.
    """
    width = len(rows[0])
    body = [row for row in rows[1:] if any(cell.strip() for cell in row)]
    if not 1 < width <= _MAX_COLUMNS or any(len(row) > width for row in body) or not body:
        return None
    heading = tuple(cell.strip() for cell in rows[0])
    numbers = map(number_of, heading)
    if any(_NOT_A_NAME.search(cell) for cell in heading):
        return None
    if "" in heading or any(number is not None and not number.unit for number in numbers):
        return None
    full = tuple(tuple(cell.strip() for cell in [*row, *[""] * (width - len(row))]) for row in body)
    cells = [cell for row in full for cell in row]
    has_commas = delimiter in (";", "\t") and _has_decimal_commas(cells, delimiter)
    return TypedTable(heading, full, title, not delimiter, has_commas)


def _has_decimal_commas(cells: Sequence[str], delimiter: str) -> bool:
    """Return whether a comma is the decimal point in cells that another delimiter separates.

    This requires that no number contains a decimal point. In a table with tabs, at least one comma
    must not be a thousands separator.
    """
    numbers = [match["number"] for cell in cells if (match := _NUMBER.fullmatch(cell))]
    with_comma = [text for text in numbers if "," in text]
    if delimiter == "\t" and all(_GROUPS.fullmatch(text.strip()) for text in with_comma):
        return False
    return bool(with_comma) and not any(
        "." in text and ("," not in text or text.rfind(".") > text.rfind(",")) for text in numbers
    )


def number_of(text: str, *, has_decimal_commas: bool = False) -> TypedCell | None:
    """Return the number in a cell; NaN if the cell marks an unknown value, None if it is text."""
    text = text.strip(_MARKDOWN_MARKS)
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
    """Return the kind of failure that a cell names, such as out of memory; "" if it names none."""
    return _FAILURES.get(text.strip(_MARKDOWN_MARKS).lower(), "")


def unit_named(text: str, column: str = "") -> TypedUnit | None:
    """Return the unit that ``text`` names, or None if it is unknown.

    ``column`` is the name of the column. A single m means minutes in a column of times, and a
    million bytes in any other column.
    """
    text = text.strip().strip("()[]").strip().lower().rstrip(".")
    rate = _RATE.fullmatch(text)
    if rate is not None and rate["what"] in _RATE_UNITS:
        each = (rate["each"] or "").lower()
        suffix = f"_per_{_RATE_SCOPES.get(each, each)}" if each else ""
        return TypedUnit(f"{_RATE_UNITS[rate['what']]}_per_s{suffix}")
    if text in COLUMNS["units"]["short"]:
        is_time = any(word in column.lower() for word in _TIME_WORDS)
        of_time, of_memory = COLUMNS["units"]["short"][text]
        is_memory = not (is_time and of_time)
        return TypedUnit("bytes", of_memory) if is_memory else TypedUnit("ns", of_time)
    for kind in ("ns", "bytes", "percent", "factor"):
        if text in COLUMNS["units"][kind]:
            return TypedUnit(kind, COLUMNS["units"][kind][text])
    return None


def plain_name(name: str) -> str:
    """Return the normalized name of a column: lower case, with underscores."""
    name = re.sub(r"[\[(]([^\[\]()]*)[\])]", r"_\1", name.strip().lower())
    name = name.replace("%", "percent").replace("/s", "_per_s").replace("#", "n_")
    name = re.sub(r"_per_s(?:ec|econd)?s?\b", "_per_s", name)
    return re.sub(r"_+", "_", re.sub(r"[^\w]+", "_", name)).strip("_")


def measure_by_name(name: str, values: Sequence[float]) -> TypedMeasure | None:
    """Return the measure that a column name defines; None if the name is unknown."""
    if name in SIZES:
        scope = "device" if SIZES[name].startswith("batch_per") else "run"
        return TypedMeasure(SIZES[name], Unit.COUNT, scope)
    prefix = next(
        (candidate for candidate in ("expected_", "printed_") if name.startswith(candidate)), ""
    )
    measure = _measure_of_rate_or_duration(name.removeprefix(prefix), values)
    if measure is not None:
        return (
            measure
            if measure.name.startswith(prefix)
            else measure._replace(name=prefix + measure.name)
        )
    is_number = prefix or name.endswith(("_percent", "_ratio", "_count", "loss"))
    return TypedMeasure(name, Unit.NUMBER) if is_number else None


def _measure_of_rate_or_duration(name: str, values: Sequence[float]) -> TypedMeasure | None:
    quality = _measure_of_quality(name, "", values)
    if quality is not None:
        return quality
    name = name.removeprefix("throughput_")
    each = match[0] if (match := _PER_PART.search(name)) is not None else ""
    words = _PER_S.sub("/s", name.removesuffix(each))
    rate = unit_named(words + each.replace("_per_", "/"))
    if rate is not None and "_per_s" in rate.kind:
        return measure_by_unit(name, rate.kind, 1.0, values)
    length = _DURATION.fullmatch(name)
    if length is None or not length["base"] or length["base"].endswith("_per"):
        return None
    unit = unit_named(length["unit"], length["base"])
    if unit is None or unit.kind not in _UNITS:
        return None
    return measure_by_unit(length["base"], unit.kind, unit.times, values)


def find_rate(name: str) -> TypedMeasure | None:
    """Return the rate that a name such as perf/tokens_per_sec defines; None if it is no rate."""
    measure = _measure_of_rate_or_duration(plain_name(name.rpartition("/")[2]), ())
    return measure if measure is not None and measure.unit is Unit.PER_S else None


def measure_by_unit(
    name: str, kind: str, times: float, values: Sequence[float]
) -> TypedMeasure | None:
    """Return the measure of a column whose unit is known."""
    prefix = next(
        (candidate for candidate in ("expected_", "printed_") if name.startswith(candidate)), ""
    )
    quality = _measure_of_quality(name, kind, values)
    if quality is not None:
        return quality
    if kind in _UNITS:
        better = "lower" if kind == "ns" else ""
        return TypedMeasure(f"{name}_{kind}", _UNITS[kind], better=better, times=times)
    if kind in ("percent", "factor"):
        return TypedMeasure(f"{name}_{kind}", Unit.NUMBER)
    what, _, each = kind.partition("_per_s")
    each = each or ("_per_device" if _PER_PART.search(name) and "node" not in name else "")
    scope = each.removeprefix("_per_") or "run"
    return TypedMeasure(f"{prefix}{what}_per_s{each}", Unit.PER_S, scope, "higher")


def _measure_of_quality(name: str, kind: str, values: Sequence[float]) -> TypedMeasure | None:
    """Return the measure of efficiencies (percent), speedups, or accuracies (shares), or None."""
    most = max((value for value in values if math.isfinite(value)), default=0.0)
    if _EFFICIENCY.fullmatch(name):
        is_percent = kind == "percent" or "percent" in name or ("ratio" not in name and most > 2)
        times = 1.0 if is_percent else 100.0
        return TypedMeasure("printed_efficiency_percent", Unit.NUMBER, times=times)
    if _SPEEDUP.fullmatch(name):
        return TypedMeasure("printed_speedup", Unit.NUMBER)
    if _ACCURACY.fullmatch(name):
        is_percent = kind == "percent" or most > 1
        name = re.sub(r"top_([15])", r"top\1", name.removesuffix("_percent"))
        return TypedMeasure(name, Unit.NUMBER, better="higher", times=0.01 if is_percent else 1.0)
    return None
