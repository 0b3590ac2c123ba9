"""Kernels that copies between CPU and GPU slow down are named; other longer kernels are not."""

from __future__ import annotations

import pytest

from tests.builders import TraceBuilder
from tests.findings.found import Found, findings_of, in_default_window
from traceprof.model.trace import Trace

MS, US = 1_000_000, 1_000
N_STEPS = 20


def training(
    slow: tuple[int, ...],
    *,
    copies_in: tuple[int, ...] | None = None,
    is_first_larger: bool = False,
) -> Trace:
    """Return 20 steps of 10 GEMMs of 5 ms; in ``slow`` steps, they take 20 ms.

    Copies to the CPU run during all kernels of the steps ``copies_in`` (default: the slow steps).
    If ``is_first_larger``, the first GEMM of each step takes 20 ms, and a copy runs during it.
    """
    builder, now = TraceBuilder().device(0, "NVIDIA H100 80GB HBM3"), 0
    for number in range(N_STEPS):
        start = now
        for i in range(10):
            is_long = number in slow or (is_first_larger and i == 0)
            end = now + (20 if is_long else 5) * MS
            if number in (slow if copies_in is None else copies_in) or (is_first_larger and i == 0):
                called = (now, now + 5 * US)
                builder.copy(
                    *("d2h", now + 10 * US, end),
                    n_bytes=10_000_000,
                    launched_ns=called,
                    dst_kind="pinned",
                    stream=20,
                )
            builder.kernel(
                "bf16_gemm", now + 10 * US, end, launched_ns=(now + 6 * US, now + 8 * US)
            )
            now = end
        builder.step(start, now, number)
    return builder.build()


def finding(trace: Trace, rule: str) -> Found | None:
    found = [one for one in findings_of(in_default_window(trace)) if one.rule == rule]
    return found[0] if found else None


def test_kernels_during_copies_take_four_times_as_long() -> None:
    found = finding(training(tuple(range(5, 15))), "contention_with_copies")
    assert found is not None
    # 150 ms more in 10 of 20 steps of 50 or 200 ms.
    assert found.title == (
        "Copies between CPU and GPU slow overlapped kernels: they take 4.01× as long, which costs "
        "60.0% of step time"
    )
    assert found.saving_ns == pytest.approx(75 * MS, rel=0.01)
    assert found.evidence[1].endswith(" alone, 20.0 ms during copies (medians)")
    assert found.evidence[2] == "100 copies to the CPU (1.00 GB in total)"
    assert "asynchronous checkpoint" in found.action


@pytest.mark.parametrize(
    "trace",
    [
        training(()),
        training((), copies_in=tuple(range(5, 15))),
        training(tuple(range(5, 15)), copies_in=tuple(range(0, 20, 2))),
        training((), is_first_larger=True),
    ],
    ids=["no copies", "copies cost nothing", "other steps", "a larger kernel at one place"],
)
def test_other_kernels_are_not_slowed_by_copies(trace: Trace) -> None:
    assert finding(trace, "contention_with_copies") is None


def test_single_slow_steps_name_the_copies() -> None:
    found = finding(training((8, 15)), "slow_steps")
    assert found is not None
    assert found.title.endswith("mostly due to contention between compute and copies (bf16_gemm)")
    assert found.evidence[0].endswith("bf16_gemm during copies between CPU and GPU (+150 ms)")
    other = finding(training((8, 15), copies_in=()), "slow_steps")
    assert other is not None
    assert other.title.endswith("mostly due to compute (bf16_gemm)")
