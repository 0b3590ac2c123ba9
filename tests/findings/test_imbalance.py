"""More work or slower work, of one rank in all steps or of ranks in turn; waiting of one rank."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.builders import TraceBuilder
from tests.findings.found import Found, findings_of, in_default_window
from tests.reading import rows, said
from tests.requirements import require
from tests.running import run
from traceprof.model.placement import place_run
from traceprof.model.ranks import Ranks, RankTrace, RunFiles
from traceprof.model.trace import Trace, TraceInfo
from traceprof.render.briefing import briefing_of
from traceprof.session.answer import page
from traceprof.session.run import open_run, run_of

MS = 1_000_000
Work = Callable[[int, int], tuple[int, int, int]]
"""By rank and step: ns of idle time, ns of a kernel, and its thread blocks."""
_LATE = (2, 1, 3, 0, 0, 0, 2, 0, 1, 0, 0, 3)
_NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"


def job(work: Work, n_ranks: int = 4, n_steps: int = 12, kernel: str = "gemm") -> Ranks:
    """Return ranks whose steps are the work, an all-reduce that ends with the last, and 1 ms."""
    builders = [TraceBuilder() for _ in range(n_ranks)]
    now = 0
    for step in range(n_steps):
        plans = [work(rank, step) for rank in range(n_ranks)]
        end = now + max(idle + ns for idle, ns, _ in plans) + MS
        for rank, (builder, (idle, ns, blocks)) in enumerate(zip(builders, plans, strict=True)):
            own: dict[str, Any] = {"process": 100 + rank}
            placed: dict[str, Any] = {"device": rank, **own}
            shape = {"grid_x": blocks, "grid_y": 1, "grid_z": 1, "block_x": 256}
            shape |= {"block_y": 1, "block_z": 1}
            begin = now + idle
            builder.step(now, end + MS, step, **own)
            builder.kernel(
                kernel, begin, begin + ns, launched_ns=(now + 1, now + 2), shape=shape, **placed
            )
            key = 9000 + step
            call = {"n_bytes": 4_000_000, "group_size": n_ranks, "correlation": key, **own}
            builder.collective("all_reduce", now + 3, now + 4, **call)
            builder.kernel(_NCCL, begin + ns, end, correlation=key, stream=20, **placed)
            builder.kernel(
                "adam", end, end + MS, launched_ns=(now + 5, now + 6), shape=shape, **placed
            )
        now = end + MS
    for rank, builder in enumerate(builders):
        builder.process(100 + rank, rank=rank, world_size=n_ranks)
    members = tuple(
        RankTrace(builder.build(info=TraceInfo(path=f"rank{i}", utc_epoch_ns=0)), i, i, "a")
        for i, builder in enumerate(builders)
    )
    return place_run(RunFiles("planted", members, n_ranks))


def of_rules(of: Ranks | Trace) -> dict[str, Found]:
    return {found.rule: found for found in findings_of(of)}


def uneven(rank: int, step: int) -> tuple[int, int, int]:
    return (0, 60 * MS, 96) if rank == _LATE[step] else (0, 20 * MS, 32)


@pytest.mark.parametrize("kernel", ["grouped_gemm_persistent", "gemm"])
def test_experts_with_more_tokens_are_named(kernel: str) -> None:
    """Grouped GEMMs have one block per SM, so the grid does not show the number of tokens."""
    is_expert = kernel != "gemm"

    def in_turn(rank: int, step: int) -> tuple[int, int, int]:
        return 0, (60 if rank == _LATE[step] else 20) * MS, 132

    def of_rank_2(rank: int, step: int) -> tuple[int, int, int]:
        return 0, (60 if rank == 2 else 20) * MS, 132

    turns = of_rules(job(in_turn, kernel=kernel))["load_imbalance"]
    assert turns.title.endswith("(uneven load of experts)") == is_expert
    always = of_rules(job(of_rank_2, kernel=kernel))["straggler"]
    for found in (turns, always):
        assert ("capacity factor" in found.action) == is_expert
        assert ("clocks" in found.action) != is_expert
        assert any("grouped GEMMs" in note for note in found.evidence) == is_expert


def test_uneven_batches_are_an_imbalance_and_nobody_is_blamed() -> None:
    """A step takes 62 ms: 60 of the late rank where the mean is 30, all-reduce and optimizer."""
    ranks = job(uneven)
    rules = of_rules(ranks)
    found = rules["load_imbalance"]
    assert "straggler" not in rules
    assert (found.saving_ns, found.kind) == (30 * MS, "bounded")
    assert found.saving_ratio == pytest.approx(30 / 62, abs=0.001)
    assert found.title.endswith("(uneven batches)")
    turns, extra, example = found.evidence
    assert "rank 0 in 6, rank 1 in 2, rank 2 in 2, rank 3 in 2 of 12 steps" in turns
    assert "40.0 ms more work per step" in extra
    assert example.startswith("gemm: 3.00× the thread blocks")
    assert "bucket" in found.action
    assert "exposed_communication" not in rules
    result = run("stragglers", ranks)
    assert not any(rank.is_straggler for rank in rows(result))
    assert said(result)[0].startswith("No rank is a straggler: the slowest rank changes")


@pytest.mark.parametrize(
    ("late", "cause", "action"),
    [
        ((0, 60 * MS, 32), "the same kernels with the same grid take longer", "clocks.sm"),
        ((0, 60 * MS, 96), "larger kernels (more thread blocks)", "less work"),
        ((40 * MS, 20 * MS, 32), "the device waits for the host", "Find out why rank 2 is late"),
    ],
)
def test_a_rank_that_is_late_in_each_step_is_a_straggler_by_its_cause(
    late: tuple[int, int, int], cause: str, action: str
) -> None:
    ranks = job(lambda rank, _: late if rank == 2 else (0, 20 * MS, 32))
    rules = of_rules(ranks)
    first, *_ = rows(run("stragglers", ranks))
    assert (first.rank, first.is_straggler, first.cause) == (2, True, cause)
    assert "rank 2" in rules["straggler"].title
    assert action in rules["straggler"].action
    assert "load_imbalance" not in rules
    assert rules["straggler"].saving_ns == pytest.approx(40 * MS, rel=0.1)


@pytest.mark.parametrize(
    ("late", "evidence", "action"),
    [
        ((0, 60 * MS, 32), "the same kernels with the same grid take 40.0 ms longer", "clocks.sm"),
        ((40 * MS, 20 * MS, 32), "40.0 ms longer per step without compute", "data loading"),
    ],
)
def test_ranks_that_are_late_in_turn_without_more_work(
    late: tuple[int, int, int], evidence: str, action: str
) -> None:
    ranks = job(lambda rank, step: late if rank == _LATE[step] else (0, 20 * MS, 32))
    rules = of_rules(ranks)
    found = rules["load_imbalance"]
    assert "straggler" not in rules
    assert "uneven batches" not in found.title
    assert evidence in found.evidence[1]
    assert action in found.action
    assert found.saving_ns == 30 * MS


def test_even_ranks_have_no_imbalance() -> None:
    """Work of 20 to 20.5 ms, in turn: less than 5% of a step of 22 ms."""
    rules = of_rules(job(lambda rank, step: (0, 20 * MS + (rank + step) % 4 * MS // 6, 32)))
    assert not rules.keys() & {"load_imbalance", "straggler"}


def test_a_slow_clock_is_found_where_grids_vary() -> None:
    """Each rank has 64, 72, or 80 blocks in turn; those of rank 2 take 1.5 times as long."""

    def work(rank: int, step: int) -> tuple[int, int, int]:
        blocks = 64 + 8 * ((rank + step) % 3)
        return 0, blocks * MS // 2 * (3 if rank == 2 else 2) // 2, blocks

    first, *_ = rows(run("stragglers", job(work)))
    assert (first.rank, first.cause) == (2, "the same kernels with the same grid take longer")
    assert first.factor == pytest.approx(1.5, abs=0.02)


def test_a_straggler_and_an_imbalance_do_not_count_twice() -> None:
    """Rank 2 is late in 9 of 12 steps; the others in turn in 3. In all, 30 of 62 ms are lost."""
    late = (2, 2, 2, 0, 2, 2, 2, 1, 2, 2, 2, 3)
    ranks = job(lambda rank, step: (0, 60 * MS, 96) if rank == late[step] else (0, 20 * MS, 32))
    rules = of_rules(ranks)
    assert "rank 2" in rules["straggler"].title
    saved = sum(rules[name].saving_ns for name in ("straggler", "load_imbalance") if name in rules)
    assert saved <= 31 * MS


def test_two_ranks_in_turn_and_one_of_two() -> None:
    def of_two(late: Callable[[int], int]) -> dict[str, Found]:
        plan = {True: (0, 60 * MS, 96), False: (0, 20 * MS, 32)}
        return of_rules(job(lambda rank, step: plan[rank == late(step)], n_ranks=2))

    in_turn, always = of_two(lambda step: step % 2), of_two(lambda _: 1)
    assert ("load_imbalance" in in_turn, "straggler" in in_turn) == (True, False)
    assert ("load_imbalance" in always, "straggler" in always) == (False, True)
    assert in_turn["load_imbalance"].saving_ns == 20 * MS


def test_too_few_steps_to_analyze_who_is_late() -> None:
    ranks = job(uneven, n_steps=3)
    assert "load_imbalance" not in of_rules(ranks)
    notes = " ".join(said(run("findings", ranks)))
    assert "all ranks recorded fewer than 4 usual steps" in notes


def one_rank(
    length_ns: int, n_bytes: int, gpu: str = "NVIDIA H100 80GB HBM3", op: str = "all_reduce"
) -> Trace:
    """Return one rank of 8: per step 10 ms of compute and a collective of ``length_ns``."""
    builder = TraceBuilder().device(0, gpu).process(1, rank=0, world_size=8)
    now = 0
    for step in range(8):
        begin, end = now + 10 * MS, now + 10 * MS + length_ns
        builder.step(now, end, step)
        builder.phase("backward", now, now + 1)
        builder.kernel("gemm", now, begin, launched_ns=(now, now + 1))
        key = 9000 + step
        builder.collective(
            op, now + 2, now + 3, n_bytes=n_bytes, group_size=8, correlation=key, peer=1
        )
        builder.kernel(_NCCL, begin, end, correlation=key, stream=20)
        now = end
    return builder.build()


def test_one_rank_that_waits_is_not_advised_to_overlap() -> None:
    """20 MB in 50 ms over 8 ranks: 0.400 GB/s, 0.700 GB/s of bus bandwidth."""
    rules = of_rules(in_default_window(one_rank(50 * MS, 20_000_000)))
    found = rules["collective_waits"]
    assert "the other ranks arrive late, or the link is slow" in found.title
    assert (
        "bus bandwidth 0.700 GB/s, less than 10 Gb/s Ethernet (1.25 GB/s); NVLink has 450 GB/s"
        in found.evidence[1]
    )
    assert "overlap with compute saves nothing" in found.action
    assert found.saving_ns == 50 * MS
    assert "exposed_communication" not in rules


@pytest.mark.parametrize(
    "trace",
    [
        one_rank(4 * MS, 400_000_000),  # 175 GB/s of bus bandwidth
        one_rank(5 * MS, 8_000_000, op="recv"),  # a stage of a pipeline waits by design
        one_rank(50 * MS, 20_000_000, gpu="GPU"),  # its link is unknown
        one_rank(50 * MS, -1),  # sizes were not recorded
    ],
)
def test_communication_that_a_transfer_explains_is_exposed_communication(trace: Trace) -> None:
    rules = of_rules(trace)
    assert "collective_waits" not in rules
    assert "Overlap communication" in rules["exposed_communication"].action


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        (Ranks.of(one_rank(50 * MS, 20_000_000)), "Waiting in collectives"),
        (Ranks.of(one_rank(10 * MS, 4_000_000)), "GPU-bound, partly waiting in collectives"),
        (Ranks.of(one_rank(50 * MS, 5_000_000_000)), "Communication-bound"),
        (job(uneven), "GPU-bound, partly waiting in collectives"),
    ],
)
def test_the_bottleneck_is_what_the_finding_says(ranks: Ranks, words: str) -> None:
    assert briefing_of(page(run_of(ranks))).answer.startswith(f"{words}. ")


@pytest.mark.traces
@pytest.mark.parametrize(
    ("name", "rule", "saving_ns"),
    [
        ("uneven-sequences", "load_imbalance", 30 * MS),
        ("one-rank-waits.json", "collective_waits", 50 * MS),
    ],
)
def test_traces_of_kineto(name: str, rule: str, saving_ns: int) -> None:
    opened = open_run([Path(require("traces")).parent / "wild" / "2026-11-28" / name])
    first = opened.result("findings").table.row(0)
    assert (first["rule"], first["saving_ns"]) == (rule, pytest.approx(saving_ns, rel=1e-3))
