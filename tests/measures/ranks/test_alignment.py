"""The clocks of ranks, found by the ends of shared collectives."""

from __future__ import annotations

import random
import statistics

import numpy as np
import pytest

from tests.builders import TraceBuilder
from tests.measures.generated_run import MS, Clock, Plan, make_ranks_of
from traceprof.measures.collectives.clocks import align_clocks, find_alignment, fit_line
from traceprof.measures.collectives.matches import find_matches
from traceprof.model.placement import place_run
from traceprof.model.ranks import Ranks, RankTrace, RunFiles
from traceprof.model.trace import TraceInfo

FEWEST = 3
"""Fewer shared collectives tie no clocks."""


@pytest.mark.parametrize("jitter_ns", [0, 20_000])
def test_clocks_of_hosts_are_found_within_the_jitter(jitter_ns: int) -> None:
    clocks = [Clock(), Clock(10 * MS, 20.0), Clock(-10 * MS, -20.0), Clock(3 * MS)]
    plan = Plan(n_steps=100, clocks=clocks, hosts=["a", "b", "c", "d"], jitter_ns=jitter_ns)
    ranks = make_ranks_of(plan)
    found = find_alignment(ranks)
    for clock, row in zip(clocks, found.clocks, strict=True):
        assert row.offset_ns is not None
        assert row.drift_ppm is not None
        middle = found.corrections[row.process].at_ns
        shown = clock.offset_ns + clock.drift_ppm * 1e-6 * middle
        assert abs(row.offset_ns - shown) <= jitter_ns + 300
        assert abs(row.drift_ppm - clock.drift_ppm) <= 0.1 + jitter_ns * 1e-4
        assert row.residual_ns is not None
        assert row.residual_ns <= 2 * jitter_ns + 2
    table = find_matches(align_clocks(ranks)).table.to_frame()
    assert table["spread_ns"].max() <= 4 * jitter_ns + 600


def test_ranks_of_one_host_have_one_clock() -> None:
    clocks = [Clock(), Clock(), Clock(5 * MS), Clock(5 * MS)]
    ranks = make_ranks_of(Plan(clocks=clocks, hosts=["a", "a", "b", "b"]))
    offsets = [clock.offset_ns for clock in find_alignment(ranks).clocks]
    assert offsets == [0, 0, 5 * MS, 5 * MS]


def test_clocks_are_tied_over_others_and_what_is_loose_is_named() -> None:
    builder = TraceBuilder()
    for process in range(1, 6):
        builder.process(process, rank=process - 1)
    for group, pair, skew in (("ab", (1, 2), 100), ("bc", (2, 3), 1000), ("d", (4,), 0)):
        for place, process in enumerate(pair):
            ahead = skew * place + (100 if process in (2, 3) and group == "bc" else 0)
            for at in (ahead, 10_000 + ahead, 20_000 + ahead):
                builder.collective(
                    "all_reduce", at, at + 500, process=process, backend="gloo", group=group
                )
    found = find_alignment(Ranks.of(builder.build()))
    assert [clock.offset_ns for clock in found.clocks] == [0, 100, 1100, None, None]
    assert any("3, 4: they share fewer than" in note.text for note in found.notes)


@pytest.mark.parametrize("seed", range(20))
def test_each_clock_is_tied_to_the_tied_one_that_it_shares_most_with(seed: int) -> None:
    rng = random.Random(seed)
    builder, ends = TraceBuilder(), []
    for process in range(6):
        builder.process(process + 1, rank=process)
    for group in range(rng.randint(2, 6)):
        members = rng.sample(range(6), rng.randint(1, 4))
        own = {"group": f"g{group}", "group_size": len(members), "backend": "gloo"}
        for sequence in range(rng.randint(1, 6)):
            at = 10_000 * len(ends)
            ends.append({member: at + 500 + rng.randint(0, 999) for member in members})
            for member, end_ns in ends[-1].items():
                builder.collective("all_reduce", at, end_ns, process=member + 1,
                                   sequence=sequence, **own)  # fmt: skip
    found = [clock.offset_ns for clock in find_alignment(Ranks.of(builder.build())).clocks]
    assert found == _tied_one_by_one(ends, 6)


def _tied_one_by_one(ends: list[dict[int, int]], n: int) -> list[float | None]:
    offsets: dict[int, float] = {0: 0.0}
    while True:
        shared = {
            (there, here): [own[here] - (own[there] - offsets[there])
                            for own in ends if {there, here} <= own.keys()]
            for there in offsets for here in set(range(n)) - offsets.keys()
        }  # fmt: skip
        pairs = [(-len(ahead), pair) for pair, ahead in shared.items() if len(ahead) >= FEWEST]
        if not pairs:
            return [offsets.get(one) for one in range(n)]
        _, (there, here) = min(pairs)
        offsets[here] = statistics.median(shared[there, here])


def test_of_aligned_clocks_nobody_says_that_they_are_not_tied() -> None:
    """No wall clock is known, but each collective ends on both ranks at once, 100 ns apart."""
    members = []
    for rank in range(2):
        builder = TraceBuilder().process(1 + rank, rank=rank)
        for start in (0, 1000, 2000):
            at = start + 100 * rank
            builder.collective("all_reduce", at, at + 50, process=1 + rank, backend="gloo")
        members.append(RankTrace(builder.build(info=TraceInfo(path=str(rank))), rank, rank))
    ranks = place_run(RunFiles("test", tuple(members), 2))
    assert any("not aligned" in text for text in ranks.info.warnings)
    aligned = align_clocks(ranks)
    assert not any("not aligned" in text for text in aligned.info.warnings)
    assert [clock.residual_ns for clock in find_alignment(aligned).clocks] == [0, 0]


def test_a_line_is_not_drawn_through_scatter_nor_spoilt_by_outliers() -> None:
    x = np.arange(100, dtype=np.float64)
    noise = np.random.default_rng(1).normal(0, 1, 100)
    assert fit_line(x, 5 + noise).slope == 0
    spoilt = 5 + 2 * x + np.where(x % 5 == 0, 1e6, 0)
    line = fit_line(x, spoilt)
    assert (line.level, line.slope) == (pytest.approx(5), pytest.approx(2))
