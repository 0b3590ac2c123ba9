"""When steps are captured automatically: once per change, and never in steady steps."""

import numpy as np
import pytest

from tests.recording.live.status_files import step, write_status
from traceprof.errors import UsageError
from traceprof.recording.live.running import Conditions, Monitor, Trigger, parse_conditions
from traceprof.recording.live.status import LiveRun
from traceprof.recording.live.view import RunView, Straggler

MS = 1_000_000
ALL = Conditions(straggler=True, slow=True, drop_ratio=0.05)


def reasons(trigger, times_ms, views=None):
    views = views or [RunView()] * len(times_ms)
    found = [trigger.check(view, time * MS) for view, time in zip(views, times_ms, strict=True)]
    return [(index, reason) for index, reason in enumerate(found) if reason]


def test_a_slowdown_is_captured_once():
    found = reasons(Trigger(ALL), [10.0] * 10 + [13.0] * 50)
    assert found == [(15, "the step time rose from 10 ms to 13 ms")]


def test_each_further_slowdown_is_captured():
    found = reasons(Trigger(ALL), [10.0] * 10 + [13.0] * 20 + [20.0] * 20)
    assert [index for index, _ in found] == [15, 35]


def test_steady_steps_are_not_captured():
    """10,000 checks with 1% noise, and a slow check (a checkpoint) every 100."""
    noise = np.random.default_rng(1).normal(10, 0.1, 10_000)
    noise[::100] = 40
    assert reasons(Trigger(Conditions(straggler=True, slow=True, drop_ratio=0.1)), noise) == []


def test_a_busy_machine_is_not_slow():
    """Step times that vary for seconds: 20% of the checks are 18% higher, four in a row."""
    times = ([7.9] * 16 + [9.3] * 4) * 20
    assert reasons(Trigger(Conditions(slow=True)), times) == []
    assert len(reasons(Trigger(Conditions(slow=True)), [*times, *[12.0] * 10])) == 1


def autocorrelated(seed, n, correlation, deviation):
    random = np.random.default_rng(seed)
    values = np.zeros(n)
    innovations = random.normal(0, deviation * np.sqrt(1 - correlation**2), n)
    for index in range(1, n):
        values[index] = correlation * values[index - 1] + innovations[index]
    return 10 * np.exp(values)


@pytest.mark.parametrize("correlation", [0.5, 0.8, 0.9])
def test_step_times_that_wander_are_not_captured(correlation):
    """10% deviation around the same mean: 3 series of 10 minutes each."""
    for seed in range(3):
        assert reasons(Trigger(ALL), autocorrelated(seed, 1200, correlation, 0.1)) == []


def test_short_loads_of_the_machine_are_not_captured():
    """Up to 2.5 s of steps that are 1.2 to 2.5 times slower, every 2 to 30 s, for 10 minutes."""
    random = np.random.default_rng(3)
    times = 10 * np.exp(random.normal(0, 0.03, 1200))
    start = 0
    while start < len(times):
        start += int(random.integers(5, 60))
        length = int(random.integers(1, 6))
        times[start : start + length] *= random.uniform(1.2, 2.5)
        start += length
    assert reasons(Trigger(ALL), times) == []
    assert len(reasons(Trigger(ALL), [*times, *[40.0] * 20])) == 1


def test_a_slowdown_after_two_seconds_is_captured():
    assert [index for index, _ in reasons(Trigger(ALL), [10.0] * 4 + [20.0] * 20)] == [9]


@pytest.mark.parametrize(("waiting", "n_captures"), [(0.5, 0), (0.0, 1)])
def test_steps_that_wait_for_a_core_are_not_slow(tmp_path, waiting, n_captures):
    """After 10 checks, steps take twice as long: because of other programs, or not."""
    monitor = Monitor(tmp_path / "live", Conditions(slow=True), print)
    run, trigger, found = LiveRun(tmp_path, tmp_path / "live"), Trigger(Conditions(slow=True)), 0
    wait_ns = now_ns = 0
    for check in range(24):
        is_slow = check >= 10
        now_ns += 500 * MS
        wait_ns += round(500 * MS * waiting * is_slow)
        steps = [step(20 if is_slow else 10)] * 20
        fields = {"core_wait_ns": wait_ns, "now_ns": now_ns}
        write_status(tmp_path, 0, steps, first=20 * check, **fields)
        found += bool(trigger.check(RunView(), monitor._new_step_ns(run.refresh())))
    assert found == n_captures


def test_faster_steps_are_not_captured():
    assert reasons(Trigger(ALL), [20.0] * 10 + [10.0] * 30) == []


def test_slow_first_steps_are_not_captured():
    assert reasons(Trigger(ALL), [500.0, 300.0, *[10.0] * 50]) == []


def test_only_the_requested_conditions_count():
    times = [10.0] * 10 + [10.8] * 20
    assert reasons(Trigger(Conditions(slow=True)), times) == []  # 8% is not slow
    assert len(reasons(Trigger(Conditions(drop_ratio=0.05)), times)) == 1
    assert reasons(Trigger(Conditions(straggler=True)), [10.0] * 5 + [90.0] * 20) == []


def test_a_straggler_is_captured_once_until_it_recovers():
    behind = RunView(straggler=Straggler(3, 2.0, 1.0, 1.0, ""))
    views = [RunView()] * 3 + [behind] * 20 + [RunView()] * 3 + [behind] * 4
    found = reasons(Trigger(ALL), [10.0] * len(views), views)
    assert found == [(5, "rank 3 is a straggler"), (28, "rank 3 is a straggler")]


def test_a_rank_that_is_behind_for_a_moment_is_not_captured():
    behind = RunView(straggler=Straggler(3, 2.0, 1.0, 1.0, ""))
    views = [behind, behind, RunView()] * 10
    assert reasons(Trigger(ALL), [10.0] * 30, views) == []


def test_conditions_are_parsed():
    assert parse_conditions("straggler, slow,drop=5%") == ALL
    for text in ("", "fast", "drop=5", "drop=0%", "drop=200%", "slow,,"):
        with pytest.raises(UsageError, match="capture-when"):
            parse_conditions(text)
