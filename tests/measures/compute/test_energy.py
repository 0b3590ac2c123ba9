"""Energy by samples of power, and what a step costs."""

from __future__ import annotations

import numpy as np
import pytest

from tests.builders import TraceBuilder
from tests.measures.compute.test_utilization import H100, stated
from tests.running import run
from traceprof.errors import NotRecordedError
from traceprof.measures.compute.energy import integrate_power
from traceprof.model.intervals import Intervals
from traceprof.render.formatting import sentences

SECOND = 1_000_000_000


def built(name: str, *, watts: float = 500.0, steps: int = 10) -> TraceBuilder:
    """Return steps of a second each, a kernel in each, and power twice a second."""
    builder = TraceBuilder().device(0, name=name)
    for number in range(steps):
        begin = (number + 2) * SECOND
        builder.step(begin, begin + SECOND, number)
        builder.kernel("gemm", begin, begin + SECOND, launched_ns=(begin + 1, begin + 2))
    for half in range(2 * (steps + 5)):
        at = half * SECOND // 2
        own = watts if 2 * SECOND <= at <= (steps + 3) * SECOND else 100.0
        builder.sample("power_watts", at, own, source="gpu:0")
    return builder


def test_a_step_has_its_share_of_the_energy_of_all() -> None:
    result = run("energy", built("NVIDIA A100-SXM4-80GB").build())
    (row,) = result.table.rows()
    assert row["span_ns"] == 10 * SECOND
    assert row["joules"] == pytest.approx(5000)
    assert row["mean_watts"] == pytest.approx(500)
    assert row["idle_watts"] == 100
    assert row["idle_joules"] == pytest.approx(1000)
    step, thousand = result.tables["units"].rows()
    assert step["joules"] == pytest.approx(500)
    assert thousand["joules"] == pytest.approx(500_000)
    assert result.scalars["steps_count"] == 10


def test_power_that_is_the_mean_of_a_second_is_of_half_a_second_before() -> None:
    late = run("energy", built(H100).build()).table.row(0)
    assert late["joules"] == pytest.approx(5000, rel=0.01)
    power = np.array([0.0, 100.0, 100.0])
    times = np.array([0, SECOND, 2 * SECOND])
    assert integrate_power(times, power, Intervals.single(0, SECOND)) == pytest.approx(50)


def test_samples_that_are_missing_make_no_energy() -> None:
    times = np.array([0, SECOND, 2 * SECOND, 9 * SECOND, 10 * SECOND])
    assert integrate_power(times, np.full(5, 100.0), Intervals.single(0, 10 * SECOND)) is None
    assert integrate_power(times, np.full(5, 100.0), Intervals.single(0, 30 * SECOND)) is None


def test_a_price_tells_what_a_step_costs_with_power_and_without() -> None:
    trace = stated(built(H100).build(), price_per_h=3.6, tokens=1000.0)
    rows = {row["per"]: row for row in run("energy", trace).tables["units"].rows()}
    assert rows["a step"]["cost"] == pytest.approx(0.001)
    assert rows["a million tokens"]["cost"] == pytest.approx(1.0)
    assert rows["a million tokens"]["joules"] == pytest.approx(500_000, rel=0.01)
    assert rows["a token"]["joules"] == pytest.approx(0.5, rel=0.01)
    assert rows["a token"]["idle_joules"] == pytest.approx(0.1)
    plain = TraceBuilder().step(0, SECOND, 0).step(SECOND, 2 * SECOND, 1)
    plain.kernel("gemm", 0, SECOND, launched_ns=(1, 2))
    found = run("energy", stated(plain.build(), price_per_h=3600.0)).tables["units"].row(0)
    assert found["cost"] > 0
    assert found["joules"] != found["joules"]


def test_an_epoch_costs_its_whole_time_and_all_that_was_drawn_in_it() -> None:
    """Power is 500 W to 12 s, and falls to 100 W in half a second."""
    builder = built("NVIDIA A100-SXM4-80GB", steps=9)
    builder.range("epoch 0", 3 * SECOND, 8 * SECOND).range("epoch 1", 8 * SECOND, 13 * SECOND)
    found = run("energy", stated(builder.build(), price_per_h=3.6)).tables["units"].rows()
    epoch = {row["per"]: row for row in found}["an epoch"]
    assert epoch["duration_ns"] == 5 * SECOND
    assert epoch["cost"] == pytest.approx(0.005)
    assert epoch["joules"] == pytest.approx((5 * 500 + 4 * 500 + 0.5 * 300 + 0.5 * 100) / 2)
    assert epoch["idle_joules"] == pytest.approx(500)


def test_energy_and_time_are_of_the_same_steps() -> None:
    """A slow step draws 100 W for 20 seconds. Usual steps draw 500 W and last one second."""
    builder = built("NVIDIA A100-SXM4-80GB")
    builder.step(12 * SECOND, 32 * SECOND, 10).step(32 * SECOND, 33 * SECOND, 11)
    for number in (12, 32):
        begin = number * SECOND
        builder.kernel("gemm", begin, begin + SECOND, launched_ns=(begin + 1, begin + 2))
    for half in range(30, 70):
        builder.sample("power_watts", half * SECOND // 2, 100.0, source="gpu:0")
    result = run("energy", builder.build())
    row, step = result.table.row(0), result.tables["units"].row(0)
    watts = step["joules"] / (step["duration_ns"] / 1e9)
    assert watts == pytest.approx(row["mean_watts"])
    assert watts <= row["max_watts"]
    assert row["mean_watts"] > 400


def test_the_highest_power_is_at_least_the_mean_without_a_sample_inside() -> None:
    """Power rises from 100 W to 900 W in 20 seconds, and is sampled before and after the steps."""
    builder = TraceBuilder().device(0, name="NVIDIA A100-SXM4-80GB")
    for number in range(4):
        begin = (8 + number) * SECOND
        builder.step(begin, begin + SECOND, number)
        builder.kernel("gemm", begin, begin + SECOND, launched_ns=(begin + 1, begin + 2))
    builder.sample("power_watts", 0, 100.0, source="gpu:0")
    builder.sample("power_watts", 20 * SECOND, 900.0, source="gpu:0")
    row = run("energy", builder.build()).table.row(0)
    assert row["mean_watts"] < row["max_watts"] < 900


def test_gaps_between_steps_need_no_samples() -> None:
    times = np.array([0, SECOND, 2 * SECOND, 9 * SECOND, 10 * SECOND])
    apart = Intervals.union_of([0, 9 * SECOND], [2 * SECOND, 10 * SECOND])
    assert integrate_power(times, np.full(5, 100.0), apart) == pytest.approx(300)


def test_less_than_a_second_has_no_energy_of_its_own() -> None:
    builder = TraceBuilder().device(0, name=H100).step(0, 1000, 0).step(1000, 2000, 1)
    builder.kernel("gemm", 0, 900, launched_ns=(1, 2))
    for at in range(3):
        builder.sample("power_watts", at * 500, 400.0, source="gpu:0")
    result = run("energy", builder.build())
    assert result.table.empty
    assert any("1.10 µs of steps is too short" in one for one in sentences(result.notes))


def test_a_window_without_steps_is_not_said_to_be_steps() -> None:
    builder = TraceBuilder().device(0, name=H100).kernel("gemm", 0, 900, launched_ns=(1, 2))
    for at in range(3):
        builder.sample("power_watts", at * 500, 400.0, source="gpu:0")
    notes = sentences(run("energy", builder.build()).notes)
    assert any("of the window is too short" in one for one in notes)


def test_without_power_and_price_it_says_what_would_tell() -> None:
    with pytest.raises(NotRecordedError, match="--price"):
        run("energy", TraceBuilder().kernel("gemm", 0, 10).build())
