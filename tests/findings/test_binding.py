"""Savings of GPU time that other work hides are bounds with the reason."""

from __future__ import annotations

import pytest

from tests.builders import TraceBuilder
from tests.findings.found import Found, findings_of, in_default_window
from traceprof.model.placement import place_run
from traceprof.model.ranks import Ranks, RankTrace, RunFiles
from traceprof.model.trace import Trace, TraceInfo

MS, US = 1_000_000, 1_000
CONVERT = "void cudnn::ops::nchwToNhwcKernel<float>"
WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
IN_PROCESS = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def training(*, fetch: str = WORKERS, wait_ms: int = 30, syncs: bool = True) -> Trace:
    """Return 10 steps: wait for a batch, launch 10 ms of conversions and 10 ms of convolutions.

    If ``syncs``, the host waits for the GPU at the end of each step.
    """
    builder, host, device = TraceBuilder().device(0, "NVIDIA H100 80GB HBM3"), 0, 0
    for number in range(10):
        start = host
        builder.range(fetch, host, host + wait_ms * MS)
        host += wait_ms * MS
        for name in (CONVERT, "cudnn::cnn::implicit_convolve_bf16"):
            at = max(device, host + 10 * US)
            builder.kernel(name, at, at + 10 * MS, launched_ns=(host, host + 5 * US))
            host, device = host + 10 * US, at + 10 * MS
        if syncs:
            builder.api_call("cudaStreamSynchronize", host, device + 5 * US)
            host = device + 5 * US
        builder.step(start, host, number)
    return builder.build()


def conversion(trace: Trace) -> tuple[Found, int]:
    """Return the finding on conversions and its place on the page, from 0."""
    found = findings_of(in_default_window(trace))
    (place,) = [i for i, one in enumerate(found) if one.rule == "layout_conversion"]
    return found[place], place


def test_workers_of_a_loader_hide_other_savings() -> None:
    found, place = conversion(training())
    assert found.kind == "bounded"
    assert found.saving_ns == pytest.approx(10 * MS, rel=0.01)
    assert found.evidence[0].startswith("the loop waits for the DataLoader workers (60.0%")
    assert place == 1


@pytest.mark.parametrize(
    ("fetch", "words"),
    [(WORKERS, "waiting for the DataLoader workers"), (IN_PROCESS, "data loading")],
)
def test_the_main_thread_waits_for_workers_or_loads_data(fetch: str, words: str) -> None:
    found = {one.rule: one for one in findings_of(in_default_window(training(fetch=fetch)))}
    assert found["input_bound"].evidence[0].startswith(f"{words} in the main thread: 60.0%")


def test_a_slow_step_that_waits_for_data_is_no_late_rank() -> None:
    builder, at = TraceBuilder().device(0, "NVIDIA H100 80GB HBM3"), 0
    for number in range(12):
        wait = 60 * MS if number == 6 else 20 * MS
        builder.range(WORKERS, at, at + wait).step(at, at + wait + 10 * MS, number)
        at += wait
        builder.kernel("gemm", at + 10 * US, at + 10 * MS, launched_ns=(at, at + 5 * US))
        at += 10 * MS
    found = {one.rule: one for one in findings_of(in_default_window(builder.build()))}
    assert "input pipeline" in found["slow_steps"].title
    assert found["input_bound"].kind == "measured"
    assert not any("late rank" in note for note in found["input_bound"].evidence)


def test_other_processes_may_load_the_data() -> None:
    found, _ = conversion(training(fetch="data loading"))
    assert found.kind == "bounded"
    assert "if other processes load the data" in found.evidence[0]


def test_a_loader_that_keeps_up_hides_nothing() -> None:
    found, place = conversion(training(wait_ms=0))
    assert (found.kind, place) == ("measured", 0)
    assert not any("critical path" in note or "workers" in note for note in found.evidence)


def test_a_batch_made_in_the_loop_adds_up_with_the_work_of_the_gpu() -> None:
    found, _ = conversion(training(fetch=IN_PROCESS))
    assert found.kind == "measured"


def test_a_loop_that_does_not_wait_for_the_gpu_gains_nothing_from_shorter_kernels() -> None:
    found, _ = conversion(training(fetch=IN_PROCESS, syncs=False))
    assert found.kind == "bounded"
    assert "the CPU determines the step time" in found.evidence[0]


@pytest.mark.parametrize(("name", "is_compiled"), [("triton_poi_fused_add_0", True), ("x", False)])
def test_what_is_compiled_is_not_advised_to_be_compiled(name: str, is_compiled: bool) -> None:
    builder = TraceBuilder().kernel("gemm", 0, 50 * US).kernel(name, 100 * US, 101 * US)
    for start in (50, 60, 70, 80):
        name = f"void at::native::elementwise_kernel<{start}>"
        builder.kernel(name, start * US, (start + 10) * US)
    (found,) = [one for one in findings_of(builder.build()) if one.rule == "fusable_kernels"]
    assert ("graph breaks" in found.action) == is_compiled
    assert ("Fuse them with `torch.compile`" in found.action) != is_compiled


@pytest.mark.parametrize(
    ("operator", "is_vllm"), [("vllm::moe_forward", True), ("aten::mm", False)]
)
def test_a_model_in_vllm_gets_the_options_of_vllm(operator: str, is_vllm: bool) -> None:
    builder = TraceBuilder()
    for number in range(120):
        at = number * 20 * US
        builder.host_op(operator, at, at + 15 * US)
        builder.kernel("gemm", at + 12 * US, at + 15 * US, launched_ns=(at + 5 * US, at + 10 * US))
    trace = builder.build(info=TraceInfo(format="kineto", profiler="torch.profiler (Kineto)"))
    found = [one for one in findings_of(trace) if one.rule == "launch_bound"]
    assert ("`--enforce-eager`" in found[0].action) == is_vllm
    assert ('mode="reduce-overhead"' in found[0].action) != is_vllm


def job(late: str, wait_ms: int) -> Ranks:
    """Return 4 ranks that wait ``wait_ms`` for workers; rank 3 loads or computes 30 ms longer.

    Of 11 steps, 9 follow a shared collective and precede another one.
    """
    builders, now = [TraceBuilder() for _ in range(4)], 0
    for number in range(12):
        last = now + (wait_ms + 60) * MS
        for rank, builder in enumerate(builders):
            place, own = {"device": rank, "process": 100 + rank}, {"process": 100 + rank}
            is_late = rank == 3
            wait = (wait_ms + 30 * (is_late and late == "data")) * MS
            length = (30 + 30 * (is_late and late == "compute")) * MS
            builder.phase("data", now, now + wait, **own)
            builder.range(WORKERS, now, now + wait, **own)
            called = now + wait + 10 * US
            builder.kernel(
                *("bf16_gemm", called + 10 * US, called + length),
                launched_ns=(called, called + US),
                **place,
            )
            called += 20 * US
            builder.kernel(
                *("ncclDevKernel_AllReduce_Sum_bf16", called + length, last + MS),
                launched_ns=(called, called + US),
                correlation=1000 * rank + number,
                **place,
            )
            call = {"n_bytes": 4_000_000, "group_size": 4, "correlation": 1000 * rank + number}
            builder.collective("all_reduce", called, called + US, **call, **own)
            builder.api_call("cudaStreamSynchronize", called + 2 * US, last + MS, **own)
            builder.step(now, last + 2 * MS, number, **own)
        now = last + 2 * MS
    members = []
    for rank, builder in enumerate(builders):
        builder.process(100 + rank, rank=rank, world_size=4).device(rank, "NVIDIA H100")
        info = TraceInfo(path=f"rank{rank}", utc_epoch_ns=0)
        members.append(RankTrace(builder.build(info=info), rank, rank, "a"))
    return place_run(RunFiles("planted", tuple(members), 4))


def rules_of(ranks: Ranks) -> dict[str, Found]:
    return {one.rule: one for one in findings_of(in_default_window(ranks))}


def test_a_rank_that_is_late_due_to_its_data_saves_this_time_once() -> None:
    rules = rules_of(job("data", wait_ms=1))
    assert "the device waits for data" in rules["straggler"].evidence[0]
    assert rules["straggler"].saving_ns == pytest.approx(30 * MS * 9 / 11, rel=0.01)
    assert "loads its data more slowly" in rules["straggler"].action
    assert rules["input_bound"].kind == "bounded"
    assert "the saving on the late rank" in rules["input_bound"].evidence[0]


def test_a_slow_rank_behind_a_loader_is_a_bound_with_the_reason() -> None:
    rules = rules_of(job("compute", wait_ms=40))
    assert rules["straggler"].kind == "bounded"
    assert rules["straggler"].evidence[0].startswith("the loop waits for the DataLoader workers")
    assert rules["input_bound"].kind == "measured"
    alone = rules_of(job("compute", wait_ms=1))["straggler"]
    assert not any("DataLoader workers" in note for note in alone.evidence)
    assert alone.saving_ns == pytest.approx(30 * MS * 9 / 11, rel=0.01)
