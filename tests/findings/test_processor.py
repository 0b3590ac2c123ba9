"""A training thread that waits for a CPU core comes first; a thread that sleeps does not."""

import pytest

from tests.builders import PROCESS, TraceBuilder
from tests.findings.found import findings_of, in_default_window
from tests.running import run

MS = 1_000_000
SOURCE = f"process:{PROCESS}"


def loop(
    ran_ms: float, waited_ms: float, *, step_ms: int = 100, n_steps: int = 20, **slow: float
) -> TraceBuilder:
    """Steps of a CPU: data for 60%, then forward and backward passes; ``waited_ms`` of ``at``."""
    builder, at, ran, waited = TraceBuilder(), MS, 0.0, 0.0
    for number in range(n_steps + 1):
        builder.sample("thread_cpu_ns", at - MS // 2, ran * MS, source=SOURCE)
        builder.sample("thread_cpu_wait_ns", at - MS // 2, waited * MS, source=SOURCE)
        if number == n_steps:
            break
        more_ms = round(slow.get("more_ms", 0)) if number == slow.get("at") else 0
        end = at + (step_ms + more_ms) * MS
        builder.phase("step", at, end - MS, payload=float(number), kind="start_end")
        builder.phase("data", at, at + 60 * MS)
        builder.phase("forward", at + 60 * MS, at + 70 * MS)
        builder.phase("backward", at + 70 * MS, end - 10 * MS)
        builder.phase("optimizer", end - 10 * MS, end - 2 * MS)
        ran, waited, at = ran + ran_ms, waited + waited_ms + more_ms, end
    return builder


def rules_of(builder: TraceBuilder):
    return findings_of(in_default_window(builder.build()))


def test_a_process_with_9_percent_of_a_core_needs_cores_and_not_workers() -> None:
    (found,) = rules_of(loop(9, 90))
    assert found.rule == "cpu_shortage"
    assert found.title == (
        f"CPU shortage: the training thread of process {PROCESS} got 9.0% of a CPU core, and "
        "waited for a core for 90.0% of step time"
    )
    assert found.saving_ratio == pytest.approx(0.9, abs=0.01)
    assert "Free CPU cores" in found.action


def test_a_process_that_sleeps_for_its_data_needs_workers() -> None:
    """It also gets 9% of a core, and is never ready to run without one."""
    assert [one.rule for one in rules_of(loop(9, 0.5))] == ["input_bound"]


def test_a_little_waiting_leaves_the_other_advice() -> None:
    assert [one.rule for one in rules_of(loop(70, 15))] == ["input_bound"]


def test_without_the_times_the_rule_abstains() -> None:
    builder = TraceBuilder()
    for number in range(10):
        builder.step(number * 100 * MS, (number + 1) * 100 * MS - MS, number)
    result = run("findings", in_default_window(builder.build()))
    reasons = {row["rule"]: row["reason"] for row in result.tables["not_checked"].rows()}
    assert "not recorded" in reasons["cpu_shortage"]


def test_a_step_that_is_slow_because_it_waits_for_a_core_says_so() -> None:
    found = {one.rule: one for one in rules_of(loop(95, 2, at=12, more_ms=200))}
    slow = found["slow_steps"]
    assert "cpu_shortage" not in found
    assert "the training thread waits for a CPU core for 202 ms per step" in slow.evidence[-1]
    assert slow.action.startswith("Free CPU cores")


def test_a_gpu_that_is_busy_all_the_time_does_not_wait_for_the_cpu() -> None:
    builder, ran, waited = TraceBuilder(), 0, 0
    for number in range(20):
        at = (1 + 100 * number) * MS
        builder.sample("thread_cpu_ns", at - MS // 2, ran, source=SOURCE)
        builder.sample("thread_cpu_wait_ns", at - MS // 2, waited, source=SOURCE)
        builder.step(at, at + 99 * MS, number)
        builder.kernel("gemm", at + MS, at + 101 * MS, launched_ns=(at, at + MS // 2))
        ran, waited = ran + 10 * MS, waited + 50 * MS
    found = findings_of(in_default_window(builder.build()))
    assert all(one.is_minor for one in found if one.rule == "cpu_shortage")


@pytest.mark.parametrize(("waited_ms", "rules"), [(60, ["cpu_shortage"]), (1, [])])
def test_only_the_device_of_the_waiting_process_loses_its_time(waited_ms: int, rules) -> None:
    """Process 2 launches late because it waits for a core: half of its GPU time is idle."""
    builder = TraceBuilder().process(1, rank=0).process(2, rank=1)
    for process, busy_ms, waits_ms in ((1, 98, 0), (2, 50, waited_ms)):
        for number in range(21):
            at = (1 + 100 * number) * MS
            for metric, per_step_ms in (("thread_cpu_ns", 20), ("thread_cpu_wait_ns", waits_ms)):
                source = f"process:{process}"
                builder.sample(metric, at - MS // 2, number * per_step_ms * MS, source=source)
            if number < 20:
                builder.step(at, at + 99 * MS, number, process=process)
                builder.kernel(
                    "gemm",
                    at + MS,
                    at + (1 + busy_ms) * MS,
                    launched_ns=(at, at + MS // 2),
                    device=process,
                    process=process,
                )
    found = [
        one for one in findings_of(in_default_window(builder.build())) if one.rule == "cpu_shortage"
    ]
    assert [one.rule for one in found] == rules
    for one in found:
        assert "process 2 got 20.0% of a CPU core" in one.title
        assert "1 of 2 processes wait" in one.evidence
        assert one.saving_ratio == pytest.approx(0.25, abs=0.02)  # half of one of two devices
