"""The order of runs, with a program that is made up: what runs when, and what ends it."""

import sys

import numpy as np
import pytest

from traceprof.errors import RecordingError
from traceprof.render.formatting import sentences
from traceprof.trying import experiment as module
from traceprof.trying.answer import TryRequest, try_changes
from traceprof.trying.answer import _change_row as change_row
from traceprof.trying.answer import _tried_advice as tried_advice
from traceprof.trying.answer import _verdict as verdict_of
from traceprof.trying.changes import expected_savings, parse_changes, predicted_ratio
from traceprof.trying.experiment import Wanted, experiment, pilot
from traceprof.trying.judged import ALIKE, FASTER, MEMORY, SLOWER, UNDECIDED
from traceprof.trying.runs import FAILED, HANGS, InterruptedTryingError, TriedRun, TryPlan

MB = 1_000_000
PLAN = TryPlan(["python", "train.py"], 0, 0)


class Program:
    """Steps of 100 ms; each change takes its share of them, or does as it is told."""

    def __init__(
        self, savings, *, noise=0.002, available=10_000, interrupt_at=None, drift=0.0, scatter=0.01
    ):
        self.savings, self.noise, self.available = savings, noise, available
        self.interrupt_at, self.drift, self.scatter = interrupt_at, drift, scatter
        self.clock_s = 0.0
        self.peaks = {"bf16": 40 * MB, "channels_last": 300 * MB, "fp16": -400 * MB}
        self.calls = []
        self.plans = []
        self.chance = np.random.default_rng(1)

    def __call__(self, plan, changes=()):
        names = [one.text for one in changes]
        self.calls.append(" + ".join(names))
        self.plans.append(plan)
        if len(self.calls) == self.interrupt_at:
            raise InterruptedTryingError
        self.clock_s += 2.0
        step_ns = 1e8 * (1 + self.drift * len(self.calls))
        step_ns *= self.chance.normal(1, self.noise)  # the process
        for name in names:
            saving = self.savings[name]
            if isinstance(saving, str):
                return TriedRun(changes, failure=saving, reason="as planted")
            step_ns *= 1 - saving
        n_steps = max(0, min(plan.n_steps, self.available - plan.warmup))
        steps = self.chance.normal(step_ns, self.scatter * step_ns, n_steps)
        return TriedRun(
            changes,
            step_ns=steps,
            is_whole=n_steps == plan.n_steps,
            peak_bytes=sum(self.peaks.get(name, 0) for name in names) + 1000 * MB,
            steps_count=min(plan.warmup + plan.n_steps, self.available),
            took_s=2.0,
        )


def tried(monkeypatch, savings, *, wanted=None, **more):
    program = Program(savings, **more)
    monkeypatch.setattr(module, "run_once", program)
    monkeypatch.setattr(module.time, "monotonic", lambda: program.clock_s)
    wanted = wanted or Wanted(n_steps=30)
    first = pilot(PLAN, wanted)
    found = experiment(PLAN, wanted, first, parse_changes(list(savings)), {})
    return program, {one.name: one for one in found.outcomes()}, found


def test_every_round_runs_each_change_once_and_the_next_in_reverse_order(monkeypatch):
    program, found, _ = tried(monkeypatch, {"bf16": 0.0, "tf32": 0.0})
    first = ["", "bf16", "tf32"]
    assert program.calls == ["", *first, *reversed(first), *first]
    assert {one.verdict for one in found.values()} == {ALIKE}


def test_a_steady_drift_favors_no_change(monkeypatch):
    """Each run takes 1% longer than the previous one. The last change of a round would be slow."""
    changes = {"bf16": 0.0, "tf32": 0.0, "channels_last": 0.0, "set_to_none": 0.0}
    _, found, _ = tried(monkeypatch, changes, drift=0.01)
    assert not {FASTER, SLOWER} & {one.verdict for one in found.values()}


def test_changes_that_save_are_tried_together(monkeypatch):
    _, found, _ = tried(monkeypatch, {"bf16": 0.5, "tf32": 0.0, "channels_last": 0.2})
    assert found["bf16"].saving_ratio == pytest.approx(0.5, abs=0.02)
    both = found["bf16 + channels_last"]
    assert both.saving_ratio == pytest.approx(0.6, abs=0.02)
    assert "bf16 + tf32" not in found


def test_what_fails_is_not_run_again_and_harms_nobody(monkeypatch):
    program, found, _ = tried(monkeypatch, {"bf16": HANGS, "fp16": FAILED, "tf32": 0.3})
    assert program.calls.count("bf16") == program.calls.count("fp16") == 1
    assert found["bf16"].verdict == HANGS
    assert found["tf32"].verdict == FASTER


def test_a_combination_that_fails_leaves_the_best_alone(monkeypatch):
    program = Program({"bf16": 0.5, "tf32": 0.3})

    def once(plan, changes=()):
        if len(changes) > 1:
            program.calls.append("both")
            return TriedRun(changes, failure=FAILED, reason="not together")
        return program(plan, changes)

    monkeypatch.setattr(module, "run_once", once)
    wanted = Wanted(n_steps=30)
    found = experiment(PLAN, wanted, pilot(PLAN, wanted), parse_changes(["bf16,tf32"]), {})
    assert program.calls.count("both") == 1
    assert {one.name: one.verdict for one in found.outcomes()}["bf16 + tf32"] == FAILED


def test_runs_that_differ_need_more_rounds(monkeypatch):
    program, found, whole = tried(monkeypatch, {"bf16": 0.0}, noise=0.4)
    assert program.calls.count("bf16") == 12
    assert found["bf16"].verdict == UNDECIDED
    assert "--runs" in found["bf16"].undecided.text
    assert len(whole.base) == 12


def test_noise_asks_for_more_steps(monkeypatch):
    calm, _, _ = tried(monkeypatch, {"bf16": 0.0}, wanted=Wanted(minutes=1000))
    loud, _, _ = tried(monkeypatch, {"bf16": 0.0}, wanted=Wanted(minutes=1000), scatter=0.2)
    assert calm.plans[-1].n_steps == 20
    assert loud.plans[-1].n_steps > 60


def test_a_short_program_is_measured_as_long_as_it_goes(monkeypatch):
    program, found, whole = tried(monkeypatch, {"bf16": 0.5}, wanted=Wanted(), available=14)
    assert program.plans[-1].warmup + program.plans[-1].n_steps == 14
    assert found["bf16"].verdict == FASTER
    assert any("runs 14 steps" in remark for remark in whole.remarks)


@pytest.mark.parametrize(("minutes", "calls"), [(0, [""]), (0.2, ["", "", "bf16", "bf16", ""])])
def test_the_time_limit_includes_the_first_run(monkeypatch, minutes, calls):
    """A run takes 2 s: 0.2 minutes are the first run and two rounds."""
    program, found, _ = tried(
        monkeypatch, {"bf16": 0.5}, noise=0.01, wanted=Wanted(n_steps=30, minutes=minutes)
    )
    assert program.calls == calls
    assert program.clock_s <= max(2, minutes * 60)
    assert found["bf16"].verdict == UNDECIDED
    assert "are necessary (--minutes" in found["bf16"].undecided.text
    assert found["bf16"].undecided.values["minutes"] == 1


def test_more_minutes_as_advised_decide(monkeypatch):
    savings, wanted = {"bf16": 0.5, "tf32": 0.0}, Wanted(n_steps=30, minutes=0.1)
    _, found, _ = tried(monkeypatch, savings, wanted=wanted)
    minutes = max(one.undecided.values["minutes"] for one in found.values())
    _, found, _ = tried(monkeypatch, savings, wanted=Wanted(n_steps=30, minutes=minutes))
    assert {one.verdict for one in found.values()} == {FASTER, ALIKE}


def test_the_largest_expected_saving_comes_first_and_short_time_is_not_split(monkeypatch):
    """8 runs of 2 s are one change with three runs of each, not three changes with one run."""
    program = Program({"tf32": 0.0, "channels_last": 0.0, "bf16": 0.3})
    monkeypatch.setattr(module, "run_once", program)
    monkeypatch.setattr(module.time, "monotonic", lambda: program.clock_s)
    wanted = Wanted(n_steps=30, minutes=16 / 60)
    changes = parse_changes(["tf32,channels_last,bf16"])
    predicted = {"layout_conversion": 0.1, "precision": 0.2}
    found = experiment(PLAN, wanted, pilot(PLAN, wanted), changes, predicted)
    assert program.calls == ["", "", "tf32", "tf32", "", "", "tf32"]
    verdicts = {one.name: one.verdict for one in found.outcomes()}
    assert verdicts == {"tf32": ALIKE, "bf16": UNDECIDED, "channels_last": UNDECIDED}


def test_waiting_for_batches_in_the_first_run_brings_workers_first():
    facts = {"fetch_ratio": 0.6}
    (workers, layout) = parse_changes(["workers=2,channels_last"])
    expected = expected_savings(facts, {"layout_conversion": 0.3})
    assert predicted_ratio(workers, expected) == 0.6
    assert predicted_ratio(layout, expected) == 0.3


def test_an_interrupt_leaves_what_was_measured(monkeypatch):
    _, found, whole = tried(monkeypatch, {"bf16": 0.5, "tf32": 0.1}, interrupt_at=10)
    assert whole.is_interrupted
    assert found["bf16"].verdict == FASTER
    assert any("interrupted" in remark for remark in whole.remarks)


def test_an_interrupt_of_the_first_run_is_said(monkeypatch):
    with pytest.raises(RecordingError, match="interrupted before the first measurement"):
        tried(monkeypatch, {"bf16": 0.5}, interrupt_at=1)


def test_a_program_that_fails_by_itself_is_refused(monkeypatch):
    monkeypatch.setattr(module, "run_once", lambda *_: TriedRun(failure=FAILED, reason="exit 3"))
    with pytest.raises(RecordingError, match=r"the unchanged program failed \(fails\): exit 3"):
        pilot(PLAN, Wanted())


def test_only_decided_changes_are_measured_savings_of_a_trace(monkeypatch):
    """A page of the trace says "saved": nothing that one run of each shows may be there."""
    savings = {"bf16": 0.5, "workers=2": 0.4}
    _, _, decided = tried(monkeypatch, savings)
    _, _, undecided = tried(monkeypatch, savings, wanted=Wanted(n_steps=30, minutes=0.2))
    measured = {one.rule: one.saving_ratio for one in tried_advice(decided)}
    assert measured["precision"] == pytest.approx(0.5, abs=0.02)
    assert measured["input_bound"] == pytest.approx(0.4, abs=0.02)
    assert list(tried_advice(undecided)) == []


def said(found):
    """Return the sentences of the verdict, without the notes on the measurement."""
    return list(sentences(list(verdict_of(found, found.outcomes()))))


def test_a_saving_says_what_it_costs_and_a_slower_change_is_a_sentence(monkeypatch):
    _, _, found = tried(monkeypatch, {"channels_last": 0.5, "tf32": -0.25, "gc_freeze": 0.0})
    lines = said(found)
    assert lines[0].startswith("channels_last saves ")
    assert "3 runs of each" in lines[0]
    assert "peak memory grows by 30.0%, from 1.00 GB to 1.30 GB" in lines
    (slower,) = [line for line in lines if line.startswith("tf32 makes a step")]
    assert " longer: 2" in slower
    assert lines[-1].startswith("no significant difference, at most ")


def test_memory_within_the_scatter_of_runs_is_not_reported(monkeypatch):
    _, _, found = tried(monkeypatch, {"bf16": 0.5})
    assert not any("memory" in line for line in said(found))


def test_without_time_no_sentence_claims_an_effect(monkeypatch):
    _, _, found = tried(monkeypatch, {"bf16": 0.5}, wanted=Wanted(n_steps=30, minutes=0))
    assert said(found) == ["not decided: bf16; not run; at least 3 are necessary (--minutes 1)"]


def test_with_the_goal_memory_the_verdict_is_about_bytes(monkeypatch):
    savings = {"bf16": 0.5, "channels_last": 0.0, "fp16": 0.0}
    _, _, found = tried(monkeypatch, savings, wanted=Wanted(goal=MEMORY))
    lines = said(found)
    assert lines[0].startswith("fp16 saves 400 MB of 1.00 GB of peak memory: 40.0%")
    assert any(line.startswith("channels_last needs 30.0% more memory: 300 MB") for line in lines)
    assert not any("per step" in line for line in lines)
    rows = {outcome.name: change_row(found, outcome) for outcome in found.outcomes()}
    assert (rows["fp16"]["saving_bytes"], rows["fp16"]["memory_bytes"]) == (400 * MB, 600 * MB)
    assert rows["bf16"]["verdict"] == "more memory"  # it saves half of the step time
    assert rows["bf16"]["after_ns"] == pytest.approx(rows["bf16"]["before_ns"] / 2, rel=0.05)


def test_memory_is_no_measured_saving_of_a_trace(monkeypatch, tmp_path):
    """A trace predicts step time."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "run_once", Program({"fp16": 0.3}))
    trace = tmp_path / "trace.sqlite"
    trace.write_text("not read")
    command = [sys.executable, "train.py"]
    try_changes(TryRequest(command, ["fp16"], trace, Wanted(goal=MEMORY)))
    assert [path.name for path in tmp_path.iterdir()] == ["trace.sqlite"]
