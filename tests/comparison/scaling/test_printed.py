"""Printed efficiencies against what the printed rates give."""

from math import nan

import pytest

from traceprof.comparison.scaling.laws import (
    CUT_OFF,
    NOT_FROM_RATES,
    ROUNDED,
    PrintedRates,
    check_printed,
)


@pytest.mark.parametrize(
    ("percent", "rates", "expected"),
    [
        (100, PrintedRates(226, 226, 1), ROUNDED),
        (95, PrintedRates(426, 226, 2), NOT_FROM_RATES),  # 94.2
        (77, PrintedRates(704, 226, 4), CUT_OFF),  # 77.9
        (76, PrintedRates(1368, 226, 8), ROUNDED),  # 75.7
        (71, PrintedRates(2576, 226, 16), ROUNDED),  # 71.2
        (74.8, PrintedRates(4.487, 1, 6), ROUNDED),  # 74.78
        (74.7, PrintedRates(4.487, 1, 6), CUT_OFF),
        (80.75, PrintedRates(1.615, 1, 2), ROUNDED),
        (81, PrintedRates(1.615, 1, 2), ROUNDED),
        (82, PrintedRates(1.615, 1, 2), NOT_FROM_RATES),
        (nan, PrintedRates(426, 226, 2), ""),
        (95, PrintedRates(426, nan, 2), ""),
    ],
)
def test_a_printed_efficiency_is_judged_by_its_own_digits(
    percent: float, rates: PrintedRates, expected: str
) -> None:
    assert check_printed(percent, rates) == expected


def test_rates_are_known_to_half_of_their_last_digit() -> None:
    low, high = PrintedRates(426, 226, 2).extremes
    assert low == pytest.approx(100 * 425.5 / 226.5 / 2)
    assert high == pytest.approx(100 * 426.5 / 225.5 / 2)
