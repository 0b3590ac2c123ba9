"""Stragglers: who the others wait for, in which phase, since when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.builders import plain
from tests.measures.generated_run import MS, Clock, Plan, make_ranks_of, make_trace_of
from tests.measures.ranks.two_ranks import real_run
from tests.reading import rows, said
from tests.running import run
from traceprof.measures.collectives.clocks import align_clocks, find_alignment
from traceprof.measures.collectives.matches import find_matches


@pytest.mark.parametrize("on_gpu", [True, False])
@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_a_planted_straggler_is_named_with_its_phase(phase: str, on_gpu: bool) -> None:
    ranks = make_ranks_of(
        Plan(extra_ns={(3, phase): 40 * MS}, since_step=4, on_gpu=on_gpu, jitter_ns=1000)
    )
    result = run("stragglers", ranks)
    first, *others = rows(result)
    assert (first.rank, first.is_straggler, first.phase) == (3, True, phase)
    assert not any(rank.is_straggler for rank in others)
    assert first.cost_ns == pytest.approx(6 * 40 * MS, rel=0.01)
    assert first.excess_ns == pytest.approx(6 * 40 * MS, rel=0.01)
    # Step 4 begins 800 ms after the ranks; the all-reduce is reached 130 ms later.
    assert first.late_from_ns == pytest.approx(930 * MS, abs=MS)
    assert said(result)[0].startswith("rank 3 is a straggler")
    assert "of the window) since 930" in said(result)[0]
    assert f". Main phase: {phase}." in said(result)[0]


def test_of_two_ranks_the_whole_lateness_counts() -> None:
    """The one rank waits 40 ms in each of 9 steps in step: that is the cost, not half of it."""
    ranks = make_ranks_of(Plan(n_ranks=2, extra_ns={(1, "backward"): 40 * MS}))
    (slow, other) = rows(run("stragglers", ranks))
    assert (slow.rank, slow.cost_ns, slow.excess_ns) == (1, 360 * MS, 360 * MS)
    assert (other.cost_ns, other.median_late_ns) == (0, -40 * MS)


def test_a_host_whose_ranks_all_come_late_is_named() -> None:
    # Ranks 2 and 3 take turns in being a little later than the other.
    late = {(2, "backward"): 40 * MS, (3, "backward"): 40 * MS}
    plan = Plan(extra_ns=late, hosts=["a", "a", "b", "b"], jitter_ns=1000)
    trace = make_trace_of(plan)
    moved = trace.kernels.to_frame().copy()
    is_wobbling = (moved["process"] == 102) & moved["name"].astype(str).str.startswith("nccl")
    wobble = [1000 if place % 2 else -1000 for place in range(int(is_wobbling.sum()))]
    moved.loc[is_wobbling, "start_ns"] += wobble
    kernels = trace.kernels.assign(start_ns=moved["start_ns"].to_numpy())
    notes = said(run("stragglers", replace(trace, kernels=kernels)))
    assert notes[0].startswith("host b is a straggler: 2 of its 2 ranks are late")


def test_without_a_straggler_nobody_is_blamed() -> None:
    result = run("stragglers", make_ranks_of(Plan(jitter_ns=1000)))
    assert [rank.is_straggler for rank in rows(result)] == [False] * 4


def test_64_ranks_with_clocks_that_differ_and_a_straggler() -> None:
    """8 hosts, clocks ±10 ms apart that drift by ±20 ppm, jitter of 20 µs, rank 3 40 ms late."""
    clock_of = [Clock(round((h - 3.5) / 3.5 * 10 * MS), (h - 3.5) / 3.5 * 20) for h in range(8)]
    plan = Plan(
        n_ranks=64,
        n_steps=12,
        hosts=[f"node{rank // 8}" for rank in range(64)],
        clocks=[clock_of[rank // 8] for rank in range(64)],
        extra_ns={(3, "backward"): 40 * MS},
        jitter_ns=20_000,
    )
    ranks = make_ranks_of(plan)
    found = find_alignment(ranks)
    for rank, row in enumerate(found.clocks):
        at_ns = found.corrections[row.process].at_ns
        clock = clock_of[rank // 8]
        shown = clock.offset_ns + clock.drift_ppm * 1e-6 * at_ns
        first = clock_of[0].offset_ns + clock_of[0].drift_ppm * 1e-6 * at_ns
        assert row.offset_ns == pytest.approx(shown - first, abs=20_000)
    aligned = align_clocks(ranks)
    first, *others = rows(run("stragglers", aligned))
    assert (first.rank, first.is_straggler, first.phase) == (3, True, "backward")
    assert first.cost_ns == pytest.approx(11 * 40 * MS, rel=2e-3)
    assert not any(rank.is_straggler for rank in others)
    hot = run("rank-steps", aligned).table.to_frame().query("slower_ratio > 0.03")
    assert plain(hot, "rank", "step") == [(3, step) for step in range(12)]


@pytest.mark.traces
def test_dlrm_on_8_ranks(real_trace: Callable[[str], Path]) -> None:
    """Read off the files: 5 all-to-all and 3 all-reduce on each rank; clocks of one host."""
    pattern = "kineto/dlrm-8ranks-v100/worker{}.pt.trace.json.gz"
    ranks = real_run(real_trace, pattern, 8)
    matches = find_matches(ranks)
    assert matches.table["op"].counts() == {
        "all_to_all": 5,
        "all_reduce": 3,
    }
    assert (matches.table["members"] == 8).all()
    assert (matches.rows["match"] >= 0).all()
    assert matches.table["spread_ns"].max() <= 7_000
    # The first all-to-all: rank 7 comes at 10 725 µs, 7 624 µs after the first.
    first = matches.table.in_order("last_start_ns").row(0)
    assert first["last_start_ns"] - first["first_start_ns"] == 7_624_000
    assert first["duration_ns"] == 10_000
    for clock in find_alignment(ranks).clocks:
        assert clock.offset_ns is not None
        assert abs(clock.offset_ns) <= 2_000
        assert clock.drift_ppm == 0
    # That is the skew of the starts, as in the brute-force sum over its 8 ranks. Afterwards
    # ranks 7, 5 and 4 are late in turn.
    own = matches.rows.take(matches.rows["match"] == first["match"])
    result = run("stragglers", ranks)
    # 26.4 ms, of which compute hides 0.2.
    skew_ns = int((own["start_ns"].max() - own["start_ns"]).sum())
    assert result.scalars["skew_ns"] == pytest.approx(skew_ns, rel=0.01)
    assert not any(rank.is_straggler for rank in rows(result))


@pytest.mark.traces
def test_torchrec_on_4_ranks(real_trace: Callable[[str], Path]) -> None:
    """Rank 2 sleeps a second in the forward pass of each step; its first kernel is cut off."""
    ranks = real_run(real_trace, "kineto/torchrec-4ranks-v100/rank{}.pt.trace.json.gz", 4)
    table = find_matches(ranks).table.to_frame()
    assert sorted(table["members"]) == [3, *[4] * 12]
    assert (table[table["members"] == 4]["last_member"] == 2).all()
    first, *others = rows(run("stragglers", ranks))
    assert (first.rank, first.is_straggler, first.phase) == (2, True, "forward (device idle)")
    # Three seconds of sleep: what the others wait, and what of the exchange only they do not hide.
    assert first.cost_ns == pytest.approx(3.000e9, rel=1e-3)
    assert not any(rank.is_straggler for rank in others)
    assert all((clock.residual_ns or 0) < 5_000 for clock in find_alignment(ranks).clocks)
