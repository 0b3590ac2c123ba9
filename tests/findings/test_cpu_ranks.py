"""A late rank in a run on CPUs: named with what it costs, and never without evidence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.findings.found import Found, findings_of, in_default_window
from tests.measures.generated_run import MS, Plan, make_ranks_of, make_run, make_trace_of
from tests.running import run
from traceprof.model.names import Names
from traceprof.model.placement import place_run
from traceprof.model.ranks import Ranks

LATE = Plan(extra_ns={(1, "forward"): 30 * MS}, on_gpu=False, jitter_ns=MS)


def found_in(ranks: Ranks) -> Found | None:
    return next((found for found in findings_of(ranks) if found.rule == "straggler"), None)


def test_the_late_rank_is_named_with_its_phase_and_its_cost() -> None:
    found = found_in(in_default_window(make_ranks_of(LATE)))
    assert found is not None
    assert found.title.startswith("Straggler: the other ranks wait for rank 1 for ")
    assert found.saving_ns == pytest.approx(27 * MS, rel=0.02)  # in 9 of 10 steps
    assert found.range_ns is not None
    assert found.range_ns[1] >= 30 * MS * 0.98  # in each step, also before the first collective
    first, second = found.evidence
    assert first.startswith("rank 1 arrives last at 100.0% of the collectives")
    assert second.endswith("in forward")


def test_ranks_in_one_file_are_compared_as_well() -> None:
    found = found_in(in_default_window(Ranks.of(make_trace_of(LATE))))
    assert found is not None
    assert "rank 1" in found.title


@pytest.mark.parametrize(
    "plan",
    [
        replace(LATE, extra_ns={}),  # even ranks
        replace(LATE, extra_ns={(rank, "forward"): 30 * MS for rank in range(4)}),
        replace(LATE, extra_ns={(1, "forward"): MS}),  # too little
        replace(LATE, n_ranks=1, extra_ns={(0, "forward"): 30 * MS}),
        replace(
            LATE,
            extra_ns={},
            extra_of_step_ns={(step % 4, "forward", step): 30 * MS for step in range(10)},
        ),  # the slowest rank changes
        replace(LATE, hosts=["a", "b", "a", "a"], extra_ns={(1, "forward"): 30 * MS}, n_steps=2),
    ],
)
def test_no_rank_is_named_without_evidence(plan: Plan) -> None:
    assert found_in(in_default_window(make_ranks_of(plan))) is None


def test_collectives_of_gpus_without_kernels_are_not_judged() -> None:
    """The time at which the CPU enqueues a call is not the time at which the GPU arrives."""
    files = make_run(LATE)
    members = []
    for member in files.members:
        collectives = member.trace.collectives
        on_gpu = collectives.assign(backend=Names.repeated("nccl", len(collectives)))
        members.append(replace(member, trace=member.trace.with_tables({"collectives": on_gpu})))
    ranks = place_run(replace(files, members=tuple(members)))
    assert found_in(in_default_window(ranks)) is None
    rows_not_checked = run("findings", ranks).tables["not_checked"].rows()
    reasons = {row["rule"]: row["reason"] for row in rows_not_checked}
    assert "no kernels recorded" in reasons["straggler"]
