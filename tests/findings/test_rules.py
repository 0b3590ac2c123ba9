"""What each rule sees in a small trace, and when it abstains."""

import pkgutil
from importlib import import_module

import pytest

from tests.builders import TraceBuilder
from tests.findings.found import Found, findings_of, in_default_window
from tests.measures.generated_run import Plan, make_ranks_of
from tests.running import run
from traceprof import findings
from traceprof.findings import RULES, Rule
from traceprof.model.activity import Activity
from traceprof.model.placement import place_run
from traceprof.model.ranks import Ranks, RankTrace, RunFiles
from traceprof.model.tables import TABLES
from traceprof.model.topology import Topology
from traceprof.model.trace import Trace, TraceInfo
from traceprof.render.formatting import note_text

US = 1000
MS = 1000 * US


def found(of: Trace | Ranks) -> dict[str, Found]:
    return {finding.rule: finding for finding in findings_of(of)}


def test_every_rule_is_registered() -> None:
    names = [module.name for module in pkgutil.iter_modules(findings.__path__)]
    modules = [import_module(f"{findings.__name__}.{name}") for name in names]
    rules = [own for module in modules for own in vars(module).values() if isinstance(own, Rule)]
    assert {rule.name for rule in rules} == {rule.name for rule in RULES}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_needs_tables_that_exist(rule: Rule) -> None:
    assert set(rule.needs) <= set(TABLES)
    assert rule.summary[0].islower() or rule.summary[:2].isupper()


def test_rules_without_data_abstain_and_say_why() -> None:
    findings = run("findings", TraceBuilder().range("x", 0, 10).build())
    table = findings.to_frame("not_checked")
    not_checked = dict(zip(table["rule"], table["reason"], strict=True))
    notes = [note_text(note) for note in findings.notes]
    assert set(not_checked) == {rule.name for rule in RULES}
    assert not_checked["launch_bound"].startswith("no kernels recorded: record")
    assert not_checked["input_bound"].startswith("no range marks data loading")
    assert notes[0] == "no problem found"
    assert "not checked: warm-up: no steps are marked" in notes
    # What no program without roles or rollouts can have is in the table, but no reader misses it.
    absent = {"all ranks have the same role", "no generation", "no weight synchronization"}
    assert absent <= {*not_checked.values()}
    assert len(notes) == 1 + len({*not_checked.values()} - absent)
    assert not any(note.endswith((*absent,)) for note in notes)
    assert findings.to_frame().empty


def run_with_late(ranks: tuple[int, ...], racks: tuple[str, ...] = ()) -> Ranks:
    """Eight ranks on four hosts, some of them 40 ms of 100 late in every step."""
    extra = {(rank, "forward"): 40 * MS for rank in ranks}
    hosts = [f"n{rank // 2}" for rank in range(8)]
    made = make_ranks_of(Plan(n_ranks=8, hosts=hosts, extra_ns=extra))
    cluster = Topology()
    for rack in racks:
        cluster = cluster.with_rack(rack)
    return cluster.placed(made)


def test_a_host_that_is_late_as_a_whole_is_not_a_straggling_rank() -> None:
    rules = found(in_default_window(run_with_late((6, 7))))
    assert "straggler" not in rules
    slow = rules["slow_host"]
    # 9 steps of 200 ms, in each of which the others wait 40 ms; the first is cut.
    assert slow.saving_ratio == pytest.approx(0.2)
    assert slow.saving_ns == 40 * MS
    assert slow.title == "Slow host: the other ranks wait for n3 for 20.0% of step time"
    assert slow.evidence == (
        "2 of the 2 ranks of host n3 arrive late; the host is last at 100.0% of its shared "
        "collectives; on average, another rank waits 360 ms for it",
        "these ranks take longer in forward",
    )


def test_a_rack_that_is_late_as_a_whole_is_not_its_hosts() -> None:
    rules = found(run_with_late((4, 5, 6, 7), ("r0=n[0-1]", "r1=n[2-3]")))
    assert rules["slow_host"].title.startswith("Slow rack: the other ranks wait for r1")
    assert "straggler" not in rules


def test_a_rack_of_one_late_host_is_that_host() -> None:
    racks = ("r0=n[0-2]", "r1=n3")
    assert found(run_with_late((6, 7), racks))["slow_host"].title.startswith("Slow host")


def test_one_late_rank_is_a_straggler_and_not_its_host() -> None:
    rules = found(run_with_late((6,)))
    assert "slow_host" not in rules
    assert rules["straggler"].title.startswith("Straggler: the other ranks wait for rank 6")


def test_small_collectives() -> None:
    builder = TraceBuilder()
    for i in range(40):
        at = 100 * US * i
        builder.kernel("gemm", at, at + 60 * US)
        builder.kernel("ncclDevKernel_AllReduce", at + 60 * US, at + 100 * US)
        builder.collective("all_reduce", at, at + 1, n_bytes=10_000)
    rules = found(builder.build())
    # All are equally long, so that all of it is latency; one of 40 would do.
    assert rules["small_buckets"].saving_ratio == pytest.approx(0.4 * 39 / 40)
    assert rules["small_buckets"].kind == "estimated"
    assert rules["small_buckets"].evidence == (
        "about 1 collective per iteration",
        "fastest 10%: 40.0 µs, median: 40.0 µs, median size 10.0 kB",
    )
    assert "exposed_communication" not in rules


def test_what_is_not_latency_of_small_collectives_is_exposed_communication() -> None:
    builder = TraceBuilder()
    for i in range(40):
        at = 100 * US * i
        builder.kernel("gemm", at, at + 60 * US)
        length = 10 * US if i < 10 else 40 * US
        builder.kernel("ncclDevKernel_AllReduce", at + 60 * US, at + 60 * US + length)
        builder.collective("all_reduce", at, at + 1, n_bytes=10_000)
    rules = found(builder.build(span=(0, 4 * MS)))
    assert rules["small_buckets"].saving_ratio == pytest.approx(0.1 * 39 / 40)
    assert rules["exposed_communication"].saving_ratio == pytest.approx(0.3 * 30 / 40)


def test_large_collectives_are_not_small() -> None:
    builder = TraceBuilder()
    for i in range(40):
        at = 100 * US * i
        builder.kernel("gemm", at, at + 60 * US)
        builder.kernel("ncclDevKernel_AllReduce", at + 60 * US, at + 100 * US)
        builder.collective("all_reduce", at, at + 1, n_bytes=50_000_000)
    assert "small_buckets" not in found(builder.build())


def copies_of(kind: str, api: str) -> Trace:
    return (
        TraceBuilder()
        .kernel("gemm", 0, 80 * MS, launched_ns=(0, 1))
        .copy(
            "d2h",
            80 * MS,
            100 * MS,
            n_bytes=400_000_000,
            launched_ns=(1, 2),
            dst_kind=kind,
            api=api,
        )
        .build()
    )


@pytest.mark.parametrize(
    ("kind", "api", "rule", "saving"),
    [
        ("pageable", "cudaMemcpyAsync", "pageable_copies", 0.2),
        ("pageable", "cudaMemcpy", "unpinned_memory", 0.2),
        ("pinned", "cudaMemcpy", "blocking_copies", 0.2),
    ],
)
def test_copies_that_wait(kind: str, api: str, rule: str, saving: float) -> None:
    rules = found(copies_of(kind, api))
    assert list(rules) == [rule]
    assert rules[rule].saving_ratio == pytest.approx(saving)
    assert rules[rule].saving_ns == saving * 100 * MS
    assert rules[rule].window == "80ms..100ms"


def test_asynchronous_copies_of_pinned_memory_that_nothing_hides() -> None:
    rules = found(copies_of("pinned", "cudaMemcpyAsync"))
    assert list(rules) == ["exposed_copies"]
    finding = rules["exposed_copies"]
    assert (finding.kind, finding.saving_ns) == ("bounded", 20 * MS)
    assert not any("hide" in sentence for sentence in finding.evidence)


def test_no_more_copies_can_be_hidden_than_there_are_kernels_to_hide_them() -> None:
    trace = (
        TraceBuilder()
        .kernel("gemm", 0, 10 * MS, launched_ns=(0, 1))
        .copy("h2d", 10 * MS, 100 * MS, launched_ns=(1, 2))
        .build()
    )
    finding = found(trace)["exposed_copies"]
    assert finding.title.startswith("Exposed copies take 90.0% of the analyzed time")
    assert finding.saving_ns == 10 * MS
    hidden = "kernels can hide at most 11.1% of this time; only moving less data saves the rest"
    assert hidden in finding.evidence


def test_copies_that_kernels_hide_are_fine() -> None:
    trace = (
        TraceBuilder()
        .kernel("gemm", 0, 100 * MS, launched_ns=(0, 1))
        .copy("h2d", 10 * MS, 90 * MS, stream=8, launched_ns=(1, 2))
        .build()
    )
    assert found(trace) == {}


def test_small_copies_to_the_device_do_not_block() -> None:
    builder = TraceBuilder().kernel("gemm", 0, 50 * MS, launched_ns=(0, 1))
    builder.copy("h2d", 50 * MS, 100 * MS, n_bytes=64_000, launched_ns=(1, 2), api="cudaMemcpy")
    assert "blocking_copies" not in found(builder.build())


def test_memsets_that_wait() -> None:
    builder = TraceBuilder().kernel("gemm", 0, 90, launched_ns=(0, 1))
    builder.copy("memset", 90, 100, dst_kind="managed", launched_ns=(1, 2), api="cudaMemset")
    assert found(builder.build())["blocking_memsets"].saving_ratio == pytest.approx(0.1)


def test_the_profiler_itself() -> None:
    trace = (
        TraceBuilder()
        .kernel("gemm", 0, 40 * MS, launched_ns=(0, 1))
        .kernel("gemm", 60 * MS, 100 * MS, launched_ns=(60 * MS - 2, 60 * MS - 1))
        .overhead("CUDA profiling data flush overhead", 41 * MS, 59 * MS)
        .build()
    )
    rules = found(trace)
    assert list(rules) == ["profiler_overhead"]
    assert rules["profiler_overhead"].saving_ratio == pytest.approx(0.18)


def test_layout_conversions() -> None:
    trace = (
        TraceBuilder()
        .kernel("conv", 0, 90 * US)
        .kernel("void cudnn::ops::nchwToNhwcKernel<float>", 90 * US, 100 * US)
        .build()
    )
    finding = found(trace)["layout_conversion"]
    assert (finding.kind, finding.range_ns) == ("measured", None)
    assert finding.saving_ratio == pytest.approx(0.1)


def test_batch_norms_over_nchw_gain_by_another_layout() -> None:
    builder = TraceBuilder().kernel("conv", 0, 50 * US)
    builder.kernel("void cudnn::ops::nchwToNhwcKernel<float>", 50 * US, 60 * US)
    norm = "void at::native::batch_norm_backward_kernel<float>"
    finding = found(builder.kernel(norm, 60 * US, 100 * US).build())["layout_conversion"]
    assert (finding.kind, finding.saving_ns) == ("estimated", 30 * US)
    assert finding.range_ns == (10 * US, 40 * US)
    assert finding.title == (
        "Layout conversions (NCHW↔NHWC) and NCHW batch norm take 50.0% of the analyzed time"
    )


@pytest.mark.parametrize(
    ("operator", "device", "says"),
    [
        ("aten::conv2d", "NVIDIA A100", "torch.channels_last)`, and the same for the input batch."),
        (
            "aten::conv3d",
            "NVIDIA A100",
            "torch.channels_last_3d)`, and the same for the input batch.",
        ),
        ("aten::conv2d", "AMD Instinct MI300X", "with `PYTORCH_MIOPEN_SUGGEST_NHWC=1`."),
    ],
)
@pytest.mark.parametrize("is_range", [False, True])
def test_the_layout_that_is_advised_fits_the_work(
    operator: str, device: str, says: str, *, is_range: bool
) -> None:
    builder = TraceBuilder().device(0, device)
    (builder.range if is_range else builder.host_op)(operator, 0, 10 * US)
    assert found(with_conversions(builder))["layout_conversion"].action.endswith(says)


@pytest.mark.parametrize(
    ("dims", "n_dimensions"),
    [([8, 3, 64, 64], 2), ([8, 3, 16, 64, 64], 3), ([8, 3, 64], 0), ([], 0), (7, 0), (None, 0)],
)
def test_sizes_show_the_dimensions_of_a_convolution(
    dims: list[int] | int | None, n_dimensions: int
) -> None:
    inputs = None if dims is None else ([dims, [4, 3, 3]], ["float"] * 2, [])
    builder = TraceBuilder().host_op("aten::cudnn_convolution", 0, 10 * US, inputs=inputs)
    builder.host_op("aten::add", 10 * US, 11 * US, inputs=([[1, 2, 3, 4]], ["float"], []))
    # cuDNN has such kernels for images and for volumes.
    builder.kernel("void cudnn::cnn::convolveNd_sgrad_engine<float>", 0, US)
    action = found(with_conversions(builder))["layout_conversion"].action
    assert ("torch.channels_last_3d" in action) == (n_dimensions != 2)
    assert ("torch.channels_last)" in action) == (n_dimensions != 3)


def test_programs_with_images_and_volumes_need_both_layouts() -> None:
    builder = TraceBuilder().host_op("aten::conv2d", 0, US).host_op("aten::conv3d", US, 2 * US)
    action = found(with_conversions(builder))["layout_conversion"].action
    assert "torch.channels_last)" in action
    assert "torch.channels_last_3d" in action


def with_conversions(builder: TraceBuilder) -> Trace:
    builder.range("aten::add", 0, US)
    builder.kernel("at::native::conv_fprop", 0, 90 * US)
    return builder.kernel("void cudnn::ops::nchwToNhwcKernel<float>", 90 * US, 100 * US).build()


def test_small_kernels() -> None:
    builder = TraceBuilder().kernel("gemm", 0, 60 * US)
    for i in range(8):
        builder.kernel("gather", (60 + 5 * i) * US, (65 + 5 * i) * US)
    finding = found(builder.build())["small_kernels"]
    assert finding.saving_ratio == pytest.approx(0.2)
    assert finding.evidence[:2] == (
        "8 small kernels (88.9% of all kernels)",
        "sorting and indexing: 40.0 µs",
    )


@pytest.mark.parametrize("is_mixed", [True, False])
def test_pointwise_kernels_in_a_row_could_be_fused(is_mixed: bool) -> None:
    builder = TraceBuilder().kernel("gemm", 0, 50 * US)
    # 10, 20, 10, 5 and 5: as long as the longest; of two and two (10 + 20, 10 + 5) 15 are saved.
    # Kernels of one name can work on different tensors, so they are no sure pairs.
    for start, end in ((50, 60), (60, 80), (80, 90), (90, 95), (95, 100)):
        name = "elementwise_kernel<add>" if start in (60, 90) else "elementwise_kernel"
        builder.kernel(name if is_mixed else "elementwise_kernel", start * US, end * US)
    finding = found(builder.build())["fusable_kernels"]
    assert finding.title.startswith("Unfused elementwise kernels take 50.0% of the analyzed time")
    assert (finding.kind, finding.saving_ns) == ("estimated", 30 * US)
    assert finding.range_ns == (15 * US if is_mixed else 0, 40 * US)


@pytest.mark.parametrize(
    ("between", "saved"),
    [
        # An eager model's layer norm, cast and bias in a row become one kernel.
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float>", 20),
        # What follows statistics over the whole batch reads everything anew.
        ("void at::native::batch_norm_collect_statistics_kernel<InvStd, float>", 10),
        ("cudnn::ops::layer_norm_kernel<float>", 10),  # no compiler looks into a library
        ("triton_per_fused_native_layer_norm_3", 10),
    ],
)
def test_what_a_compiler_fuses(between: str, saved: int) -> None:
    cast = "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>"
    builder = TraceBuilder().kernel("gemm", 0, 50 * US)
    for i, name in enumerate((between, cast, "elementwise_kernel", "gemm")):
        builder.kernel(name, (50 + 10 * i) * US, (60 + 10 * i) * US)
    assert found(builder.build())["fusable_kernels"].saving_ns == saved * US


@pytest.mark.parametrize("name", ["triton_poi_fused_add_0", "gather_kernel"])
def test_kernels_that_nobody_fuses(name: str) -> None:
    builder = TraceBuilder()
    for i in range(4):
        builder.kernel(name, 25 * i * US, 25 * (i + 1) * US)
    assert "fusable_kernels" not in found(builder.build())


def test_pointwise_kernels_of_two_streams_are_not_in_a_row() -> None:
    builder = TraceBuilder()
    for i in range(4):
        builder.kernel("elementwise_kernel", 25 * i * US, 25 * (i + 1) * US, stream=i)
    assert "fusable_kernels" not in found(builder.build())


_PASS = "void at::native::multi_tensor_apply_kernel<at::native::{}OpFunctor<float>>"


def optimizer(*kernels: tuple[str, int]) -> Trace:
    builder, at = TraceBuilder(), 0
    for name, length in kernels:
        builder.kernel(name, at * US, (at + length) * US)
        at += length
    return builder.build()


def test_an_optimizer_in_several_passes() -> None:
    names = [_PASS.format(own) for own in ("Unary", "Binary", "Pointwise", "Ternary")]
    trace = optimizer(*zip(names, (20, 20, 40, 20), strict=True), ("gemm", 100))
    finding = found(trace)["unfused_optimizer"]
    # Fused: 7/4 of 40 µs instead of 100 µs.
    assert (finding.kind, finding.saving_ns) == ("estimated", 30 * US)


def test_a_fused_optimizer_is_fine() -> None:
    name = "void at::native::multi_tensor_apply_kernel<at::native::FusedAdamMathFunctor<{}>>"
    trace = optimizer(*((name.format(i), 20) for i in range(4)), ("gemm", 100))
    assert "unfused_optimizer" not in found(trace)


@pytest.mark.parametrize(
    ("device", "kernel", "saved", "action"),
    [
        ("NVIDIA A100-SXM4-80GB", "ampere_sgemm_128x64_tn", 1 - 1 / 16, "BF16"),
        ("NVIDIA A100-SXM4-80GB", "cutlass_80_tensorop_s1688gemm_128x64", 0.5, "BF16"),
        ("NVIDIA GeForce RTX 4060", "cutlass_80_simt_sgemm_128x64", 0.5, "BF16"),
        # How fast TF32 is there is not known.
        ("NVIDIA GeForce RTX 3070 Ti", "fmha_cutlassF_f32_aligned_64x64_rf_sm80", 0.5, "BF16"),
        # Three products of TF32 each, of tensor cores: half as fast as BF16.
        ("NVIDIA H100 80GB HBM3", "fmha_cutlassF_f32_aligned_64x64_rf_sm80", 5 / 6, "BF16"),
        ("Tesla V100-SXM2-16GB", "fmha_cutlassF_f32_aligned_64x64_rf_sm70", 1 - 15.7 / 125, "FP16"),
        ("Tesla V100-SXM2-16GB", "volta_sgemm_128x64_tn", 1 - 15.7 / 125, "FP16"),
        ("Tesla T4", "volta_sgemm_128x64_tn", 1 - 8.1 / 65, "FP16"),
        ("AMD Instinct MI300X", "Cijk_Ailk_Bljk_SB_MT128x128x16_MI32x32x2", 0.875, "BF16"),
    ],
)
def test_matrix_work_in_32_bits(device: str, kernel: str, saved: float, action: str) -> None:
    builder = TraceBuilder().device(0, device).kernel("at::native::x", 50 * US, 100 * US)
    finding = found(builder.kernel(kernel, 0, 50 * US).build())["precision"]
    # 16-bit kernels gain 80% of the peak speedup, which would save ``saved``.
    assert finding.saving_ratio == pytest.approx(0.5 * (1 - (1 - saved) / 0.8), rel=1e-3)
    assert finding.kind == "estimated"
    assert finding.action.startswith(f"Compute in {action}")
    others = {
        "A100": ("FP16",),
        "V100": ("TF32", "BF16"),
        "T4": ("TF32", "BF16"),
        "MI300X": ("TF32",),
    }
    assert not any(
        word in finding.action for name, words in others.items() if name in device for word in words
    )


@pytest.mark.parametrize(
    ("kernels", "is_advice"),
    [
        (["ampere_sgemm_128x64_tn"], True),
        # What uses it already, by default or by nature, gains nothing by allowing it.
        (["ampere_sgemm_128x64_tn", "cutlass_80_tensorop_s1688gemm_128x64"], False),
        (["sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nhwckrsc_nhwc_ffma"], False),
        (["fmha_cutlassF_f32_aligned_64x64_rf_sm80"], False),
    ],
)
def test_tf32_is_advice_where_it_would_be_new(kernels: list[str], is_advice: bool) -> None:
    builder = TraceBuilder().device(0, "NVIDIA A100-SXM4-80GB")
    builder.kernel("at::native::x", 0, 10 * US)
    for i, name in enumerate(kernels, 1):
        builder.kernel(name, 100 * i * US, 100 * (i + 1) * US)
    finding = next(own for own in findings_of(builder.build()) if own.rule == "precision")
    assert ("TF32" in finding.action) is is_advice


@pytest.mark.parametrize(
    ("device", "kernel"),
    [
        ("NVIDIA A100", "ampere_bf16_s16816gemm_bf16_128x128"),
        ("NVIDIA A100", "turing_fp16_s1688gemm_fp16_128x128"),
        ("GeForce GTX 1080", "maxwell_sgemm_128x64_tn"),
        ("Tesla P100-SXM2-16GB", "maxwell_sgemm_128x64_tn"),
        ("", "ampere_sgemm_128x64_tn"),
    ],
)
def test_matrix_work_that_is_not_faster_in_16_bits(device: str, kernel: str) -> None:
    trace = TraceBuilder().device(0, device).kernel(kernel, 0, 100 * US).build()
    assert "precision" not in found(trace)


def loop_with(call: str, n_steps: int = 5) -> Trace:
    """Steps of 100 ms, 20 ms of which the device is idle while the host is in ``call``."""
    builder = TraceBuilder()
    for i in range(n_steps):
        at = 100 * MS * i
        builder.step(at, at + 100 * MS, number=i)
        builder.kernel("gemm", at, at + 80 * MS, launched_ns=(at - 2, at - 1))
        builder.api_call(call, at + 70 * MS, at + 100 * MS)
    end = 100 * MS * n_steps  # with the work that the last step launches
    builder.kernel("gemm", end, end + 80 * MS, launched_ns=(end - 2, end - 1))
    return builder.build(span=(0, end + 80 * MS))


@pytest.mark.parametrize(
    ("call", "rule"),
    [
        ("cudaMalloc", "allocations"),
        ("cudaFree", "allocations"),
        ("hipMalloc", "allocations"),
        ("cuMemCreate", "allocations"),
        ("cuModuleLoadDataEx", "loading"),
        ("cuLibraryLoadData", "loading"),
        ("nvrtcCompileProgram", "loading"),
    ],
)
def test_calls_that_stall_the_loop(call: str, rule: str) -> None:
    finding = findings_of(in_default_window(loop_with(call)))[0]
    assert (finding.rule, finding.kind, finding.saving_ns) == (rule, "measured", 20 * MS)
    assert finding.evidence[0] == f"1 call to {call} per step"


@pytest.mark.parametrize(
    "call",
    ["cudaMallocAsync", "cudaFreeAsync", "cuModuleGetLoadingMode", "hipExtModuleLaunchKernel"],
)
def test_calls_that_do_not_stall(call: str) -> None:
    assert not {"allocations", "loading"} & set(found(loop_with(call)))


def test_without_steps_loading_occurs_once() -> None:
    builder = TraceBuilder().kernel("gemm", 0, 50 * MS, launched_ns=(0, 1))
    builder.api_call("cuModuleLoadDataEx", 50 * MS, 90 * MS)
    finding = found(builder.kernel("gemm", 90 * MS, 100 * MS).build())["loading"]
    assert (finding.kind, finding.saving_ns, finding.one_time_ns) == ("once", 0, 40 * MS)


def test_of_graphs_that_were_traced_whole_nothing_else_is_said() -> None:
    builder = TraceBuilder()
    for i in range(4):
        at = 100 * MS * i
        builder.kernel("CUDA graph 7", at, at + 60 * MS, activity=Activity.CUDA_GRAPH)
    (finding,) = findings_of(builder.build(info=TraceInfo(format="nsys")))
    assert finding.rule == "whole_graphs"
    assert (finding.kind, finding.saving_ratio, finding.is_minor) == ("none", 0, False)
    assert "--cuda-graph-trace=node" in finding.action


def test_nobody_is_told_of_what_he_does_not_have() -> None:
    builder = TraceBuilder().device(0, "AMD Instinct MI300X")
    builder.kernel("gemm", 0, 80 * MS, launched_ns=(0, 1))
    builder.copy("d2h", 80 * MS, 100 * MS, launched_ns=(1, 2), dst_kind="pageable", api="hipMemcpy")
    result = run("findings", builder.build(info=TraceInfo(format="nvprof")))
    words = " ".join(result.table.to_frame()["action"]) + " ".join(map(note_text, result.notes))
    assert "hipHostRegister" in words
    assert not any(word in words for word in ("cuda", "DataLoader", "torch", "nsys"))


def test_a_gap_is_told_once_by_those_who_know_why() -> None:
    trace = (
        TraceBuilder()
        .kernel("gemm", 0, MS, launched_ns=(0, 1))
        .phase("data", 2 * MS, 900 * MS)
        .kernel("gemm", 1000 * MS, 1001 * MS, launched_ns=(1000 * MS - 10, 1000 * MS - 5))
        .build()
    )
    rules = found(trace)
    assert list(rules) == ["input_bound", "host_code"]
    assert rules["input_bound"].saving_ns == 898 * MS
    assert rules["host_code"].one_time_ns == 101 * MS - 10


@pytest.mark.parametrize(
    ("operator", "n_steps", "kind"),
    [("aten::conv2d", 0, "once"), ("aten::conv2d", 3, "estimated"), ("aten::item", 0, "estimated")],
)
def test_waits_in_convolutions_try_algorithms(operator: str, n_steps: int, kind: str) -> None:
    builder = TraceBuilder()
    for i in range(12):
        at = 10 * MS * i
        builder.host_op(operator, at, at + 9 * MS)
        builder.kernel("cudnn_conv", at + MS, at + 2 * MS, launched_ns=(at + 10, at + 20))
        builder.api_call("cudaEventSynchronize", at + 30, at + 8 * MS)
    for i in range(n_steps):
        builder.step(40 * MS * i, 40 * MS * (i + 1), number=i)
    own = next(one for one in findings_of(builder.build()) if one.rule == "host_sync")
    is_search = operator == "aten::conv2d"
    assert own.kind == kind
    assert ("torch.backends.cudnn.benchmark" in own.action) == is_search
    assert ("during algorithm search" in own.title) == is_search


@pytest.mark.parametrize(
    ("has_pytorch", "words"), [(True, "(.item())"), (False, "(a few bytes read back)")]
)
def test_only_pytorch_reads_a_value_with_item(has_pytorch: bool, words: str) -> None:
    builder = TraceBuilder()
    for i in range(12):
        at, done = 10 * MS * i, 10 * MS * i + 2 * MS
        if has_pytorch:
            builder.host_op("aten::item", at + 20, at + 9 * MS)
        builder.kernel("k", at + US, done, launched_ns=(at, at + 10))
        builder.copy("d2h", done, done + US, n_bytes=4, launched_ns=(at + 30, at + 40))
        builder.api_call("cudaStreamSynchronize", at + 50, at + 8 * MS)
    own = next(one for one in findings_of(builder.build()) if one.rule == "host_sync")
    assert words in " ".join(own.evidence)


def test_a_gap_belongs_to_the_longer_of_the_wait_and_the_work_after_it() -> None:
    def gap(waits_from_ms: int) -> dict[str, Found]:
        builder = TraceBuilder().kernel("gemm", 0, 100 * MS, launched_ns=(0, 1))
        builder.api_call("cudaDeviceSynchronize", waits_from_ms * MS, 100 * MS)
        called = (180 * MS - 20, 180 * MS - 10)
        return found(builder.kernel("gemm", 180 * MS, 190 * MS, launched_ns=called).build())

    # Without the wait of 5 ms, the work of 80 ms would still leave a gap of 75 ms.
    rules = gap(95)
    assert "host_sync" not in rules
    assert rules["host_code"].one_time_ns == pytest.approx(80 * MS, abs=100)
    rules = gap(10)
    assert rules["host_sync"].saving_ns == pytest.approx(80 * MS, abs=100)
    assert "host_code" not in rules


def test_waiting_for_a_rank_is_not_exposed_communication_too() -> None:
    ranks = in_default_window(run_with_late((6,)))
    exposed = run("breakdown", ranks).to_frame("total")["exposed_communication_ns"].iloc[0]
    rules = found(ranks)
    straggler, rest = rules["straggler"], rules.get("exposed_communication")
    # 9 steps of 200 ms, in each of which 7 of 8 ranks wait 40 ms; the first is cut.
    assert straggler.saving_ratio == pytest.approx(0.2)
    assert straggler.saving_ns == 40 * MS
    claimed = straggler.saving_ratio + (rest.saving_ratio if rest else 0)
    assert round(claimed * ranks.span.duration_ns * 8) <= exposed


def test_long_gaps_without_a_launch_are_told_once_for_all_devices() -> None:
    builder = TraceBuilder()
    for device in (0, 1):
        builder.kernel("gemm", 0, MS, device=device)
        builder.kernel("gemm", 1000 * MS, 1001 * MS, device=device)
    (finding,) = findings_of(builder.api_call("cudaFree", 0, 1).build())
    assert finding.rule == "gpu_gaps"
    assert finding.title == (
        "2 gaps longer than 500 ms without a recorded cause: 99.8% of the analyzed time"
    )
    assert (finding.kind, finding.one_time_ns, finding.saving_ns) == ("once", 999 * MS, 0)


def test_idle_that_nothing_explains_is_one_finding_for_all_devices() -> None:
    builder = TraceBuilder()
    for device in range(8):
        for i in range(3):
            builder.kernel("gemm", 10 * MS * i, 10 * MS * i + 6 * MS, device=device)
    (finding,) = findings_of(builder.build())
    assert finding.rule == "low_utilization"
    assert finding.title == ("Idle for an unknown reason: all 8 GPUs, 30.8% of the analyzed time")
    assert finding.evidence == (
        "100.0% of this time: the trace contains no launch call of the next work",
        "8.00 ms per GPU between gemm and gemm",
    )
    assert (finding.kind, finding.saving_ns) == ("bounded", 8 * MS)


def test_a_device_that_starts_later_than_another_is_told_so_and_saves_nothing() -> None:
    builder = TraceBuilder()
    for device, first in ((0, 0), (1, 80)):
        for at in range(first, 100, 10):
            begins = at * MS
            builder.kernel(
                "k", begins, begins + 10 * MS, device=device, launched_ns=(begins, begins)
            )
    (finding,) = findings_of(builder.build())
    assert finding.title == (
        "No work before the first or after the last kernel: GPU 1, 80.0% of its analyzed time"
    )
    assert finding.evidence == ("GPU 1 starts 80.0 ms after the start of the window",)
    assert (finding.kind, finding.saving_ns) == ("none", 0)


def test_training_on_the_host_can_be_input_bound_too() -> None:
    trace = TraceBuilder().phase("data", 0, 30).phase("forward", 30, 100).build()
    finding = found(trace)["input_bound"]
    assert finding.title == (
        "Input-bound: training waits during data loading for 30.0% of the analyzed time"
    )
    assert finding.saving_ns == 30


def test_what_lies_before_forward_passes_is_told_where_no_range_says_what_it_is() -> None:
    hooked, by_hand = TraceBuilder(), TraceBuilder()
    for at in range(0, 400, 100):  # 20 before forward, 30 before backward, 10 after it
        hooked.phase("forward", at + 20, at + 30).phase("backward", at + 60, at + 90)
        hooked.phase("zero_grad", at + 11, at + 19)
        by_hand.range("forward", at + 20, at + 30).range("backward", at + 60, at + 90)
    # only hooks would have seen a DataLoader
    told = found(by_hand.build())["input_bound"].evidence
    assert told[-1] == "no range marks data loading"
    finding = found(hooked.build())["input_bound"]
    assert finding.evidence[-1].startswith("the program uses no DataLoader")
    # 3 times 30 of 379, but for the 8 in which gradients are reset: the steps do not fill the
    # window, so that the saving is of the window
    assert finding.title.startswith("Unnamed work before the forward pass")
    assert finding.title.endswith("takes 17.4% of the analyzed time")
    assert finding.evidence[0] == "22 ns per step"
    assert (finding.kind, finding.saving_ns) == ("bounded", 3 * 22)


def test_a_launcher_of_which_there_are_no_ranges_is_nobody_that_waits() -> None:
    traces = []
    for process in (1, 2):
        builder = TraceBuilder()
        for at in range(0, 400, 100):  # 70 between backward and forward passes
            builder.phase("forward", at + 70, at + 80, process=process)
            builder.phase("backward", at + 80, at + 100, process=process)
        traces.append(builder.build(span=(0, 400)))
    traces.append(TraceBuilder().build(span=(0, 400), recorded={"ranges"}))
    members = tuple(RankTrace(trace, rank) for rank, trace in enumerate(traces))
    (finding,) = (
        own for own in findings_of(place_run(RunFiles("run", members))) if own.rule == "input_bound"
    )
    # 3 times 70 in 3 steps, of each of the two ranks: the last is cut
    assert finding.evidence[0] == "70 ns per step per rank"
    assert finding.saving_ns == 3 * 70  # of the window, which steps do not fill


def test_findings_as_a_table() -> None:
    result = run("findings", copies_of("pinned", "cudaMemcpy"))
    (row,) = result.table.to_frame().to_dict("records")
    assert (row["rule"], row["number"], row["show"]) == ("blocking_copies", 1, "copies")
    assert list(map(note_text, row["evidence"])) == [
        "1 copy by cudaMemcpy",
        "CPU time in these calls: 1 ns",
    ]
    assert row["evidence"][1].values == {"each": 1}
    assert (row["kind"], row["claim_kind"], row["is_minor"]) == ("bounded", "lost", False)


def test_savings_are_per_step_where_steps_are_known() -> None:
    builder = TraceBuilder()
    for i in range(5):
        at = 100 * MS * i
        builder.step(at, at + 100 * MS, number=i)
        builder.kernel("gemm", at, at + 80 * MS, launched_ns=(at, at + 1))
        called = (at + 2, at + 3)
        builder.copy("d2h", at + 80 * MS, at + 100 * MS, launched_ns=called, api="cudaMemcpy")
    finding = found(builder.build(span=(0, 500 * MS)))["blocking_copies"]
    assert finding.saving_ns == 20 * MS
    assert finding.evidence[0] == "1 copy by cudaMemcpy per step"


def test_what_most_steps_have_once_is_not_in_each_of_them() -> None:
    builder = TraceBuilder()
    for i in range(9):
        at = 100 * MS * i
        builder.step(at, at + 100 * MS, number=i)
        works_ns = 100 * MS if i == 2 else 80 * MS
        builder.kernel("gemm", at, at + works_ns, launched_ns=(at, at + 1))
        if i != 2:
            called = (at + 2, at + 3)
            builder.copy("d2h", at + 80 * MS, at + 100 * MS, launched_ns=called, api="cudaMemcpy")
    finding = found(builder.build(span=(0, 900 * MS)))["blocking_copies"]
    assert finding.evidence[0] == "8 copies by cudaMemcpy in 9 steps"


def test_slow_steps_cost_each_step_what_they_take_more_in_all() -> None:
    """Steps of 40 and 60 ms in turn, and one of a second: their mean is far above their median."""
    builder, at = TraceBuilder(), 0
    lengths = [40, 40, 60] * 8 + [1000] + [40, 40, 60] * 8
    for i, length in enumerate(lengths):
        builder.step(at, at + length * MS, number=i)
        builder.kernel("gemm", at, at + length * MS - 1, launched_ns=(at, at + 1))
        at += length * MS
    finding = found(builder.build())["slow_steps"]
    usual = (40 + 40 + 60) / 3  # they are of two kinds: the base is their mean
    assert finding.saving_ns == pytest.approx((1000 - usual) * MS / len(lengths), rel=0.001)


def turns_that_allocate(n_allocating: int) -> Trace:
    """100 turns of two kernels; the first ``n_allocating`` allocate for 20 us while they wait."""
    builder, us = TraceBuilder(), US
    for i in range(100):
        at = 100 * us * i
        if i < n_allocating:
            builder.api_call("cuMemAlloc_v2", at, at + 20 * us)
        builder.kernel(
            "first", at + 20 * us, at + 50 * us, launched_ns=(at + 19 * us, at + 20 * us)
        )
        builder.kernel(
            "second", at + 50 * us, at + 100 * us, launched_ns=(at + 21 * us, at + 22 * us)
        )
    return builder.build()


def test_what_each_turn_of_a_pattern_allocates_does_not_occur_once() -> None:
    finding = found(turns_that_allocate(100))["allocations"]
    assert (finding.kind, finding.one_time_ns) == ("measured", None)
    assert finding.evidence == ("about 1 call to cuMemAlloc_v2 per iteration",)
    assert found(turns_that_allocate(40))["allocations"].kind == "once"


@pytest.mark.parametrize(("is_training", "names_optimizers"), [(True, True), (False, False)])
def test_advice_names_optimizers_only_where_one_may_run(
    is_training: bool, names_optimizers: bool
) -> None:
    builder, us = TraceBuilder(), US
    for i in range(200):
        at = 20 * us * i
        builder.host_op("aten::mul", at, at + 15 * us, source="cpu_op")
        builder.kernel("mul_kernel", at + 10 * us, at + 12 * us, launched_ns=(at, at + 5 * us))
    if is_training:
        builder.phase("backward", 0, 4 * MS)
    advice = found(builder.build())["launch_bound"].action
    assert ("a fused optimizer" in advice) == names_optimizers
    assert "a larger batch" in advice


def test_times_beside_a_saving_of_several_devices_are_means_of_them() -> None:
    builder = TraceBuilder()
    for device in (0, 1):
        for i in range(3):
            at = 10 * MS * i
            called = (at + 6 * MS, at + 6 * MS + 1000)
            builder.kernel(
                "gemm", at, at + 4 * MS, device=device, launched_ns=(at - 2000, at - 1000)
            )
            builder.kernel("late", called[1], at + 10 * MS, device=device, launched_ns=called)
            builder.range("decode", at + 4 * MS, at + 6 * MS)
    finding = found(builder.build())["host_code"]
    assert finding.saving_ns == 6 * MS
    assert any(
        text.startswith("6.00 ms per GPU while the CPU is in decode") for text in finding.evidence
    )


def test_a_device_that_stops_in_the_last_moments_of_the_window_is_not_said_to() -> None:
    builder = TraceBuilder().kernel("gemm", 0, 100 * MS - 2)
    trace = builder.kernel("gemm", 60 * MS, 100 * MS, device=1).build(span=(0, 100 * MS))
    finding = found(trace)["low_utilization"]
    assert finding.evidence == ("GPU 1 starts 60.0 ms after the start of the window",)


def test_what_one_rule_of_a_subject_could_not_check_is_named_beside_what_another_did() -> None:
    builder = TraceBuilder().kernel("gemm", 0, 60 * MS)
    builder.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 60 * MS, 100 * MS)
    said = [note_text(note) for note in run("findings", builder.build()).notes]
    why = "no CPU communication (gloo, MPI) in the analyzed time"
    assert f"not checked: communication by the CPU (gloo, MPI): {why}" in said
    assert not any(text.startswith("not checked: communication:") for text in said)


@pytest.mark.parametrize(("n_back", "is_said"), [(20, True), (1, False)])
def test_what_goes_to_the_device_and_comes_back_again_and_again_is_said(
    n_back: int, is_said: bool
) -> None:
    builder = TraceBuilder()
    for i in range(20):
        at = 10 * MS * i
        builder.copy("h2d", at, at + 4 * MS, n_bytes=10**7, src_kind="pageable", api="cudaMemcpy")
        builder.kernel("solve", at + 4 * MS, at + 6 * MS)
        if i < n_back:
            builder.copy(
                "d2h",
                at + 6 * MS,
                at + 10 * MS,
                n_bytes=10**7,
                dst_kind="pageable",
                api="cudaMemcpy",
            )
    finding = found(builder.build())["unpinned_memory"]
    back = "the GPU sends back as much data (200 MB) as it receives (200 MB)"
    assert (back in finding.evidence) == is_said
    assert ("Keep data that is copied back and forth on the GPU" in finding.action) == is_said


def test_what_is_one_gap_without_the_longest_occurs_once_too() -> None:
    builder, now = TraceBuilder(), 0
    for i in range(12):
        now += {3: 600 * MS, 8: 300 * MS}.get(i, MS)
        builder.kernel("gemm", now, now + 10 * MS, launched_ns=(now - 2, now - 1))
        now += 10 * MS
    once = [own for own in findings_of(builder.build()) if own.rule == "host_code"]
    assert [own.kind for own in once] == ["once", "once"]
    assert [own.title.partition(",")[0] for own in once] == ["One long gap", "Another long gap"]
    assert [round(own.one_time_ns or 0, -6) for own in once] == [600 * MS, 300 * MS]
