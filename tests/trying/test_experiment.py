"""The order of runs, with a program that is made up: what runs when, and what ends it."""

import numpy as np
import pytest

from traceprof.errors import RecordingError
from traceprof.trying import experiment as module
from traceprof.trying.changes import parse_changes
from traceprof.trying.experiment import Wanted, experiment, pilot
from traceprof.trying.judged import FASTER
from traceprof.trying.runs import FAILED, HANGS, InterruptedTryingError, TriedRun, TryPlan

PLAN = TryPlan(["python", "train.py"], 0, 0)


class Program:
    """Steps of 100 ms; each change takes its share of them, or does as it is told."""

    def __init__(self, savings, *, noise=0.01, available=10_000, interrupt_at=None):
        self.savings, self.noise, self.available = savings, noise, available
        self.interrupt_at = interrupt_at
        self.calls = []
        self.plans = []
        self.chance = np.random.default_rng(1)

    def __call__(self, plan, changes=()):
        names = [one.text for one in changes]
        self.calls.append(" + ".join(names))
        self.plans.append(plan)
        if len(self.calls) == self.interrupt_at:
            raise InterruptedTryingError
        step_ns = 1e8
        for name in names:
            saving = self.savings[name]
            if isinstance(saving, str):
                return TriedRun(changes, failure=saving, reason="as planted")
            step_ns *= 1 - saving
        n_steps = max(0, min(plan.n_steps, self.available - plan.warmup))
        steps = self.chance.normal(step_ns, self.noise * step_ns, n_steps)
        return TriedRun(
            changes,
            step_ns=steps,
            is_whole=n_steps == plan.n_steps,
            steps_count=min(plan.warmup + plan.n_steps, self.available),
            took_s=2.0,
        )


def tried(monkeypatch, savings, *, wanted=None, **more):
    program = Program(savings, **more)
    monkeypatch.setattr(module, "run_once", program)
    wanted = wanted or Wanted(n_steps=30)
    first = pilot(PLAN, wanted)
    found = experiment(PLAN, wanted, first, parse_changes(list(savings)), {})
    return program, {one.name: one for one in found.outcomes()}, found


def test_every_round_runs_the_unchanged_program_and_each_change_once(monkeypatch):
    program, found, _ = tried(monkeypatch, {"bf16": 0.0, "tf32": 0.0})
    assert program.calls == ["", "", "bf16", "tf32", "", "bf16", "tf32"]
    assert all(one.verdict != FASTER for one in found.values())


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


def test_noise_asks_for_more_rounds_up_to_five(monkeypatch):
    program, _, _ = tried(monkeypatch, {"bf16": 0.0}, noise=0.4)
    assert program.calls.count("bf16") == 5


def test_noise_asks_for_more_steps(monkeypatch):
    calm, _, _ = tried(monkeypatch, {"bf16": 0.0}, wanted=Wanted(minutes=1000))
    loud, _, _ = tried(monkeypatch, {"bf16": 0.0}, wanted=Wanted(minutes=1000), noise=0.2)
    assert calm.plans[-1].n_steps == 20
    assert loud.plans[-1].n_steps > 60


def test_a_short_program_is_measured_as_long_as_it_goes(monkeypatch):
    program, found, whole = tried(monkeypatch, {"bf16": 0.5}, wanted=Wanted(), available=14)
    assert program.plans[-1].warmup + program.plans[-1].n_steps == 14
    assert found["bf16"].verdict == FASTER
    assert any("runs 14 steps" in remark for remark in whole.remarks)


def test_no_run_begins_that_would_end_too_late(monkeypatch):
    program, found, _ = tried(
        monkeypatch, {"bf16": 0.0}, noise=0.4, wanted=Wanted(n_steps=30, minutes=0)
    )
    assert program.calls == ["", "", "bf16"]  # the first round, whatever it takes
    assert set(found) == {"bf16"}


def test_an_interrupt_leaves_what_was_measured(monkeypatch):
    _, found, whole = tried(monkeypatch, {"bf16": 0.5, "tf32": 0.1}, interrupt_at=6)
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
