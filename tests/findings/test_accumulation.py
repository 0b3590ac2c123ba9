"""Gradients that are reduced in every micro-step are named with their cost."""

from __future__ import annotations

import pytest

from tests.builders import TraceBuilder
from tests.findings.found import Found, findings_of, in_default_window
from tests.running import run
from traceprof.model.trace import Trace

MS, US = 1_000_000, 1_000
RING = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
MB = 1_000_000


def training(
    n_micro: int,
    reduced_in: tuple[int, ...],
    *,
    n_bytes: int = 50 * MB,
    has_tensor_parallelism: bool = False,
    op: str = "all_reduce",
) -> Trace:
    """Return 8 updates of micro-steps: 10 ms forward, 20 ms backward, and then a reduction of 5 ms.

    Only the micro-steps ``reduced_in`` reduce. With tensor parallelism, the reductions are of
    activations, in the forward and in the backward pass.
    """
    builder, now, at = TraceBuilder().device(0, "NVIDIA H100"), 0, 0

    def work(name: str, length: int) -> None:
        nonlocal now, at
        builder.kernel(name, now + 10 * US, now + length, launched_ns=(at, at + 5 * US))
        now, at = now + length, at + 10 * US

    def reduce() -> None:
        builder.collective(op, at - 1, at + 6 * US, n_bytes=n_bytes)
        work(RING, 5 * MS)

    for number in range(8):
        start = at = now
        for micro in range(n_micro):
            work("bf16_gemm", 10 * MS)
            if has_tensor_parallelism:
                reduce()
            begun = at
            work("bf16_gemm", 20 * MS)
            if micro in reduced_in or has_tensor_parallelism:
                reduce()
            builder.phase("backward", begun - 2, at)
        begun = at
        work("multi_tensor_apply_kernel", MS)
        builder.phase("optimizer", begun - 2, at)
        builder.step(start, now, number)
    return builder.build()


def finding(trace: Trace) -> Found | None:
    ranks = in_default_window(trace)
    found = [one for one in findings_of(ranks) if one.rule == "reduced_micro_steps"]
    return found[0] if found else None


@pytest.mark.parametrize("op", ["all_reduce", "reduce_scatter"])
def test_four_micro_steps_that_all_reduce(op: str) -> None:
    found = finding(training(4, (0, 1, 2, 3), op=op))
    assert found is not None
    # 3 of 4 reductions of 5 ms, in a step of 4 × 35 + 1 ms.
    assert found.title == (
        "Gradient accumulation reduces gradients in each of 4 backward passes per step: 10.6% of "
        "step time is exposed communication of passes before the last"
    )
    assert found.saving_ns == pytest.approx(15 * MS, rel=0.01)
    assert found.kind == "bounded"
    assert found.evidence == (
        "3 early reductions per step (a later backward pass of the step reduces these gradients "
        "again)",
        "50.0 MB reduced per backward pass",
    )
    assert ("no_sync" if op == "all_reduce" else "set_requires_gradient_sync") in found.action


@pytest.mark.parametrize(
    "trace",
    [
        training(4, (3,)),
        training(1, (0,)),
        training(4, (0, 1, 2, 3), n_bytes=1000),
        training(4, (), has_tensor_parallelism=True),
        training(4, (1, 3)),
    ],
    ids=["last only", "no accumulation", "losses", "tensor parallelism", "some"],
)
def test_other_reductions_are_necessary(trace: Trace) -> None:
    assert finding(trace) is None


def test_without_sizes_nothing_is_checked() -> None:
    trace = training(4, (0, 1, 2, 3), n_bytes=-1)
    not_checked = run("findings", trace).tables["not_checked"].to_frame().set_index("rule")
    assert "known size" in not_checked.loc["reduced_micro_steps", "reason"]
