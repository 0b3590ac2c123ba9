"""Checkpoints are named with their number, length, and the rate with and without them."""

from __future__ import annotations

import pytest

from tests.builders import TraceBuilder
from tests.findings.found import Found, findings_of, in_default_window
from tests.running import run
from traceprof.model.trace import Trace
from traceprof.render.formatting import note_text

MS, US = 1_000_000, 1_000
N_STEPS = 15
SAVES_AFTER = (4, 9, 14)


def training(
    *,
    saves_after: tuple[int, ...] = SAVES_AFTER,
    n_copies: int = 10,
    n_bytes: int = 100_000_000,
    is_evaluation: bool = False,
    is_returned: bool = False,
    has_range: bool = False,
) -> Trace:
    """15 steps of 100 ms. In some, 10 copies to the CPU take 200 ms, and the host 400 ms more."""
    builder, now = TraceBuilder().device(0, "NVIDIA H100 80GB HBM3"), 0
    for number in range(N_STEPS):
        start = now
        for name in ("bf16_gemm", "bf16_gemm", "multi_tensor_apply_kernel<AdamFunctor>"):
            length = (50 if "gemm" in name else 0) * MS + (100 * US)
            builder.kernel(name, now + 10 * US, now + length, launched_ns=(now, now + 5 * US))
            now += length
        builder.range("Optimizer.step#AdamW.step", now - 50 * US, now - 20 * US)
        saved_from = now
        if number in saves_after:
            for _ in range(n_copies):
                if is_evaluation:
                    called = (now, now + 5 * US)
                    builder.kernel("bf16_gemm", now + 6 * US, now + 100 * US, launched_ns=called)
                called = (now + 200 * US, now + 20 * MS)
                builder.copy(
                    *("d2h", now + 300 * US, now + 19 * MS),
                    n_bytes=n_bytes,
                    launched_ns=called,
                    dst_kind="pageable",
                )
                now += 20 * MS
            now += 400 * MS
            if is_returned:
                called = (now, now + 10 * US)
                builder.copy("h2d", now + MS, now + 20 * MS, n_bytes=10**9, launched_ns=called)
                now += 20 * MS
            if has_range:
                builder.range("save_checkpoint", saved_from, now)
        builder.step(start, now, number)
    return builder.build()


def stalls(trace: Trace) -> Found | None:
    found = [
        one for one in findings_of(in_default_window(trace)) if one.rule == "checkpoint_stalls"
    ]
    return found[0] if found else None


@pytest.mark.parametrize("has_range", [True, False])
def test_checkpoints_after_every_fifth_step(has_range: bool) -> None:
    trace = training(has_range=has_range)
    found = stalls(trace)
    assert found is not None
    # 3 checkpoints of 600 ms in 15 steps of 100.3 ms.
    share, usual_ms = 1.8 / (1.8 + 15 * 0.1003), 100.3
    assert found.title == (
        f"Checkpoints stall training for {share:.1%} of the loop time: 3 checkpoints of 600.0 ms"
    )
    assert found.saving_ratio == pytest.approx(share, rel=1e-3)
    assert found.saving_ns == pytest.approx(120 * MS, rel=1e-3)
    assert found.kind == "bounded"
    rate = N_STEPS / (N_STEPS * usual_ms + 1800) * 1000
    assert found.evidence[:2] == (
        "one every 5 steps, the first after step 4",
        f"{rate:.4g} steps/s with checkpoints, {1000 / usual_ms:.4g} steps/s without",
    )
    assert "1.000 GB copied to the CPU per checkpoint" in found.evidence
    assert any("no range names this work" in note for note in found.evidence) != has_range
    assert "async_save" in found.action
    steps = run("steps", trace)
    assert any(
        note_text(note).startswith("Every 5 steps: checkpoint, 600.0 ms each")
        for note in steps.notes
    )


@pytest.mark.parametrize(
    "trace",
    [
        training(saves_after=()),
        training(is_evaluation=True),
        training(is_returned=True),
        training(n_copies=2),
        training(n_bytes=1_000_000),
        training(saves_after=tuple(range(N_STEPS))),
    ],
    ids=["none", "evaluation", "offloaded", "few copies", "few bytes", "in every step"],
)
def test_other_work_is_no_checkpoint(trace: Trace) -> None:
    assert stalls(trace) is None
    assert "checkpoint" not in run("steps", trace).table["excess_cause"].tolist()


def test_the_last_step_includes_the_checkpoint_after_it() -> None:
    lengths = run("steps", training()).table["duration_ns"].tolist()
    assert sum(lengths) == pytest.approx((N_STEPS * 100.3 + 1800) * MS, rel=1e-3)
    # Without a checkpoint, the usual tail of each step is in the next step.
    plain = run("steps", training(saves_after=())).table["duration_ns"].tolist()
    assert max(plain) <= 100.4 * MS
