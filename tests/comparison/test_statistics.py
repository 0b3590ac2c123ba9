"""Whether two series differ: false alarms, what is found, and how runs are told from steps."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.comparison.generated import noise_of
from traceprof.comparison.statistics import (
    MIN_STEPS,
    compare_runs,
    compare_steps,
    interval_of_mean,
    interval_of_median,
)

PAIRS = 500
LEVEL = 0.05
CHANCE = 3 * math.sqrt(LEVEL * (1 - LEVEL) / PAIRS)
"""Of 500 pairs 5% give 25 alarms, and in 999 of 1000 such tests no more than 40."""


@pytest.mark.parametrize("noise", ["independent", "neighbors", "heavy"])
@pytest.mark.parametrize("n", [8, 20, 60])
def test_false_alarms_stay_at_the_stated_level(noise: str, n: int) -> None:
    random = np.random.default_rng(17)
    alarms = 0
    for _ in range(PAIRS):
        base, new = (100 * np.exp(0.03 * noise_of(noise, n, random)) for _ in range(2))
        alarms += compare_steps(base, new).excludes_zero
    assert alarms / PAIRS <= LEVEL + CHANCE


@pytest.mark.parametrize("noise", ["independent", "neighbors", "heavy"])
def test_the_interval_holds_the_true_change_and_finds_6_percent(noise: str) -> None:
    random = np.random.default_rng(23)
    held = found = 0
    for _ in range(200):
        base = 100 * np.exp(0.03 * noise_of(noise, 80, random))
        new = 106 * np.exp(0.03 * noise_of(noise, 80, random))
        told = compare_steps(base, new)
        held += told.low_ratio <= 0.06 <= told.high_ratio
        found += told.is_shown and told.change_ratio > 0
    assert held / 200 >= 0.95 - 3 * math.sqrt(0.05 * 0.95 / 200)
    assert found >= 198


def test_the_smallest_difference_is_seen_four_times_in_five() -> None:
    random = np.random.default_rng(5)
    told = [
        compare_steps(np.exp(random.normal(size=60)), np.exp(random.normal(size=60)))
        for _ in range(40)
    ]
    smallest = 1 + float(np.median([one.smallest_ratio for one in told]))
    seen = sum(
        compare_steps(
            np.exp(random.normal(size=60)), smallest * np.exp(random.normal(size=60))
        ).excludes_zero
        for _ in range(200)
    )
    assert 0.65 <= seen / 200 <= 0.95


def test_steps_without_any_noise_differ_by_what_they_differ() -> None:
    told = compare_steps(np.full(9, 100.0), np.full(7, 103.0))
    assert told.change_ratio == pytest.approx(0.03)
    assert told.low_ratio == pytest.approx(0.03)
    assert told.is_shown
    assert told.larger_ratio == 1
    same = compare_steps(np.full(9, 100.0), np.full(9, 100.0))
    assert (same.change_ratio, same.larger_ratio, same.is_shown) == (0, 0.5, False)


def test_less_than_a_hundredth_is_no_change_between_single_runs() -> None:
    told = compare_steps(np.full(50, 1000.0), np.full(50, 1009.0))
    assert told.excludes_zero
    assert not told.is_shown


def test_of_few_steps_the_numbers_alone_are_told() -> None:
    told = compare_steps(np.full(MIN_STEPS - 1, 100.0), np.full(50, 150.0))
    assert told.change_ratio == pytest.approx(0.5)
    assert not told.is_known
    assert told.why.startswith("not enough steps")


def test_steps_that_come_in_turns_are_taken_together() -> None:
    random = np.random.default_rng(2)
    # One batch of two waits for both: single steps tell nothing, pairs of them do.
    waits = random.normal(250, 30, size=40)
    base = np.column_stack([500 - waits, waits]).ravel()
    new = np.column_stack([450 - waits, waits]).ravel()
    told = compare_steps(base, new)
    assert told.together == 2
    assert told.change_ratio == pytest.approx(-0.1)
    assert told.is_shown
    assert (told.base_count, told.new_count) == (80, 80)


def test_of_several_runs_the_run_is_the_unit() -> None:
    told = compare_runs([100.0, 102.0, 98.0], [106.0, 108.0, 104.0])
    assert told.of_runs
    assert told.base == pytest.approx(np.exp(np.mean(np.log([100, 102, 98]))))
    assert told.is_shown
    # With 2 degrees of freedom and three runs that spread by 2%.
    assert told.high_ratio - told.low_ratio == pytest.approx(0.0961, abs=0.003)
    alone = compare_runs([100.0], [106.0])
    assert not alone.is_known


def test_a_single_run_is_taken_to_vary_as_those_of_the_other_side_do() -> None:
    random = np.random.default_rng(3)
    alarms = sum(
        compare_runs(
            list(np.exp(0.02 * random.normal(size=1))), list(np.exp(0.02 * random.normal(size=4)))
        ).excludes_zero
        for _ in range(PAIRS)
    )
    assert alarms / PAIRS <= LEVEL + CHANCE


def test_a_change_beyond_all_steps_would_have_been_seen() -> None:
    values = np.array([1.0, 1.3, 0.9, 1.6, 1.1, 1.4])
    found = compare_steps(values, values[::-1] * 1.1)
    assert math.isfinite(found.low_ratio)
    assert found.smallest_ratio > 0
    seen = compare_steps(values, values[::-1] * 1.1 * (1 + found.smallest_ratio))
    assert seen.is_shown


def test_the_interval_of_a_mean_holds_it() -> None:
    random, hits = np.random.default_rng(5), 0
    for _ in range(300):
        low, high = interval_of_mean(100 + random.normal(size=20))
        hits += low <= 100 <= high
    assert 0.92 * 300 <= hits <= 0.995 * 300
    assert np.isnan(interval_of_mean(np.ones(4))).all()


def test_the_interval_of_a_median_holds_it() -> None:
    random = np.random.default_rng(4)
    intervals = [interval_of_median(noise_of("neighbors", 60, random) + 10) for _ in range(300)]
    held = sum(low <= 10 <= high for low, high in intervals)
    assert held / 300 >= 0.95 - 3 * math.sqrt(0.05 * 0.95 / 300)
    assert all(map(math.isnan, interval_of_median(np.array([1.0, 2.0]))))


@pytest.mark.parametrize("n", [10, 15, 24, 59])
def test_of_steps_that_alternate_the_throughput_is_judged(n: int) -> None:
    random, is_long = np.random.default_rng(n), np.arange(n) % 2 == 1
    noise = np.exp(0.02 * random.normal(size=(2, n)))
    base, new = np.array([np.where(is_long, long, 132.0) for long in (1400, 500)]) * noise
    told = compare_steps(6.4e4 / base, 6.4e4 / new, are_rates=True)
    assert told.together == 2
    assert told.is_shown
    # The samples of two steps over their time, not the mean of their rates.
    assert told.change_ratio == pytest.approx((1400 + 132) / (500 + 132) - 1, rel=0.1)
    same = compare_steps(base, base * np.exp(0.02 * random.normal(size=n)))
    assert not same.is_shown


def test_of_steps_of_two_kinds_in_no_order_the_means_are_judged() -> None:
    random = np.random.default_rng(9)
    base, new = (np.where(random.random(200) < share, 1400.0, 132.0) for share in (0.5, 0.2))
    told = compare_steps(base, new)
    assert told.of_means
    assert told.change_ratio == pytest.approx(new.mean() / base.mean() - 1)
    assert told.is_shown
    alarms = sum(
        compare_steps(*(np.where(random.random(60) < 0.3, 900.0, 100.0) for _ in range(2))).is_shown
        for _ in range(PAIRS)
    )
    assert alarms / PAIRS <= LEVEL + CHANCE
