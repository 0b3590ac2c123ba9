"""Metrics of training beside one another."""

from __future__ import annotations

from typing import Any

import pytest

from tests.comparison.test_accuracy import a_run
from traceprof.comparison.comparing import compare


def metrics(base: list[list[float]], new: list[list[float]], metric: str = "top1") -> Any:
    sides = [[a_run(str(i), own, metric=metric) for i, own in enumerate(s)] for s in (base, new)]
    return compare(sides[0], sides[1]).results["metrics"].table.to_frame().to_dict("records")


def test_last_and_best_of_both() -> None:
    (row,) = metrics([[0.5, 0.7, 0.6]], [[0.5, 0.8]])
    assert (row["base_last"], row["new_last"], row["base_best"], row["new_best"]) == (
        *(0.6, 0.8, 0.7, 0.8),
    )
    assert row["best_difference"] == pytest.approx(0.1)
    assert (row["base_epoch"], row["new_epoch"], row["verdict"]) == (3, 2, "")


@pytest.mark.parametrize(("metric", "verdict"), [("top1", "better"), ("val_loss", "worse")])
def test_several_runs_of_each_are_judged(metric: str, verdict: str) -> None:
    base, new = [[0.50], [0.51], [0.49]], [[0.70], [0.71], [0.69]]
    assert metrics(base, new, metric)[0]["verdict"] == verdict
    assert metrics(base, base[::-1], metric)[0]["verdict"] == "no difference shown"


def test_what_one_side_lacks_and_speeds_are_left_out() -> None:
    found = compare([a_run("a", [0.5])], [a_run("b", [0.5], metric="val_loss")])
    assert "metrics" not in found.results
    found = compare([a_run("a", [5.0], metric="step_period_ns")] * 1,
                    [a_run("b", [6.0], metric="step_period_ns")])  # fmt: skip
    assert "metrics" not in found.results
