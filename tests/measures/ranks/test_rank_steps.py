"""Every step of every rank: its own time, waiting, lateness."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.builders import TraceBuilder, plain
from tests.measures.generated_run import MS, Plan, make_ranks_of
from tests.reading import said
from tests.running import run
from traceprof.model.timing import TimeWindow


def test_every_step_of_every_rank_for_a_heat_map() -> None:
    ranks = make_ranks_of(Plan(n_ranks=2, n_steps=2, extra_ns={(1, "forward"): 10 * MS}))
    table = run("rank-steps", ranks).table.to_frame()
    columns = (
        "rank",
        "step",
        "duration_ns",
        "step_without_waits_ns",
        "waited_ns",
        "late_ns",
        "phase",
    )
    assert plain(table, *columns) == [
        # Who was late to the first collective is not known: it holds the skew of the starts. The
        # first step begins with its host.
        (0, 0, 110 * MS, 100 * MS, 0, 0, ""),
        (1, 0, 110 * MS, 110 * MS, 0, 0, ""),
        # The second one lasts from the end of the first one's work to the end of its own.
        (0, 1, 200 * MS, 190 * MS, 10 * MS, 0, ""),
        (1, 1, 200 * MS, 200 * MS, 0, 10 * MS, "forward"),
    ]
    expected = [-5 / 105, 5 / 105, -5 / 195, 5 / 195]
    assert table["slower_ratio"].tolist() == pytest.approx(expected)


def test_waiting_that_compute_hides_is_the_ranks_own_time() -> None:
    """Rank 0 waits from 50 to 90 for rank 1, and computes until 80 beside it."""
    builder = TraceBuilder().process(1, rank=0).process(2, rank=1)
    for process in (1, 2):
        builder.kernel("ncclDevKernel_AllReduce", 0, 1, process=process, device=process)
    for process, comes in ((1, 50), (2, 90)):
        builder.step(0, 100, 7, process=process)
        builder.kernel("gemm", 1, 80, process=process, device=process)
        builder.kernel("ncclDevKernel_AllReduce", comes, 100, process=process, device=process)
    table = run("rank-steps", builder.build()).table.to_frame()
    assert plain(table, "rank", "step_without_waits_ns", "waited_ns") == [(0, 90, 10), (1, 100, 0)]


def test_a_rank_that_joins_later_has_no_earlier_steps() -> None:
    result = run("rank-steps", make_ranks_of(Plan(n_steps=4, first_step={2: 3})))
    assert result.table.to_frame().groupby("rank")["step"].apply(list).to_dict() == {
        0: [0, 1, 2, 3],
        1: [0, 1, 2, 3],
        2: [3],
        3: [0, 1, 2, 3],
    }
    assert said(result) == ["3 of 4 steps are missing on some of the 4 ranks."]


@pytest.mark.parametrize("numbered", [True, False])
def test_steps_that_nobody_numbers_are_lined_up_by_collectives(numbered: bool) -> None:
    """Rank 2 is recorded from step 3 on; in step 5 rank 1 takes 40 ms longer."""
    plan = Plan(n_steps=8, first_step={2: 3}, extra_ns={(1, "forward"): 40 * MS}, since_step=5)
    result = run("rank-steps", make_ranks_of(replace(plan, numbered=numbered)))
    table = result.table.to_frame()
    assert table.loc[table["rank"] == 2, "step"].tolist() == [3, 4, 5, 6, 7]
    slower = table[table["slower_ratio"] > 0.1]
    assert plain(slower, "rank", "step") == [(1, 5), (1, 6), (1, 7)]
    assert (
        any("rank 2 count their steps from a different start" in n for n in said(result))
        != numbered
    )


def test_without_shared_collectives_own_time_says_what_it_holds() -> None:
    builder = TraceBuilder()
    for process in (1, 2):
        builder.process(process, rank=process - 1).step(0, 100 * process, 0, process=process)
    result = run("rank-steps", builder.build())
    assert result.table.to_frame()["step_without_waits_ns"].tolist() == [100, 200]
    assert said(result)[0].startswith("No collective was recorded on several ranks")


def test_a_step_has_the_same_number_in_every_window() -> None:
    """Nobody numbers the steps; rank 2 is recorded from step 3 on."""
    ranks = make_ranks_of(Plan(n_steps=8, first_step={2: 3}, numbered=False))
    # From the end of the work of step 5 to that of step 6.
    start = 1000 * MS + 5 * 200 * MS + 100 * MS
    cut = run("rank-steps", ranks.within(TimeWindow(start, start + 200 * MS)))
    assert plain(cut.table, "rank", "step") == [(rank, 6) for rank in range(4)]
    assert plain(cut.to_frame("shifts"), "rank", "added") == [(2, 3)]
