"""Time between the range of a step and the next one is known to be that, whatever ran there."""

import pytest

from tests.builders import TraceBuilder
from tests.findings.found import findings_of

MS = 1_000_000


def test_idle_time_between_the_ranges_of_steps_is_said_to_be_there() -> None:
    builder, now = TraceBuilder(), 0
    for number in range(12):
        builder.step(now, now + 40 * MS, number)
        builder.kernel("gemm", now + MS, now + 40 * MS, launched_ns=(now, now + MS // 2))
        now += 100 * MS
    first = findings_of(builder.build())[0]
    assert first.rule == "host_code"
    assert str(first.title).startswith("CPU work between steps")
    assert "fetches a batch, evaluates, or logs" in first.action
    assert "Fetch batches in workers" in first.action


def test_recorded_file_access_between_steps_has_its_advice() -> None:
    builder, now = TraceBuilder(), 0
    for number in range(12):
        builder.step(now, now + 40 * MS, number)
        builder.kernel("gemm", now + MS, now + 40 * MS, launched_ns=(now, now + MS // 2))
        builder.host_op("read", now + 41 * MS, now + 99 * MS, source="osrt")
        now += 100 * MS
    first = findings_of(builder.build())[0]
    assert first.title.startswith("CPU work between steps, mostly reading, writing, and sending")
    assert first.action == "Read, write, and send data in another thread during GPU work."


@pytest.mark.parametrize("is_recorded", [True, False])
def test_slow_steps_with_time_between_steps_name_the_recorded_call(is_recorded: bool) -> None:
    builder, now = TraceBuilder(), 0
    for number in range(20):
        pause = 300 * MS if number in (7, 12) else 0
        builder.step(now, now + 40 * MS, number)
        builder.kernel("gemm", now + MS, now + 40 * MS, launched_ns=(now, now + MS // 2))
        if pause and is_recorded:
            builder.api_call("cudaFree", now + 40 * MS, now + 40 * MS + pause)
        now += 40 * MS + pause
    (slow,) = [one for one in findings_of(builder.build()) if one.rule == "slow_steps"]
    assert ("(cudaFree)" in slow.title) == is_recorded
    assert ("The time is between steps" in slow.action) != is_recorded
    assert ("expandable_segments:True" in slow.action) == is_recorded


def test_slow_steps_that_wait_for_data_are_no_matter_of_logging() -> None:
    builder, now = TraceBuilder(), 0
    for number in range(20):
        wait = 300 * MS if number in (7, 12, 16) else 2 * MS
        builder.step(now, now + wait + 40 * MS, number).phase("data", now, now + wait)
        builder.kernel(
            "gemm", now + wait, now + wait + 40 * MS, launched_ns=(now + wait - 10_000, now + wait)
        )
        now += wait + 40 * MS
    (slow,) = [one for one in findings_of(builder.build()) if one.rule == "slow_steps"]
    assert "wait for data" in slow.action
    assert "logging" not in slow.action
