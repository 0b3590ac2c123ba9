"""Parsing what people type, formatting what they read."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from traceprof import units
from traceprof.errors import UsageError


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("12ms", 12_000_000),
        ("1.5 s", 1_500_000_000),
        ("0.1us", 100),
        (".5ns", 0),
        ("-3µs", -3_000),
        ("2min", 120_000_000_000),
        ("1h", 3_600_000_000_000),
        ("9007199254.740993s", 9_007_199_254_740_993_000),
    ],
)
def test_durations_are_exact(text: str, ns: int) -> None:
    assert units.parse_duration(text) == ns


@pytest.mark.parametrize("text", ["", "12", "ms", "1.2.3s", "12 parsecs", "nan s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a time"):
        units.parse_duration(text)


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (1_000, "1.000 µs"),
        (999.6, "1.000 µs"),
        (999_949, "999.9 µs"),
        (999_950, "1.000 ms"),
        (9_999_600, "10.00 ms"),
        (99_996_000, "100.0 ms"),
        (999_999_999, "1.000 s"),
        (-999_999_999, "-1.000 s"),
        (12_345_678, "12.35 ms"),
        (123_456_789_012, "123.5 s"),
        (-2_000_000, "-2.000 ms"),
        (math.nan, "–"),
    ],
)
def test_durations_are_readable(ns: float, text: str) -> None:
    assert units.format_duration(ns) == text


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (units.format_duration, 12_345_678, "12.3 ms"),
        (units.format_duration, 9_994_000, "9.99 ms"),
        (units.format_duration, 9_996_000, "10.0 ms"),
        (units.format_duration, 99_960_000, "100 ms"),
        (units.format_duration, 999_400_000, "999 ms"),
        (units.format_duration, 999_600_000, "1.00 s"),
        (units.format_duration, -2_345_600_000_000, "-2,350 s"),
        (units.format_duration, 999, "999 ns"),
        (units.format_bytes, 999_600, "1.00 MB"),
        (units.format_bytes, 1_234_567, "1.23 MB"),
        (units.format_rate, 12_340_000, "0.012 GB/s"),
        (units.format_flop_rate, 1.2345e15, "1,230 TFLOP/s"),
        (units.format_per_s, 2_774.6, "2,770 /s"),
        (units.format_number, 2_774.6, "2,770"),
        (units.format_number, 0.98765, "0.988"),
        (units.format_count, 2_774, "2,774"),
        (units.format_count, 277.46, "277"),
    ],
)
def test_sentences_have_three_digits_and_exact_counts(
    write: Callable[[float, int], str], value: float, text: str
) -> None:
    assert write(value, units.SENTENCE_DIGITS) == text


def test_sizes_and_rates_are_decimal() -> None:
    assert units.format_bytes(1_500_000_000) == "1.500 GB"
    assert units.format_bytes(532) == "532 B"
    assert units.format_bytes(999_999) == "1.000 MB"
    assert units.format_bytes(999.7) == "1.000 kB"
    assert units.format_rate(25e9) == "25.00 GB/s"


def test_what_is_not_known_is_never_zero() -> None:
    formats = (
        units.format_bytes,
        units.format_rate,
        units.format_ratio,
        units.format_count,
        units.format_duration,
    )
    assert [shown(None) for shown in formats] == ["–"] * 5
    assert units.format_ratio(0.0) == "0.0%"


def test_nothing_has_no_sign() -> None:
    assert units.format_ratio(-1e-9) == "0.0%"
    assert units.format_duration(-0.3) == "0 ns"
    assert units.format_ratio(-0.25) == "-25.0%"


@pytest.mark.parametrize(
    ("instants_ns", "texts"),
    [
        ([37_841_234_567, 500_000, None], ["37.84 s", "500.0 µs", "–"]),
        ([37_841_234_567, 37_841_934_567, 37_840_000_000], ["37.841 s", "37.842 s", "37.840 s"]),
        ([37_841_234_567, 37_841_234_567, 5], ["37.84 s", "37.84 s", "5 ns"]),
        ([1_000_000_000, 1_000_000_001, 999], ["1.000000000 s", "1.000000001 s", "999 ns"]),
        ([588_123_456, 588_123_956], ["588.123 ms", "588.124 ms"]),
        ([], []),
    ],
)
def test_instants_have_the_digits_that_tell_them_apart(
    instants_ns: list[float | None], texts: list[str]
) -> None:
    assert units.format_instants(instants_ns) == texts
