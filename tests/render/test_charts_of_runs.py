"""Charts of runs against runs: round ticks, honest bars, and the order of a page."""

from __future__ import annotations

import re
from dataclasses import replace
from math import log10

import pytest

from traceprof.comparison import NODES_NAME, Comparison
from traceprof.comparison.specs_of_many import NODES_SPEC
from traceprof.model.results import Note, Result, ResultSpec
from traceprof.model.table import Table
from traceprof.render.charts.nodes import nodes_chart
from traceprof.render.charts.svg import round_factors, round_ticks
from traceprof.render.registry import Options, render
from traceprof.render.report.compared import waterfall_chart

MS = 1_000_000


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0.5725, 0.76, [0.6, 0.65, 0.7, 0.75]),
        (0, 19_092, [0, 5_000, 10_000, 15_000]),
        (3, 3, [3]),
        (-2, 2, [-2, -1, 0, 1, 2]),
    ],
)
def test_ticks_are_round(low: float, high: float, ticks: list[float]) -> None:
    assert round_ticks(low, high) == pytest.approx(ticks)


def test_ticks_by_factors_are_round_and_few() -> None:
    assert round_factors(3, 250) == pytest.approx([5, 10, 20, 50, 100, 200])
    many = round_factors(1, 1e12)
    assert len(many) <= 7
    assert all(log10(value).is_integer() for value in many)


_SPEC = ResultSpec.of("""
    table parts: by part
    key part: the part
    derived base_ns: base
    derived new_ns: new
    table causes: by cause
    key name: its name
    key kind: what it is
    key part: its part
    derived difference_ns: how much longer
    derived state: new, gone or ""
    scalars:
    same base_ns: of the base
    same new_ns: of the new one
    same per: of what
    """)


def _difference(base_ns: int, causes: dict[str, int]) -> Result:
    rows = [
        {"name": name, "kind": "kernel", "part": "compute", "difference_ns": ns, "state": ""}
        for name, ns in causes.items()
    ]
    new_ns = base_ns + sum(causes.values())
    parts = [{"part": "compute", "base_ns": base_ns, "new_ns": new_ns}]
    tables = {"parts": Table.of_rows(parts), "causes": Table.of_rows(rows)}
    scalars = {"base_ns": base_ns, "new_ns": new_ns, "per": "step"}
    return Result("difference", _SPEC, tables, scalars)


def _bars(html: str) -> dict[str, tuple[float, float]]:
    """Return beginning and width of each bar, by its words."""
    found = re.findall(
        r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)"[^>]*><title>([^:<]*):', html
    )
    return {words: (float(x), float(width)) for x, width, words in found}


def test_bars_are_to_scale_where_causes_can_be_seen() -> None:
    html = waterfall_chart(_difference(100 * MS, {"gemm": 20 * MS, "copy": -10 * MS}))
    bars = {words: width for words, (_, width) in _bars(html).items()}
    assert bars["gemm"] == pytest.approx(bars["base"] / 5, rel=0.01)
    assert bars["copy"] == pytest.approx(bars["gemm"] / 2, rel=0.01)
    assert bars["new"] == pytest.approx(1.1 * bars["base"], rel=0.01)
    assert 'class="break"' not in html
    assert "broken" not in html


def test_a_whole_is_never_shorter_than_a_cause_and_a_broken_axis_is_drawn_broken() -> None:
    html = waterfall_chart(_difference(1_097 * MS, {"gemm": 2_348_000, "copy": -1_000_000}))
    bars = {words: width for words, (_, width) in _bars(html).items()}
    assert min(bars["base"], bars["new"]) > bars["gemm"] > bars["copy"] > 0
    assert bars["gemm"] == pytest.approx(2.348 * bars["copy"], rel=0.02)
    assert html.count('class="break"') == 2
    assert "The axis is broken: it starts at 1.0" in html


def _nodes() -> Result:
    rows = [
        {"run": "a<b", "rank": str(rank), "mode": "forward+backward", "ranks": "synchronized"}
        | {"round_ns": 20.0 * MS, "forward_ns": 5.0 * MS, "backward_ns": 10.0 * MS}
        | {"other_ns": 5.0 * MS, "waited_ns": rank * 4.0 * MS}
        for rank in range(2)
    ]
    return Result(NODES_NAME, NODES_SPEC, {"nodes": Table.of_rows(rows)})


def test_a_round_of_each_rank_is_drawn_by_its_phases() -> None:
    html = nodes_chart(_nodes())
    widths = {words: width for words, (_, width) in _bars(html).items()}
    assert {*widths} == {"a&lt;b, rank 0", "a&lt;b, rank 1"}
    titles = re.findall(r"<title>([^<]*)</title>", html)
    assert "a&lt;b, rank 1: backward 10.00 ms" in titles
    assert [title for title in titles if "waits" in title] == [
        "a&lt;b, rank 1: waits for other ranks 4.000 ms"
    ]
    assert nodes_chart(replace(_nodes(), tables={"nodes": Table({"round_ns": []})})) == ""


def test_a_page_begins_with_the_answer_then_the_chart_then_what_is_doubtful() -> None:
    found = Comparison(
        "runs",
        {NODES_NAME: _nodes()},
        verdict=(Note("one is slower"),),
        notes=(Note("warm-up is left out"),),
        warnings=(Note("a clock is wrong"),),
    )
    html = render("html", found, Options())
    places = [
        html.index(part)
        for part in ("one is slower", "<svg", "a clock is wrong", "warm-up is left out", "<table")
    ]
    assert places == sorted(places)
