"""A trainer that waits for rollouts, and ranks that do the same work."""

from __future__ import annotations

import pytest

from tests.builders import TraceBuilder
from tests.findings.found import findings_of, in_default_window
from tests.training import MS, US
from traceprof.measures.idle.idle import measure_idle
from traceprof.measures.ranks.role_waits import with_waits_for_roles
from traceprof.measures.ranks.roles import Roles, find_roles
from traceprof.measures.ranks.rounds import join_steps_of_roles
from traceprof.measures.ranks.work_times import find_slow_ranks
from traceprof.measures.steps.find import decide_steps, find_steps
from traceprof.model.placement import place_run
from traceprof.model.ranks import Ranks, RankTrace, RunFiles
from traceprof.model.trace import Trace, TraceInfo
from traceprof.session.answer import page
from traceprof.session.run import run_of as run_on_page

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
    ranks = decide_steps(place_run(RunFiles("roles", members, len(members))))
    return with_waits_for_roles(ranks)


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


def test_idle_time_of_a_gpu_that_waits_for_a_role_is_not_blamed_on_its_host() -> None:
    ranks = run_of(rank_of(0, (700, 970), trains=True), rank_of(1, (0, 700), trains=False))
    rows = measure_idle(in_default_window(ranks)).table.rows()
    shares = {(row["device"], row["cause"]): row["share_ratio"] for row in rows}
    assert shares[0, "role"] == pytest.approx(0.7, abs=0.001)
    assert shares[1, "role"] == pytest.approx(0.27, abs=0.001)
    assert sum(share for (_, cause), share in shares.items() if cause != "role") < 0.001


def test_idle_time_in_which_no_role_works_is_blamed_on_the_host() -> None:
    ranks = run_of(rank_of(0, (700, 970), trains=True), rank_of(1, (0, 200), trains=False))
    rows = measure_idle(in_default_window(ranks)).table.rows()
    assert (0, "role") not in {(row["device"], row["cause"]) for row in rows}


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


def updates_of_rank(rank: int) -> Trace:
    """Return a rank of a run over gloo: a trainer makes two updates with each of the rollouts.

    Of each round of 100 ms, the rollout generates 60 ms, and the trainer updates from 60 to 90 ms.
    """
    builder, own = TraceBuilder().process(1 + rank, rank=rank, host="vm"), {"process": 1 + rank}
    for number in range(N_STEPS):
        begin = 100 * MS * number
        if rank:
            builder.phase("generation", begin, begin + 60 * MS, **own)
        for update in () if rank else (0, 1):
            start = begin + (62 + 14 * update) * MS
            builder.phase("forward", start, start + 4 * MS, **own)
            builder.phase("backward", start + 4 * MS, start + 8 * MS, **own)
            builder.phase("optimizer", start + 8 * MS, start + 14 * MS, **own)
        for which, (at, until) in enumerate(((60 if rank else -10, 61), (61 if rank else 90, 91))):
            builder.collective(
                "broadcast", begin + at * MS, begin + until * MS, backend="gloo",
                sequence=2 * number + which, n_bytes=1_000, **own,
            )  # fmt: skip
    return builder.build(info=TraceInfo(path=f"rank{rank}", host="vm", utc_epoch_ns=0))


def rounds_of_run() -> Ranks:
    ranks = tuple(RankTrace(updates_of_rank(rank), rank, rank, "vm") for rank in range(2))
    return join_steps_of_roles(run_of(*ranks))


def test_updates_between_two_exchanges_of_roles_are_one_step() -> None:
    trainer, rollout = (find_steps(part) for part in rounds_of_run())
    assert trainer.source == "recorded phases, a rollout and 2 updates per step"
    starts, ends = (trainer.table[name].tolist() for name in ("start_ns", "end_ns"))
    assert starts == [(62 + 100 * number) * MS for number in range(N_STEPS)]
    assert ends == [*starts[1:], (90 + 100 * (N_STEPS - 1)) * MS]  # waiting is part of the step
    assert rollout.table["start_ns"].tolist() == [100 * MS * number for number in range(N_STEPS)]
    assert trainer.table["step"].tolist() == rollout.table["step"].tolist() == [*range(N_STEPS)]


def test_each_role_waits_for_its_part_of_a_round() -> None:
    found = findings_of(in_default_window(rounds_of_run()))
    assert "straggler" not in [one.rule for one in found]
    title, evidence = next((one.title, one.evidence) for one in found if one.rule == "role_waits")
    assert title.startswith("The trainer (rank 0) waits for the rollout (rank 1) for ")
    assert evidence[0].startswith("the rollout (rank 1) waits for the trainer (rank 0) for ")
    # The window begins within a round, so the shares are not exactly 70% and 29%.
    shares = [float(text.split(" for ")[-1].split("%")[0]) for text in (title, evidence[0])]
    assert shares == pytest.approx([70, 29], abs=0.5)


def test_ranks_without_roles_keep_their_steps() -> None:
    ranks = run_of(*(RankTrace(updates_of_rank(0), 0, 0, "vm") for _ in range(1)))
    assert join_steps_of_roles(ranks) is ranks


def test_all_ranks_of_a_role_are_late_together() -> None:
    roles = Roles({0: "trainer", 1: "trainer", 2: "rollout"})
    assert roles.are_whole((2,)) and roles.are_whole((0, 1)) and not roles.are_whole((0,))
    assert not Roles({}).are_whole((0,))


def test_the_page_names_the_role_that_is_waited_for() -> None:
    on_gpus = run_of(rank_of(0, (700, 970), trains=True), rank_of(1, (0, 700), trains=False))
    for ranks in (on_gpus, rounds_of_run()):
        verdict = page(run_on_page(ranks)).verdict
        assert verdict is not None
        assert verdict.bound_by == "the trainer (rank 0) waits for the rollout (rank 1)"
    verdict = page(run_on_page(on_gpus)).verdict
    assert verdict is not None
    causes = {name: round(share, 2) for name, share in verdict.idle.items()}
    assert causes == {"waiting for another role": 0.48}  # (70% + 27%) / 2


def rank_of_server(rank: int, *, has_optimizer: bool, late: int = 0) -> Trace:
    """Return a rank of a run over gloo: two workers send gradients to a server, rank 0.

    Of each round of 100 ms, the workers compute 50 ms, and the server updates from 51 to 81 ms. The
    worker ``late`` computes and sends 10 ms longer.
    """
    builder, own = TraceBuilder().process(1 + rank, rank=rank, host="vm"), {"process": 1 + rank}
    own_group = {"backend": "gloo", "group_size": 3, "n_bytes": 1_000, "group_rank": rank, **own}
    for number in range(N_STEPS):
        begin, sent = 100 * MS * number, 60 if late else 50
        if rank:
            until = sent if rank == late else 50
            builder.phase("forward", begin, begin + 20 * MS, **own)
            builder.phase("backward", begin + 20 * MS, begin + until * MS, **own)
        elif has_optimizer:
            builder.phase("optimizer", begin + (sent + 1) * MS, begin + (sent + 31) * MS, **own)
        for worker in (1, 2) if rank == 0 else (rank,):
            first, peer = (sent if worker == late else 50), {"peer_rank": worker if not rank else 0}
            spans = {
                "recv" if rank == 0 else "send": (sent - 68 if rank == 0 else first, first + 1),
                "send" if rank == 0 else "recv": (sent + 31 if rank == 0 else first + 1, sent + 32),
            }
            for op, (at, end) in spans.items():
                builder.phase("comm:" + op, begin + at * MS, begin + end * MS, **own)
                builder.collective(op, begin + at * MS, begin + end * MS, **peer, **own_group)
    return builder.build(info=TraceInfo(path=f"rank{rank}", host="vm", utc_epoch_ns=0))


@pytest.mark.parametrize("has_optimizer", [True, False])
@pytest.mark.parametrize("late", [0, 2])
def test_a_parameter_server_and_its_workers_are_roles(has_optimizer: bool, late: int) -> None:
    traces = [rank_of_server(rank, has_optimizer=has_optimizer, late=late) for rank in range(3)]
    ranks = run_of(*(RankTrace(trace, rank, rank, "vm") for rank, trace in enumerate(traces)))
    assert dict(find_roles(ranks).of_member) == {0: "server", 1: "trainer", 2: "trainer"}
    assert join_steps_of_roles(ranks) is ranks
    found = findings_of(in_default_window(ranks))
    assert "straggler" not in [one.rule for one in found]
    waits = next(one for one in found if one.rule == "role_waits")
    text = " ".join((waits.title, *waits.evidence, waits.action, waits.caveat or ""))
    assert waits.title.startswith("The server (rank 0) waits for the worker (rank 1, rank 2) for ")
    assert "rollout" not in text and "trainer" not in text
    shares = [
        float(one.split(" for ")[-1].split("%")[0]) for one in (waits.title, waits.evidence[0])
    ]
    # The server waits from 82 ms of a round to 50 ms of the next, the workers from 51 to 81 ms.
    # With a late worker, the server is 10 ms later, and the other worker waits for 40 ms.
    true = (68, 35 if late else 30)
    assert shares == pytest.approx(true, abs=1.5)


def test_a_rank_whose_backward_pass_shows_only_in_its_operators_is_no_server() -> None:
    name = "autograd::engine::evaluate_function: MmBackward0"
    trains = rank_of_server(0, has_optimizer=True)
    operators = TraceBuilder().host_op(name, 55 * MS, 56 * MS, process=1).build().host_ops
    traces = [trains.with_tables({"host_ops": operators}), rank_of_server(1, has_optimizer=False)]
    ranks = run_of(*(RankTrace(trace, rank, rank, "vm") for rank, trace in enumerate(traces)))
    assert not find_roles(ranks).of_member
