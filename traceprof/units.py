"""Units: parse what people type and format what people read.

Inside traceprof, every time is an ``int`` of nanoseconds and every size an ``int`` of bytes. Only
this module converts them to text. GB is 1e9 bytes, as in data sheets. Thousands are separated by
commas, and a percent sign follows its number directly.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Final

from traceprof.errors import UsageError

NS_PER_US: Final = 1_000
NS_PER_MS: Final = 1_000_000
NS_PER_S: Final = 1_000_000_000

TABLE_DIGITS: Final = 4
SENTENCE_DIGITS: Final = 3
"""Significant digits of measured values. Counts are exact, and percentages have one decimal."""

_DURATION_UNITS: Final = {
    "ns": 1,
    "us": NS_PER_US,
    "µs": NS_PER_US,
    "μs": NS_PER_US,
    "ms": NS_PER_MS,
    "s": NS_PER_S,
    "min": 60 * NS_PER_S,
    "h": 3600 * NS_PER_S,
}
_DURATION: Final = re.compile(r"\s*([+-]?\d+(?:\.\d*)?|[+-]?\.\d+)\s*([a-zµμ]+)\s*", re.IGNORECASE)


def parse_duration(text: str) -> int:
    """Return the duration ``text`` ("12ms", "1.5s", "250us") in integer nanoseconds.

    Uses decimal arithmetic, so "0.1us" is exactly 100.

    Raises:
        UsageError: the text is not a number with one of the units ns, us, ms, s, min, h.
    """
    match = _DURATION.fullmatch(text)
    factor = _DURATION_UNITS.get(match.group(2).lower()) if match else None
    if match is None or factor is None:
        raise UsageError(f"{text!r} is not a time: expected a number with a unit, such as 12ms")
    try:
        return int((Decimal(match.group(1)) * factor).to_integral_value())
    except InvalidOperation as error:
        raise UsageError(f"{text!r} is not a time that fits") from error


def format_duration(ns: float | None, digits: int = TABLE_DIGITS) -> str:
    """Return ``ns`` nanoseconds with a unit, and with ``digits`` digits or more ("12.30 ms")."""
    if ns is None or math.isnan(ns):
        return "–"
    if abs(ns) < NS_PER_US - 0.5:
        return f"{round(ns)} ns"
    for divisor, unit in ((NS_PER_US, "µs"), (NS_PER_MS, "ms"), (NS_PER_S, "s")):
        text = f"{_digits(ns / divisor, digits)} {unit}"
        if "," not in text:  # 999.96 ms is printed as 1.000 s
            break
    return text


def sentence_duration(ns: float | None) -> str:
    """Return ``ns`` nanoseconds with the digits of a sentence ("12.3 ms")."""
    return format_duration(ns, SENTENCE_DIGITS)


def format_instants(instants_ns: Sequence[float | None]) -> list[str]:
    """Format instants like `format_duration`, with enough digits to distinguish different ones."""
    known = {ns for ns in instants_ns if ns is not None and math.isfinite(ns)}
    digits = 0
    while digits < 9 and len({round(ns / 10 ** (9 - digits)) for ns in known}) < len(known):
        digits += 1
    return [_instant(ns, digits) for ns in instants_ns]


def _instant(ns: float | None, digits: int) -> str:
    """Format ``ns`` with at least ``digits`` digits after those of whole seconds."""
    text = format_duration(ns)
    number, _, unit = text.partition(" ")
    shift = {"s": 0, "ms": 3, "µs": 6}.get(unit)
    if ns is None or shift is None or digits - shift <= len(number.partition(".")[2]):
        return text
    return f"{ns / 10 ** (9 - shift):.{digits - shift}f} {unit}"


def format_bytes(n_bytes: float | None, digits: int = TABLE_DIGITS) -> str:
    """Return ``n_bytes`` with a decimal unit ("1.50 GB"; GB = 1e9 bytes)."""
    if n_bytes is None or math.isnan(n_bytes):
        return "–"
    if abs(n_bytes) < 999.5:
        return f"{n_bytes:.0f} B"
    for exponent, unit in ((3, "kB"), (6, "MB"), (9, "GB"), (12, "TB")):
        text = f"{_digits(n_bytes / 10**exponent, digits)} {unit}"
        if "," not in text:
            break
    return text


def format_rate(bytes_per_s: float | None, digits: int = TABLE_DIGITS) -> str:
    """Return a bandwidth in GB/s (1e9 bytes per second)."""
    if bytes_per_s is None or math.isnan(bytes_per_s):
        return "–"
    return f"{_digits(bytes_per_s / 1e9, digits)} GB/s"


_FLOP_PREFIXES: Final = ("", "k", "M", "G", "T", "P", "E", "Z")


def format_flop(flop: float | None, digits: int = TABLE_DIGITS) -> str:
    """Return a number of FLOPs with a prefix ("2.716 TFLOP"); a multiply-add counts as two."""
    if flop is None or math.isnan(flop):
        return "–"
    place = 0
    while "," in _digits(flop, digits) and place < len(_FLOP_PREFIXES) - 1:
        flop, place = flop / 1000, place + 1
    return f"{_digits(flop, digits) if place else round(flop)} {_FLOP_PREFIXES[place]}FLOP"


def format_flop_rate(flop_per_s: float | None, digits: int = TABLE_DIGITS) -> str:
    """Return a rate in TFLOP/s (1e12 per second)."""
    if flop_per_s is None or math.isnan(flop_per_s):
        return "–"
    return f"{_digits(flop_per_s / 1e12, digits)} TFLOP/s"


def format_ratio(ratio: float | None) -> str:
    """Return a ratio (0 to 1) as a percentage; not recorded is a dash, never 0%."""
    if ratio is None or math.isnan(ratio):
        return "–"
    percent = round(100 * ratio, 1) if math.isfinite(ratio) else ratio
    return f"{percent + 0.0:.1f}%"  # + 0.0: no "-0.0%"


def format_count(count: float | None, digits: int = TABLE_DIGITS) -> str:
    """Return a count ("12,345"); a mean of counts keeps its fraction."""
    if count is None or math.isnan(count):
        return "–"
    return f"{count:,.0f}" if float(count).is_integer() else format_number(count, digits)


def format_number(value: float | None, digits: int = TABLE_DIGITS) -> str:
    """Return a number without a unit: whole numbers have all digits, others ``digits`` or more."""
    if value is None or math.isnan(value):
        return "–"
    if isinstance(value, int) or float(value).is_integer():
        return str(int(value))
    return _digits(value, digits) if abs(value) >= 1_000 else f"{value:.{digits}g}"


def format_per_s(per_s: float | None, digits: int = TABLE_DIGITS) -> str:
    """Return a rate per second ("1,234.5 /s")."""
    return "–" if per_s is None or math.isnan(per_s) else f"{_digits(per_s, digits)} /s"


def format_factor(factor: float | None) -> str:
    """Return a factor ("1.85×")."""
    return "–" if factor is None or math.isnan(factor) else f"{factor:.2f}×"


def _digits(value: float, digits: int) -> str:
    """Return ``value`` with ``digits`` significant digits and at most three decimals.

    Large values have one decimal in a table ("2,774.6") and zeros in a sentence ("2,770").
    """
    rounded = float(f"{value:.{digits}g}")  # decides: in a table, 9.9996 is printed as 10.00
    n_whole = sum(abs(rounded) >= limit for limit in (1, 10, 100))
    is_large = abs(rounded) >= 1_000 and digits == SENTENCE_DIGITS
    return f"{rounded if is_large else value:,.{min(digits - n_whole, 3)}f}"
