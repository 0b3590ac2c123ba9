"""A lasting change of the step time is found where it was planted, and nowhere else."""

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import TraceBuilder
from tests.running import run
from traceprof.measures.steps.drift import find_drift
from traceprof.measures.steps.ledger import SLOW, USUAL, step_ledger
from traceprof.measures.steps.steadiness import find_rise
from traceprof.model.ranks import Ranks
from traceprof.model.trace import Trace
from traceprof.render.formatting import note_text

Series = npt.NDArray[np.float64]
_STEADY: Final[dict[str, Callable[[np.random.Generator, int], Series]]] = {
    "constant": lambda _, n: np.full(n, 100.0),
    "normal": lambda random, n: 100 + random.normal(0, 5, n),
    "heavy_tail": lambda random, n: 100 * (1 + 0.05 * random.standard_cauchy(n) ** 2),
    "log_normal": lambda random, n: 100 * np.exp(random.normal(0, 0.5, n)),
    "alternating": lambda random, n: np.where(np.arange(n) % 2, 150, 100) + random.normal(0, 2, n),
    "two_kinds": lambda random, n: np.where(random.random(n) < 0.5, 100, 150) + random.random(n),
    "every_5th": lambda random, n: np.where(np.arange(n) % 5, 100, 200) + random.normal(0, 2, n),
    "long_period": lambda _, n: 100 + 20 * np.sin(2 * np.pi * np.arange(n) / 8),
    "correlated": lambda random, n: (
        100 + np.convolve(random.normal(0, 5, n + 2), np.ones(3) / 3, "valid")
    ),
    "slow_once": lambda _, n: np.where(np.arange(n) == n - 2, 900.0, 100.0),
    "warm_up": lambda _, n: 100 + 400 * np.exp(-np.arange(n, dtype=float)),
}


@pytest.mark.parametrize("name", _STEADY)
@pytest.mark.parametrize("n", [10, 30, 200])
def test_steady_series_do_not_rise(name: str, n: int) -> None:
    random = np.random.default_rng(0)
    alarms = sum(find_rise(_STEADY[name](random, n)) is not None for _ in range(200))
    assert alarms <= 5


@settings(deadline=None, max_examples=50)
@given(
    st.integers(0, 1 << 30),
    st.integers(10, 120),
    st.floats(0.1, 1),
    st.floats(0, 0.01),
    st.sampled_from(["level", "ramp"]),
)
def test_a_planted_rise_is_found_where_it_begins(
    seed: int, n: int, rise: float, noise: float, shape: str
) -> None:
    random = np.random.default_rng(seed)
    begin = int(random.integers(max(5, n // 4), max(6, n // 2)))
    late = np.arange(n) - begin
    planted = (late >= 0) * rise
    if shape == "ramp":
        planted = planted * np.clip((late + 1) / 4, 0, 1)
    found = find_rise(100 * (1 + planted) * (1 + random.normal(0, noise, n)))
    assert found is not None
    # Of a ramp, the first step may be within the noise.
    assert begin <= found <= begin + (2 if shape == "ramp" else 0) or noise > 0.002
    assert abs(found - begin) <= 3


@pytest.mark.parametrize("n", [0, 1, 9])
def test_few_steps_do_not_rise(n: int) -> None:
    assert find_rise(np.arange(100.0, 100.0 + n)) is None


def test_a_rise_that_ends_is_none() -> None:
    assert find_rise(np.array([100.0] * 15 + [160.0] * 15)) == 15
    assert find_rise(np.array([100.0] * 15 + [160.0] * 12 + [100.0] * 3)) is None


def steps_of(*lengths: int, process: int = 1, first: int = 0) -> Trace:
    builder, at = TraceBuilder(), 0
    for number, length in enumerate(lengths, first):
        builder.step(at, at + length, number, process=process)
        at += length
    return builder.build()


def test_clock_that_falls() -> None:
    lengths = [100] * 12 + [*range(106, 161, 6)] + [160] * 8
    drift = find_drift(Ranks.of(steps_of(*lengths)))
    assert drift is not None
    assert (drift.step, drift.first_step, drift.last_step) == (12, 0, 29)
    assert drift.before_ns == 100
    assert drift.after_ns == pytest.approx(np.mean(lengths[12:]))
    assert drift.excess_ns == pytest.approx(np.mean(lengths) - 100)
    assert (drift.first_ns, drift.last_ns) == (100, 160)
    assert (len(drift.before), len(drift.after)) == (12, 18)
    texts = [note_text(note) for note in run("steps", steps_of(*lengths)).notes]
    assert "Steps get slower from step 12 on: 100 ns before, 145 ns after (+45.0%)" in texts
    assert "median of the first 3 steps 100 ns, of the last 3 steps 160 ns (+60.0%)" in texts


def test_steps_that_get_faster() -> None:
    drift = find_drift(Ranks.of(steps_of(*[103] * 14, *[90] * 10)))
    assert drift is not None
    assert (drift.step, drift.before_ns, drift.after_ns) == (14, 103, 90)
    assert drift.excess_ns == pytest.approx(-13 * 10 / 24)
    assert note_text(drift.notes()[0]).startswith("Steps get faster from step 14 on")


def test_late_steps_at_a_new_level_are_not_slow_outliers() -> None:
    ranks = Ranks.of(steps_of(*[100] * 24, *[160] * 6))
    assert set(step_ledger(ranks)["kind"]) == {USUAL}
    # A step that is far slower than the new level is.
    ledger = step_ledger(Ranks.of(steps_of(*[100] * 24, *[160] * 3, 900, *[160] * 4)))
    assert np.flatnonzero(ledger["kind"] == SLOW).tolist() == [27]
    # Five slow steps that end are slow.
    ledger = step_ledger(Ranks.of(steps_of(*[100] * 20, *[160] * 5, *[100] * 5)))
    assert np.flatnonzero(ledger["kind"] == SLOW).tolist() == [20, 21, 22, 23, 24]


def test_ranks_that_record_different_steps_do_not_drift() -> None:
    whole, late = steps_of(*[100] * 30), steps_of(*[200] * 15, process=2, first=15)
    assert find_drift(Ranks((whole, late), whole.info)) is None
    slower = [*[200] * 15, *[300] * 15]
    parts = steps_of(*slower), steps_of(*slower, process=2)
    drift = find_drift(Ranks(parts, whole.info))
    assert drift is not None
    assert (drift.step, drift.before_ns, drift.after_ns, drift.excess_ns) == (15, 200, 300, 50)


def test_iterations_of_a_pattern_do_not_drift() -> None:
    builder, at = TraceBuilder(), 0
    for i in range(100):
        length = 10 if i < 50 else 16
        builder.kernel(f"k{i % 5}", at, at + length)
        at += length
    assert find_drift(Ranks.of(builder.build())) is None
