"""Parse the numbers and units of cells that people typed, and the names of columns."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from traceprof.model.results import Unit

COLUMNS: Final[dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("columns.toml").read_text("utf-8")
)
"""Known column names and cell units, from ``columns.toml``."""

_UNKNOWN: Final = frozenset(
    {"", "-", "--", "–", "—", "na", "n/a", "nan", "none", "null", "?", "tbd", "…", "..."}
)
NUMBER_IN_CELL: Final = re.compile(
    r"[~≈]?+\s{0,3}+(?P<number>[-+]?+\d[\d.,' _]*+(?:e[-+]?\d{1,3}+)?+)"
    r"\s{0,3}+(?:[(\[]?+(?:±|\+/-|\+-|\\pm)\s{0,3}+\d[\d.,]*+\s?+%?+[)\]]?+\s{0,3}+)?+"
    r"(?P<unit>[^\d\s].{0,60}+)?+",
    re.IGNORECASE,
)
"""A number, the deviation that may follow it, and its unit."""
THOUSANDS: Final = re.compile(r"[-+]?+\d{1,3}+(?:[, '_]\d{3})++(?:\.\d++)?+")
_REMARK: Final = re.compile(r"[(\[].*+")
_DEVIATION: Final = re.compile(r"\s?(?:±|\+/-|\+-|\\pm)\s{0,3}+\d.*+")
_LENGTHS: Final = re.compile(r"(?:\d[\d.]*+\s?+[a-z]{1,7}+[\s,]{0,3}+){2,4}+", re.IGNORECASE)
_LENGTH: Final = re.compile(
    r"(?<![\d.])(?P<number>\d[\d.]{0,20}+)\s?+(?P<unit>[a-z]{1,7}+)", re.IGNORECASE
)
_CLOCK: Final = re.compile(r"(?P<h>\d{1,4}+):(?P<min>[0-5]\d):(?P<s>[0-5]\d(?:\.\d{1,9}+)?+)")
_PERIOD: Final = re.compile(
    r"(?P<unit>[a-zµ]{1,12}+)\s?+(?:/|per)\s?+(?:(?P<n>\d{1,6}+)\s?+)?+"
    r"(?P<what>steps?|it|iters?|iterations?|batch|ep|epochs?)"
)
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
_LENGTH_WORDS: Final = ("time", "wall", "duration", "elapsed", "latency", "ttt")
_TIME_WORDS: Final = ("time", "duration", "took", "hours", "latency", "elapsed")
SIZES: Final = {name: what for what, names in COLUMNS["sizes"].items() for name in names}
"""The measure of each known column name for a number of GPUs, ranks, or nodes, or a batch size."""
_WORDS: Final = dict(sorted(COLUMNS["words"].items(), key=lambda item: -len(item[0])))
_TIMES: Final = {name: what for what, names in COLUMNS["times"].items() for name in names}
_PERIODS: Final = {"ep": "epoch_ns", "epoch": "epoch_ns", "epochs": "epoch_ns"}
_THROUGHPUTS: Final = frozenset(COLUMNS["throughputs"]["samples"])
_MULTIPLES: Final = {"k": 1e3, "K": 1e3, "M": 1e6}
_KNOWN_WORDS: Final = frozenset(
    name for group in ("name", "label", "note", "described") for name in COLUMNS["texts"][group]
)
_UNITS: Final = {"ns": Unit.NS, "bytes": Unit.BYTES}
_EFFICIENCY: Final = re.compile(
    r"(?:printed_)?(?:scaling_)?efficiency(?:_percent|_ratio|_in_percent)?"
)
_SPEEDUP: Final = re.compile(
    r"(?:printed_)?speed_?up(?:_factor|_(?:vs|over|relative|compared)_.*)?"
)
_ACCURACY: Final = re.compile(r"(?:.*_)?(?:acc|accuracy|top_?[15]|acc_[15])(?:_percent)?")
_PER_PART: Final = re.compile(r"_per_(?:gpu|device|rank|worker|node)$")
_PER_S: Final = re.compile(r"(?:_per)?_s$|(?<=[a-z])ps$")
_DURATION: Final = re.compile(r"(?P<base>.*?)_(?:in_)?(?P<unit>[a-z]+)")


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

    Multiply a typed number by ``times`` to convert it to that unit. ``assumed`` is the unit that
    traceprof assumes because the table does not contain it.
    """

    name: str
    unit: Unit
    scope: str = "run"
    better: str = ""
    times: float = 1.0
    assumed: str = ""


def number_of(text: str, *, has_decimal_commas: bool = False) -> TypedCell | None:
    """Return the number in a cell; NaN if the cell marks an unknown value, None if it is text."""
    text = text.strip(_MARKDOWN_MARKS)
    if text.lower() in _UNKNOWN:
        return TypedCell(math.nan)
    match = NUMBER_IN_CELL.fullmatch(text)
    if match is None:
        return None
    number = match["number"].strip()
    if has_decimal_commas:
        number = re.sub(r"[. '_]", "", number).replace(",", ".")
    elif THOUSANDS.fullmatch(number):
        number = re.sub(r"[, '_]", "", number)
    try:
        return TypedCell(float(number), (match["unit"] or "").strip())
    except ValueError:
        return None


def quantity_of(
    text: str, column: str = "", *, has_decimal_commas: bool = False
) -> TypedCell | None:
    """Return the number in a cell in the unit that its ``unit`` names; None if it is unreadable.

    Examples: 98.5 ± 0.4, 1.2k, 226 img/s (95%), 12 min 30 s, 1:02:03. ``column`` is the name of the
    column. The unit is "" if the cell has none, and one of the kinds of `TypedUnit` otherwise.
    """
    number = number_of(text, has_decimal_commas=has_decimal_commas)
    if number is None or not number.unit:
        return number
    bare = (pattern.sub("", number.unit).strip() for pattern in (_REMARK, _DEVIATION))
    for unit_text in (number.unit, *bare):
        if not unit_text:
            return TypedCell(number.value)
        unit = unit_named(unit_text, column)
        if unit is not None:
            return TypedCell(number.value * unit.times, unit.kind)
    seconds = _length_s(text.strip(_MARKDOWN_MARKS))
    return None if seconds is None else TypedCell(seconds * 1e9, "ns")


def _length_s(text: str) -> float | None:
    """Return the seconds of a duration with several units, or of h:mm:ss; None for other texts."""
    clock = _CLOCK.fullmatch(text)
    if clock is not None:
        return 3600 * float(clock["h"]) + 60 * float(clock["min"]) + float(clock["s"])
    if _LENGTHS.fullmatch(text) is None:
        return None
    units = [unit_named(part["unit"], "time") for part in _LENGTH.finditer(text)]
    if any(unit is None or unit.kind != "ns" for unit in units):
        return None
    try:
        numbers = [float(part["number"]) for part in _LENGTH.finditer(text)]
    except ValueError:
        return None
    return sum(n * unit.times for n, unit in zip(numbers, units, strict=True) if unit) / 1e9


def failure_of(text: str) -> str:
    """Return the kind of failure that a cell names, such as out of memory; "" if it names none."""
    return _FAILURES.get(text.strip(_MARKDOWN_MARKS).lower(), "")


def unit_named(text: str, column: str = "") -> TypedUnit | None:
    """Return the unit that ``text`` names, or None if it is unknown.

    ``column`` is the name of the column. A single m means minutes in a column of times, and a
    million bytes in any other column.
    """
    text = _in_english(text).strip().strip("()[]").strip().rstrip(".")
    times = _MULTIPLES.get(text[:1], 0.0)
    rest = unit_named(text[1:], column) if times and len(text) > 1 else None
    if times and rest is not None and "_per_s" in rest.kind:
        return TypedUnit(rest.kind, times * rest.times)
    is_count = text != "M" or plain_name(column) in _THROUGHPUTS or "per_s" in plain_name(column)
    if text in _MULTIPLES and is_count:
        return TypedUnit("", times)
    text = text.lower()
    period = _PERIOD.fullmatch(text)
    if period is not None:
        length = unit_named(period["unit"], "time")
        is_time = length is not None and length.kind == "ns"
        kind, n = _PERIODS.get(period["what"], "step_period_ns"), float(period["n"] or 1)
        return TypedUnit(kind, length.times / n) if length is not None and is_time and n else None
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


def _in_english(text: str) -> str:
    """Return a text with English words for the words of columns.toml in other languages."""
    if text.isascii():
        return text
    for word, english in _WORDS.items():
        text = text.replace(word, english)
    return text


def plain_name(name: str) -> str:
    """Return the normalized name of a column: English, lower case, with underscores."""
    name = _in_english(name)
    name = re.sub(r"(?<=\w)\s?[×*]\s?(?=\w)", "_x_", name.replace("@", "_"))
    name = re.sub(r"[\[(]([^\[\]()]*)[\])]", r"_\1", name.strip().lower())
    name = re.sub(r"/\s?+(?=(?:h|hr|hour|d|day|min|month)s?\b)", "_per_", name)
    name = name.replace("%", "percent").replace("/s", "_per_s").replace("#", "n_")
    name = re.sub(r"_per_s(?:ec|econd)?s?(?=\b|_)", "_per_s", name)
    name = re.sub(r"(?<=_per_s)/(?=(?:gpu|device|rank|worker|node)\b)", "_per_", name)
    return re.sub(r"_+", "_", re.sub(r"[^\w]+", "_", name)).strip("_")


def count_known(heading: Sequence[str]) -> int:
    """Return the number of columns whose names or units are known."""
    names = map(plain_name, heading)
    return sum(
        name in _KNOWN_WORDS
        or measure_by_name(name, ()) is not None
        or any(unit_named(unit) for unit in re.findall(r"[\[(]([^\[\]()]{1,40}+)[\])]", text))
        or unit_named(text) is not None
        for name, text in zip(names, heading, strict=True)
    )


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
    if name in _TIMES and any(word in name for word in _LENGTH_WORDS):
        return TypedMeasure(_TIMES[name], Unit.NS, better="lower", times=1e9, assumed="seconds")
    if _PER_PART.sub("", name) in _THROUGHPUTS:
        measure = measure_by_unit(name, "samples_per_s", 1.0, values)
        return measure and measure._replace(assumed="samples per second")
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


def find_step_time(name: str) -> TypedMeasure | None:
    """Return the step time that a name with a unit defines, such as step_time_ms; None if none."""
    measure = _measure_of_rate_or_duration(plain_name(name.rpartition("/")[2]), ())
    return measure if measure is not None and measure.name == "step_period_ns" else None


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
        if kind == "ns" and name in ("gpu", "gpus", "device"):
            return TypedMeasure("gpu_time_ns", Unit.NS, times=times)
        known = _TIMES.get(name.removeprefix(prefix)) if kind == "ns" else None
        name = f"{name}_{kind}" if known is None else prefix + known
        return TypedMeasure(name, _UNITS[kind], better=better, times=times)
    if kind in ("step_period_ns", "epoch_ns"):
        return TypedMeasure(prefix + kind, Unit.NS, better="lower", times=times)
    if kind in ("percent", "factor"):
        return TypedMeasure(f"{name}_{kind}", Unit.NUMBER)
    what, _, each = kind.partition("_per_s")
    if not what or "_per_s" not in kind:
        return None
    each = each or ("_per_device" if _PER_PART.search(name) and "node" not in name else "")
    scope = each.removeprefix("_per_") or "run"
    return TypedMeasure(f"{prefix}{what}_per_s{each}", Unit.PER_S, scope, "higher", times)


def _measure_of_quality(name: str, kind: str, values: Sequence[float]) -> TypedMeasure | None:
    """Return the measure of efficiencies (percent), speedups, or accuracies (shares), or None."""
    most = max((value for value in values if math.isfinite(value)), default=0.0)
    if _EFFICIENCY.fullmatch(name):
        is_percent = kind == "percent" or "percent" in name or ("ratio" not in name and most > 2)
        times = 1.0 if is_percent else 100.0
        return TypedMeasure("printed_efficiency_percent", Unit.NUMBER, times=times)
    if _SPEEDUP.fullmatch(name):
        return TypedMeasure("printed_speedup", Unit.NUMBER)
    if name in ("mfu", "mfu_percent", "mfu_ratio"):
        is_percent = kind == "percent" or "percent" in name or most > 1
        return TypedMeasure("mfu_ratio", Unit.RATIO, times=0.01 if is_percent else 1.0)
    if _ACCURACY.fullmatch(name):
        is_percent = kind == "percent" or most > 1
        name = re.sub(r"top_([15])", r"top\1", name.removesuffix("_percent"))
        return TypedMeasure(name, Unit.NUMBER, better="higher", times=0.01 if is_percent else 1.0)
    return None
