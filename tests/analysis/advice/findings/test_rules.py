"""What each rule sees in a small trace, and when it abstains."""

import pkgutil

import pytest

from tests.analysis.advice.findings.found import Found, findings_of
from tests.analysis.generated_run import Plan, make_ranks_of
from tests.builders import TraceBuilder
from tests.running import run
from traceprof.analysis.advice import findings
from traceprof.analysis.advice.findings import RULES, Rule
from traceprof.model.cluster import Cluster
from traceprof.model.ranks import Ranks
from traceprof.model.tables import TABLES
from traceprof.model.trace import Trace
from traceprof.render.formatting import note_text

US = 1000
MS = 1000 * US


def found(of: Trace | Ranks) -> dict[str, Found]:
    return {finding.rule: finding for finding in findings_of(of)}


def test_every_module_of_rules_is_registered() -> None:
    modules = {module.name for module in pkgutil.iter_modules(findings.__path__)}
    assert {rule.name for rule in RULES} == modules - {"base", "context"}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_needs_tables_that_exist(rule: Rule) -> None:
    assert set(rule.needs) <= set(TABLES)
    assert rule.summary[0].islower()


def test_rules_without_data_abstain_and_say_why() -> None:
    findings = run("findings", TraceBuilder().range("x", 0, 10).build())
    table = findings.to_frame("abstained")
    abstained = dict(zip(table["rule"], table["reason"], strict=True))
    notes = [note_text(note) for note in findings.notes]
    assert set(abstained) == {rule.name for rule in RULES}
    assert abstained["launch_bound"].startswith("no kernels recorded: record")
    assert abstained["input_bound"].startswith("no range says when data is fetched")
    assert notes[0] == "no rule found anything to improve"
    assert "not judged: warmup: no steps are named" in notes
    assert len(notes) == 1 + len(set(abstained.values()))
    assert findings.to_frame().empty


def run_with_late(ranks: tuple[int, ...], racks: tuple[str, ...] = ()) -> Ranks:
    """Eight ranks on four hosts, some of them 40 ms of 100 late in every step."""
    extra = {(rank, "forward"): 40 * MS for rank in ranks}
    hosts = [f"n{rank // 2}" for rank in range(8)]
    made = make_ranks_of(Plan(n_ranks=8, hosts=hosts, extra_ns=extra))
    cluster = Cluster()
    for rack in racks:
        cluster = cluster.with_rack(rack)
    return cluster.placed(made)


def test_a_host_that_is_late_as_a_whole_is_not_a_straggling_rank() -> None:
    rules = found(run_with_late((6, 7)))
    assert "straggler" not in rules
    slow = rules["slow_host"]
    # 10 steps of 40 ms in 6 of 8 ranks, in 1.94 s.
    assert slow.saving_ratio == pytest.approx(0.4 * 6 / 8 / 1.94)
    assert slow.title == "slow host: the others wait for n3, 15.5 % of the time"
    assert slow.evidence == (
        "2 of the 2 ranks of host n3 come late; it is last to 100.0 % of the collectives that it "
        "shares with others and holds them up 400.0 ms in all",
        "they take longer in forward",
    )


def test_a_rack_that_is_late_as_a_whole_is_not_its_hosts() -> None:
    rules = found(run_with_late((4, 5, 6, 7), ("r0=n[0-1]", "r1=n[2-3]")))
    assert rules["slow_host"].title.startswith("slow rack: the others wait for r1")
    assert "straggler" not in rules


def test_a_rack_of_one_late_host_is_that_host() -> None:
    racks = ("r0=n[0-2]", "r1=n3")
    assert found(run_with_late((6, 7), racks))["slow_host"].title.startswith("slow host")


def test_one_late_rank_is_a_straggler_and_not_its_host() -> None:
    rules = found(run_with_late((6,)))
    assert "slow_host" not in rules
    assert rules["straggler"].title.startswith("straggler: the others wait for rank 6")


def test_small_collectives() -> None:
    builder = TraceBuilder()
    for i in range(40):
        at = 100 * US * i
        builder.kernel("gemm", at, at + 60 * US)
        builder.kernel("ncclDevKernel_AllReduce", at + 60 * US, at + 100 * US)
        builder.collective("all_reduce", at, at + 1, n_bytes=10_000)
    rules = found(builder.build())
    # 40 kernels per "step" instead of one: 39/40 of the exposed 40 %, of which half is claimed.
    assert rules["small_buckets"].saving_ratio == pytest.approx(0.4 * 39 / 40 / 2)
    assert rules["small_buckets"].evidence == ("median duration 40.00 µs, median size 10.00 kB",)
    assert rules["exposed_communication"].saving_ratio == pytest.approx(0.4)


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
        ("pageable", "cudaMemcpyAsync", "pageable_copies", 0.1),
        ("pageable", "cudaMemcpy", "unpinned_memory", 0.1),
        ("pinned", "cudaMemcpy", "blocking_copies", 0.2),
    ],
)
def test_copies_that_wait(kind: str, api: str, rule: str, saving: float) -> None:
    rules = found(copies_of(kind, api))
    assert list(rules) == [rule]
    assert rules[rule].saving_ratio == pytest.approx(saving)
    assert rules[rule].saving_ns == saving * 100 * MS
    assert rules[rule].window == "80000.000us..100000.000us"


def test_asynchronous_copies_of_pinned_memory_are_fine() -> None:
    assert found(copies_of("pinned", "cudaMemcpyAsync")) == {}


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
    assert found(trace)["layout_conversion"].saving_ratio == pytest.approx(0.1)


def test_small_kernels() -> None:
    builder = TraceBuilder().kernel("gemm", 0, 60 * US)
    for i in range(8):
        builder.kernel("elementwise", (60 + 5 * i) * US, (65 + 5 * i) * US)
    finding = found(builder.build())["small_kernels"]
    assert finding.saving_ratio == pytest.approx(0.2)
    assert finding.evidence[0] == "8 of them (88.9 % of all)"


@pytest.mark.parametrize(
    ("device", "kernel", "expected"),
    [
        ("NVIDIA A100", "ampere_sgemm_128x64_tn", True),
        ("NVIDIA A100", "cutlass_80_simt_sgemm_128x64", True),
        ("NVIDIA A100", "ampere_bf16_s16816gemm_bf16_128x128", False),
        ("GeForce GTX 1080", "maxwell_sgemm_128x64_tn", False),
        ("Tesla P100", "maxwell_sgemm_128x64_tn", False),
    ],
)
def test_single_precision_matrix_work(device: str, kernel: str, expected: bool) -> None:
    trace = TraceBuilder().device(0, device).kernel(kernel, 0, 100 * US).build()
    assert ("tensor_cores" in found(trace)) == expected


def test_symptoms_stand_behind_their_causes() -> None:
    trace = (
        TraceBuilder()
        .kernel("gemm", 0, MS, launched_ns=(0, 1))
        .phase("data", 2 * MS, 900 * MS)
        .kernel("gemm", 1000 * MS, 1001 * MS, launched_ns=(1000 * MS - 10, 1000 * MS - 5))
        .build()
    )
    rules = [finding.rule for finding in findings_of(trace)]
    assert rules == ["input_bound", "gpu_gaps", "low_utilisation"]


def test_training_on_the_host_can_be_input_bound_too() -> None:
    trace = TraceBuilder().phase("data", 0, 30).phase("forward", 30, 100).build()
    finding = found(trace)["input_bound"]
    assert finding.title == "input-bound: training waits 30.0 % of the time while data is fetched"
    assert finding.saving_ns == 30


def test_findings_as_a_table() -> None:
    result = run("findings", copies_of("pinned", "cudaMemcpy"))
    (row,) = result.table.to_dict("records")
    assert (row["rule"], row["number"], row["show"]) == ("blocking_copies", 1, "copies")
    assert list(map(note_text, row["evidence"])) == [
        "1 copies by cudaMemcpy",
        "the calls take 1 ns of host time",
    ]
    assert row["evidence"][1].values == {"each": 1}


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
    assert finding.evidence[0] == "1 copies by cudaMemcpy per step"
