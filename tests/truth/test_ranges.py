"""The range, bound, or measured value of a finding holds the saving that was planted."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

from tests.truth.scenarios import SCENARIOS, Scenario
from tests.truth.varied import VARIED
from traceprof.findings.rules import MINOR_RATIO
from traceprof.measures.steps.find import decide_steps
from traceprof.session.run import Run, run_of

PLANTED = {one.name: one for one in (*SCENARIOS, *VARIED) if one.rules and one.healthy}
MEASURED_RATIO = 0.05
DIGITS_RATIO = 0.005
"""A page shows three digits of a saving."""
MIN_RATIO = 0.9


@cache
def run_named(name: str) -> Run:
    return run_of(decide_steps(PLANTED[name].ranks))


def first_finding(scenario: Scenario) -> Mapping[str, Any]:
    """Return the first finding that is not minor and that the healthy run does not have."""
    rows = run_named(scenario.name).result("findings").table.rows()
    healthy = scenario.healthy_rules
    return next(row for row in rows if row["rule"] not in healthy and not row["is_minor"])


@cache
def true_ns(name: str) -> float:
    """Return the true saving over the steps that the report counts."""
    steps = run_named(name).result("steps").table.to_frame()
    first = steps.loc[steps["kind"].isin(("usual", "slow", "checkpoint")), "step"].min()
    return PLANTED[name].saving_ns(int(first))


def holds(name: str, unsure: float = DIGITS_RATIO) -> bool:
    """Return whether the first finding holds the truth, to ``unsure`` of its ends."""
    row, saved_ns = first_finding(PLANTED[name]), true_ns(name)
    if row["kind"] == "measured":
        return bool(abs(row["saving_ns"] - saved_ns) <= MEASURED_RATIO * saved_ns)
    if row["kind"] == "none":
        return bool(saved_ns < MINOR_RATIO * row["base_ns"])
    ends = row["min_saving_ns"], row["max_saving_ns"]
    least_ns, most_ns = ends if row["kind"] == "estimated" else (0, row["saving_ns"])
    return bool(least_ns * (1 - unsure) <= saved_ns <= most_ns * (1 + unsure))


@pytest.mark.parametrize("names", [[one.name for one in VARIED], list(PLANTED)], ids=len)
def test_nine_of_ten_hold_the_truth(names: list[str]) -> None:
    missed = [name for name in names if not holds(name)]
    assert len(missed) <= (1 - MIN_RATIO) * len(names), missed


@pytest.mark.parametrize("scenario", VARIED, ids=lambda one: one.name)
def test_what_was_planted_is_found(scenario: Scenario) -> None:
    assert first_finding(scenario)["rule"] in scenario.rules
