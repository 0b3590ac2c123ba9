import numpy as np

from traceprof.measures.steps.steadiness import (
    are_long,
    excess_of_slow,
    long_step_period,
    measure_steadiness,
    outliers_of_processes,
)
from traceprof.model.table import Table
from traceprof.model.timing import Steps


def test_ranks_of_different_speed_are_no_trend() -> None:
    durations = np.array([10.0, 20.0, 30.0, 10.0, 20.0, 30.0, 10.0, 20.0, 30.0])
    ranks = np.array([0, 1, 2] * 3)
    steady = measure_steadiness(durations, ranks)
    assert (steady["steady_count"], steady["trend_ns"]) == (9, 0.0)
    one_step = measure_steadiness(durations[:3], ranks[:3])
    assert (one_step["trend_ns"], one_step["drift_ratio"]) == (0.0, 0.0)
    slower = measure_steadiness(durations + np.repeat([0.0, 2.0, 4.0], 3), ranks)
    assert (slower["trend_ns"], slower["drift_ratio"]) == (2.0, 4.0 / slower["median_ns"])
    assert measure_steadiness(durations[:0], ranks[:0]) == {}


def test_outliers_are_those_of_their_process_without_its_warmup() -> None:
    durations = np.array([99.0, 10, 10, 10, 10, 30, 50, 50, 50, 50, 10])
    processes = np.array([1] * 6 + [2] * 5)
    is_warmup = np.array([True] + [False] * 10)
    found = outliers_of_processes(durations, processes, is_warmup)
    assert found.tolist() == [0, 0, 0, 0, 0, 1, 0, 0, 0, 0, -1]


def test_slow_steps_that_cost_a_large_part_of_the_time_are_no_outliers() -> None:
    ones = np.ones(48, np.int64)

    def n_slow(every: int, slow: float) -> int:
        durations = np.where(np.arange(48) % every == every - 1, slow, 10.0)
        return int((outliers_of_processes(durations, ones, ones == 0) > 0).sum())

    # Every eighth: 6 x 40 more than usual of 720, a third. 6 x 20 of 600 are a fifth.
    assert (n_slow(8, 50.0), n_slow(8, 30.0)) == (0, 6)
    # Three of 48 are few, whatever they cost.
    assert n_slow(16, 1000.0) == 3


def test_where_steps_are_of_two_kinds_outliers_lie_beyond_both() -> None:
    durations = np.array([40.0, 40, 60, 40, 40, 61, 40, 40, 1000, 40, 40, 60, 40, 40, 62, 5])
    ones = np.ones(len(durations), np.int64)
    found = outliers_of_processes(durations, ones, ones == 0)
    assert np.flatnonzero(found > 0).tolist() == [8]
    assert np.flatnonzero(found < 0).tolist() == [15]


def test_steps_of_two_kinds_are_told_apart() -> None:
    alternating = np.array([132, 1400, 131, 1390, 133, 1410, 130], np.float64)
    is_long = are_long(alternating)
    assert is_long is not None
    assert is_long.tolist() == [False, True] * 3 + [False]
    assert long_step_period(is_long) == 2
    random = np.random.default_rng(1)
    for spread in (
        random.normal(100, 10, 60),
        random.uniform(50, 200, 60),
        100 + random.exponential(100, 60),
        np.array([100.0] * 59 + [5000.0]),
        np.array([100.0, 300.0, 101.0]),
    ):
        assert are_long(spread) is None
    in_no_order = are_long(np.where(random.random(60) < 0.5, 100.0, 900.0))
    assert in_no_order is not None
    assert long_step_period(in_no_order) == 1


def excess(*lengths: int, slow: int = 3) -> int:
    """Return the excess of the step at ``slow``; the other steps are usual."""
    n = len(lengths)
    starts, zeros = np.cumsum([0, *lengths])[:-1], np.zeros(n, np.int64)
    ends = starts + np.array(lengths)
    times = {"device_start_ns": starts, "device_end_ns": ends, "start_ns": starts, "next_ns": ends}
    table = Table({**times, "process": zeros, "recorder_ns": zeros, "on_device": zeros == 0})
    is_usual = np.arange(n) != slow
    usual_ns = float(np.array(lengths)[is_usual].mean())
    return excess_of_slow(Steps(table, "x"), np.array([slow]), is_usual, usual_ns)


def test_the_next_step_can_have_a_part_of_a_delay_or_make_up_for_it() -> None:
    assert excess(100, 100, 100, 140, 100, 100, 100) == 40
    assert excess(100, 100, 100, 130, 110, 100, 100) == 40
    assert excess(100, 100, 100, 140, 60, 100, 100) == 0
    assert excess(100, 100, 100, 140, 50, 100, 100) == 0  # it never saves time
    assert excess(100, 100, 104, 140, 100, 100, 104) == 38  # a usual step follows: 140 - 101.33
    assert excess(100, 100, 100, 130, 112) == 27  # too few others to tell: 130 - 103
    assert excess(100, 100, 100, 100, 100, 140, slow=5) == 40
