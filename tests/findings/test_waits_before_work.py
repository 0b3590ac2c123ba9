"""A gap after a wait for the GPU has the cause that saves the most, in every step alike."""

from __future__ import annotations

import pytest

from tests.builders import TraceBuilder
from tests.findings.found import Found, findings_of, in_default_window
from tests.running import run
from traceprof.model.trace import Trace
from traceprof.render.formatting import note_text

MS, US = 1_000_000, 1_000
N_STEPS = 8


def loop(*, gpu_ms: int, work_ms: int, name: str = "", n_steps: int = N_STEPS) -> Trace:
    """Return steps: GPU work, a wait for it, and CPU work, of the operator ``name`` if given."""
    builder, now = TraceBuilder().device(0, "NVIDIA H100 80GB HBM3"), 0
    for number in range(n_steps):
        start, finish = now, now + 10 * US + gpu_ms * MS
        for part in range(10):
            each, at = gpu_ms * MS // 10, now + 10 * US + part * gpu_ms * MS // 10
            called = (now + part * US, now + part * US + 500)
            builder.kernel("bf16_gemm", at, at + each, launched_ns=called)
        builder.api_call("cudaDeviceSynchronize", now + 20 * US, finish)
        now = finish + work_ms * MS
        if name:
            builder.host_op(name, finish, now)
        builder.step(start, now, number)
    return builder.build()


def rules_of(trace: Trace) -> dict[str, Found]:
    return {one.rule: one for one in findings_of(in_default_window(trace))}


def test_work_longer_than_the_wait_has_the_whole_gap() -> None:
    rules = rules_of(loop(gpu_ms=100, work_ms=300))
    own = rules["host_code"]
    assert "host_sync" not in rules
    assert own.saving_ns == pytest.approx(300 * MS, rel=0.01)
    assert own.kind == "measured"
    assert own.evidence[-1] == ("100 ms per step of it would overlap GPU work without waits")


def test_a_wait_longer_than_the_work_has_the_whole_gap_in_each_step() -> None:
    trace = loop(gpu_ms=300, work_ms=20)
    rules = rules_of(trace)
    assert "host_code" not in rules
    assert rules["host_sync"].saving_ns == pytest.approx(20 * MS, rel=0.01)
    # The first gap of the window follows a wait that ends before the window begins.
    causes = run("idle", in_default_window(trace)).to_frame("causes").set_index("cause")
    assert causes.loc["synchronizing", "gap_count"] == N_STEPS - 1
    assert "host" not in causes.index


@pytest.mark.parametrize(
    ("name", "kind", "advice"),
    [
        ("torch::autograd::CopySlices", "bounded", "Reduce the CPU work per kernel"),
        ("aten::normal_", "bounded", "These operators work on CPU tensors"),
        ("Optimizer.step#SGD.step", "bounded", "Reduce the CPU work per kernel"),
        ("evaluate", "measured", "Find the "),
    ],
)
def test_operators_get_faster_but_remain(name: str, kind: str, advice: str) -> None:
    own = rules_of(loop(gpu_ms=100, work_ms=300, name=name))["host_code"]
    assert own.kind == kind
    assert own.action.startswith(advice)


def test_without_the_kernels_of_most_launches_no_step_is_host_bound() -> None:
    def said(n_lost: int) -> str:
        builder, now = TraceBuilder(), 0
        for number in range(10):
            for part in range(10):
                at, called = now + (10 * part + 10) * US, (now + part * US, now + part * US + 500)
                if number < n_lost:
                    builder.api_call("cudaLaunchKernel", *called, correlation=9000 + at)
                else:
                    builder.kernel("bf16_gemm", at, at + 5 * US, launched_ns=called)
            builder.step(now, now + 10 * MS, number)
            now += 10 * MS
        notes = run("idle", in_default_window(builder.build())).notes
        return " ".join(map(note_text, notes))

    assert "Host-bound steps: 9" in said(0)
    assert "Host-bound steps" not in said(9)


@pytest.mark.parametrize(("n_kernels", "is_behind"), [(5, True), (400, False)])
def test_iterations_without_step_marks_know_what_binds(n_kernels: int, is_behind: bool) -> None:
    builder, now = TraceBuilder().device(0, "NVIDIA H100 80GB HBM3"), 0
    for _ in range(30):
        for part in range(5):
            name = f"void cudnn::ops::nchwToNhwcKernel<float, {part}>"
            each = n_kernels * 10 * US
            called = (now, now + 5 * US)
            builder.kernel(name, now + 6 * US, now + 6 * US + each, launched_ns=called)
            now += max(each + 10 * US, 500 * US)
    found = findings_of(in_default_window(builder.build()))
    (own,) = [one for one in found if one.rule == "layout_conversion"]
    assert any("critical path" in note for note in own.evidence) == is_behind
