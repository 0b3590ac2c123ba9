"""Ranks without GPU activity (gloo, MPI): a late rank is a finding, equal ranks are none."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.builders import TraceBuilder
from tests.findings.found import findings_of, in_default_window
from tests.running import run
from traceprof.model.placement import place_run
from traceprof.model.ranks import Ranks, RankTrace, RunFiles
from traceprof.model.trace import TraceInfo

MS = 1_000_000
N_STEPS = 21
WORK_NS = 100 * MS
REDUCE_NS = 2 * MS


def job(extra_ns: Callable[[int, int], int], n_ranks: int = 3) -> Ranks:
    """Return ranks that wait for ``extra_ns(rank, step)``, compute 100 ms, and reduce with gloo."""
    builders = [TraceBuilder() for _ in range(n_ranks)]
    now = 0
    for step in range(N_STEPS):
        extra = [extra_ns(rank, step) for rank in range(n_ranks)]
        end = now + max(extra) + WORK_NS + REDUCE_NS
        for rank, builder in enumerate(builders):
            own = {"process": 100 + rank}
            begin = now + extra[rank]
            middle, called = begin + WORK_NS // 2, begin + WORK_NS
            builder.step(now, end, step, **own)
            builder.phase("forward", begin, middle, **own)
            builder.phase("backward", middle, called, **own)
            call = {"n_bytes": 4_000_000, "group_size": n_ranks, "backend": "gloo"}
            builder.collective("all_reduce", called, end, **call, **own)
        now = end
    members = []
    for rank, builder in enumerate(builders):
        builder.process(100 + rank, rank=rank, world_size=n_ranks)
        trace = builder.build(info=TraceInfo(path=f"rank{rank}", utc_epoch_ns=0))
        members.append(RankTrace(trace, rank, rank, "a"))
    return place_run(RunFiles("planted", tuple(members), n_ranks))


def test_a_rank_that_is_late_in_each_collective_is_a_straggler() -> None:
    ranks = job(lambda rank, _: 15 * MS * (rank == 1))
    found = {one.rule: one for one in findings_of(in_default_window(ranks))}
    straggler = found["straggler"]
    # 15 of 117 ms in 20 of 21 steps: waiting before the first shared collective does not count.
    assert straggler.title == "Straggler: the other ranks wait for rank 1 for 12.2% of step time"
    assert straggler.kind == "bounded"
    assert straggler.saving_ns == pytest.approx(15 * MS * 20 / 21, rel=0.01)
    assert "GPU" not in straggler.action


def test_equal_ranks_are_no_finding_and_are_checked() -> None:
    ranks = job(lambda rank, step: MS * ((rank + step) % 2))
    result = run("findings", ranks)
    assert not {"straggler", "slow_host", "load_imbalance"} & set(result.table["rule"])
    not_checked = result.tables["not_checked"]
    reasons = dict(zip(not_checked["rule"], not_checked["reason"], strict=True))
    assert "straggler" not in reasons


def test_ranks_that_are_late_in_turn_are_an_imbalance() -> None:
    found = {one.rule: one for one in findings_of(job(lambda rank, s: 60 * MS * (s % 3 == rank)))}
    assert "straggler" not in found
    imbalance = found["load_imbalance"]
    # The late rank of each step has 60 ms, the mean of three ranks is 20 ms.
    assert imbalance.saving_ns == pytest.approx(40 * MS, rel=0.05)


def test_one_rank_alone_is_not_checked() -> None:
    result = run("findings", job(lambda *_: 0, n_ranks=1))
    not_checked = result.tables["not_checked"]
    reasons = dict(zip(not_checked["rule"], not_checked["reason"], strict=True))
    assert reasons["straggler"].startswith("no kernels recorded")
