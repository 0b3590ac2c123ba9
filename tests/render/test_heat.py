"""The heat map of a run: what a cell says, what shares one, and how it looks in a terminal."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from rich.console import Console
from rich.text import Text

from tests.measures.generated_run import MS, Plan, make_trace_of
from tests.running import run
from traceprof.model.results import Result, ResultSpec, TableSpec
from traceprof.model.table import Table
from traceprof.render.heat import HeatMap, find_lines, format_excess, heat_chart, make_heat_map
from traceprof.render.palette import HEAT
from traceprof.render.text.comparisons import heat_lines


def ranks_by_steps(
    own_ms: Callable[[int, int], float],
    n_ranks: int,
    n_steps: int,
    hosts: Mapping[int, str] | None = None,
) -> Table:
    """Return a table as that of `RankSteps`, with own times in ms."""
    rank, step = np.divmod(np.arange(n_ranks * n_steps), n_steps)
    own = [round(own_ms(int(r), int(s)) * MS) for r, s in zip(rank, step, strict=True)]
    return Table(
        {
            "rank": rank,
            "step": step,
            "step_without_waits_ns": own,
            "duration_ns": own,
            "waited_ns": 0,
            "late_ns": 0,
            "phase": "",
            "host": [(hosts or {}).get(int(r), "") for r in rank],
            "process": 100 + rank,
        }
    )


def result_of(table: Table) -> Result:
    return Result("rank-steps", ResultSpec((TableSpec("steps", "", ()),)), {"steps": table})


def even(_rank: int, _step: int) -> float:
    return 100


def heat_of(table: Table, rows: int = 64, columns: int = 120) -> HeatMap:
    lines = find_lines(table, rows)
    assert lines is not None
    return make_heat_map(table, lines, columns)


def test_a_cell_is_the_share_beyond_the_median_of_its_step() -> None:
    # Step 1 takes everybody twice as long: nobody is slow in it.
    table = ranks_by_steps(lambda r, s: (1 + s) * (130 if r == 2 else 100), 3, 2)
    heat = heat_of(table)
    assert heat.ratios.tolist() == [[0, 0], [0, 0], [pytest.approx(0.3)] * 2]
    assert heat.levels.tolist() == [[2, 2], [2, 2], [5, 5]]
    assert [row.label for row in heat.rows] == ["rank 0", "rank 1", "rank 2"]
    assert heat.slowest.slower_ratio == pytest.approx(0.3)


def test_a_cell_says_who_when_how_long_and_in_which_phase() -> None:
    trace = make_trace_of(Plan(n_steps=3, extra_ns={(3, "backward"): 40 * MS}))
    heat = heat_of(run("rank-steps", trace).table)
    assert heat.words[3][1] == (
        "rank 3, step 1; self time 200.0 ms (+25.0%); duration 200.0 ms; "
        "waited for other ranks 0 ns; delayed other ranks 40.00 ms; longest phase backward"
    )
    assert heat.words[0][1].startswith(
        "rank 0, step 1; self time 160.0 ms (0.0%); duration 200.0 ms; "
        "waited for other ranks 40.00 ms"
    )


def test_a_step_that_a_rank_does_not_have_is_no_zero() -> None:
    table = ranks_by_steps(even, 3, 4)
    heat = heat_of(table.take((table["rank"] != 1) | (table["step"] >= 2)))
    assert heat.levels.tolist() == [[2, 2, 2, 2], [-1, -1, 2, 2], [2, 2, 2, 2]]
    assert heat.words[1][:2] == ("", "")
    assert heat.rows[1].slower_ratio == 0


def test_where_the_others_do_nothing_but_wait_the_slow_one_still_shows() -> None:
    heat = heat_of(ranks_by_steps(lambda r, _: 100 if r == 3 else 0, 4, 1))
    assert heat.levels.tolist() == [[2], [2], [2], [6]]
    assert format_excess(heat.slowest.slower_ratio) == "> 99×"


def test_many_steps_share_columns_and_say_so() -> None:
    # Rank 1 takes 140 ms from step 60 on, and 500 ms in step 7 alone.
    def own(rank: int, step: int) -> float:
        return (500 if step == 7 else 140 if step >= 60 else 100) if rank == 1 else 100

    heat = heat_of(ranks_by_steps(own, 3, 100), columns=10)
    assert heat.steps[:2] == ((0, 9), (10, 19))
    assert heat.ratios[1] == pytest.approx([0.4, 0, 0, 0, 0, 0, 0.4, 0.4, 0.4, 0.4])
    assert "mean of 10 steps, slowest step 7;" in heat.words[1][0]
    assert heat.notes == ("each column is the mean of up to 10 steps",)


def test_many_ranks_share_the_line_of_their_host() -> None:
    hosts = {rank: f"node{rank % 4}" for rank in range(32)}
    heat = heat_of(ranks_by_steps(lambda r, _: 200 if r == 13 else 100, 32, 2, hosts), rows=8)
    assert [(row.host, row.label) for row in heat.rows] == [
        (f"node{i}", "8 ranks") for i in range(4)
    ]
    assert heat.ratios[:, 0].tolist() == [0, 1, 0, 0]
    assert heat.words[1][0].startswith("rank 13, step 0; self time 200.0 ms (2.0×)")
    assert heat.notes == ("each row shows the slowest of up to 8 ranks",)


def test_many_ranks_without_hosts_share_lines_with_their_neighbors() -> None:
    heat = heat_of(ranks_by_steps(even, 10, 2), rows=4)
    assert [row.label for row in heat.rows] == ["rank 0–2", "rank 3–5", "rank 6–8", "rank 9"]


def test_ranks_of_a_host_stand_together() -> None:
    hosts = {0: "a", 1: "b", 2: "a", 3: "b"}
    heat = heat_of(ranks_by_steps(even, 4, 1, hosts))
    assert [row.label for row in heat.rows] == ["rank 0", "rank 2", "rank 1", "rank 3"]


def test_one_rank_is_no_heat_map() -> None:
    table = ranks_by_steps(even, 1, 50)
    assert find_lines(table, 8) is None
    assert heat_lines(table, 8, 80) == []
    assert heat_chart(result_of(table)) == ""


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(0.0, "0.0%"), (-0.0004, "0.0%"), (0.05, "+5.0%"), (-0.2, "-20.0%"), (1.4, "2.4×")],
)
def test_more_and_less_have_a_sign(ratio: float, text: str) -> None:
    assert format_excess(ratio) == text


def in_color(lines: list[Text]) -> str:
    file = io.StringIO()
    console = Console(file=file, width=200, force_terminal=True, color_system="truecolor")
    console.print(*lines, sep="\n")
    return file.getvalue()


def test_the_map_in_a_terminal_reads_without_color() -> None:
    table = ranks_by_steps(lambda r, s: 140 if r == 2 and s >= 2 else 100, 4, 5)
    assert [line.plain for line in heat_lines(table, 8, 80)] == [
        "self time of 4 ranks in steps 0–4, compared with the median rank",
        "rank 0  ··········      0.0%",
        "rank 1  ··········      0.0%",
        "rank 2  ····▓▓▓▓▓▓    +24.0%",
        "rank 3  ··········      0.0%",
        "·· within 3%  ▓▓ 30–100% slower  ",
    ]
    colored = in_color(heat_lines(table, 8, 80))
    red, green, blue = (int(HEAT[5].dark[i : i + 2], 16) for i in (1, 3, 5))
    assert f"\x1b[38;2;{red};{green};{blue}m▓▓" in colored


def test_the_slowest_of_ranks_that_share_a_line_is_named() -> None:
    hosts = {rank: f"n{rank // 4}" for rank in range(16)}
    table = ranks_by_steps(lambda r, _: 150 if r == 6 else 100, 16, 2, hosts)
    lines = [line.plain for line in heat_lines(table, 4, 80)]
    assert lines[1:3] == ["n0  4 ranks  ····      0.0%", "n1  4 ranks  ▓▓▓▓    +50.0%  rank 6"]


@pytest.mark.parametrize(("n_ranks", "n_steps"), [(2, 1), (8, 40), (64, 333), (512, 50)])
@pytest.mark.parametrize("width", [80, 120])
def test_the_map_fits_into_the_terminal(n_ranks: int, n_steps: int, width: int) -> None:
    hosts = {rank: f"a-rather-long-name-of-a-host-{rank // 8}" for rank in range(n_ranks)}
    table = ranks_by_steps(lambda r, s: 100 + r * s % 7, n_ranks, n_steps, hosts)
    lines = heat_lines(table, 16, width)
    assert max(len(line.plain) for line in lines) <= width
    assert len(lines) <= 16 + 5


def test_the_chart_of_the_report_is_bounded_and_has_words_for_every_cell() -> None:
    random = np.random.default_rng(3)
    table = ranks_by_steps(lambda _r, _s: 100 + 5 * random.standard_normal(), 512, 400)
    html = heat_chart(result_of(table))
    assert len(html) < 1_000_000
    n_cells = len(re.findall("<rect", html))
    assert n_cells == len(re.findall("<title>", html)) <= 4096
    assert "Each row shows the slowest of up to 8 ranks." in html
    assert "Each column is the mean of up to 7 steps." in html


def test_names_in_the_chart_are_text() -> None:
    hosts = {0: "<script>alert(1)</script>", 1: "b"}
    html = heat_chart(result_of(ranks_by_steps(even, 2, 1, hosts)))
    assert "<script" not in html
    assert "&lt;script" in html
