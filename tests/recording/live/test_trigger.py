"""When steps are captured automatically: once per change, and never in steady steps."""

import numpy as np
import pytest

from tests.recording.live.status_files import step, write_status
from traceprof.errors import UsageError
from traceprof.recording.live.running import Monitor, _n_recurring, _place_of_rise
from traceprof.recording.live.status import LiveRun
from traceprof.recording.live.trigger import Conditions, Trigger, in_phase, parse_conditions
from traceprof.recording.live.view import OTHER, RunView, Straggler

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
        found += bool(trigger.check(RunView(), monitor._new_steps_ns(run.refresh())))
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


def test_a_slowdown_of_a_noisy_program_is_captured():
    """35% slower after 30 s, with checks that deviate by 6%: some checks look as before."""
    noise = np.exp(np.random.default_rng(5).normal(0, 0.06, 180))
    found = reasons(Trigger(ALL), 10 * noise * np.where(np.arange(180) < 60, 1, 1.35))
    assert len(found) == 1
    assert 60 < found[0][0] < 110


@pytest.mark.parametrize("rise", [0.005, 0.02, 0.05])
def test_steps_that_slowly_take_longer_are_captured(rise):
    """A rise of 0.5% to 5% per check: each check is close to the one before."""
    times = 10 * (1 + rise * np.maximum(np.arange(200) - 10, 0))
    index, _ = reasons(Trigger(ALL), times)[0]
    assert times[index] < 21


def every_tenth(n_steps, first):
    times = np.full(n_steps, 10.0)
    times[first::10] = 20.0
    return times


@pytest.mark.parametrize("n_per_check", [5, 25, 100])
def test_every_tenth_step_that_takes_twice_as_long_is_a_drop(n_per_check):
    """The usual step does not change, but the mean rises by 10%."""
    checks = np.split(every_tenth(120 * n_per_check, 30 * n_per_check), 120)
    trigger = Trigger(ALL)
    found = [reason for check in checks if (reason := trigger.check(RunView(), check * MS))]
    assert found == ["the mean step time rose from 10 ms to 11 ms"]
    assert trigger.is_rise_of_mean
    only_slow = Trigger(Conditions(slow=True))
    assert not any(only_slow.check(RunView(), check * MS) for check in checks)


def test_one_step_that_takes_ten_times_as_long_is_not_captured():
    """It is over: a capture of the next steps would not contain it."""
    checks = np.full((120, 5), 10.0)
    checks[40, 2] = 100.0
    trigger = Trigger(ALL)
    assert not any(trigger.check(RunView(), check * MS) for check in checks)


def test_200_short_steps_are_a_reference():
    """Two checks of 100 steps; then steps take twice as long."""
    trigger = Trigger(ALL)
    checks = [np.full(100, 5.0)] * 2 + [np.full(50, 10.0)] * 20
    found = [index for index, check in enumerate(checks) if trigger.check(RunView(), check * MS)]
    assert found == [7]


def test_a_slow_rank_that_makes_the_steps_slow_is_captured_once():
    """The straggler is confirmed first; the slower steps are the same change."""
    behind = RunView(straggler=Straggler(1, 2.0, 1.0, 1.0, ""))
    views = [RunView()] * 20 + [behind] * 60
    found = reasons(Trigger(ALL), [10.0] * 20 + [20.0] * 60, views)
    assert found == [(22, "rank 1 is a straggler")]


def new_steps(tmp_path, steps, **fields):
    write_status(tmp_path, 0, steps, **fields)
    monitor = Monitor(tmp_path / "live", Conditions(slow=True), print)
    return monitor._new_steps_ns(LiveRun(tmp_path, tmp_path / "live").refresh()) / MS


def test_the_steps_of_a_capture_are_no_reference(tmp_path):
    """Steps 2 to 4 are recorded; step 5 waits until the recorder has stopped."""
    steps = [step(time) for time in (10, 11, 50, 51, 52, 90, 12)]
    assert [*new_steps(tmp_path, steps, capture={"id": 1, "steps": [2, 4]})] == [10, 11, 12]
    for damaged in (None, [2], ["2", "4"], {"2": 4}, [[2], [4]]):
        assert len(new_steps(tmp_path, steps, capture={"steps": damaged})) == 7


def test_the_first_steps_wait_for_a_core_like_the_whole_process(tmp_path):
    """In 400 of 1,000 ms since the start, the thread waited for a core."""
    fields = {"started_ns": 500 * MS, "offset_ns": 0, "now_ns": 1500 * MS}
    assert [*new_steps(tmp_path, [step(10)] * 2, core_wait_ns=400 * MS, **fields)] == [6, 6]


def test_a_capture_contains_slow_steps_that_recur(tmp_path):
    """Every tenth step: 21 steps contain two of them. Two slow steps do not show a period."""
    for times, n_steps in ((every_tenth(100, 0), 21), (every_tenth(20, 0), 6)):
        write_status(tmp_path, 0, [step(time) for time in times])
        assert _n_recurring(LiveRun(tmp_path, tmp_path / "live").refresh()) == n_steps


def checks_of(n_before, before, n_after, after):
    """Return checks: ms of a step, and of data, forward, backward, and optimizer."""
    return [np.array(before) * 1.0] * n_before + [np.array(after) * 1.0] * n_after


@pytest.mark.parametrize(
    ("after", "place"),
    [
        ((20, 11, 2, 3, 1), "data"),
        ((20, 1, 2, 3, 1), OTHER),
        ((20, 3, 4, 5, 3), ""),  # 10 ms more: 2 ms in each phase, and 2 ms outside
        ((9, 1, 1, 3, 1), ""),
    ],
)
def test_the_phase_with_most_of_the_additional_time_is_named(after, place):
    assert _place_of_rise(checks_of(20, (10, 1, 2, 3, 1), 6, after), 6) == place
    assert _place_of_rise(checks_of(0, (10, 1, 2, 3, 1), 6, after), 6) == ""


def test_the_reason_names_the_phase(tmp_path, monkeypatch):
    """After 10 checks, data loading takes 20 ms more."""
    monkeypatch.setattr("traceprof.recording.live.running.socket.gethostname", lambda: "node1")
    said = []
    monitor = Monitor(tmp_path / "live", Conditions(slow=True), said.append)
    for check in range(20):
        steps = [step(30, data=21) if check >= 10 else step(10, data=1)] * 20
        write_status(tmp_path, 0, steps, first=20 * check)
        monitor._next_check_s = 0
        monitor.tick()
    assert said == ["the step time rose from 10 ms to 30 ms, mostly in data: capturing 6 steps"]


def test_the_phase_of_a_straggler_is_named():
    assert in_phase("backward") == ", mostly in backward"
    assert (in_phase(OTHER), in_phase("")) == (", mostly outside the phases", "")


@pytest.mark.parametrize(("wait_ms", "n_steps"), [(900, 2), (950, 0), (1200, 0)])
def test_steps_of_a_thread_that_hardly_runs_are_left_out(tmp_path, wait_ms, n_steps):
    """Without 95% of their time, steps would be short, and the following ones slow."""
    fields = {"started_ns": 500 * MS, "offset_ns": 0, "now_ns": 1500 * MS}
    assert len(new_steps(tmp_path, [step(10)] * 2, core_wait_ns=wait_ms * MS, **fields)) == n_steps


def test_one_check_is_no_reference():
    """Its steps share one correction. The second check makes it four values."""
    trigger = Trigger(ALL)
    checks = [np.full(100, 1.0)] + [np.full(100, 6.0)] * 60
    assert not any(trigger.check(RunView(), check * MS) for check in checks)


def test_a_rank_also_waits_for_a_rank_that_waits_for_a_core(tmp_path):
    """Rank 1 waits for a core in half of the time; the steps of both ranks take twice as long."""
    fields = {"started_ns": 500 * MS, "offset_ns": 0, "now_ns": 1500 * MS}
    write_status(tmp_path, 1, [step(20)] * 2, core_wait_ns=500 * MS, **fields)
    assert [*new_steps(tmp_path, [step(20)] * 2, core_wait_ns=0, **fields)] == [10] * 4
