"""Slow steps and checkpoints behind a slow loader save only what the loader leaves."""

from __future__ import annotations

import pytest

from tests.builders import TraceBuilder
from tests.findings.found import Found, findings_of, in_default_window
from traceprof.model.trace import Trace

MS, US = 1_000_000, 1_000
N_STEPS = 24
SLOW = (8, 16)


def training(slow_ms: int, *, n_ahead: int, copies: int = 0) -> tuple[Trace, int]:
    """Return 24 steps of 20 ms behind a loader that needs 40 ms per batch, and when they end.

    The loader is at most ``n_ahead`` batches ahead (0: it loads in the loop). The steps `SLOW` take
    ``slow_ms``, during ``copies`` to the CPU, which the host waits for.
    """
    builder, now = TraceBuilder().device(0, "NVIDIA H100 80GB HBM3"), 0
    ready, taken = [0], list[int]()
    for number in range(N_STEPS):
        begun = now
        if n_ahead:
            free = taken[number - n_ahead] if number >= n_ahead else 0
            ready.append(max(ready[-1], free) + 40 * MS)
            now = max(now + 50 * US, ready[-1])
        else:
            now += 40 * MS
        taken.append(now)
        builder.range("enumerate(DataLoader)#__next__", begun, now)
        length = slow_ms if number in SLOW else 20
        for i in range(copies if number in SLOW else 0):
            builder.copy(
                *("d2h", now + (2 + 4 * i) * MS, now + (5 + 4 * i) * MS),
                n_bytes=100_000_000,
                launched_ns=(now + 2 * i * US, now + (2 * i + 1) * US),
                dst_kind="pinned",
                stream=20,
            )
        for i in range(4):
            called = now + (100 + 10 * i) * US
            start = now + MS + i * length * MS // 4
            name = "bf16_gemm" if i < 3 else "multi_tensor_apply_kernel<AdamFunctor>"
            builder.kernel(
                *(name, start, start + length * MS // 4 - MS // 10),
                launched_ns=(called, called + 5 * US),
            )
        end = now + (length + 1) * MS
        if copies and number in SLOW:
            builder.range("save_checkpoint", now + 200 * US, end)
        builder.api_call("cudaStreamSynchronize", now + 200 * US, end)
        builder.step(begun, end, number)
        now = end
    return builder.build(), now


def finding(trace: Trace, rule: str) -> Found:
    (found,) = [one for one in findings_of(in_default_window(trace)) if one.rule == rule]
    return found


def test_a_loader_that_is_never_stopped_eats_slow_steps() -> None:
    (trace, end_ns), (_, healthy_ns) = training(100, n_ahead=8), training(20, n_ahead=8)
    assert end_ns - healthy_ns == 0
    found = finding(trace, "slow_steps")
    assert (found.kind, found.saving_ns, found.is_minor) == ("none", 0, False)
    assert found.evidence[0] == (
        "the loop gets a batch every 40.0 ms, and waits less for it after these steps, so this "
        "change saves time only after data loading is faster"
    )


@pytest.mark.parametrize("n_ahead", [1, 2])
def test_a_loader_with_a_short_queue_eats_a_part_of_slow_steps(n_ahead: int) -> None:
    (trace, end_ns), (_, healthy_ns) = training(100, n_ahead=n_ahead), training(20, n_ahead=n_ahead)
    saved_ns = (end_ns - healthy_ns) / N_STEPS
    found = finding(trace, "slow_steps")
    assert 0 < saved_ns <= found.saving_ns <= 1.2 * saved_ns


def test_slow_steps_add_up_with_loading_in_the_loop() -> None:
    (trace, end_ns), (_, healthy_ns) = training(100, n_ahead=0), training(20, n_ahead=0)
    found = finding(trace, "slow_steps")
    assert found.kind == "measured"
    assert found.saving_ns == pytest.approx((end_ns - healthy_ns) / N_STEPS, rel=0.05)


@pytest.mark.parametrize(("n_ahead", "kind"), [(8, "none"), (0, "bounded")])
def test_a_slow_asynchronous_checkpoint(n_ahead: int, kind: str) -> None:
    trace, _ = training(100, n_ahead=n_ahead, copies=20)
    found = finding(trace, "checkpoint_stalls")
    assert found.kind == kind
    assert (found.saving_ns == 0) == (kind == "none")
    assert found.action.startswith("Kernels take longer during the copies of these checkpoints.")
    assert "Save asynchronously" not in found.action
