"""What was planted is found first, with what it costs, and nothing else is."""

import re
from dataclasses import replace

import pytest

from tests.truth.judged import document_of, result, run_named
from tests.truth.machine import MS
from tests.truth.scenarios import HEALTHY, SCENARIOS, Scenario, every_other, one, period_ns
from traceprof.comparison.comparing import compare
from traceprof.comparison.summary.summarize import summarize
from traceprof.measures.steps.costs import one_off_costs
from traceprof.measures.steps.find import decide_steps
from traceprof.render.formatting import note_text
from traceprof.render.registry import Options, render
from traceprof.session.run import run_of

NEAR = 0.1
SURE_NS = 100_000


def saving_ns(scenario: Scenario) -> float:
    """Return the true saving over the steps that a finding counts: the report names the first."""
    steps = result(scenario.name, "steps").table.to_frame()
    return scenario.saving_ns(int(steps.loc[steps["kind"].isin(("usual", "slow")), "step"].min()))


def said(scenario: Scenario):
    """Return the findings that claim at least 1%, the first first."""
    found = result(scenario.name, "findings").table
    return found.take(~found["is_minor"].astype(bool))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.name)
def test_what_was_planted_is_found_and_nothing_else(scenario):
    found = said(scenario)
    found = found.take([rule not in scenario.healthy_rules for rule in found["rule"].tolist()])
    rules = found["rule"].tolist()
    assert not set(rules) - {*scenario.rules, *scenario.also}, rules
    if not scenario.rules:
        return
    assert rules, "nothing was found"
    first = found.row(0)
    assert first["rule"] in scenario.rules, rules
    if scenario.subject:
        told = " ".join([note_text(first["title"]), *map(note_text, first["evidence"])])
        assert scenario.subject in told
    if scenario.healthy and not scenario.is_ranged:
        true_ns = saving_ns(scenario)
        off = abs(first["saving_ns"] - true_ns)
        assert off <= max(NEAR * true_ns, SURE_NS), (first["saving_ns"], true_ns)


SAYS = re.compile(
    r"[Ss]aves +(up to |about |)(\d[\d.,]* \S+) of [\d.,]+ \S+ per step(?: including slow steps)? "
    r"\([\d.]+%(?:, \w+)?(?:, range ([\d.,]+(?: \S+?)?)–([\d.,]+ \S+?))?\)"
)
"""What a page says that a finding saves, and the range of an estimate."""
UNITS = {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}


def ns_of(words: str) -> float:
    number, _, unit = words.rpartition(" ")
    return float(number.replace(",", "")) * UNITS[unit]


@pytest.mark.parametrize(
    "scenario",
    [one for one in SCENARIOS if one.rules and one.healthy],
    ids=lambda one: one.name,
)
def test_at_most_is_never_exceeded_and_about_lies_in_its_range(scenario):
    text = render("text", document_of(scenario.name), Options(width=300))
    found = SAYS.search(text)
    assert found, text
    true_ns, (kind, said, least, most) = saving_ns(scenario), found.groups()
    # One step of some 30 has none before it that could be in trouble.
    unsure = max(SURE_NS, true_ns / 23)
    if kind == "up to ":
        assert true_ns <= ns_of(said) + unsure
    elif kind == "about ":
        assert least, "an estimate without a range"
        least = least if " " in least else f"{least} {most.rpartition(' ')[2]}"
        assert ns_of(least) - unsure <= true_ns <= ns_of(most) + unsure
    else:
        assert abs(true_ns - ns_of(said)) <= max(NEAR * true_ns, SURE_NS)


CASES = {
    "input_bound": "data loading free",
    "launch_bound": "launch gaps closed",
    "host_code": "host code free",
    "host_sync": "synchronization free",
    "exposed_communication": "communication fully hidden",
}


@pytest.mark.parametrize(
    "scenario",
    [one for one in SCENARIOS if one.healthy and CASES.keys() & {*one.rules}],
    ids=lambda one: one.name,
)
def test_what_if_is_never_exceeded(scenario):
    cases = result(scenario.name, "whatif").table
    gains = dict(zip(cases["case"], cases["gain_ns"], strict=True))
    true_ns = saving_ns(scenario)
    unsure = max(SURE_NS, true_ns / 23)
    (rule,) = [rule for rule in scenario.rules if rule in CASES]
    assert true_ns <= gains[CASES[rule]] + unsure


@pytest.mark.parametrize(
    "scenario", [one for one in SCENARIOS if one.once], ids=lambda one: one.name
)
def test_what_is_paid_once_is_listed_apart(scenario):
    costs = one_off_costs(run_named(scenario.name).of_ranks())
    assert costs["kind"][costs["outside_ns"] > 0].tolist() == [scenario.once]


@pytest.mark.parametrize(
    "scenario", [one for one in SCENARIOS if one.occasion], ids=lambda one: one.name
)
def test_what_is_done_now_and_then_is_told_apart_with_what_it_costs(scenario):
    verdict = document_of(scenario.name).verdict
    assert verdict
    told = [*verdict.periodic, *verdict.once]
    assert [note.values["kind"] for note in told] == [scenario.occasion]
    values = told[0].values
    steps = result(scenario.name, "steps").table.to_frame()
    # The last one follows the last GPU work, so host periods are compared.
    assert scenario.healthy
    each_ns = period_ns(scenario.ranks) - period_ns(scenario.healthy())
    planted_ns = each_ns * (steps["step"].nunique() - 1)
    assert abs(values["each"] * values["n"] - planted_ns) <= NEAR * planted_ns
    assert verdict.bound_by == "GPU-bound"
    assert verdict.parts["compute"] > 0.9
    left_out = document_of(scenario.name).selection.notes
    assert any(scenario.occasion in note_text(note) for note in left_out)
    assert not any("slow" in note_text(note) for note in verdict.sentences)


def test_how_far_the_device_lags_behind_the_host_is_said():
    (scenario,) = [one for one in SCENARIOS if one.name == "clean_device_lag"]
    steps = result(scenario.name, "steps")
    # Four steps ahead; a range of the host ends where it waits for the first of them.
    assert 2.9 <= steps.scalars["lag_ns"] / steps.scalars["median_ns"] <= 4
    assert any("lag" in note_text(note) for note in steps.notes)


def test_a_loader_on_another_thread_makes_no_step_slow():
    (scenario,) = [one for one in SCENARIOS if one.name == "clean_gpu_loader_on_another_thread"]
    verdict = document_of(scenario.name).verdict
    assert verdict.bound_by == "GPU-bound"
    told = [note_text(note) for note in verdict.sentences]
    assert any(re.search(r"mean of \d+ steps", text) for text in told)
    assert not any("slow" in text for text in told)


RATES = {
    "clean": 1,
    "clean_4_ranks": 4,
    "bimodal_steps_every_other_of_which_waits_for_data": 1,
    "structural_wait_between_steps": 1,
}


@pytest.mark.parametrize(
    "scenario", [one for one in SCENARIOS if one.name in RATES], ids=lambda one: one.name
)
def test_steps_and_samples_a_second_are_of_one_base_and_those_that_were_planted(scenario):
    verdict = document_of(scenario.name).verdict
    (values,) = [note.values for note in verdict.sentences if "per_s" in note.values]
    assert values["rate"] == pytest.approx(values["per_s"] * 32 * RATES[scenario.name])
    # Of 30 steps 28 periods are planted, of which 2 may hold all pauses.
    assert values["per_s"] == pytest.approx(1e9 / period_ns(scenario.ranks), rel=2 / 28)


def alternating(wait_ns: int, seed: int = 0):
    """Return what is kept of a run of which every other step waits for data."""
    ranks = one(replace(HEALTHY, fetch=every_other(wait_ns)), seed=seed)()
    return summarize(run_of(decide_steps(ranks)), name=f"{wait_ns // MS} ms"), period_ns(ranks)


def test_runs_that_alternate_differ_as_they_were_planted():
    (slow, slow_ns), (fast, fast_ns) = alternating(1_200 * MS), alternating(500 * MS)
    told = " ".join(map(note_text, compare([slow], [fast]).verdict))
    assert "500 ms is faster than 1200 ms" in told
    times = re.search(r"([\d.]+)× the samples per second", told)
    assert times, told
    assert float(times[1]) == pytest.approx(slow_ns / fast_ns, rel=NEAR)
    assert "means of groups of 2 steps" in told
    assert "No difference" not in told


def test_runs_that_alternate_alike_do_not_differ():
    (first, _), (again, _) = alternating(1_200 * MS), alternating(1_200 * MS, seed=5)
    told = " ".join(map(note_text, compare([first], [again]).verdict))
    assert "is not significant" in told
