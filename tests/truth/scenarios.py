"""Runs with one planted trouble each, and the same runs without it.

What removing the trouble would save is not computed but observed: the difference of the step times.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import or_
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import pandas as pd

from tests.formats.test_contract import write_as_kineto
from tests.truth.loops import FP32, Inference, Overlapped, Pipeline, Training, nothing
from tests.truth.machine import MS, US, WORKER, Machine, run
from traceprof.formats import open_trace
from traceprof.model.ranks import Ranks
from traceprof.model.tables import TABLES, make_table
from traceprof.model.trace import Trace, span_of

__all__ = ["HEALTHY", "SCENARIOS", "Scenario", "every_other", "one", "period_ns", "step_ns"]


@dataclass(frozen=True)
class Scenario:
    """A planted trouble.

    ``rules``: any of these must come first; none: nothing may be found. ``also`` may be said, too.
    ``subject`` is what the finding must name, ``once`` what must be listed as paid once, and
    ``occasion`` what must be told as done now and then, or in a single step. ``is_ranged``: what it
    saves is not within 10%, but in the range that is said. ``healthy_rules`` are found without the
    trouble, too, and may come before it.
    """

    name: str
    make: Callable[[], Ranks]
    rules: tuple[str, ...] = ()
    healthy: Callable[[], Ranks] | None = None
    also: tuple[str, ...] = ()
    subject: str = ""
    once: str = ""
    occasion: str = ""
    is_ranged: bool = False
    healthy_rules: tuple[str, ...] = ()

    @cached_property
    def ranks(self) -> Ranks:
        """The run with the trouble."""
        return self.make()

    def saving_ns(self, first: int) -> float:
        """What a step takes longer than without the trouble, the mean over the steps from first."""
        assert self.healthy
        return step_ns(self.ranks, first) - step_ns(self.healthy(), first)


def step_ns(ranks: Ranks, first: int) -> float:
    """Return the mean time of the steps from ``first`` until the GPUs have done their work.

    Host starts do not show it: the host is ahead by a step, so the periods contain the first step
    (in which nothing overlaps yet), but not the last two. The result is a mean over the ranks.
    """
    tables = ("ranges", "api_calls", "kernels", "copies")
    means = []
    for part in ranks.parts:
        ranges, calls, *work = (part.table(name).to_frame() for name in tables)
        is_step = ranges["name"] == "user_step"
        for process, steps in ranges[is_step].groupby("process"):
            starts = np.sort(steps["start_ns"].to_numpy())
            called = calls[calls["process"] == process].set_index("correlation")["start_ns"]
            own = [table[table["process"] == process] for table in work if len(table)]
            ends = [table.set_index("correlation")["end_ns"] for table in own]
            done = called.to_frame().join(pd.concat(ends), how="inner")
            is_before = done["start_ns"] < starts[first]
            begin = done.loc[is_before, "end_ns"].max() if first else starts[0]
            means.append(float(done["end_ns"].max() - begin) / (len(starts) - first))
    return float(np.mean(means))


def period_ns(ranks: Ranks) -> float:
    """Return the mean time from step to step, without the first, by what was planted."""
    ranges = ranks.parts[0].ranges.to_frame()
    ranges = ranges[ranges["process"] == ranges["process"].min()]  # of several in one file
    starts = ranges.loc[ranges["name"] == "user_step", "start_ns"].to_numpy()[1:]
    return float(np.mean(np.diff(starts)))


def one(program: Any, **machine: Any) -> Callable[[], Ranks]:
    return lambda: run([Machine(**machine)], program)


def several(
    program_of: Callable[[int], Any], n_ranks: int, of_rank: Callable[[int], dict[str, Any]] = dict
) -> Callable[[], Ranks]:
    """Return a run of ``n_ranks``; each has its own program, and machine where that differs."""

    def make() -> Ranks:
        machines = [
            Machine(rank=rank, n_ranks=n_ranks, **(of_rank(rank) if of_rank is not dict else {}))
            for rank in range(n_ranks)
        ]
        programs = {rank: program_of(rank) for rank in range(n_ranks)}
        return run(machines, lambda machine: programs[machine.rank](machine))

    return make


def on_wandering_clocks(
    program_of: Callable[[int], Any], n_ranks: int, of_rank: Callable[[int], dict[str, Any]]
) -> Callable[[], Ranks]:
    """Return a run of hosts whose clocks wander by 10 ms, each in its own way, twice a second."""

    def shown(trace: Trace, rank: int) -> Trace:
        def at(instants: Any) -> Any:
            wander = 10 * MS * np.sin(2 * np.pi * instants / (500 * MS) + 2.5 * rank)
            return instants + np.rint(wander).astype(np.int64)

        moved: dict[str, Any] = {}
        for name, table in TABLES.items():
            rows = trace.table(name)
            if table.has_times and len(rows):
                times = {"start_ns", "end_ns"} & rows.columns.keys()
                moved[name] = make_table(
                    name, {**rows.columns, **{one: at(rows[one]) for one in times}}
                )
        every = {name: moved.get(name, trace.table(name)) for name in TABLES}
        return replace(trace, span=span_of(every), recordings={}, **moved)

    def make() -> Ranks:
        machines = [
            Machine(rank=rank, n_ranks=n_ranks, host=f"node{rank}", **of_rank(rank))
            for rank in range(n_ranks)
        ]
        programs = {rank: program_of(rank) for rank in range(n_ranks)}
        ranks = run(machines, lambda own: programs[own.rank](own), several_files=True)
        moved = [shown(part, rank) for rank, part in enumerate(ranks.parts)]
        span = reduce(or_, (part.span for part in moved))
        return replace(ranks, parts=tuple(replace(part, span=span) for part in moved))

    return make


def in_one_file(make: Callable[[], Ranks]) -> Callable[[], Ranks]:
    """Return a run whose processes were merged into one file of torch.profiler.

    Calls are numbered from 1 in each, and the file says nothing of ranks.
    """

    def merged() -> Ranks:
        with TemporaryDirectory() as folder:
            path = Path(folder, "merged.json")
            events: list[object] = []
            for part in make().parts:
                write_as_kineto(part, path)
                events += json.loads(path.read_text())["traceEvents"]
            path.write_text(json.dumps({"traceEvents": events}))
            return Ranks.of(open_trace(path))

    return merged


WAIT: Final = 60 * MS
HEALTHY: Final = Training()


def parallel(n_ranks: int, **more: Any) -> Training:
    return replace(HEALTHY, ranks=tuple(range(n_ranks)), **more)


def against(name: str, rules: Sequence[str], also: Sequence[str] = (), **more: Any) -> Scenario:
    """Return a trouble of the healthy loop on one rank."""
    return Scenario(name, one(replace(HEALTHY, **more)), tuple(rules), one(HEALTHY), tuple(also))


def occasional(name: str, occasion: str, *also: str, **more: Any) -> Scenario:
    """Return the healthy loop with something that is done in a few of its steps."""
    own = against(name, (), also, **more)
    return replace(own, occasion=occasion)


def every(n_steps: int, name: str, length_ns: int) -> Callable[[Machine, int], None]:
    def act(machine: Machine, step: int) -> None:
        if step % n_steps == n_steps - 1:
            machine.wait(name, length_ns)

    return act


def _validate(machine: Machine, step: int) -> None:
    if step % 10 == 9:
        with machine.range("validation"):
            for i in range(40):
                machine.launch(f"{HEALTHY.gemm}_fwd{i % 8}", HEALTHY.kernel_ns)
            machine.synchronize("cudaDeviceSynchronize")


def _checkpoint(machine: Machine, step: int) -> None:
    if step % 10 == 9:
        with machine.range("save_checkpoint"):
            machine.copy("d2h", 2_000_000_000, kind="pageable", rate=3.0, blocks=True)
            machine.work(400 * MS)


def _wait_for_workers(machine: Machine, step: int) -> None:
    start = machine.now
    with machine.range("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"):
        machine.work(60 * MS)
    machine.beside("decode_jpeg", start, machine.now)


def _embed(machine: Machine, step: int) -> None:
    """Launch many small kernels slowly: a host that is ahead of the device hides it."""
    for _ in range(40):
        machine.launch(f"{HEALTHY.gemm}_embed", 6 * US, gap_ns=40 * US)


def _touch_pages(machine: Machine, step: int) -> None:
    """Read results on the host and let a kernel read what the host wrote, page by page."""
    machine.synchronize()
    machine.migrate("d2h", 100, 30 * US, machine.now)
    machine.now += 3 * MS
    end = machine.launch("gather_samples", 2 * MS)
    machine.migrate("h2d", 100, 20 * US, end - 2 * MS)


def _have_pages(machine: Machine, step: int) -> None:
    machine.synchronize()
    machine.launch("gather_samples", 100 * US)


def _walk(blocks: int) -> Callable[[Machine, int], None]:
    """Return a kernel that takes 8 ms on one SM, by as many blocks of one warp."""
    shape = {"grid_x": blocks, "grid_y": 1, "grid_z": 1, "block_x": 32, "block_y": 1, "block_z": 1}

    def act(machine: Machine, step: int) -> None:
        machine.launch("walk_tree", 8 * MS // blocks, shape=shape)

    return act


_PRODUCT: Final = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn"
_SCORES: Final = (
    ("void at::native::vectorized_elementwise_kernel<4, at::native::MulFunctor<float>>", 100 * US),
    ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 9, false>", 200 * US),
    ("void at::native::fused_dropout_kernel_vec<float, float, unsigned int, 1, 4>", 100 * US),
)


def _attend(is_fused: bool) -> Callable[[Machine, int], None]:
    def act(machine: Machine, step: int) -> None:
        for _ in range(6):
            if is_fused:
                machine.launch("void flash_fwd_kernel<Flash_fwd_kernel_traits>", 600 * US)
                continue
            for name, length in ((_PRODUCT, 300 * US), *_SCORES, (_PRODUCT, 300 * US)):
                machine.launch(name, length)

    return act


def _compile(machine: Machine, step: int) -> None:
    if step == 3:
        with machine.range("Torch-Compiled Region: compile"):
            machine.work(3_000 * MS)


def _load_model(machine: Machine) -> None:
    with machine.range("load_model"):
        for _ in range(200):
            machine.copy("h2d", 200_000_000, kind="pageable", rate=4.0, blocks=True)


def _allocate(machine: Machine, step: int) -> None:
    for _ in range(6):
        machine.call("cudaMalloc", 1 * MS)
        machine.synchronize("cudaFree")


def _collect_garbage(machine: Machine, step: int) -> None:
    machine.wait("gc.collect", 50 * MS)


def _load_modules(machine: Machine, step: int) -> None:
    machine.call("cuModuleLoadData", 30 * MS)


def _compile_beside(machine: Machine, step: int) -> None:
    """Wait for another thread, of which libraries and the operating system were recorded."""
    start = machine.now
    machine.work(30 * MS)
    machine.builder.host_op(
        "nvrtcCompileProgram", start, machine.now, process=machine.process, thread=WORKER
    )


def _wait_of_rank_3(machine: Machine, step: int) -> None:
    machine.work(WAIT)


def _fall(machine: Machine, step: int) -> None:
    """Let the GPU clock fall: each kernel takes 1.6 times as long from step 12 on."""
    machine.kernel_factor = 1.0 if step < 12 else 1.6


def every_other(wait_ns: int) -> Callable[[Machine, int], None]:
    """Return what waits in every second step."""

    def act(machine: Machine, step: int) -> None:
        if step % 2:
            machine.work(wait_ns)

    return act


def _pause(machine: Machine, step: int) -> None:
    """Stand still for a minute now and then, with nothing recorded of it."""
    if step in (9, 19):
        machine.work(60_000 * MS)


def _free_first(machine: Machine, step: int) -> None:
    if not step:
        machine.call("cudaFree", 60 * MS)


def _once(machine: Machine, step: int) -> None:
    if step == 12:
        machine.work(500 * MS)


def _free_in_few_steps(machine: Machine, step: int) -> None:
    if step in (9, 17):
        machine.call("cudaFree", 300 * MS)


_DISPATCH: Final = "void flashinfer::moe::moeA2ADispatchKernel<8, __nv_bfloat16>(int)"
_COMBINE: Final = "void mori::moe::EpCombineInterNodeV1Kernel<__hip_bfloat16>(int)"


def _experts(*, are_remote: bool) -> Callable[[Machine, int], None]:
    """Return what computes experts in each layer; tokens are sent to remote ones and back."""

    def act(machine: Machine, step: int) -> None:
        for _ in range(HEALTHY.n_layers):
            if are_remote:
                machine.launch(_DISPATCH, 600 * US)
            machine.launch(f"{HEALTHY.gemm}_expert", 100 * US)
            if are_remote:
                machine.launch(_COMBINE, 400 * US)

    return act


def _log(machine: Machine, step: int) -> None:
    machine.work(10 * MS)


def _load_on_gpu(machine: Machine, step: int) -> None:
    """Decode and flip the next batch from another thread, at its own pace: as DALI does."""
    at = machine.now + 3 * step % 17 * MS
    for i in range(4):
        ended = machine.launch_beside(f"void dali::kernels::flip{i}<float>()", 2 * MS, at)
        at = ended + (step + i) % 3 * MS


def _slow(rank: int, factor: float = 1.4) -> Callable[[int], dict[str, Any]]:
    return lambda own: {"kernel_factor": factor if own == rank else 1.0}


def _pipeline(n_stages: int, n_replicas: int = 1, **more: Any) -> Callable[[int], Pipeline]:
    return lambda rank: Pipeline(rank % n_stages, n_stages, rank // n_stages, n_replicas, **more)


def _now_and_then(slow: int, every: int) -> Callable[[int], Pipeline]:
    """Return a pipeline of four in which one stage takes longer in each ``every``-th step."""
    return lambda rank: Pipeline(rank, 4, slow_every=every if rank == slow else 0, slow_factor=1.6)


_SMALL: Final = replace(HEALTHY, n_small=60, small_ns=8 * US, kernel_ns=20 * US)

_ADAPTED: Final = replace(HEALTHY, n_parameters=200)

SCENARIOS: Final = (
    Scenario("clean", one(HEALTHY)),
    Scenario("clean_4_ranks", several(lambda _: parallel(4), 4)),
    Scenario("clean_small_model", one(replace(HEALTHY, n_layers=3, kernel_ns=2 * MS))),
    Scenario("clean_device_lag", one(replace(HEALTHY, ahead=4))),
    Scenario("clean_jitter", one(HEALTHY, jitter_ratio=0.05)),
    Scenario(
        "clean_skewed_starts",
        several(lambda _: parallel(4), 4, lambda r: {"begins_ns": r * 300 * MS}),
    ),
    Scenario(
        "clean_pipeline",
        several(_pipeline(4), 4),
        also=("exposed_communication", "gpu_gaps", "low_utilization", "pipeline_bubble"),
    ),
    Scenario(
        "pipeline_bubble",
        several(_pipeline(4), 4),
        ("pipeline_bubble",),
        also=("exposed_communication", "gpu_gaps", "low_utilization"),
        subject="each of 4 stages is idle",
    ),
    Scenario(
        "pipeline_bubble_before_a_closing_all_reduce",
        several(_pipeline(4, is_closed=True, n_micro=4), 4),
        ("pipeline_bubble",),
        also=("exposed_communication", "gpu_gaps", "low_utilization"),
        subject="with 4 micro-batches",
    ),
    Scenario("clean_inference", one(Inference())),
    Scenario(
        "clean_gpu_loader_on_another_thread",
        one(replace(HEALTHY, ahead=0, before=_load_on_gpu)),
        also=("gpu_gaps",),
    ),
    against(
        "input_wait_between_steps",
        ["input_bound"],
        before=lambda m, _: m.wait(
            "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", WAIT
        ),
    ),
    against(
        "bimodal_steps_every_other_of_which_waits_for_data",
        ["input_bound"],
        fetch=every_other(1_200 * MS),
    ),
    against("gpu_clock_falls", ["slower_steps"], before=_fall),
    against(
        "data_loader_falls_behind",
        ["slower_steps"],
        ["input_bound"],
        fetch=lambda m, step: m.work(WAIT if step >= 18 else 0),
    ),
    against("pauses_of_a_minute", ["slow_steps"], after=_pause),
    against("structural_wait_between_steps", ["host_code"], after=lambda m, _: m.work(WAIT)),
    Scenario(
        "three_steps_with_warm_up",
        one(replace(HEALTHY, n_steps=3, ahead=0, inside=_free_first)),
        also=("warmup",),
        once="warm-up",
    ),
    Scenario(
        "four_steps_with_warm_up",
        one(replace(HEALTHY, n_steps=4, ahead=0, inside=_free_first)),
        also=("warmup",),
        once="warm-up",
    ),
    against("input_wait_in_a_data_range", ["input_bound"], fetch=lambda m, _: m.work(WAIT)),
    against("input_wait_for_workers", ["input_bound"], before=_wait_for_workers),
    occasional("checkpoint_every_10_steps", "checkpoint", "checkpoint_stalls", after=_checkpoint),
    occasional("validation_every_10_steps", "evaluation", after=_validate),
    occasional("compile_in_step_3", "compiling", inside=_compile),
    Scenario(
        "checkpoint_of_rank_0",
        several(lambda r: parallel(4, after=_checkpoint if r == 0 else nothing), 4),
        also=("checkpoint_stalls",),
        healthy=several(lambda _: parallel(4), 4),
        occasion="checkpoint",
    ),
    Scenario(
        "set_up_ten_times_the_loop", one(replace(HEALTHY, set_up=_load_model)), once="loading"
    ),
    against(
        "pinned_copies_exposed",
        ["exposed_copies"],
        batch_bytes=800_000_000,
        is_copy_hidden=False,
    ),
    against(
        "pageable_copies",
        ["pageable_copies", "unpinned_memory"],
        ["blocking_copies"],
        batch_bytes=60_000_000,
        batch_kind="pageable",
        is_copy_hidden=False,
        is_copy_blocking=True,
    ),
    Scenario(
        # Each call blocks the host: what it launches late because of that is the copy's.
        "pageable_copies_that_should_be_asynchronous",
        one(
            replace(
                HEALTHY,
                batch_bytes=30_000_000,
                batch_kind="pageable",
                is_copy_hidden=False,
                is_copy_blocking=True,
                copy_api="cudaMemcpyAsync",
                begin=_embed,
            )
        ),
        ("pageable_copies",),
        one(replace(HEALTHY, batch_bytes=30_000_000, begin=_embed)),
    ),
    Scenario(
        "managed_memory_that_migrates",
        one(replace(HEALTHY, begin=_touch_pages)),
        ("managed_memory",),
        one(replace(HEALTHY, begin=_have_pages)),
        ("host_sync",),
    ),
    Scenario(
        "kernel_of_one_block",
        one(replace(HEALTHY, begin=_walk(1))),
        ("few_blocks",),
        one(replace(HEALTHY, begin=_walk(132))),
    ),
    Scenario(
        "kernels_slowed_by_communication",
        several(lambda _: Overlapped((0, 1), 1.4), 2),
        ("contention",),
        several(lambda _: Overlapped((0, 1)), 2),
    ),
    Scenario(
        "attention_in_pieces",
        one(replace(HEALTHY, begin=_attend(is_fused=False))),
        ("unfused_attention",),
        one(replace(HEALTHY, begin=_attend(is_fused=True))),
    ),
    Scenario(
        "loss_read_every_step_and_slow_launches",
        one(replace(HEALTHY, is_item_read=True, begin=_embed)),
        ("host_sync",),
        one(replace(HEALTHY, begin=_embed)),
        ("launch_bound",),
        is_ranged=True,
    ),
    Scenario(
        "loss_read_every_step",
        one(replace(HEALTHY, is_item_read=True, after=_log)),
        ("host_sync",),
        one(replace(HEALTHY, after=_log)),
        ("blocking_copies", "gpu_gaps", "host_code"),
    ),
    Scenario(
        "launch_bound",
        one(replace(_SMALL, host_ns=20 * US)),
        ("launch_bound",),
        one(replace(_SMALL, host_ns=0)),
        ("small_kernels", "fusable_kernels"),
    ),
    against(
        "malloc_in_loop",
        ["allocations"],
        ["host_sync"],
        inside=_allocate,
    ),
    against(
        "module_loading_in_loop",
        ["loading"],
        ["host_code"],
        inside=_load_modules,
    ),
    against(
        "compiling_on_other_threads",
        ["loading"],
        ["host_code"],
        inside=_compile_beside,
    ),
    Scenario(
        "optimizer_of_single_tensors",
        one(replace(_ADAPTED, is_fused=False)),
        ("looped_optimizer",),
        one(_ADAPTED),
        ("small_kernels", "fusable_kernels"),
    ),
    against("host_code", ["host_code"], ["host_sync"], inside=_collect_garbage),
    Scenario(
        "single_precision",
        one(replace(HEALTHY, gemm=FP32), gpu="NVIDIA A100-SXM4-80GB"),
        ("precision",),
        None,
    ),
    Scenario("cuda_graphs", one(replace(HEALTHY, is_graph=True)), ("whole_graphs",), None),
    Scenario(
        "all_reduce_exposed",
        several(lambda _: parallel(4, is_reduce_hidden=False, reduce_ns=8 * MS), 4),
        ("exposed_communication",),
        several(lambda _: parallel(4), 4),
        ("small_buckets",),
    ),
    Scenario(
        "slow_rank",
        several(lambda _: parallel(4), 4, _slow(2)),
        ("straggler",),
        several(lambda _: parallel(4), 4),
        ("exposed_communication",),
        "2",
    ),
    Scenario(
        "slow_rank_of_processes_in_one_file",
        in_one_file(several(lambda _: parallel(4), 4, _slow(2))),
        ("straggler",),
        several(lambda _: parallel(4), 4),
        ("exposed_communication",),
        "rank 2",
    ),
    Scenario(
        "slow_rank_where_clocks_are_wrong",
        on_wandering_clocks(lambda _: parallel(4), 4, _slow(2)),
        ("straggler",),
        several(lambda _: parallel(4), 4),
        ("exposed_communication", "pipeline_bubble", "host_code", "gpu_gaps", "slow_steps"),
        "Slow rank 2",
    ),
    Scenario(
        "slow_stage_where_clocks_are_wrong",
        on_wandering_clocks(_pipeline(4), 4, _slow(0, 2.3)),
        ("straggler",),
        None,
        ("exposed_communication", "host_code", "gpu_gaps", "slow_steps"),
        "Slow rank 0 (stage 0 of the pipeline)",
    ),
    Scenario(
        "alike_ranks_where_clocks_are_wrong",
        on_wandering_clocks(lambda _: parallel(4), 4, lambda _: {}),
        also=("host_code", "gpu_gaps", "slow_steps"),
    ),
    Scenario(
        "slow_gpu_clock_of_8",
        several(lambda _: parallel(8), 8, _slow(5, 1.15)),
        ("straggler",),
        several(lambda _: parallel(8), 8),
        ("exposed_communication",),
        "5",
    ),
    Scenario(
        "slow_host",
        several(
            lambda _: parallel(8),
            8,
            lambda r: {"host": f"node{r // 4}", "kernel_factor": 1.0 + 0.4 * (r >= 4)},
        ),
        ("slow_host",),
        several(lambda _: parallel(8), 8, lambda r: {"host": f"node{r // 4}"}),
        ("exposed_communication",),
        "node1",
    ),
    Scenario(
        "moe_dispatch",
        one(replace(HEALTHY, inside=_experts(are_remote=True))),
        ("exposed_communication",),
        one(replace(HEALTHY, inside=_experts(are_remote=False))),
        subject="moeA2ADispatchKernel",
    ),
    Scenario(
        "slow_stage",
        several(_pipeline(4), 4, _slow(1, 1.6)),
        ("slow_stage", "straggler"),
        several(_pipeline(4), 4),
        ("exposed_communication", "gpu_gaps", "low_utilization", "pipeline_bubble"),
        "1",
    ),
    Scenario(
        "slow_rank_in_pipelines_side_by_side",
        several(_pipeline(2, 4), 8, _slow(5, 1.5)),
        ("straggler",),
        several(_pipeline(2, 4), 8),
        ("exposed_communication", "gpu_gaps", "low_utilization", "pipeline_bubble"),
        "5",
    ),
    Scenario(
        "rank_of_a_pipeline_slow_every_2nd_step",
        several(_now_and_then(1, 2), 4),
        ("straggler",),
        several(_pipeline(4), 4),
        ("exposed_communication", "gpu_gaps", "low_utilization", "slow_steps"),
        "1",
    ),
    Scenario(
        "rank_of_a_pipeline_slow_every_4th_step",
        several(_now_and_then(1, 4), 4),
        ("slow_steps",),
        several(_pipeline(4), 4),
        ("exposed_communication", "gpu_gaps", "low_utilization", "straggler"),
        healthy_rules=("pipeline_bubble",),
    ),
    Scenario(
        "slow_host_of_pipelines",
        several(
            _pipeline(2, 4),
            8,
            lambda r: {"host": f"node{r // 4}", "kernel_factor": 1.0 + 0.4 * (r >= 4)},
        ),
        ("slow_host",),
        several(_pipeline(2, 4), 8, lambda r: {"host": f"node{r // 4}"}),
        ("exposed_communication", "gpu_gaps", "low_utilization", "pipeline_bubble"),
        "node1",
    ),
    Scenario(
        "delay_of_rank_2_once",
        several(lambda r: parallel(4, inside=_once if r == 2 else nothing), 4),
        ("slow_steps",),
        several(lambda _: parallel(4), 4),
        ("straggler",),
        "step 12",
    ),
    Scenario(
        "memory_freed_by_rank_2_in_few_steps",
        several(lambda r: parallel(4, inside=_free_in_few_steps if r == 2 else nothing), 4),
        ("slow_steps",),
        several(lambda _: parallel(4), 4),
        ("straggler",),
        "mostly due to memory allocation (cudaFree) on rank 2",
    ),
    Scenario(
        "input_wait_of_one_rank",
        several(
            lambda r: parallel(4, fetch=_wait_of_rank_3 if r == 3 else nothing),
            4,
        ),
        ("straggler", "input_bound"),
        several(lambda _: parallel(4), 4),
        ("exposed_communication", "input_bound", "straggler"),
        "3",
    ),
)
