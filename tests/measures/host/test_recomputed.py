"""What activation checkpointing recomputes, as PyTorch records its two implementations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builders import TraceBuilder
from traceprof.measures.host.recomputed import recomputed_rows
from traceprof.measures.rows import lengths_of
from traceprof.session.run import open_run

EVALUATE = "autograd::engine::evaluate_function: "


def recomputed(builder: TraceBuilder) -> list[str]:
    """Return the names of the kernels that recompute."""
    trace = builder.build()
    return trace.kernels["name"][recomputed_rows(trace, "kernels")].tolist()


def launched(builder: TraceBuilder, **at_ns: int) -> TraceBuilder:
    """Launch kernels by name."""
    for name, at in at_ns.items():
        builder.kernel(name, at + 1000, at + 1001, launched_ns=(at, at + 1))
    return builder


@pytest.mark.parametrize(
    "function", ["CheckpointFunctionBackward", "_CheckpointFunctionBackward", "RecomputeBackward"]
)
@pytest.mark.parametrize("is_nvtx", [False, True])
def test_an_autograd_function_recomputes_except_in_nested_functions(
    function: str, *, is_nvtx: bool
) -> None:
    builder = TraceBuilder()
    add = builder.range if is_nvtx else builder.host_op
    decoration = ", seq = 16, op_id = 4" if is_nvtx else ""
    add(f"aten::mm{decoration}", 1, 5)
    add(f"{EVALUATE}{function}{decoration}", 20, 90)
    add(f"aten::mm{decoration}", 22, 30)
    add(f"{EVALUATE}MmBackward0{decoration}", 40, 80)
    add(f"aten::mm{decoration}", 42, 50)
    add(f"{EVALUATE}AddBackward0{decoration}", 100, 120)
    launched(builder, forward=2, again=23, gradient=43, last=85, other=110)
    assert recomputed(builder) == ["again", "last"]


def test_the_first_function_that_needs_an_activation_recomputes() -> None:
    builder = TraceBuilder().host_op(f"{EVALUATE}NativeLayerNormBackward0", 20, 90)
    builder.host_op("NativeLayerNormBackward0", 21, 89)
    for at, name in enumerate(("aten::linear", "aten::gelu", "aten::layer_norm")):
        builder.host_op(name, 30 + 10 * at, 38 + 10 * at)
    builder.host_op("aten::native_layer_norm_backward", 60, 70)
    builder.host_op(f"{EVALUATE}GeluBackward0", 100, 120).host_op("aten::gelu_backward", 101, 110)
    launched(builder, cast=25, linear=31, gelu=41, norm=51, norm_gradient=61, gelu_gradient=102)
    assert recomputed(builder) == ["cast", "linear", "gelu", "norm"]


def test_a_backward_pass_without_checkpoints_recomputes_nothing() -> None:
    builder = TraceBuilder().host_op("aten::linear", 0, 10)
    builder.host_op(f"{EVALUATE}AddmmBackward0", 20, 40).host_op("aten::mm", 22, 30)
    # The backward pass of a user's function may call activations.
    builder.host_op(f"{EVALUATE}SquaredReluBackward", 50, 70).host_op("aten::relu", 52, 60)
    # An optimizer in a hook, then the forward pass of the next step.
    builder.host_op(f"{EVALUATE}torch::autograd::AccumulateGrad", 80, 90)
    builder.host_op("aten::linear", 100, 110)
    launched(builder, first=1, gradient=23, relu=53, update=85, second=101)
    builder.kernel("unknown", 25, 26, correlation=-1)
    assert recomputed(builder) == []


@pytest.mark.traces
def test_kernels_of_a_real_checkpoint(real_trace: Callable[[str], Path]) -> None:
    # Python's stack is in this file: 591 kernels are launched in checkpoint.py: recompute_fn.
    trace = open_run([real_trace("kineto/2025-mi300x-rccl.json.gz")]).trace()
    is_recomputed = recomputed_rows(trace, "kernels")
    assert is_recomputed.sum() == 591
    assert lengths_of(trace.kernels)[is_recomputed].sum() == pytest.approx(4_122_223, rel=1e-6)
