"""TFLOP/s by operator, class, phase and layer, against the peak of what each multiplies in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.builders import TraceBuilder
from tests.formats import kineto_file
from tests.measures.compute.test_utilization import H100, HALF
from tests.running import run
from traceprof.formats import compiled, open_trace
from traceprof.formats.contract import ReadOptions
from traceprof.measures.compute.operators import work_of
from traceprof.model.placement import place_run
from traceprof.model.ranks import RankTrace, RunFiles
from traceprof.model.tables import TABLES
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace
from traceprof.render.formatting import note_text, sentences

PRODUCT: tuple[Any, Any, Any] = ([[1000, 1000], [1000, 1000]], [HALF] * 2, [])
FLOP = 2e9


def built() -> TraceBuilder:
    """Return a product and what helps it, an addition, and a product of which nothing is known."""
    return (
        TraceBuilder()
        .device(0, name=H100)
        .host_op("aten::mm", 0, 100, inputs=PRODUCT)
        .kernel("nvjet_tst_128x256_64x4_gemm", 1000, 5000, launched_ns=(10, 20))
        .kernel("splitKreduce_kernel", 5000, 6000, launched_ns=(30, 40))
        .host_op("aten::add", 100, 200, inputs=([[1000, 1000]] * 2, [HALF] * 2, []))
        .kernel("vectorized_elementwise_kernel", 6000, 9000, launched_ns=(110, 120))
        .host_op("my::gemm", 200, 300)
        .kernel("cutlass_gemm", 9000, 11000, launched_ns=(210, 220))
    )


def test_flops_belong_to_the_operator_that_launched_the_kernels() -> None:
    result = run("flops", built().build())
    product, addition, unknown = result.table.rows()
    assert (product["operator"], product["precision"]) == ("aten::mm", "bf16")
    assert (product["count"], product["total_ns"], product["flop"]) == (2, 5000, FLOP)
    assert product["achieved_flop_per_s"] == FLOP / 5e-6
    assert product["peak_ratio"] == pytest.approx(FLOP / 989.4e12 / 5e-6)
    assert product["intensity"] == FLOP / 6e6
    assert addition["operator"] == "aten::add"
    assert addition["flop"] != addition["flop"]
    assert addition["moved_bytes"] == 6_000_000
    assert addition["memory_ratio"] == pytest.approx(6e6 / 3e-6 / 3350e9)
    assert unknown["operator"] == ""
    assert unknown["unknown_ns"] == 2000
    (note,) = result.notes
    assert note.values["share"] == 0.2


def test_kernels_have_rates_of_their_own_and_roofs_over_them() -> None:
    result = run("flops-kernels", built().build())
    rows = {row["name"]: row for row in result.table.rows()}
    assert rows["nvjet_tst_128x256_64x4_gemm"]["flop"] == FLOP * 4 / 5
    assert rows["splitKreduce_kernel"]["flop"] == FLOP / 5
    (roof,) = result.tables["peaks"].rows()
    assert roof == {
        "precision": "bf16",
        "peak_flop_per_s": 989.4e12,
        "memory_bytes_per_s": 3350e9,
    }


def test_classes_have_the_flops_of_their_kernels() -> None:
    rows = {row["activity"]: row for row in run("flops-classes", built().build()).table.rows()}
    assert rows["gemm"]["flop"] == FLOP
    assert rows["gemm"]["known_flop_ns"] + rows["gemm"]["unknown_ns"] == rows["gemm"]["total_ns"]
    assert rows["elementwise"]["known_flop_ns"] == 0


def test_phases_and_layers_have_those_of_what_they_launched() -> None:
    trace = built().phase("forward", 0, 150).range("layer:block:Block", 0, 100).build()
    rows = {row["phase"]: row for row in run("flops-phases", trace).table.rows()}
    assert rows["forward"]["flop"] == FLOP
    layers = run("flops-layers", trace).table.rows()
    assert [(row["layer"], row["flop"]) for row in layers] == [("block", FLOP)]


def test_a_window_has_its_part_of_a_kernel() -> None:
    cut = run("flops", built().build().within(TimeWindow(1000, 3000)))
    assert cut.table.row(0)["flop"] == FLOP * 2000 / 5000


@pytest.mark.parametrize(
    ("kernel", "precision", "peak"),
    [
        ("ampere_sgemm_128x64_nn", "fp32", 66.9e12),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n", "tf32", 494.7e12),
        ("cutlass_80_tensorop_s1688gemm_128x128", "tf32", 494.7e12),
    ],
)
def test_fp32_is_held_against_what_multiplies_it(kernel: str, precision: str, peak: float) -> None:
    trace = (
        TraceBuilder()
        .device(0, name=H100)
        .host_op("aten::mm", 0, 100, inputs=(PRODUCT[0], ["float"] * 2, []))
        .kernel(kernel, 1_000_000, 2_000_000, launched_ns=(10, 20))
        .build()
    )
    row = run("flops", trace).table.row(0)
    assert row["precision"] == precision
    assert row["peak_ratio"] == pytest.approx(FLOP / 1e-3 / peak)


def test_more_than_a_peak_is_said_to_be_impossible() -> None:
    trace = (
        TraceBuilder()
        .device(0, name=H100)
        .host_op("aten::mm", 0, 100, inputs=PRODUCT)
        .kernel("nvjet_tst_gemm", 1000, 2000, launched_ns=(10, 20))
        .build()
    )
    note, of_memory = run("flops", trace).notes
    assert "exceeds the dense peak" in note.text
    assert note.values["share"] == pytest.approx(FLOP / 1e-6 / 989.4e12)
    assert "in a cache" in of_memory.text


def test_what_moves_faster_than_the_memory_is_said_to_come_from_a_cache() -> None:
    addition: tuple[Any, Any, Any] = ([[1000, 1000]] * 2, [HALF] * 2, [])
    trace = (
        TraceBuilder()
        .device(0, name=H100)
        .host_op("aten::add", 0, 100, inputs=addition)
        .kernel("vectorized_elementwise_kernel", 1000, 2000, launched_ns=(10, 20))
        .build()
    )
    (note,) = run("flops", trace).notes  # 6 MB in 1 µs, of 3.35 TB/s
    share = note.values["share"]
    assert share == pytest.approx(6e6 / 1e-6 / 3350e9)
    assert note_text(note) == (
        "aten::add exceeds peak memory bandwidth (179.1%). Either part of the data was in a "
        "cache, or the GPU model is wrong (--gpu)."
    )


@pytest.mark.traces
@pytest.mark.parametrize(
    ("name", "operator", "count"),
    [
        ("kineto/2024-a100-plain.json", "aten::addmm", 6_941_761_536),
        ("kineto/2025-b200-rank0of8.json.gz", "aten::mm", 144_783_360),
        ("kineto/2025-h100-bert-small.json.gz", "aten::addmm", 8_029_194_240),
    ],
)
def test_flops_of_real_traces_are_two_for_each_multiply_add(
    name: str, operator: str, count: int, real_trace: Callable[[str], Path]
) -> None:
    """By hand: of the B200 1 x 2880 x 25136, of the others sums over the recorded sizes."""
    tables = frozenset({"kernels", "api_calls", "host_ops", "operator_inputs", "devices"})
    rows = run("flops", open_trace(real_trace(name), ReadOptions(tables=tables))).table.rows()
    assert sum(row["flop"] for row in rows if row["operator"] == operator) == count


def of_inductor(path: Path, **told: object) -> Trace:
    """Return a trace with a kernel of Inductor's of 4 µs, for which PyTorch wrote ``told``."""
    args = {"External id": 1, "Ev Idx": 0, "kernel_backend": "triton", **told}
    launch = {"External id": 1, "correlation": 9}
    events = [
        kineto_file.complete("cpu_op", "triton_tem_fused_mm_0", 0, 900, args=args),
        kineto_file.complete("cuda_runtime", "cudaLaunchKernel", 100, 200, args=launch),
        kineto_file.kernel("triton_tem_fused_mm_0", 1000, 5000),
    ]
    devices = [{"id": 0, "name": H100, "numSms": 132, "computeMajor": 9, "computeMinor": 0}]
    written = kineto_file.write(path / "trace.json", events, deviceProperties=devices)
    return open_trace(written, ReadOptions(tables=frozenset(TABLES)))


@pytest.mark.parametrize("has_c", [True, False])
def test_flops_that_pytorch_wrote_itself_count_where_sizes_do_not_tell(
    has_c: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_c:
        monkeypatch.setattr(compiled, "loaded", lambda: None)
    types = {"Input type": ["c10::BFloat16"], "Input Dims": [[1000, 1000]]}
    trace = of_inductor(tmp_path, kernel_flop=2_000_000_000, kernel_num_gb=0.006, **types)
    result = run("flops", trace)
    (row,) = result.table.rows()
    assert (row["operator"], row["precision"]) == ("triton_tem_fused_mm_0", "bf16")
    assert (row["flop"], row["moved_bytes"]) == (FLOP, 6_000_000)
    assert row["peak_ratio"] == pytest.approx(500 / 989.4)
    (words,) = sentences(result.notes)
    assert "For 100.0% of kernel time, FLOPs and bytes are from PyTorch" in words
    source = run("mfu", trace)
    assert source.table.row(0)["model_flop"] == FLOP
    assert any("are from PyTorch (kernel_flop" in one for one in sentences(source.notes))


def test_bytes_that_pytorch_wrote_are_known_without_flops_and_types(tmp_path: Path) -> None:
    (row,) = run("flops", of_inductor(tmp_path, kernel_flop=0, kernel_num_gb=0.006)).table.rows()
    assert row["moved_bytes"] == 6_000_000
    assert row["flop"] != row["flop"]


@pytest.mark.parametrize("told", [None, "many", -3, 0])
def test_what_pytorch_wrote_that_is_no_number_tells_nothing(tmp_path: Path, told: object) -> None:
    trace = of_inductor(tmp_path, kernel_flop=told, kernel_num_gb=told)
    row = run("flops", trace).table.row(0)
    assert (row["operator"], row["known_flop_ns"]) == ("triton_tem_fused_mm_0", 0)


def test_sizes_come_before_what_pytorch_wrote() -> None:
    given = [json.dumps(own) for own in PRODUCT]
    found = work_of("aten::mm", *given, ("7", "1"))
    assert found is not None
    assert (found.flops, found.is_from_torch) == (FLOP, False)


def of_experts(tokens: int, end: int, rank: int = 0) -> Trace:
    """Return two products of tokens with four experts, and the gradient of their weights."""
    built = TraceBuilder().process(1, rank=rank).device(0, name=H100)
    sizes = [[[tokens, 16], [4, 16, 32], [4]], [[16, tokens], [tokens, 32], [4]]]
    for place, dims in enumerate([sizes[0], sizes[0], sizes[1]]):
        at = 1000 * place
        built.host_op("aten::_grouped_mm", at, at + 50, inputs=(dims, [HALF] * 2, []))
        built.kernel("cutlass_grouped_gemm", at + 100, at + end, launched_ns=(at + 10, at + 20))
    lists = [[[2, 2], [2, 2]], [3, 3, 3]]  # of a list of tensors
    built.host_op("aten::cat", 5000, 5001, inputs=(lists, [], []))
    return built.build()


def test_tokens_of_experts_are_told_by_the_sizes_of_their_products() -> None:
    result = run("flops", of_experts(40, 300))
    (row,) = result.tables["experts"].rows()
    assert (row["count"], row["tokens_count"], row["experts_count"]) == (2, 80, 4)
    assert (row["expert_tokens"], row["total_ns"]) == (10, 400)
    assert not result.notes


def test_uneven_experts_cost_what_the_busiest_takes_longer() -> None:
    ends = {0: (30, 300), 1: (90, 700)}
    members = tuple(RankTrace(of_experts(*own, rank), rank) for rank, own in ends.items())
    result = run("flops", place_run(RunFiles("run", members), [0, 0]))
    first, last = result.tables["experts"].rows()
    assert (first["expert_tokens"], last["expert_tokens"]) == (22.5, 7.5)
    (note,) = result.notes
    assert note.values == {"n": 2, "times": 1.5, "more": 1200 - 800}


def test_experts_that_are_modules_have_tokens_by_their_flops() -> None:
    """Expert 1 has 300 tokens, 0 and 3 have 100 each; whether 2 is there is not known."""
    builder = TraceBuilder().device(0, name=H100)
    for place, (expert, tokens) in enumerate(((0, 100), (1, 300), (3, 100))):
        at = 1000 * place
        builder.range(f"layer:block.experts.{expert}:Linear", at, at + 900)
        inputs: tuple[Any, Any, Any] = ([[tokens, 64], [64, 256]], [HALF] * 2, [])
        builder.host_op("aten::mm", at + 10, at + 800, inputs=inputs)
        builder.kernel("gemm", at + 500, at + 700, launched_ns=(at + 20, at + 30))
    words = sentences(run("flops-layers", builder.build()).notes)
    expected = "block.experts: one of 3 experts has 1.8 times the mean FLOPs (tokens)."
    assert expected in words
    assert not any(
        "experts" in one for one in sentences(run("flops-layers", built().build()).notes)
    )


def test_without_experts_there_is_no_table_of_them() -> None:
    assert "experts" not in run("flops", built().build()).tables


def test_the_work_of_a_sparse_product_is_not_known() -> None:
    trace = (
        TraceBuilder()
        .device(0, name=H100)
        .host_op("aten::_sparse_mm", 0, 90, inputs=([[6, 6], [6, 7]], ["float"] * 2, []))
        .host_op("aten::addmm", 1, 80, inputs=([[6, 7], [6, 6], [6, 7]], ["float"] * 3, []))
        .host_op("aten::_nnz", 2, 3, inputs=([[6, 6]], ["float"], []))
        .kernel("cusparse::csrmm_gemm", 1000, 2000, launched_ns=(10, 20))
        .host_op("aten::mm", 100, 200, inputs=PRODUCT)
        .kernel("nvjet_tst_128x256_64x4_gemm", 2000, 5000, launched_ns=(110, 120))
        .build()
    )
    dense, sparse = run("flops", trace).table.rows()
    assert (dense["operator"], dense["flop"]) == ("aten::mm", FLOP)
    assert (sparse["unknown_ns"], sparse["known_flop_ns"]) == (1000, 0)
    assert sparse["flop"] != sparse["flop"]


def test_the_rate_of_an_operator_includes_its_layout_conversions() -> None:
    convolution = (
        [[1, 8, 10, 10], [8, 8, 1, 1], [], [], [], [], [], [], []],
        [HALF] * 2,
        ["", "", "", "[1, 1]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1"],
    )
    trace = (
        TraceBuilder()
        .device(0, name=H100)
        .host_op("aten::cudnn_convolution", 1, 99)
        .host_op("aten::convolution", 0, 100, inputs=convolution)
        .kernel("nchwToNhwcKernel", 1000, 2000, launched_ns=(10, 20))
        .kernel("sm90_xmma_fprop_implicit_gemm", 2000, 3500, launched_ns=(30, 40))
        .build()
    )
    flop = 2 * 8 * 8 * 100
    by_operator, by_shape = (run(name, trace).table.row(0) for name in ("flops", "flops-shapes"))
    assert (by_operator["flop"], by_operator["known_flop_ns"]) == (flop, 2500)
    assert by_operator["achieved_flop_per_s"] == by_shape["achieved_flop_per_s"] == flop / 2.5e-6
    by_kernel = {row["name"]: row for row in run("flops-kernels", trace).table.rows()}
    assert by_kernel["sm90_xmma_fprop_implicit_gemm"]["achieved_flop_per_s"] == flop / 1.5e-6
    assert by_shape["kernel"] == "sm90_xmma_fprop_implicit_gemm"
    assert (by_shape["count"], by_shape["calls_count"]) == (2, 1)


def test_products_of_the_same_sizes_are_one_row_with_their_waves() -> None:
    builder = TraceBuilder().device(0, name=H100, sm_count=132, compute_capability=90)
    sizes = {"block_x": 128, "block_y": 1, "block_z": 1, "grid_y": 1, "grid_z": 1}
    resources = {"registers": 255, "shared_bytes": 200_000}  # one block per SM
    for place, (n_blocks, other) in enumerate([(132, 1000), (198, 1000), (33, 500)]):
        at = 1000 * place
        inputs = ([[1000, 1000], [1000, other]], [HALF] * 2, [])
        builder.host_op("aten::mm", at, at + 100, inputs=inputs)
        shape = sizes | resources | {"grid_x": n_blocks}
        start = 10_000 * (place + 1)
        launched = (at + 10, at + 20)
        builder.kernel("gemm_a", start, start + 1000, launched_ns=launched, shape=shape)
    large, small = run("flops-shapes", builder.build()).table.rows()
    assert (large["shape"], large["calls_count"]) == ("M=1000 N=1000 K=1000", 2)
    assert (large["waves"], large["wave_ratio"]) == (1.25, (1 + 0.75) / 2)
    assert (small["shape"], small["waves"], small["wave_ratio"]) == (
        "M=1000 N=500 K=1000",
        0.25,
        0.25,
    )
    assert (large["share_ratio"], small["share_ratio"]) == (2 / 3, 1 / 3)
    assert small["kernel"] == "gemm_a"


def test_operators_without_a_formula_keep_their_name() -> None:
    builder = TraceBuilder().device(0, name=H100)
    builder.host_op("vllm::moe_forward", 0, 900, inputs=([[4, 8]], [HALF], []))
    builder.kernel("routing_kernel", 1000, 2000, launched_ns=(100, 200))
    builder.kernel("unlaunched_kernel", 3000, 4000)
    rows = {row["operator"]: row for row in run("flops", builder.build()).table.rows()}
    assert rows.keys() == {"vllm::moe_forward", ""}
    assert rows["vllm::moe_forward"]["known_flop_ns"] == 0
    assert rows["vllm::moe_forward"]["total_ns"] == 1000
