"""A process whose memory grows until the end is found; warm-up, caches and workers are not."""

from collections.abc import Callable

import pytest

from tests.builders import PROCESS, TraceBuilder
from tests.findings.found import Found, findings_of, in_default_window
from tests.running import run

MS = 1_000_000
MB = 10**6
STEP_NS = 100 * MS


def loop(
    level: Callable[[int], float], *, n_steps: int = 60, source: int = PROCESS
) -> TraceBuilder:
    """Steps of 100 ms, and a sample of the memory in bytes in each: ``level`` of the step."""
    builder = TraceBuilder()
    for number in range(n_steps):
        at = (number + 1) * STEP_NS
        builder.phase("step", at, at + STEP_NS - MS, payload=float(number), kind="start_end")
        builder.phase("forward", at, at + 50 * MS)
        builder.phase("backward", at + 50 * MS, at + 90 * MS)
        builder.sample("memory_bytes", at + 1, level(number), source=f"process:{source}")
    return builder


def found_in(builder: TraceBuilder) -> list[Found]:
    found = findings_of(in_default_window(builder.build()))
    return [one for one in found if one.rule == "host_memory_growth"]


def test_64_mb_per_step_is_the_first_finding_with_the_time_until_the_limit() -> None:
    builder = loop(lambda step: 500 * MB + 64 * MB * step)
    builder.setting("ram_bytes", "64000000000")
    builder.setting("ram_limit_bytes", "8000000000")
    found = findings_of(in_default_window(builder.build()))
    assert found[0].rule == "host_memory_growth"
    assert not found[0].is_minor
    assert found[0].title == f"Host memory of process {PROCESS} grows by 64.0 MB per step"
    first, limit = found[0].evidence
    assert "500 MB to " in first or "564 MB to " in first
    assert limit.startswith("at this rate, memory reaches the cgroup limit of 8.00 GB")
    # The last analyzed level is 500 + 58 × 64 = 4212 MB: 3788 MB are left, which are 59 steps.
    assert "(59 steps) after the last sample" in limit
    assert "tracemalloc" in found[0].action


def test_an_unknown_limit_is_not_invented() -> None:
    (found,) = found_in(loop(lambda step: 500 * MB + 64 * MB * step))
    assert "the memory limit of the machine is not recorded" in found.evidence


def test_a_limit_of_the_address_space_comes_first_if_it_is_smaller() -> None:
    builder = loop(lambda step: 500 * MB + 64 * MB * step)
    builder.setting("ram_bytes", "16000000000").setting("address_space_limit_bytes", "9000000000")
    (found,) = found_in(builder)
    assert any("memory reaches the `ulimit -v` limit of 9.00 GB" in e for e in found.evidence)


def test_no_limit_of_the_cgroup_leaves_the_ram() -> None:
    builder = loop(lambda step: 500 * MB + 64 * MB * step)
    builder.setting("ram_limit_bytes", "max").setting("ram_bytes", "16000000000")
    (found,) = found_in(builder)
    assert any("RAM limit of 16.0 GB" in text for text in found.evidence)


@pytest.mark.parametrize(
    "level",
    [
        lambda _step: 500 * MB,
        lambda step: 500 * MB + min(step, 20) * 64 * MB,  # a cache that is full after 20 steps
        lambda step: 500 * MB + 1000 * MB * (1 - 0.9**step),  # a warm-up that flattens
        lambda step: 500 * MB + (step % 15) * 64 * MB,  # freed at the end of each epoch
        lambda step: 50_000 * MB + step * MB,  # 0.1% of the memory
        lambda step: 5000 * MB - step * 64 * MB,
        lambda step: 500 * MB + (step > 30) * 4000 * MB,  # one large allocation
    ],
)
def test_memory_that_does_not_grow_until_the_end_says_nothing(level) -> None:
    assert not found_in(loop(level))


def test_the_memory_of_a_process_without_steps_says_nothing() -> None:
    """A loader's fork copies pages as it touches them: its own process, without steps."""
    assert not found_in(loop(lambda step: 500 * MB + 64 * MB * step, source=PROCESS + 1))


def test_too_few_samples_are_not_a_check() -> None:
    builder = loop(lambda step: 500 * MB + 64 * MB * step, n_steps=6)
    result = run("findings", in_default_window(builder.build()))
    reasons = {row["rule"]: row["reason"] for row in result.tables["not_checked"].rows()}
    assert "samples of process memory" in reasons["host_memory_growth"]
