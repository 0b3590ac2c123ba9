"""What a run does, and what it pays once."""

import pytest

from tests.builders import TraceBuilder, plain
from traceprof.measures.steps.costs import one_off_costs
from traceprof.measures.workload import workload
from traceprof.model.ranks import Ranks
from traceprof.model.timing import TimeWindow
from traceprof.render.formatting import sentences


def launched(name: str) -> TraceBuilder:
    """Return a kernel of matrices that was launched in a range of that name."""
    builder = TraceBuilder().range(name, 0, 5).api_call("cudaLaunchKernel", 1, 2, correlation=1)
    return builder.kernel("gemm", 3, 9, correlation=1)


@pytest.mark.parametrize(
    ("builder", "kind", "why"),
    [
        (
            TraceBuilder().kernel("gemm", 0, 9).range("backward", 0, 5),
            "training",
            "1 backward pass recorded",
        ),
        (
            TraceBuilder()
            .kernel("void at::(anonymous namespace)::softmax_warp_backward<float>(int)", 0, 9)
            .kernel("void at::(anonymous namespace)::softmax_warp_backward<float>(int)", 9, 18),
            "training",
            "2 backward kernels, such as softmax_warp_backward",
        ),
        (
            TraceBuilder().kernel("multi_tensor_apply_kernel<Adam>", 0, 9),
            "training",
            "1 optimizer kernel",
        ),
        (
            TraceBuilder().kernel("gemm", 0, 9).kernel("paged_attention_v1_kernel", 9, 12),
            "inference",
            "decoder kernels, such as paged_attention_v1_kernel",
        ),
        (
            TraceBuilder().kernel("void ck::kentry<2, ck::PagedKVCacheKernel<int> >(int)", 0, 9),
            "inference",
            "decoder kernels, such as kentry (PagedKVCacheKernel)",
        ),
        (
            TraceBuilder()
            .kernel("multi_tensor_apply_kernel<CopyFunctor<int>, Copy<int>>", 0, 3)
            .kernel("paged_attention_v1_kernel", 9, 12),
            "inference",
            "decoder kernels, such as paged_attention_v1_kernel",
        ),
        (
            TraceBuilder()
            .kernel("multi_tensor_apply_kernel<UnaryOpFunctor<float>, Sqrt<float>>", 0, 3)
            .kernel("paged_attention_v1_kernel", 9, 12),
            "unknown",
            "1 optimizer kernel",
        ),
        (
            TraceBuilder().kernel("ncclDevKernel_AllReduce", 0, 9),
            "communication benchmark",
            "communication takes 100.0% of kernel time",
        ),
        (TraceBuilder().copy("h2d", 0, 9), "loading", "1 copy to a GPU and no kernel"),
        (TraceBuilder().copy("memset", 0, 9), "unknown", ""),
        (
            TraceBuilder().kernel(
                "std::enable_if<(8>0)&&vllm::_typeConvert<c10::Half>::exists, void>::type "
                "vllm::fused_add_rms_norm_kernel<c10::Half, 8>(int)",
                0,
                9,
            ),
            "inference",
            "decoder kernels, such as fused_add_rms_norm_kernel",
        ),
        (
            TraceBuilder()
            .kernel("gemm", 0, 1000)
            .kernel("nll_loss_backward_reduce_cuda_kernel_2d", 1000, 1009),
            "unknown",
            "no backward pass or optimizer was recorded",
        ),
        (
            TraceBuilder().kernel("gemm", 0, 9).range("forward", 0, 5),
            "unknown",
            "no backward pass or optimizer was recorded",
        ),
        (
            launched("DistributedDataParallel.forward"),
            "unknown",
            "a training forward pass (DistributedDataParallel.forward), but no recorded backward",
        ),
        (
            launched("forward").host_op("aten::binary_cross_entropy_with_logits", 1, 2),
            "unknown",
            "a training forward pass (aten::binary_cross_entropy_with_logits)",
        ),
        (
            launched("forward").host_op("autograd::engine::evaluate_function: Mm0", 6, 7),
            "training",
            "1 autograd backward operator",
        ),
        (launched("forward"), "inference", "100.0% of kernel time is launched in 1 forward"),
        (launched("eval"), "inference", "is launched in 1 forward or evaluation range"),
        (
            launched("forward")
            .api_call("cudaLaunchKernel", 6, 7, correlation=2)
            .kernel("gemm", 10, 12, correlation=2),
            "unknown",
            "no backward pass or optimizer was recorded",
        ),
        (TraceBuilder().range("forward", 0, 5), "unknown", ""),
        (
            TraceBuilder().range("forward", 0, 5).host_op("aten::mm", 1, 2),
            "inference",
            "1 forward or evaluation range and no backward range",
        ),
        (
            TraceBuilder().kernel("advec_cell", 0, 9),
            "unknown",
            "no names that indicate training or inference",
        ),
    ],
)
def test_workloads_by_what_gives_them_away(builder: TraceBuilder, kind: str, why: str) -> None:
    found = workload(Ranks.of(builder.build()))
    assert found.kind == kind
    assert any(why in reason for reason in sentences(found.reasons)) or not why


def test_matrices_alone_tell_neither_training_nor_inference() -> None:
    found = workload(Ranks.of(TraceBuilder().kernel("gemm", 0, 9).build()))
    assert (found.kind, len(found.reasons)) == ("unknown", 1)


def test_what_is_paid_once_counts_once() -> None:
    builder = TraceBuilder().range("load model", 0, 100).copy("h2d", 50, 150)
    for i in range(8):
        at = 200 + 10 * i + (80 if i else 0)
        builder.step(at, at + (90 if i == 0 else 10), number=i)
    builder.range("torch.compile", 200, 240).api_call("cuModuleLoadData", 230, 250)
    builder.range("evaluate", 400, 450, thread=2).range("save_checkpoint", 440, 500)
    ranks = Ranks.of(builder.build())
    costs = one_off_costs(ranks)
    columns = ("kind", "count", "total_ns", "outside_ns", "start_ns", "end_ns")
    assert plain(costs, *columns) == [
        ("loading", 1, 150, 0, 0, 150),
        ("checkpoint", 1, 60, 0, 440, 500),
        ("compiling", 1, 40, 0, 200, 240),
        ("evaluation", 1, 40, 0, 400, 440),
        ("warm-up", 1, 40, 0, 250, 290),
        ("loading kernels", 1, 10, 0, 240, 250),
    ]
    inside = one_off_costs(ranks.within(TimeWindow(290, 420)))
    assert dict(zip(inside["kind"], inside["outside_ns"], strict=True)) == {
        "loading": 150,
        "checkpoint": 60,
        "compiling": 40,
        "loading kernels": 10,
        "evaluation": 20,
        "warm-up": 40,
    }


def test_garbage_collections_before_the_first_step_are_no_cost_of_training() -> None:
    builder = TraceBuilder()
    for at in (10, 30, 125):
        builder.range("gc", at, at + 5, domain="traceprof")
    for i in range(4):
        builder.step(100 + 20 * i, 120 + 20 * i, number=i)
    costs = one_off_costs(Ranks.of(builder.build()))
    assert plain(costs, "kind", "count", "total_ns") == [("garbage collection", 1, 5)]


def test_what_takes_next_to_nothing_is_no_cost() -> None:
    builder = TraceBuilder().kernel("gemm", 0, 100_000).api_call("cuModuleLoadData", 10, 60)
    assert one_off_costs(Ranks.of(builder.build())).empty
    asks = TraceBuilder().kernel("gemm", 0, 100).api_call("cuModuleGetLoadingMode", 10, 60)
    assert one_off_costs(Ranks.of(asks.build())).empty


def test_a_trace_without_any_has_no_costs() -> None:
    assert one_off_costs(Ranks.of(TraceBuilder().kernel("gemm", 0, 9).build())).empty
