"""Runs against runs by what of the hardware they reach, take and cost."""

from __future__ import annotations

from tests.summaries import make_summary, measures_table
from traceprof.comparison.comparing import compare
from traceprof.render.formatting import sentences


def test_mfu_energy_and_cost_of_both_are_told() -> None:
    runs = []
    for name, mfu, joules, cost in (("a", 0.2, 40.0, 2e-5), ("b", 0.25, 30.0, 1e-5)):
        known = make_summary(name)
        told = {"mfu_ratio": (mfu, "ratio"), "step_joules": (joules, "number")}
        told |= {"step_cost": (cost, "number"), "step_period_ns": (1e7, "ns")}
        runs.append(make_summary(name, tables={**known.tables, "measures": measures_table(told)}))
    said = sentences(compare([runs[0]], [runs[1]], []).notes)
    assert any("MFU is 25.0% of the dense peak (base 20.0%)" in words for words in said)
    assert any("A step takes 30 J (base 40 J)" in words for words in said)
    assert any("1,000 steps cost 0.01 at the given price (base 0.02)" in words for words in said)


def test_what_one_side_alone_knows_is_not_compared() -> None:
    known = make_summary("a")
    told = {"mfu_ratio": (0.2, "ratio"), "step_period_ns": (1e7, "ns")}
    one = make_summary("a", tables={**known.tables, "measures": measures_table(told)})
    assert not any(
        "MFU" in words for words in sentences(compare([one], [make_summary("b")], []).notes)
    )


def test_shares_of_the_peak_that_print_as_zero_are_not_compared() -> None:
    runs = []
    for name, mfu in (("a", 0.0002), ("b", 0.0004)):
        told = {"mfu_ratio": (mfu, "ratio"), "step_period_ns": (1e7, "ns")}
        tables = {**make_summary(name).tables, "measures": measures_table(told)}
        runs.append(make_summary(name, tables=tables))
    said = sentences(compare([runs[0]], [runs[1]], []).notes)
    assert not any("MFU" in words for words in said)
