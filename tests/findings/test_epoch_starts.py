"""Slow steps at the start of an epoch name the workers that start again."""

from __future__ import annotations

from tests.builders import TraceBuilder
from tests.findings.found import Found, findings_of, in_default_window
from traceprof.model.trace import Trace

MS, US = 1_000_000, 1_000


def training(*, starts_ms: int = 100, first_ms: int = 200, slow_at: int = 0) -> Trace:
    """Return 4 epochs of 10 steps of 40 ms; the first fetch of an epoch takes 200 ms, others 1 ms.

    ``slow_at`` is the step in the epoch with the slow fetch. Only the first step starts the pass.
    """
    builder, now = TraceBuilder().device(0, "NVIDIA H100"), 0
    for number in range(40):
        start = now
        if number % 10 == 0:
            builder.phase("data.start", now, now + starts_ms * MS)
            now += starts_ms * MS
        fetch = first_ms if number % 10 == slow_at else 1
        builder.phase("data", now, now + fetch * MS)
        now += fetch * MS
        builder.kernel("bf16_gemm", now + 10 * US, now + 40 * MS, launched_ns=(now, now + 5 * US))
        now += 40 * MS
        builder.step(start, now, number)
    return builder.build()


def slow_steps(trace: Trace) -> Found:
    ranks = in_default_window(trace)
    (found,) = [one for one in findings_of(ranks) if one.rule == "slow_steps"]
    return found


def test_workers_that_start_again_in_each_epoch() -> None:
    found = slow_steps(training())
    assert "persistent_workers=True" in found.action
    # The first epoch is warm-up.
    assert found.evidence[-1] == (
        "3 of these steps begin a pass over the DataLoader: 100 ms to start it, 200 ms for its "
        "first batch (means)"
    )


def test_slow_fetches_within_an_epoch_are_not_restarts() -> None:
    found = slow_steps(training(starts_ms=0, slow_at=5))
    assert "persistent_workers" not in found.action
    assert not any("pass over the DataLoader" in note for note in found.evidence)
