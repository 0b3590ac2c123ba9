"""Runs that a second reader made: what their pages must say, and what they must not say."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tests.requirements import require
from tests.truth.loops import BF16, Pipeline
from tests.truth.machine import MS, US, Machine, Meeting, Program, run
from tests.truth.scenarios import HEALTHY, one, parallel, several
from traceprof.comparison.explaining import explain
from traceprof.measures.steps.find import decide_steps
from traceprof.model.ranks import Ranks
from traceprof.render.formatting import sentences
from traceprof.render.registry import Options, render
from traceprof.session.answer import answer, page
from traceprof.session.run import Run, open_run, run_of

RANKS = (0, 1, 2, 3)


def page_of(ranks: Ranks) -> str:
    text = render("text", page(run_of(decide_steps(ranks))), Options(is_whole=True))
    return " ".join(text.split())


def fine_of(text: str) -> str:
    return text.partition("No problem ")[2].partition(" Next ")[0].partition("Not checked")[0]


def loop(
    body: Callable[[Machine, int], Generator[Meeting, None, None] | None], n: int = 30
) -> Program:
    """Return a training loop of ``n`` steps whose host is one step ahead of the GPU."""

    def program(machine: Machine) -> Generator[Meeting, None, None]:
        ends: list[int] = []
        for step in range(n):
            start = machine.now
            yield from body(machine, step) or ()
            ends.append(max(machine.stream_ns.values()))
            if step:
                machine.wait_until(ends[step - 1])
            machine.builder.step(start, machine.now, step, process=machine.process)

    return program


def _shape(blocks: int) -> dict[str, int]:
    return {"grid_x": blocks, "grid_y": 1, "grid_z": 1, "block_x": 256, "block_y": 1, "block_z": 1}


def _save_on_rank_0(machine: Machine, step: int) -> None:
    if machine.rank == 0 and step % 5 == 4:
        with machine.range("save_checkpoint"):
            machine.copy("d2h", 2_000_000_000, kind="pageable", rate=3.0, blocks=True)
            machine.work(300 * MS)


def test_a_checkpoint_follows_the_step_in_which_the_program_saved_it() -> None:
    """The GPU is a step behind the CPU: its next step is the long one."""
    text = page_of(several(lambda _: parallel(4, after=_save_on_rank_0), 4)())
    assert "one every 5 steps, the first after step 4" in text


@cache
def _collected() -> str:
    """Return the page of four ranks that collect garbage in 14 of 38 steps, one at a time."""

    def collect(machine: Machine, step: int) -> None:
        if (step + 3 * machine.rank) % 10 == 9:
            machine.wait("gc.collect", 60 * MS)

    return page_of(several(lambda _: parallel(4, n_steps=40, after=collect), 4)())


def test_steps_with_an_event_are_those_of_any_rank() -> None:
    text = _collected()
    assert "14 gaps longer than 200 µs in 14 of 38 steps" in text
    assert "of 14 steps" in text  # the load imbalance is about the same steps


def test_named_garbage_collection_is_not_to_be_named() -> None:
    text = _collected()
    assert "`gc.disable()`" in text
    assert "name its parts" not in text


def _hot_expert(machine: Machine, _: int) -> Generator[Meeting, None, None]:
    factor = 3 if machine.rank == 2 else 1
    for _ in range(6):
        machine.launch("void flash_fwd_kernel<Flash_fwd_kernel_traits>", 2 * MS)
        yield Meeting("all_reduce", RANKS, 600 * US, 60_000_000)
        name = f"void cutlass::grouped_gemm_kernel<{BF16}>"
        machine.launch(name, factor * MS, shape=_shape(32 * factor))
        yield Meeting("all_reduce", RANKS, 600 * US, 60_000_000)


def test_more_blocks_of_as_many_kernels_are_larger_kernels() -> None:
    text = page_of(several(lambda _: loop(_hot_expert, 20), 4)())
    assert "larger kernels (more thread blocks)" in text
    assert "more kernels" not in text
    assert "partly waiting for rank 2" in text
    assert "partly communication-bound" not in text


def _train(machine: Machine, _: int) -> Generator[Meeting, None, None]:
    for _ in range(8):
        machine.launch(BF16, 3 * MS, shape=_shape(64))
    yield Meeting("all_reduce", RANKS, 2 * MS, 100_000_000)


def _run_with_slow(*slow: int, turns: bool = False) -> Ranks:
    def body(machine: Machine, step: int) -> Generator[Meeting, None, None]:
        is_slow = machine.rank == slow[step * 7 % 3 % len(slow)] if turns else machine.rank in slow
        machine.kernel_factor = 1.3 if is_slow else 1.0
        yield from _train(machine, step)

    return several(lambda _: loop(body, 24), 4)()


def test_two_gpus_that_are_always_slow_do_not_take_turns() -> None:
    """Which of the two is last is chance: both are 7.2 ms late in each step of 33.2 ms."""
    text = page_of(_run_with_slow(1, 3))
    found = re.search(
        r"1\. Slow GPUs: .* wait for rank 1, rank 3 .*? Saves up to ([\d.]+) ms", text
    )
    assert found
    assert float(found[1]) == pytest.approx(7.2, rel=0.05)
    assert "take turns" not in text


def test_gpus_that_take_turns_are_not_always_slow() -> None:
    text = page_of(_run_with_slow(0, 1, 2, turns=True))
    assert "take turns being slow" in text
    assert "Slow GPUs:" not in text


def test_a_slow_stage_does_not_make_the_bubble_fine() -> None:
    def run_with(factor: float) -> str:
        return page_of(
            several(
                lambda rank: Pipeline(rank, 4),
                4,
                lambda rank: {"kernel_factor": factor if rank == 2 else 1.0},
            )()
        )

    assert "pipeline bubbles" not in fine_of(run_with(1.4))
    assert "Pipeline bubble: stages wait" in run_with(1.0)


@pytest.mark.parametrize("compiled", [(5, 11, 17), (5, 11)])
def test_code_that_is_compiled_three_times_is_a_problem(compiled: tuple[int, ...]) -> None:
    def compile_again(machine: Machine, step: int) -> None:
        if step in compiled:
            machine.wait("Torch-Compiled Region: compile_fx_inner", 900 * MS)

    text = page_of(one(replace(HEALTHY, begin=compile_again))())
    is_found = len(compiled) == 3
    assert ("1. Recompilation takes 79.9% of the loop time: 3 steps" in text) == is_found
    assert ("No problem found." in text) != is_found
    if is_found:
        # 30 steps, 29 of them with a step before: 876 ms more in three of 30.
        assert "Saves up to 87.6 ms of 110 ms per step including compilations" in text
        assert "compiled from step 5 to step 17" in text


def _throttle(machine: Machine, step: int) -> None:
    machine.kernel_factor = 1.65 if machine.rank == 1 and step >= 15 else 1.0


def test_steps_get_slower_because_of_the_kernels_of_one_rank() -> None:
    text = page_of(several(lambda _: parallel(4, before=_throttle), 4)())
    assert "Steps get slower from step 15 on" in text
    assert "the other ranks wait for rank 1, and the following values are of this rank" in text
    assert "(1.65×)" in text
    assert "Check rank 1." in text
    assert "other traffic on the network" not in text


def test_steps_get_slower_because_of_all_ranks() -> None:
    def slow(machine: Machine, step: int) -> None:
        machine.kernel_factor = 1.65 if step >= 15 else 1.0

    text = page_of(several(lambda _: parallel(4, before=slow), 4)())
    assert "Steps get slower from step 15 on" in text
    assert "its own" not in text


@pytest.mark.parametrize(
    ("factor_at", "words"),
    [
        (lambda step: 1 + step / 15, "throughout: "),
        (lambda step: 1.0 if step < 15 else 2.0, "from step 15 on: "),
        (lambda step: 1.0 if step < 12 else 1 + (step - 11) / 15, "from step 1[2-5] on: "),
    ],
)
def test_growth_without_a_beginning_has_none(factor_at: Callable[[int], float], words: str) -> None:
    def grow(machine: Machine, step: int) -> None:
        factor = factor_at(step)
        for i in range(8):
            machine.launch(f"{BF16}_{i}", int(3 * MS * factor), shape=_shape(int(64 * factor)))

    text = page_of(run([Machine()], loop(grow)))
    assert re.search(f"Steps get slower {words}", text), text
    assert "1 launches" not in text


def test_long_collectives_leave_no_interconnect_without_a_problem() -> None:
    slow = several(lambda _: parallel(4, reduce_ns=40 * MS), 4)
    assert "interconnect bandwidth" not in fine_of(page_of(slow()))
    assert "interconnect bandwidth" in fine_of(page_of(several(lambda _: parallel(4), 4)()))


def test_phases_of_a_step_that_ran_long_before_its_kernels_say_so() -> None:
    ranks = one(HEALTHY)()
    notes = explain(run_of(decide_steps(ranks)), "step:10").results["explain"].notes
    assert any("so its CPU phases overlap earlier GPU work" in note.text for note in notes)
    waiting = one(replace(HEALTHY, is_item_read=True))()
    notes = explain(run_of(decide_steps(waiting)), "step:10").results["explain"].notes
    assert not any("earlier GPU work" in note.text for note in notes)


def _shared(name: str) -> Run:
    return open_run([Path(require("traces")) / name])


@pytest.mark.traces
def test_excluded_steps_are_those_that_no_rank_counts() -> None:
    """59 slow steps of two ranks are 39 steps; none of them is in the mean."""
    run = _shared("elastic-launcher-without-rank")
    text = render("text", page(run), Options(is_whole=True))
    assert "Steps excluded from the measures: 39 slow (2.84 s)" in text
    assert "39 slow steps out of 378" in text
    said = explain(run, "slowest").results["explain"].scalars["answer"]
    assert said == "step 218 is 24.0 ms longer than step 353, mean of 2 processes"


@pytest.mark.traces
def test_the_shorter_of_two_steps_is_no_median() -> None:
    found = explain(_shared("h100/serve-embedded.sqlite.gz"), "slowest").results["explain"]
    assert "261.2% longer than step 1" in found.scalars["answer"]
    assert "step 1 is the shorter median step among 2 other usual steps." in sentences(found.notes)


@pytest.mark.traces
def test_a_kernel_of_an_unknown_gpu_counts_once() -> None:
    run = _shared("../wild/rocprofv3_results.db")
    ranks, devices = (run.result(name).table.row(0) for name in ("ranks", "breakdown"))
    assert ranks["compute_ns"] == devices["compute_ns"] == 1000
    assert ranks["device"] == ""
    shown = render("text", answer(run, ["breakdown"]), Options(is_whole=True))
    assert "GPU (number unknown)" in shown
    assert "GPU -1" not in shown


@pytest.mark.traces
def test_a_memset_is_no_copy() -> None:
    text = page_of(_shared("nsys/2025.5-no-kernels.sqlite").of_ranks())
    assert "memsets and copies within the GPU 100.0%" in text


@pytest.mark.traces
def test_bytes_beside_a_count_per_iteration_are_those_of_one_copy() -> None:
    """200 copies of 4 iterations move 177 MB: not 177 MB in 50 copies."""
    text = page_of(_shared("nsys/2024.5-cloverleaf-a100.sqlite").of_ranks())
    assert "50 copies of pageable memory per iteration (mean size 886 kB at 24.1 GB/s)" in text


@pytest.mark.traces
def test_the_heads_of_a_comparison_of_iterations_are_whole() -> None:
    found = explain(_shared("nsys/2024.5-cloverleaf-a100.sqlite"), "slowest")
    text = render("text", found, Options(width=120))
    assert re.search(r" iter\. 2 +iter\. 1 +difference", text)


@pytest.mark.traces
def test_views_do_not_compute_on_the_cpu() -> None:
    """141 of 202 ms in operators without a CUDA call are `aten::split_with_sizes`, a view."""
    text = page_of(_shared("kineto/resnet18-2ranks-v100").of_ranks())
    assert "aten::split_with_sizes" in text
    assert "mostly operators:" in text
    assert "avoid loops over views and slices" in text
    assert "CPU tensors" not in text


_NEXT_BATCH = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def _fetch_in_every_eighth_step(wait_ms: int) -> Callable[[Machine, int], None]:
    """A loader of eight workers: their batches come together, and the loop waits for the first."""

    def body(machine: Machine, step: int) -> None:
        machine.wait(_NEXT_BATCH, wait_ms * MS if step % 8 == 7 else 20 * US)
        for _ in range(4):
            machine.launch(BF16, 3 * MS)

    return body


def test_a_loop_that_waits_for_data_in_every_eighth_step_is_bound_by_its_input() -> None:
    """48 steps of 12 ms, of which six wait 100 ms: 24.5 ms per step, 41 steps/s and not 83."""
    text = page_of(one(loop(_fetch_in_every_eighth_step(100), 48))())
    assert "One in 8 steps takes" in text
    assert "Bottleneck GPU-bound, partly input-bound" in text
    assert "slow (" not in text


def test_slow_steps_that_wait_for_data_are_not_behind_the_loader() -> None:
    """Six of 48 steps wait 40 ms: a fifth of the time, which faster loading saves."""
    text = page_of(one(loop(_fetch_in_every_eighth_step(40), 48))())
    assert "slow steps out of" in text
    assert "mostly due to input pipeline" in text
    assert "waits less for it after these steps" not in text
