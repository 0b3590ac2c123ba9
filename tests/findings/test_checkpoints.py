"""Checkpoints are named with their number, length, and the rate with and without them."""

from __future__ import annotations

import pytest

from tests.builders import TraceBuilder
from tests.findings.found import Found, findings_of, in_default_window
from tests.running import run
from traceprof.comparison.comparing import compare
from traceprof.comparison.summary.summarize import summarize
from traceprof.measures.steps.find import decide_steps
from traceprof.model.ranks import Ranks
from traceprof.model.summary import Summary
from traceprof.model.trace import Trace
from traceprof.render.formatting import note_text
from traceprof.session.run import run_of

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
        f"Checkpoints stall training for {share:.1%} of the loop time: 3 checkpoints of 600 ms"
    )
    assert found.saving_ratio == pytest.approx(share, rel=1e-3)
    assert found.saving_ns == pytest.approx(120 * MS, rel=1e-3)
    assert found.kind == "bounded"
    rate = N_STEPS / (N_STEPS * usual_ms + 1800) * 1000
    assert found.evidence[:2] == (
        "one every 5 steps, the first after step 4",
        f"{rate:.3g} steps/s with checkpoints, {1000 / usual_ms:.3g} steps/s without",
    )
    assert "1.00 GB copied to the CPU per checkpoint" in found.evidence
    assert any("no range names this work" in note for note in found.evidence) != has_range
    assert "async_save" in found.action
    steps = run("steps", trace)
    assert any(
        note_text(note).startswith("Every 5 steps: checkpoint, 600 ms each") for note in steps.notes
    )


def asynchronous_copy(every: int) -> Trace:
    """20 steps of 10 ms; a named checkpoint of 100 ms launches a copy of 30 ms as it begins."""
    builder, now = TraceBuilder().device(0, "NVIDIA H100 80GB HBM3"), 0
    for number in range(20):
        start = now
        for name in ("bf16_gemm", "multi_tensor_apply_kernel<AdamFunctor>"):
            called = (now + US, now + 5 * US)
            builder.kernel(name, now + 10 * US, now + 5 * MS, launched_ns=called)
            now += 5 * MS
        builder.api_call("cudaDeviceSynchronize", now - 20 * US, now)
        builder.range("Optimizer.step#AdamW.step", now - 60 * US, now - 30 * US)
        if (number + 1) % every == 0:
            called = (now + US, now + 5 * US)
            place = {"n_bytes": 4 * 10**8, "dst_kind": "pageable", "launched_ns": called}
            builder.copy("d2h", now + 10 * US, now + 30 * MS, **place)
            builder.range("save_checkpoint", now, now + 100 * MS)
            now += 100 * MS
        builder.step(start, now, number)
    return builder.build()


def test_checkpoints_in_every_step_have_no_step_without_to_compare_with() -> None:
    found, share = stalls(asynchronous_copy(1)), 100 / 110
    assert found is not None
    assert found.title == (
        f"Checkpoints stall training for {share:.1%} of step time: 19 checkpoints in 19 steps"
    )
    assert found.saving_ratio == pytest.approx(share, rel=1e-3)
    assert found.kind == "bounded"
    assert found.action.startswith("Save less often")


def test_checkpoints_in_every_second_step_are_not_gaps_of_unknown_code() -> None:
    trace = asynchronous_copy(2)
    found = stalls(trace)
    assert found is not None
    assert found.saving_ratio > 0.8  # 100 of 120 ms
    assert found.action.startswith("Save less often")
    others = {one.rule: one for one in findings_of(in_default_window(trace))}
    assert "host_code" not in others
    assert "gpu_gaps" not in others


@pytest.mark.parametrize(("first", "saved_ms"), [(1, 7 * 600 / 14), (0, 7 * 600 / 14 + 200 / 14)])
def test_unnamed_checkpoints_in_every_second_step_are_a_cost_of_the_loop(
    first: int, saved_ms: float
) -> None:
    """No step is unusual, because a checkpoint also delays the GPU in the step after it."""
    trace = training(saves_after=tuple(range(first, N_STEPS, 2)))
    found = stalls(trace)
    assert found is not None
    assert found.title.endswith("% of step time: 7 checkpoints in 14 steps")
    assert found.saving_ns == pytest.approx(saved_ms * MS, rel=0.01)
    assert any("no range names this work" in note for note in found.evidence)
    others = {one.rule for one in findings_of(in_default_window(trace))}
    assert others.isdisjoint({"host_code", "gpu_gaps", "pageable_copies"})


@pytest.mark.parametrize("saves_after", [tuple(range(N_STEPS)), (0, 1, 3, 4, 6, 7, 9, 10, 12, 13)])
def test_copies_in_most_steps_are_not_called_checkpoints(saves_after: tuple[int, ...]) -> None:
    assert stalls(training(saves_after=saves_after)) is None


@pytest.mark.parametrize("every", [3, 4, 10])
def test_a_checkpoint_makes_the_steps_before_and_after_it_longer(every: int) -> None:
    trace = asynchronous_copy(every)
    found = stalls(trace)
    assert found is not None
    assert found.title.endswith(f"{20 // every} checkpoints of 100 ms")
    assert found.evidence[0] == f"one every {every} steps, the first after step {every - 1}"
    assert found.evidence[1].endswith("100 steps/s without")
    usual = run("steps", trace).table.take(run("steps", trace).table["kind"] == "usual")
    assert usual["duration_ns"].max() < 10.1 * MS
    rules = {one.rule for one in findings_of(in_default_window(trace))}
    assert "pageable_copies" not in rules


def test_checkpoints_in_each_step_belong_to_the_steps() -> None:
    found = stalls(asynchronous_copy(1))
    assert found is not None
    assert "of step time" in found.title  # no step without a checkpoint shows an excess
    assert stalls(asynchronous_copy(50)) is None


def test_a_comparison_shows_checkpoints_that_only_one_side_has() -> None:
    few, many, none = (
        summarize(run_of(decide_steps(Ranks.of(asynchronous_copy(every)))), name=name)
        for every, name in ((10, "few"), (4, "many"), (50, "none"))
    )

    def said(base: Summary, new: Summary) -> str:
        return " ".join(map(note_text, compare([base], [new]).verdict))

    text = said(few, many)
    assert text.startswith("The difference between ")
    # 20 steps of 10 ms, and 5 or 2 checkpoints of 100 ms.
    assert "With pauses such as checkpoints, step time: 35.0 ms, compared with 20.0 ms" in text
    assert "compared with 10.0 ms in the base" in said(none, many)
    assert "pauses" not in said(none, none)


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
