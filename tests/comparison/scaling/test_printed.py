"""Printed efficiencies against what the printed rates give."""

from math import nan

import pytest

from traceprof.comparison.scaling.printed import (
    CUT_OFF,
    NOT_FROM_RATES,
    ROUNDED,
    Rates,
    judge_printed,
)


@pytest.mark.parametrize(
    ("percent", "rates", "expected"),
    [
        (100, Rates(226, 226, 1), ROUNDED),
        (95, Rates(426, 226, 2), NOT_FROM_RATES),  # 94.2
        (77, Rates(704, 226, 4), CUT_OFF),  # 77.9
        (76, Rates(1368, 226, 8), ROUNDED),  # 75.7
        (71, Rates(2576, 226, 16), ROUNDED),  # 71.2
        (74.8, Rates(4.487, 1, 6), ROUNDED),  # 74.78
        (74.7, Rates(4.487, 1, 6), CUT_OFF),
        (80.75, Rates(1.615, 1, 2), ROUNDED),
        (81, Rates(1.615, 1, 2), ROUNDED),
        (82, Rates(1.615, 1, 2), NOT_FROM_RATES),
        (nan, Rates(426, 226, 2), ""),
        (95, Rates(426, nan, 2), ""),
    ],
)
def test_a_printed_efficiency_is_judged_by_its_own_digits(
    percent: float, rates: Rates, expected: str
) -> None:
    assert judge_printed(percent, rates) == expected


def test_rates_are_known_to_half_of_their_last_digit() -> None:
    low, high = Rates(426, 226, 2).extremes
    assert low == pytest.approx(100 * 425.5 / 226.5 / 2)
    assert high == pytest.approx(100 * 426.5 / 225.5 / 2)
