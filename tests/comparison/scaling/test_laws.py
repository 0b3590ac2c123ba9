"""Means with intervals, and the laws of Amdahl and of Karp and Flatt."""

from math import isnan, nan, sqrt

import pytest

from traceprof.comparison.scaling.laws import Rate, amdahl_share, karp_flatt, mean_rate, ratio_of


def amdahl(share: float, n: int) -> float:
    return 1 / (share + (1 - share) / n)


@pytest.mark.parametrize("share", [0.0, 0.05, 0.5, 1.0])
@pytest.mark.parametrize("n", [2, 8, 64])
def test_both_laws_give_back_the_serial_share(share: float, n: int) -> None:
    assert karp_flatt(amdahl(share, n), n) == pytest.approx(share)
    points = [(m, amdahl(share, m)) for m in (1, 2, n)]
    assert amdahl_share(points) == pytest.approx(share)


def test_one_device_tells_no_share() -> None:
    assert isnan(karp_flatt(1.0, 1))
    assert isnan(amdahl_share([(1, 1.0)]))


def test_the_mean_of_repeats_has_the_interval_over_runs() -> None:
    # Three runs: t with two degrees of freedom is 4.303, the deviation of 9, 10, 11 is 1.
    found = mean_rate([Rate(9), Rate(10), Rate(11)])
    assert found.value == 10
    assert found.high - 10 == pytest.approx(4.303 / sqrt(3), abs=1e-3)
    assert found.low + found.high == pytest.approx(20)


def test_of_one_run_its_own_interval_counts() -> None:
    assert mean_rate([Rate(9, 8, 10)]) == Rate(9, 8, 10)


def test_relative_errors_of_a_ratio_add_up_by_their_squares() -> None:
    found = ratio_of(Rate(100, 97, 103), Rate(50, 48, 52), 1 / 2)
    assert found.value == 1
    assert found.high == pytest.approx(1 + sqrt(0.03**2 + 0.04**2))
    assert found.low == pytest.approx(1 - sqrt(0.03**2 + 0.04**2))


def test_without_an_interval_on_one_side_there_is_none() -> None:
    found = ratio_of(Rate(100, 97, 103), Rate(50, nan, nan), 1 / 2)
    assert found.value == 1
    assert isnan(found.low)
    assert isnan(found.high)
