"""Figures of plotly in a page: the units of their axes, and what is in them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.builders import TraceBuilder
from tests.render.figures import figures_in, traces_in
from tests.running import run
from traceprof.model.ranks import Ranks
from traceprof.model.results import Unit
from traceprof.model.trace import Trace
from traceprof.render.charts.figure import figure_html, scale_of
from traceprof.render.report.places import PageContext
from traceprof.render.report.steps import steps_figure

MS = 1_000_000


@pytest.mark.parametrize(
    ("unit", "values", "named"),
    [
        (Unit.NS, [3.2e6, 1e3], "ms"),
        (Unit.AT_NS, [2e9], "s"),
        (Unit.BYTES, [1.2e10, np.nan], "GB"),
        (Unit.BYTES_PER_S, [12.5e9], "GB/s"),
        (Unit.RATIO, [0.2], "%"),
        (Unit.NUMBER, [7], ""),
        (Unit.NS, [0, 0], "ns"),
        (Unit.NS, [], "ns"),
    ],
)
def test_an_axis_is_in_a_unit_that_is_named(unit: Unit, values: list[float], named: str) -> None:
    scale = scale_of(unit, values)
    assert scale.unit == named
    assert np.nanmax(scale([*values, 0.0])) < 1_000


def test_a_figure_is_json_in_which_unknown_is_null_and_no_name_ends_the_script() -> None:
    html = figure_html([{"y": np.array([1 / 3, np.nan]), "name": "</script><b>"}], 'a "b"', y="ms")
    assert html.count("</script>") == 1
    ((label, figure),) = figures_in(html).items()
    assert label == "a &quot;b&quot;"
    assert figure["data"] == [{"y": [0.333333, None], "name": "</script><b>"}]
    assert figure["layout"]["yaxis"]["title"]["text"] == "ms"
    assert figure["layout"]["yaxis"]["exponentformat"] == "none"
    assert figure["config"]["plotlyServerURL"] == ""
    assert figure["config"]["showSendToCloud"] is False


def _around(trace: Trace) -> PageContext:
    whole = Ranks.of(trace)
    ranks = dict(enumerate(whole.table("processes")["rank"].tolist(), 1))
    return PageContext(whole, whole.span, whole.span, ranks)


def _steps(lengths_ms: list[int], n_ranks: int = 1) -> str:
    builder = TraceBuilder()
    for rank in range(n_ranks):
        builder.process(rank + 1, rank=rank)
        at = 0
        for number, length in enumerate(lengths_ms):
            end = at + length * MS
            builder.step(at, end, number, process=rank + 1)
            launched = (at, at + 10)
            builder.kernel(
                "gemm", at + MS, end, launched_ns=launched, process=rank + 1, device=rank
            )
            at = end
    trace = builder.build()
    return steps_figure(run("steps", trace), _around(trace))


def test_bars_of_steps_are_their_parts_and_lead_to_them() -> None:
    html = _steps([10] * 7 + [40])
    traces = traces_in(html)
    assert traces["Compute"]["x"] == [*range(8)]
    assert traces["Compute"]["y"] == [9] * 7 + [39]
    assert traces["Idle"]["y"] == [1] * 8
    (figure,) = figures_in(html).values()
    assert figure["layout"]["meta"][traces["Idle"]["meta"]["links"]][7].startswith("#at=60000000..")
    assert traces["slower than usual"]["x"] == [7]
    assert traces["slower than usual"]["customdata"] == ["30.00 ms"]


def test_one_step_of_several_ranks_is_a_bar_for_each() -> None:
    traces = traces_in(_steps([10], n_ranks=3))
    assert traces["Compute"]["x"] == ["rank 0", "rank 1", "rank 2"]
    assert traces["Compute"]["y"] == [9, 9, 9]


def test_of_few_ranks_each_can_be_chosen() -> None:
    (figure,) = figures_in(_steps([10, 12], n_ranks=2)).values()
    (menu,) = figure["layout"]["updatemenus"]
    assert [button["label"] for button in menu["buttons"]] == [
        "mean of 2 processes",
        "rank 0",
        "rank 1",
    ]
    shown = [sum(button["args"][0]["visible"]) for button in menu["buttons"]]
    assert sum(shown) == len(figure["data"])


def test_more_steps_than_bars_are_averaged_and_said_so() -> None:
    html = _steps([10, 20, 30] * 150)
    assert "450 steps (each bar is the mean of 3)" in html
    traces = traces_in(html)
    assert traces["Compute"]["y"] == [19] * 150
    assert traces["Compute"]["x"] == [*range(0, 450, 3)]
