"""Slow steps with a smaller batch than the others are due to its new shapes."""

from __future__ import annotations

import pytest

from tests.builders import TraceBuilder
from tests.findings.found import Found, findings_of, in_default_window
from traceprof.model.trace import Trace

MS, US = 1_000_000, 1_000


def training(n_samples: int, *, is_marked: bool = True) -> Trace:
    """Return 40 steps of 40 ms and 64 samples; each tenth takes 300 ms and has ``n_samples``.

    If not ``is_marked``, only the bytes of the batch are known.
    """
    builder, now = TraceBuilder().device(0, "NVIDIA H100"), 0
    for number in range(40):
        start, is_last = now, number % 10 == 9
        samples = n_samples if is_last else 64
        if is_marked:
            builder.batch(now + 5 * US, samples)
        called = (now + 10 * US, now + 15 * US)
        size = samples * 100_000
        builder.copy("h2d", now + 20 * US, now + 50 * US, n_bytes=size, launched_ns=called)
        length = (300 if is_last else 40) * MS
        called = (now + 60 * US, now + 65 * US)
        builder.kernel("implicit_convolve", now + 70 * US, now + length, launched_ns=called)
        now += length
        builder.step(start, now, number)
    return builder.build()


def slow_steps(trace: Trace) -> Found:
    ranks = in_default_window(trace)
    (found,) = [one for one in findings_of(ranks) if one.rule == "slow_steps"]
    return found


@pytest.mark.parametrize(
    ("is_marked", "note"),
    [
        (True, "4 of these steps have 20 samples instead of 64 samples"),
        (False, "4 of these steps have 2.00 MB for the GPU instead of 6.40 MB for the GPU"),
    ],
)
def test_the_last_batch_has_new_shapes(is_marked: bool, note: str) -> None:
    found = slow_steps(training(20, is_marked=is_marked))
    assert found.title.endswith("although their batches are smaller (new shapes)")
    assert found.evidence[-1] == note
    assert "drop_last=True" in found.action


@pytest.mark.parametrize("n_samples", [64, 640])
def test_other_slow_steps_are_not(n_samples: int) -> None:
    found = slow_steps(training(n_samples))
    assert "drop_last" not in found.action
    assert "smaller" not in found.title
