"""Blame follows the chain of waiting: what was planted is found, victims are none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

import numpy as np
import pytest

from tests.builders import TraceBuilder
from tests.measures.ranks.planted_run import MS, Job, cost_of_planted, make_job
from tests.reading import rows, said
from tests.running import run
from traceprof.measures.collectives.blame import find_blame
from traceprof.measures.collectives.matches import find_matches
from traceprof.model.ranks import Ranks


def of_steps(job: Job) -> float:
    """What was planted costs from the second step on; the first holds the skew of the starts."""
    return cost_of_planted(job) * job.steps / (job.steps - 1)


@pytest.mark.parametrize(
    ("job", "rank"),
    [
        (Job(dp=4, slow={2: 1.2}), 2),
        (Job(dp=2, slow={1: 1.2}), 1),
        (Job(dp=4, idle_ns={1: 10 * MS}), 1),
        (Job(pp=4, slow={0: 1.2}), 0),
        (Job(pp=4, slow={1: 1.2}), 1),
        (Job(pp=4, slow={3: 1.3}), 3),
        (Job(pp=4, dp=2, slow={1: 1.2}), 1),
        (Job(pp=4, dp=2, slow={6: 1.2}), 6),
        (Job(pp=4, dp=2, idle_ns={6: 15 * MS}), 6),
        (Job(pp=2, dp=2, tp=2, slow={5: 1.2}), 5),
    ],
)
def test_the_slow_rank_is_blamed_and_its_victims_are_not(job: Job, rank: int) -> None:
    job = Job(**{**job.__dict__, "steps": 12})
    first, *others = rows(run("stragglers", make_job(job)))
    assert (first.rank, first.is_straggler) == (rank, True)
    assert not any(other.is_straggler for other in others)
    assert all(other.cost_ns < 0.05 * first.cost_ns for other in others)
    # Without messages the first step is left out, with them part of it.
    lowest, highest = cost_of_planted(job), of_steps(job)
    assert 0.9 * lowest < first.cost_ns < 1.1 * highest


@pytest.mark.parametrize(
    "job",
    [
        Job(dp=4),
        Job(pp=4),
        Job(pp=4, dp=2),
        Job(pp=2, dp=2, tp=2),
        Job(dp=4, late_starts={3: 500 * MS}),
        Job(pp=4, dp=2, late_starts={3: 500 * MS, 1: 100 * MS}),
    ],
)
def test_nobody_is_blamed_where_all_do_the_same_whenever_they_start(job: Job) -> None:
    result = run("stragglers", make_job(job))
    assert len(result.table.to_frame()) == job.size
    assert not any(rank.is_straggler for rank in rows(result))
    assert not any(rank.cost_ratio >= 0.01 for rank in rows(result))
    assert result.to_frame("late_groups").empty


def test_the_skew_of_the_starts_is_said_with_its_time() -> None:
    result = run("stragglers", make_job(Job(dp=4, late_starts={3: 500 * MS})))
    # Three of four wait half a second in the first collective.
    assert result.scalars["skew_ns"] == pytest.approx(1500 * MS, rel=0.01)
    assert any(
        "Before the ranks first synchronized, each waited 375" in note for note in said(result)
    )


def test_a_slow_stage_is_named_and_not_its_ranks() -> None:
    job = Job(pp=4, dp=2, slow={2: 1.2, 6: 1.2}, steps=12)
    result = run("stragglers", make_job(job))
    assert not any(rank.is_straggler for rank in rows(result))
    (stage,) = result.to_frame("late_groups").to_dict("records")
    assert (stage["kind"], stage["group"], stage["ranks"]) == ("stage", "2", 2)
    assert 0.9 * cost_of_planted(job) < stage["cost_ns"] < 1.1 * of_steps(job)
    assert said(result)[0].startswith("Pipeline stage 2 is slow: its 2 ranks work ")


@pytest.mark.parametrize(
    "job",
    [
        Job(dp=8, slow=dict.fromkeys(range(4, 8), 1.2), hosts=["a"] * 4 + ["b"] * 4),
        Job(pp=4, dp=2, slow=dict.fromkeys(range(4, 8), 1.2), hosts=["a"] * 4 + ["b"] * 4),
    ],
)
def test_a_slow_host_is_named_and_not_its_ranks(job: Job) -> None:
    job = Job(**{**job.__dict__, "steps": 12})
    result = run("stragglers", make_job(job))
    assert not any(rank.is_straggler for rank in rows(result))
    (host,) = result.to_frame("late_groups").to_dict("records")
    assert (host["kind"], host["group"], host["late_ranks"]) == ("host", "b", 4)
    assert 0.9 * cost_of_planted(job) < host["cost_ns"] < 1.1 * of_steps(job)


def test_one_slow_rank_in_a_pipeline_of_a_host_is_not_its_host() -> None:
    job = Job(pp=4, dp=2, slow={5: 1.3}, hosts=["a"] * 4 + ["b"] * 4)
    result = run("stragglers", make_job(job))
    assert [rank.rank for rank in rows(result) if rank.is_straggler] == [5]
    assert result.to_frame("late_groups").empty


@pytest.mark.parametrize(
    ("job", "cause"),
    [
        (Job(dp=4, slow={2: 1.2}), "the same kernels take longer"),
        (Job(dp=4, more_kernels={2: 1.2}), "more kernels"),
        (Job(dp=4, idle_ns={2: 10 * MS}), "the device waits for the host"),
        (Job(pp=4, dp=2, slow={1: 1.2}), "the same kernels take longer"),
    ],
)
def test_computing_is_told_from_waiting(job: Job, cause: str) -> None:
    (first, *_) = rows(run("stragglers", make_job(job)))
    assert first.cause == cause
    if "longer" in cause:
        assert first.factor == pytest.approx(1.2, abs=0.01)


@pytest.mark.parametrize(
    "job", [Job(dp=4, slow={2: 1.2}), Job(pp=4, dp=2, slow={1: 1.2}), Job(pp=4)]
)
def test_each_ns_of_waiting_is_charged_once(job: Job) -> None:
    blame = find_blame(make_job(job))
    parts = int(blame.attributed_ns.sum()) + blame.shared_ns + blame.within_clock_error_ns
    assert parts == int(blame.waited_ns.sum()) > 0
    assert blame.shared_ns >= 0
    assert (blame.attributed_ns >= 0).all()
    assert int(blame.origins["attributed_ns"].sum()) == int(blame.attributed_ns.sum())


def three_ranks(times: Mapping[tuple[str, int], list[tuple[int, int]]]) -> Ranks:
    """Collectives of ranks by group; of each the start on every rank, and the common end."""
    builder = TraceBuilder()
    for (group, rank), own in times.items():
        for start, end in own:
            more = {"process": 1 + rank, "group": group, "group_size": 2, "backend": "gloo"}
            builder.collective("all_reduce", start, end, **more)
    for rank in range(3):
        builder.process(1 + rank, rank=rank)
    return Ranks.of(builder.build())


def test_a_victim_that_passes_a_delay_on_is_not_blamed() -> None:
    """0 and 1 meet in a, 1 and 2 in b. In the second round 0 comes 100 late to a, 1 then to b."""
    ranks = three_ranks(
        {
            ("a", 0): [(10, 20), (210, 220)],
            ("a", 1): [(10, 20), (110, 220)],
            ("b", 1): [(30, 40), (230, 240)],
            ("b", 2): [(30, 40), (130, 240)],
        }
    )
    blame = find_blame(ranks)
    assert blame.waited_ns.tolist() == [0, 100, 100]
    assert blame.attributed_ns.tolist() == [200, 0, 0]
    # The first round, both of a's, then b's second: 1 came last there, but had waited for 0.
    table = find_matches(ranks).table
    last = dict(zip(table["match"].tolist(), table["last_member"].tolist(), strict=True))
    waited = list(blame.origin_of_match)[-2:]
    assert [blame.origin_of_match[match] for match in waited] == [0, 0]
    assert [last[match] for match in waited] == [0, 1]


def test_of_a_victim_that_is_late_itself_each_has_its_part() -> None:
    """As before, but 1 takes 30 longer itself between a and b."""
    ranks = three_ranks(
        {
            ("a", 0): [(10, 20), (210, 220)],
            ("a", 1): [(10, 20), (110, 220)],
            ("b", 1): [(30, 40), (260, 270)],
            ("b", 2): [(30, 40), (130, 270)],
        }
    )
    blame = find_blame(ranks)
    assert blame.attributed_ns.tolist() == [200, 30, 0]
    assert list(blame.origin_of_match.values())[-2:] == [0, 0]


def test_the_first_collective_of_ranks_that_a_larger_one_put_in_step_is_waiting() -> None:
    """All three meet in w; then 0 and 1 in a for the first time, where 1 comes 50 late."""
    builder = TraceBuilder()
    for rank, at in ((0, 100), (1, 150)):
        more = {"process": 1 + rank, "group": "a", "group_size": 2, "backend": "gloo"}
        builder.collective("all_reduce", at, 160, **more)
    for rank, at in ((0, 10), (1, 40), (2, 20)):
        more = {"process": 1 + rank, "group": "w", "group_size": 3, "backend": "gloo"}
        builder.process(1 + rank, rank=rank).collective("all_reduce", at, 50, **more)
    blame = find_blame(Ranks.of(builder.build()))
    assert blame.skew_ns == 30 + 20
    assert blame.waited_ns.tolist() == [50, 0, 0]
    assert blame.attributed_ns.tolist() == [0, 50, 0]


def test_matches_that_cannot_be_right_are_withheld_with_the_reason() -> None:
    """Of each all-reduce one rank ends long before the other begins."""
    builder = TraceBuilder()
    for rank in range(2):
        builder.process(1 + rank, rank=rank)
        for number in range(6):
            at = 1000 * number + 700 * rank
            more = {"process": 1 + rank, "group": "w", "group_size": 2, "backend": "gloo"}
            builder.collective("all_reduce", at, at + 100, **more)
    result = run("stragglers", Ranks.of(builder.build()))
    assert result.table.empty
    assert said(result)[0].startswith(
        "Rank wait times are not reported: some ranks end collectives before"
    )


def unequal(kept: Callable[[int], bool], group: str = "w", late_ns: int = 0) -> Ranks:
    """Two ranks with an all-reduce every ms; of the second, only those that are ``kept``."""
    builder, random = TraceBuilder(), Random(1)
    for rank in range(2):
        builder.process(1 + rank, rank=rank).device(rank, "NVIDIA H100")
        for number in range(40):
            at = MS * number + random.randrange(50_000) + late_ns * rank
            if rank and not kept(number):
                continue
            more = {"process": 1 + rank, "group": group, "group_size": 2, "backend": "gloo"}
            builder.collective("all_reduce", at, at + 100_000, n_bytes=1000, **more)
    return Ranks.of(builder.build())


@pytest.mark.parametrize("group", ["w", ""])
@pytest.mark.parametrize("late_ns", [0, 5 * MS])
@pytest.mark.parametrize(
    "kept",
    [
        lambda number: number % 4 == 0,
        lambda number: number < 10,
        lambda number: number >= 30,
        lambda number: number != 5,
    ],
    ids=["every fourth", "the first", "the last", "all but one"],
)
def test_unequal_counts_give_no_figures_of_waiting_but_the_reason(
    kept: Callable[[int], bool], late_ns: int, group: str
) -> None:
    """Ranks called one another late by 7863% of the window: their collectives did not match."""
    ranks = unequal(kept, group, late_ns)
    stragglers = run("stragglers", ranks)
    assert stragglers.table.empty
    reason = said(stragglers)[0]
    assert reason.startswith("Rank wait times are not reported: ")
    assert "waited_ratio" not in stragglers.scalars
    shared = run("shared", ranks)
    assert shared.table.to_frame()["waited_ns"].isna().all()
    assert reason in said(shared)
    assert run("collectives", ranks).table.to_frame()["waited_ns"].isna().all()
    assert run("ranks", ranks).table.to_frame()["waited_ns"].isna().all()
    findings = run("findings", ranks)
    assert not {"straggler", "slow_host"} & set(findings.table["rule"].tolist())


def test_equal_counts_are_matched_and_nobody_waits_for_more_than_the_window() -> None:
    result = run("stragglers", unequal(lambda number: number >= 0))
    assert 0 < result.scalars["waited_ratio"] < 0.05
    assert len(result.table.to_frame()) == 2


def test_nothing_changes_with_the_order_or_the_clock() -> None:
    job = Job(pp=4, dp=2, slow={1: 1.2}, steps=4)
    found = find_blame(make_job(job))
    later = find_blame(
        make_job(Job(**{**job.__dict__, "late_starts": dict.fromkeys(range(8), MS)}))
    )
    assert np.array_equal(found.attributed_ns, later.attributed_ns)
