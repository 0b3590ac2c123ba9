"""Rooflines: operators as points under the peaks, of one run and of two in one."""

from __future__ import annotations

import pytest

from tests.builders import TraceBuilder
from tests.measures.compute.test_rates import FLOP, PRODUCT, built
from tests.measures.compute.test_utilization import H100, HALF
from tests.render.figures import figures_in, traces_in
from tests.running import run
from tests.summaries import make_summary
from traceprof.comparison import Comparison
from traceprof.comparison.comparing import compare
from traceprof.model.ranks import Ranks
from traceprof.model.results import Result
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace
from traceprof.render.charts.roofline import roofline_figure, roofline_of_two_runs
from traceprof.render.report.figures import rooflines
from traceprof.render.report.places import PageContext

ADDITION = ([[1000, 1000]] * 2 + [[]], [HALF, HALF, "Scalar"], ["", "", "1"])
STEPS = 3
"""Steps of `make_summary`, on one device."""


def product(length_ns: int, gpu: str = H100) -> Trace:
    return (
        TraceBuilder()
        .device(0, name=gpu)
        .host_op("aten::mm", 0, 100, inputs=PRODUCT)
        .kernel("nvjet_tst_gemm", 1000, 1000 + length_ns, launched_ns=(10, 20))
        .build()
    )


def of_both(base: Trace, new: Trace) -> Comparison:
    runs = [
        make_summary(name, results={"flops": run("flops", trace)})
        for name, trace in (("a", base), ("b", new))
    ]
    return compare(runs[:1], runs[1:])


def flops_of(found: Comparison) -> Result:
    return found.results["flops"]


def test_a_point_is_what_an_operator_reaches_below_the_roof_of_its_precision() -> None:
    drawn = traces_in(roofline_figure(run("flops", built().build()), {}))
    assert list(drawn) == ["bf16: 989.4 TFLOP/s", "bf16", "memory-bound, no FLOPs"]
    assert drawn["bf16"]["x"] == [pytest.approx(FLOP / 6e6, rel=1e-5)]
    assert drawn["bf16"]["y"] == [400.0]
    (hover,) = drawn["bf16"]["text"]
    assert hover.split("<br>")[:2] == ["aten::mm", "400.0 TFLOP/s, 40.4% of peak"]
    roof = drawn["bf16: 989.4 TFLOP/s"]
    assert roof["x"][1] == pytest.approx(989.4e12 / 3350e9, rel=1e-5)
    assert roof["y"][1:] == [989.4, 989.4]


def test_operators_without_flops_are_at_the_rate_of_their_bytes() -> None:
    drawn = traces_in(roofline_figure(run("flops", built().build()), {}))
    point = drawn["memory-bound, no FLOPs"]
    edge = drawn["bf16: 989.4 TFLOP/s"]["x"][0]
    assert point["x"] == [edge]
    assert point["y"] == [pytest.approx(6e6 / 3e-6 * edge / 1e12)]
    assert point["text"][0].split("<br>")[0] == "aten::add"
    assert "59.7% of peak" in point["text"][0]


def test_points_that_matter_have_labels_and_others_do_not() -> None:
    builder = built().host_op("aten::bmm", 300, 400, inputs=([[1, 2, 2]] * 2, [HALF] * 2, []))
    builder.kernel("small_gemm", 12_000, 12_010, launched_ns=(310, 320))
    html = roofline_figure(run("flops", builder.build()), {})
    (figure,) = figures_in(html).values()
    labels = [note["text"] for note in figure["layout"]["annotations"]]
    assert labels == ["mm", "add"]


def test_a_point_says_where_its_longest_kernel_is_and_leads_there() -> None:
    trace = (
        TraceBuilder()
        .process(1, rank=0)
        .device(0, name=H100)
        .step(0, 20_000, 4)
        .step(20_000, 90_000, 5)
        .host_op("aten::mm", 0, 100, inputs=PRODUCT)
        .kernel("nvjet_tst_gemm", 1_000, 3_000, launched_ns=(10, 20))
        .host_op("aten::mm", 30_000, 30_100, inputs=PRODUCT)
        .kernel("nvjet_tst_gemm", 40_000, 44_000, launched_ns=(30_010, 30_020))
        .host_op("aten::add", 50_000, 50_100, inputs=ADDITION)
        .kernel("add_kernel", 60_000, 63_000, launched_ns=(50_010, 50_020))
        .build(span=(0, 100_000))
    )
    whole = Ranks.of(trace)
    page = PageContext(whole, whole.span, TimeWindow(0, 50_000), {1: 0})
    for name, key in (("flops", "bf16"), ("flops-kernels", "bf16")):
        drawn = traces_in(rooflines(run(name, trace), page))
        (hover,) = drawn[key]["text"]
        assert hover.split("<br>")[-1] == "longest: 4.000 µs at 40.00 µs (step 5)"
        (link,) = drawn[key]["meta"]["links"]
        assert "mark=40000..44000" in link
        # The timeline of the page ends before the addition.
        (other,) = drawn["memory-bound, no FLOPs"]["text"]
        assert other.split("<br>")[-1] == "longest: 3.000 µs at 60.00 µs (step 5)"
        assert drawn["memory-bound, no FLOPs"]["meta"]["links"] == [""]


def moved(length_ns: int) -> Trace:
    """Return a product, and an addition of ``length_ns``."""
    return (
        TraceBuilder()
        .device(0, name=H100)
        .host_op("aten::mm", 0, 100, inputs=PRODUCT)
        .kernel("nvjet_tst_gemm", 1_000, 5_000, launched_ns=(10, 20))
        .host_op("aten::add", 200, 300, inputs=ADDITION)
        .kernel("add_kernel", 6_000, 6_000 + length_ns, launched_ns=(210, 220))
        .build()
    )


def test_operators_of_both_runs_without_flops_are_at_the_rate_of_their_bytes() -> None:
    drawn = traces_in(roofline_of_two_runs(of_both(moved(3_000), moved(6_000)).results))
    base, new = (drawn[f"{side} memory-bound, no FLOPs"] for side in ("base", "new"))
    assert [point["marker"]["symbol"] for point in (base, new)] == ["diamond-open", "diamond"]
    assert base["y"] == [pytest.approx(2 * new["y"][0])]
    # 6 MB in 3 µs of 3,350 GB/s.
    assert base["text"][0].split("<br>")[:2] == ["base: aten::add", "2.000 TB/s, 59.7% of peak"]
    assert new["text"][0].split("<br>")[1] == "1.000 TB/s, 29.9% of peak"


def test_without_flops_there_is_no_roofline() -> None:
    trace = TraceBuilder().device(0, name=H100).host_op("my::gemm", 0, 9, inputs=PRODUCT)
    trace = trace.kernel("cutlass_gemm", 1000, 2000, launched_ns=(1, 2))
    assert roofline_figure(run("flops", trace.build()), {}) == ""


def test_operators_of_two_runs_are_beside_one_another_by_step() -> None:
    (row,) = flops_of(of_both(product(4000), product(8000))).table.rows()
    assert (row["operator"], row["precision"], row["state"]) == ("aten::mm", "bf16", "changed")
    assert (row["base_ns"], row["new_ns"]) == (4000 / STEPS, 8000 / STEPS)
    assert row["base_flop"] == row["new_flop"] == FLOP / STEPS
    assert row["base_achieved_flop_per_s"] == pytest.approx(FLOP / 4e-6)
    assert row["new_achieved_flop_per_s"] == pytest.approx(FLOP / 8e-6)
    assert row["base_intensity"] == pytest.approx(FLOP / 6e6)


def test_two_runs_are_in_one_roofline_under_one_roof_where_it_is_the_same() -> None:
    html = roofline_of_two_runs(of_both(product(4000), product(8000)).results)
    drawn = traces_in(html)
    assert list(drawn) == ["bf16: 989.4 TFLOP/s", "base bf16", "new bf16"]
    assert drawn["base bf16"]["y"] == [500.0]
    assert drawn["new bf16"]["y"] == [250.0]
    assert drawn["base bf16"]["marker"]["symbol"] != drawn["new bf16"]["marker"]["symbol"]
    (hover,) = drawn["new bf16"]["text"]
    assert hover.split("<br>") == [
        "new: aten::mm",
        "250.0 TFLOP/s, 25.3% of peak",
        "333.3 FLOP per byte",
        "0.3333 kernels, 2.667 µs per step and GPU",
    ]


def test_other_gpus_have_roofs_of_their_own() -> None:
    found = of_both(product(4000), product(8000, "NVIDIA A100-SXM4-80GB"))
    drawn = traces_in(roofline_of_two_runs(found.results))
    assert list(drawn)[:2] == ["base bf16: 989.4 TFLOP/s", "new bf16: 312.0 TFLOP/s"]
    assert drawn["new bf16"]["text"][0].split("<br>")[1] == "250.0 TFLOP/s, 80.1% of peak"


def test_a_run_without_shapes_is_in_no_roofline_of_two() -> None:
    known = make_summary("a", results={"flops": run("flops", product(4000))})
    assert "flops" not in compare([known], [make_summary("b")]).results
