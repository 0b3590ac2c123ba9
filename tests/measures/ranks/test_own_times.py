"""Slow ranks where no clock is shared: by what each does in its own steps."""

from __future__ import annotations

import random

import pytest

from tests.builders import TraceBuilder
from tests.measures.generated_run import MS, Clock, Plan, make_ranks_of
from tests.truth.loops import Pipeline
from tests.truth.scenarios import SCENARIOS, on_wandering_clocks
from traceprof.measures.collectives.blame import why_withheld
from traceprof.measures.collectives.clocks import UNRELIABLE_CLOCKS, find_alignment
from traceprof.measures.ranks.work_times import find_slow_ranks
from traceprof.measures.steps.find import decide_steps
from traceprof.model.placement import UNTIED_CLOCKS, place_run
from traceprof.model.ranks import Ranks, RankTrace, RunFiles
from traceprof.model.trace import TraceInfo
from traceprof.render.formatting import note_text
from traceprof.session.opening import _aligned
from traceprof.session.run import Run, run_of

SIZES = (2, 4, 16)


def clocks_of(n: int, apart_ms: int = 50) -> list[Clock]:
    rng = random.Random(n)
    return [Clock(rng.randrange(-apart_ms, apart_ms) * MS, rng.uniform(-20, 20)) for _ in range(n)]


def ranks_of(n: int, **more: object) -> Ranks:
    hosts = [f"h{rank}" for rank in range(n)]
    own = {"n_ranks": n, "n_steps": 20, "clocks": clocks_of(n), "hosts": hosts}
    return make_ranks_of(Plan(**{**own, **more}))  # type: ignore[arg-type]


def opened(ranks: Ranks) -> tuple[Run, str]:
    """Return the run as its files would be opened, and what is said of that."""
    aligned, notes = _aligned(ranks)
    return run_of(decide_steps(aligned)), " ".join(map(note_text, notes))


def first_straggler(run: Run) -> str:
    table = run.result("findings").table
    found = table.take(table["rule"] == "straggler")
    return note_text(found["title"][0]) if len(found) else ""


def is_fine(run: Run, subject: str) -> bool:
    checked = run.result("findings").tables["checked"]
    return bool(dict(zip(checked["subject"], checked["is_fine"], strict=True))[subject])


@pytest.mark.parametrize("n", SIZES)
def test_offsets_and_drift_are_corrected(n: int) -> None:
    run, told = opened(ranks_of(n, extra_ns={(n - 1, "backward"): 40 * MS}))
    assert "the ends of 20 shared collectives agree within " in told
    assert first_straggler(run).startswith(f"Straggler: the other ranks wait for rank {n - 1}")


@pytest.mark.parametrize("n", SIZES)
def test_ends_that_fit_no_clock_tie_none(n: int) -> None:
    """Ends that are up to 15 ms off: matched wrongly, or by clocks that jump."""
    ranks = ranks_of(n, jitter_ns=15 * MS, extra_ns={(n - 1, "backward"): 40 * MS})
    alignment = find_alignment(ranks)
    assert alignment.has_unreliable_clock
    assert len(alignment.corrections) < n
    assert why_withheld(ranks) == UNRELIABLE_CLOCKS
    run, told = opened(ranks)
    assert "traceprof did not align the clocks" in told
    assert first_straggler(run).startswith(f"Slow rank {n - 1}: ")
    notes = " ".join(map(note_text, run.result("stragglers").notes))
    assert "Rank wait times are not reported" in notes
    assert f"rank {n - 1}: " in notes
    hosts = " ".join(map(note_text, run.result("hosts").notes))
    assert "Rank wait times are not reported" in hosts


@pytest.mark.parametrize("n", SIZES)
def test_alike_ranks_on_such_clocks_are_not_fine_but_not_checked(n: int) -> None:
    run, _ = opened(ranks_of(n, jitter_ns=15 * MS))
    assert not first_straggler(run)
    assert not is_fine(run, "load balance across ranks")


@pytest.mark.parametrize("n", SIZES)
def test_one_collective_ties_nothing(n: int) -> None:
    run, told = opened(ranks_of(n, n_steps=1, clocks=clocks_of(n, 200)))
    assert "agree" not in told
    assert "share fewer than 3 collectives" in told
    assert not is_fine(run, "load balance across ranks")
    assert not first_straggler(run)


def test_each_rank_is_held_against_the_median_of_the_others() -> None:
    """Rank 1 computes 135 ms a step and communicates 5 ms, the others 95 ms and 45 ms."""
    slow = find_slow_ranks(
        decide_steps(ranks_of(4, clocks=(), extra_ns={(1, "backward"): 40 * MS}))
    )
    assert slow is not None
    assert (slow.label, slow.is_compute) == ("rank 1", True)
    assert (slow.excess_ns, slow.exposed_ns, slow.usual_exposed_ns) == (40 * MS, 5 * MS, 45 * MS)
    assert slow.factor == pytest.approx(135 / 95, abs=0.01)


def test_who_waits_least_is_named_where_all_compute_alike() -> None:
    """Rank 1 is held up for 40 ms a step by its host: its kernels take no longer."""
    builders = []
    for rank in range(3):
        builder = TraceBuilder().process(1 + rank, rank=rank)
        for step in range(6):
            at = step * 100 * MS
            ready = at + (50 if rank == 1 else 10) * MS
            builder.step(at, at + 100 * MS, step, process=1 + rank)
            for name, start, end in (
                ("gemm", ready - 10 * MS, ready),
                ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", ready, at + 60 * MS),
            ):
                launched = (at, at + 5)
                builder.kernel(
                    name, start, end, launched_ns=launched, process=1 + rank, device=rank
                )
        builders.append(builder)
    members = tuple(
        RankTrace(one.build(info=TraceInfo(path=str(rank))), rank, rank)
        for rank, one in enumerate(builders)
    )
    ranks = decide_steps(place_run(RunFiles("generated", members, 3)))
    slow = find_slow_ranks(ranks)
    assert slow is not None
    assert (slow.label, slow.is_compute, slow.excess_ns) == ("rank 1", False, 40 * MS)
    assert first_straggler(run_of(ranks)).startswith("Slow rank 1: 40.0 ms more work per step")


def test_half_of_the_ranks_are_slow_together_or_none_is() -> None:
    late = {(rank, "backward"): 40 * MS for rank in (0, 1)}
    slow = find_slow_ranks(decide_steps(ranks_of(4, extra_ns=late)))
    assert slow is not None
    assert slow.places == (0, 1)
    late[2, "backward"] = 40 * MS
    slow = find_slow_ranks(decide_steps(ranks_of(4, extra_ns=late)))
    assert slow is None or slow.places == (3,)


def test_bubbles_are_not_told_of_such_clocks_but_what_each_stage_computes() -> None:
    (scenario,) = [one for one in SCENARIOS if one.name == "slow_stage_where_clocks_are_wrong"]
    result = run_of(decide_steps(scenario.make())).result("pipeline")
    assert result.table.empty
    withheld, computed = map(note_text, result.notes)
    assert withheld.startswith("Bubbles are not reported: some messages are received before")
    assert computed.startswith("Median compute time per step: stage 0 ")
    assert "stage 3 " in computed


@pytest.mark.parametrize(("n_steps", "is_named"), [(1, False), (2, False), (6, True)])
def test_ranks_that_share_few_collectives_have_no_slow_rank(n_steps: int, is_named: bool) -> None:
    """With one all-gather per file, a rank that computes longer may do other work."""
    extra = {(1, "backward"): 40 * MS}
    plan = ranks_of(4, n_steps=n_steps, clocks=clocks_of(4, 200), extra_ns=extra, jitter_ns=15 * MS)
    run, _ = opened(plan)
    assert (find_slow_ranks(run.of_ranks()) is not None) is is_named
    assert bool(first_straggler(run)) is is_named


def few_shared(n_shared: int) -> Ranks:
    """Return 4 ranks without wall clocks: 10 all-reduces of ranks 0 to 2, and some of all ranks.

    Rank 3 begins its collectives of all ranks 30 ms late, or its clock is ahead.
    """
    builders = [TraceBuilder().process(1 + rank, rank=rank, world_size=4) for rank in range(4)]
    for step in range(12):
        group = "all" if step < n_shared else "three"
        for rank, builder in enumerate(builders):
            at = step * 100 * MS
            late = 30 * MS if rank == 3 else 0
            own = {"process": 1 + rank}
            builder.step(at, at + 100 * MS, step, **own)
            builder.kernel(
                "gemm", at + 10, at + 40 * MS, launched_ns=(at, at + 5), device=rank, **own
            )
            if rank == 3 and group == "three":
                continue
            size, key = (4 if group == "all" else 3), 100 + step
            call = {"group": group, "group_size": size, "n_bytes": 8, "correlation": key, **own}
            builder.collective("all_reduce", at + 6, at + 7, sequence=step, **call)
            starts, ends = at + 40 * MS + late, at + 50 * MS + late
            name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
            builder.kernel(name, starts, ends, correlation=key, device=rank, stream=20, **own)
    members = tuple(
        RankTrace(builder.build(info=TraceInfo(path=str(rank))), rank, rank)
        for rank, builder in enumerate(builders)
    )
    return place_run(RunFiles("generated", members, 4))


@pytest.mark.parametrize(("n_shared", "is_withheld"), [(0, False), (2, True), (5, False)])
def test_a_rank_whose_clock_is_not_tied_is_not_compared(n_shared: int, is_withheld: bool) -> None:
    aligned, _ = _aligned(few_shared(n_shared))
    assert (why_withheld(aligned) == UNTIED_CLOCKS) is is_withheld
    assert not first_straggler(run_of(decide_steps(aligned)))


def test_slow_ranks_of_one_stage_are_named_by_the_stage() -> None:
    late = {1, 3, 5}
    scenario = on_wandering_clocks(
        lambda rank: Pipeline(rank % 2, 2, rank // 2, 4),
        8,
        lambda rank: {"kernel_factor": 2.3 if rank in late else 1.0},
    )
    title = first_straggler(run_of(decide_steps(scenario())))
    assert title.startswith("Slow stage 1 of the pipeline (3 of its 4 ranks): ")


def test_a_rank_without_steps_is_not_compared_with_the_steps_of_another() -> None:
    """A trainer has steps; a rank of another role has the same collectives, but no steps."""
    builders = []
    for rank in range(2):
        builder = TraceBuilder().process(1 + rank, rank=rank)
        for step in range(8):
            at = step * 100 * MS
            if rank == 0:
                builder.step(at, at + 100 * MS, step, process=1)
            for name, start, end in (
                ("gemm", at, at + (60 if rank == 0 else 20) * MS),
                ("ncclDevKernel_Broadcast_RING_LL", at + 60 * MS, at + 90 * MS),
            ):
                place = {"process": 1 + rank, "device": rank}
                builder.kernel(name, start + 10, end, launched_ns=(at, at + 5), **place)
        builders.append(builder)
    members = tuple(
        RankTrace(one.build(info=TraceInfo(path=str(rank))), rank, rank)
        for rank, one in enumerate(builders)
    )
    ranks = decide_steps(place_run(RunFiles("generated", members, 2)))
    assert find_slow_ranks(ranks) is None
