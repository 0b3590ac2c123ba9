"""A trainer that waits for rollouts, and ranks that do the same work."""

from __future__ import annotations

import pytest

from tests.builders import TraceBuilder
from tests.findings.found import findings_of, in_default_window
from tests.training import MS, US
from traceprof.measures.ranks.roles import find_roles
from traceprof.measures.ranks.work_times import find_slow_ranks
from traceprof.measures.steps.find import decide_steps
from traceprof.model.placement import place_run
from traceprof.model.ranks import Ranks, RankTrace, RunFiles
from traceprof.model.trace import Trace, TraceInfo

STEP = 1_000 * MS
N_STEPS = 6


def rank_of(rank: int, work: tuple[int, int], *, trains: bool) -> RankTrace:
    """Return a rank that computes from ``work[0]`` to ``work[1]`` ms of each step of 1,000 ms.

    Three broadcasts of weights take the last 30 ms of each step.
    """
    builder = TraceBuilder().process(1 + rank, rank=rank, world_size=2).device(rank, "NVIDIA H100")
    own = {"process": 1 + rank}
    for step in range(N_STEPS):
        begin = step * STEP
        for at in range(work[0], work[1], 10):
            start = begin + at * MS
            builder.kernel(
                "bf16_gemm",
                start,
                start + 10 * MS,
                launched_ns=(start - 20 * US, start - 10 * US),
                device=rank,
                **own,
            )
        if trains:
            builder.step(begin, begin + STEP, step, **own)
            builder.phase("backward", begin + work[0] * MS, begin + work[1] * MS, **own)
        for number in range(3):
            start = begin + STEP - (30 - 10 * number) * MS
            correlation = 9_000 + 3 * step + number
            builder.collective(
                "broadcast", start - 9 * US, start - 8 * US, correlation=correlation,
                sequence=3 * step + number, n_bytes=1_000_000, **own,
            )  # fmt: skip
            builder.kernel(
                "ncclDevKernel_Broadcast_RING_LL",
                start,
                start + 10 * MS,
                correlation=correlation,
                device=rank,
                stream=20,
                **own,
            )
    return RankTrace(builder.build(info=TraceInfo(path=f"rank{rank}", utc_epoch_ns=0)), rank, rank)


def run_of(*members: RankTrace) -> Ranks:
    return decide_steps(place_run(RunFiles("roles", members, len(members))))


def title_of(ranks: Ranks) -> str:
    found = findings_of(in_default_window(ranks))
    return next((one.title for one in found if one.rule == "role_waits"), "")


def test_the_trainer_waits_for_the_rollout() -> None:
    ranks = run_of(rank_of(0, (700, 970), trains=True), rank_of(1, (0, 700), trains=False))
    assert dict(find_roles(ranks).of_member) == {0: "trainer", 1: "rollout"}
    found = [one for one in findings_of(in_default_window(ranks)) if one.rule == "role_waits"]
    assert [one.title for one in found] == [
        "The trainer (rank 0) waits for the rollout (rank 1) for 70.0% of step time"
    ]
    assert found[0].evidence == (
        "the rollout (rank 1) waits for the trainer (rank 0) for 27.0% of step time",
        "trainer (rank 0), per step of 1.00 s: waiting for the other role 70.0%, compute 27.0%, "
        "other 3.0%",
        "rollout (rank 1), per step of 1.00 s: compute 70.0%, waiting for the other role 27.0%, "
        "other 3.0%",
    )
    assert found[0].saving_ns == pytest.approx(270 * MS, rel=0.01)


def test_a_rank_without_steps_is_not_compared_with_steps() -> None:
    ranks = run_of(rank_of(0, (700, 970), trains=True), rank_of(1, (0, 700), trains=False))
    assert find_slow_ranks(ranks) is None
    assert "straggler" not in [one.rule for one in findings_of(in_default_window(ranks))]


def test_roles_that_work_at_the_same_time_do_not_wait() -> None:
    ranks = run_of(rank_of(0, (0, 970), trains=True), rank_of(1, (0, 970), trains=False))
    assert title_of(ranks) == ""


def test_ranks_that_all_train_have_no_roles() -> None:
    ranks = run_of(rank_of(0, (700, 970), trains=True), rank_of(1, (0, 700), trains=True))
    assert not find_roles(ranks).of_member
    assert title_of(ranks) == ""


def phases_of_rank(rank: int) -> Trace:
    """Return a rank of a run over gloo: the trainer waits 60 ms of each 100 ms for a rollout."""
    builder, own = TraceBuilder().process(1 + rank, rank=rank, host="vm"), {"process": 1 + rank}
    for step in range(N_STEPS):
        begin = 100 * MS * step
        if rank:
            builder.phase("generation", begin, begin + 60 * MS, **own)
        else:
            builder.step(begin, begin + 100 * MS, step, **own)
            builder.phase("backward", begin + 70 * MS, begin + 80 * MS, **own)
        for number, (at, until) in enumerate(
            ((60 if rank else 0, 61), (80 if not rank else 61, 81))
        ):
            builder.collective(
                "broadcast", begin + at * MS, begin + until * MS, backend="gloo",
                sequence=2 * step + number, n_bytes=1_000, **own,
            )  # fmt: skip
    return builder.build(info=TraceInfo(path=f"rank{rank}", host="vm", utc_epoch_ns=0))


def test_waiting_in_broadcasts_on_the_host() -> None:
    ranks = run_of(*(RankTrace(phases_of_rank(rank), rank, rank, "vm") for rank in range(2)))
    title = title_of(ranks)
    assert title.startswith("The trainer (rank 0) waits for the rollout (rank 1) for "), title
    found = next(one for one in findings_of(in_default_window(ranks)) if one.rule == "role_waits")
    assert "rollout (rank 1), per step of 100 ms: generation 60.0%" in found.evidence[2]
    assert 0.58 < float(title.split(" for ")[-1].split("%")[0]) / 100 <= 0.61
