"""Schedule the runs: the unchanged program and each change alternate until the effects are clear.

Every round runs the unchanged program and each change once, and every second round runs them in
reverse order. Slow drift (a machine that warms up, other users) therefore affects all of them
equally. All changes share the unchanged runs. A run compares with the unchanged run of its round.

A change needs no further round if its interval is narrow, or if its effect is several times the
interval. The intervals are wide enough for these repeated looks.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from traceprof.comparison.statistics import interval_of_mean
from traceprof.errors import RecordingError
from traceprof.model.results import Note
from traceprof.trying.changes import ChosenChange, expected_savings, predicted_ratio
from traceprof.trying.judged import MEMORY, MIN_PAIRS, TIME, UNDECIDED, Outcome, evaluate
from traceprof.trying.runs import FAILED, OK, InterruptedTryingError, TriedRun, TryPlan, run_once

_UNCHANGED = ""
_PILOT_STEPS = 12
_PILOT_WARMUP = 3
_MIN_PILOT_LIMIT_S = 600.0
"""Time limit of the first run, because the duration of the program is still unknown."""

_WARMUP = 5
_MIN_STEPS, _MAX_STEPS = 20, 200
_MIN_FITTING_STEPS = 8
"""Minimum number of steps per run if time is short: more runs are worth more than more steps."""

_TARGET_REACH_RATIO = 0.02
"""Target for half the confidence interval of a saving, as a share of the step time."""

_MIN_ROUNDS = MIN_PAIRS
MAX_RUNS = 12
"""Default limit of the runs of each change."""

_MIN_CLEAR_REACHES = 4.0
"""A change needs no further round if its effect is this many times half its interval."""

_RECENT_RUNS = 8
_MAX_COMBINED_CHANGES = 4
_MAX_DURATION_FACTOR = 5.0
_MIN_LIMIT_S = float(os.environ.get("TRACEPROF_TRY_PATIENCE_S", "60"))


@dataclass(frozen=True, slots=True)
class Wanted:
    """The user's limits: steps per run (None: as many as necessary), minutes, runs per change.

    ``goal``: what to save, `TIME` or `MEMORY`.
    """

    n_steps: int | None = None
    minutes: float = 15.0
    max_runs: int = MAX_RUNS
    say: Callable[[str], None] = field(default=lambda _line: None)
    goal: str = TIME


@dataclass(slots=True)
class Experiment:
    """The runs of an experiment so far; ``remarks`` lists problems of the measurement."""

    plan: TryPlan
    wanted: Wanted
    predicted: Mapping[str, float]
    pilot: TriedRun
    base: list[TriedRun] = field(default_factory=list)
    runs: dict[str, list[TriedRun]] = field(default_factory=dict)
    chosen: dict[str, Sequence[ChosenChange]] = field(default_factory=dict)
    order: list[TriedRun] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    is_interrupted: bool = False
    run_s: float = 0.0
    _until_s: float = math.inf
    _round: int = 0

    def _affordable_runs(self) -> float:
        """Return how many runs fit into the time limit; a run takes as long as recent runs."""
        recent = [run.took_s for run in self.order[-_RECENT_RUNS:]]
        run_s = sum(recent) / len(recent) if recent else self.run_s
        left_s = self._until_s - time.monotonic()
        return max(0.0, left_s) / run_s if run_s else math.inf

    def outcomes(self) -> list[Outcome]:
        """Return the outcome of each change, in the order in which they were tried."""
        return [self.outcome(name) for name in self.runs]

    def outcome(self, name: str) -> Outcome:
        """Return the outcome of the changes named ``name``."""
        changes = self.chosen[name]
        predicted = predicted_ratio(changes[0], self.predicted) if len(changes) == 1 else None
        outcome = evaluate(changes, self.base, self.runs[name], predicted, self.wanted.goal)
        if outcome.verdict != UNDECIDED:
            return outcome
        return replace(outcome, undecided=self._what_decides(outcome))

    def _what_decides(self, outcome: Outcome) -> Note:
        """Return why a change is not decided, and how many runs and minutes would decide it."""
        n_runs = len(outcome.runs)
        is_known = outcome.needed_runs > 0
        needed = outcome.needed_runs if is_known else _MIN_ROUNDS
        # A round has an unchanged run and a run of each undecided change.
        round_s = (1 + sum(len(runs) < needed for runs in self.runs.values())) * self.run_s
        minutes = self.wanted.minutes + max(1, needed - n_runs) * round_s / 60
        more_runs = f" --runs {needed}" if needed > self.wanted.max_runs else ""
        return Note.of(
            f"{'{n:count} run(s) of each' if n_runs else 'not run'}; "
            f"{'about' if is_known else 'at least'} {{needed:count}} are necessary "
            f"(--minutes {{minutes:count}}{more_runs})",
            n=n_runs,
            needed=needed,
            minutes=math.ceil(minutes),
        )


def pilot(plan: TryPlan, wanted: Wanted) -> TriedRun:
    """Return a short first run of the unchanged program, which shows its steps and data loaders.

    Raises:
        RecordingError: the program fails, or its steps cannot be found.
    """
    wanted.say("running a few steps of the unchanged program")
    n_steps = min(wanted.n_steps or _PILOT_STEPS, _PILOT_STEPS)
    limit_s = max(_MIN_PILOT_LIMIT_S, wanted.minutes * 60)
    try:
        found = run_once(replace(plan, warmup=_PILOT_WARMUP, n_steps=n_steps, limit_s=limit_s))
    except (InterruptedTryingError, KeyboardInterrupt):
        raise RecordingError("interrupted before the first measurement") from None
    if found.failure != OK:
        raise RecordingError(f"the unchanged program failed ({found.failure}): {found.reason}")
    if len(found.step_ns) < 2:
        raise RecordingError(
            f"the program ran {found.steps_count} steps: too few to measure the effect of a change"
        )
    return found


def experiment(
    plan: TryPlan,
    wanted: Wanted,
    first: TriedRun,
    changes: Sequence[ChosenChange],
    predicted: Mapping[str, float],
) -> Experiment:
    """Try every change alone, then the effective ones together; return the experiment.

    The failure of a change becomes part of its outcome. After Ctrl-C the finished runs remain.

    Raises:
        RecordingError: the unchanged program fails.
    """
    expected = expected_savings(first.facts, predicted) if wanted.goal == TIME else {}
    changes = sorted(changes, key=lambda change: -(predicted_ratio(change, expected) or 0.0))
    until_s = time.monotonic() + wanted.minutes * 60 - first.took_s
    plan, remarks = _plan_runs(plan, wanted, first, len(changes))
    found = Experiment(plan, wanted, predicted, first, remarks=remarks, _until_s=until_s)
    for change in changes:
        name = change.text
        found.runs[name], found.chosen[name] = [], (change,)
    names = _plan_rounds(found, list(found.runs))
    try:
        _run_rounds(found, names, wanted.max_runs)
        _try_together(found)
    except (InterruptedTryingError, KeyboardInterrupt):  # KeyboardInterrupt: between two runs
        found.is_interrupted = True
        found.remarks.append("interrupted: the results contain only the finished runs")
        found.runs = {name: runs for name, runs in found.runs.items() if runs}
    return found


def _plan_runs(
    plan: TryPlan, wanted: Wanted, first: TriedRun, n_changes: int
) -> tuple[TryPlan, list[str]]:
    """Return how to measure each run, based on the pilot run, and remarks about it."""
    remarks = []
    available = math.inf if first.is_whole else first.steps_count
    n_steps = wanted.n_steps or (_MIN_STEPS if wanted.goal == MEMORY else _steps_needed(first))
    step_s = first.mean_ns / 1e9
    starting_s = max(0.0, first.took_s - step_s * (_PILOT_WARMUP + len(first.step_ns)))
    n_runs = _MIN_ROUNDS * (1 + n_changes)
    if wanted.n_steps is None:
        room_s = (wanted.minutes * 60 - first.took_s) / n_runs - starting_s - _WARMUP * step_s
        fits = max(_MIN_FITTING_STEPS, int(room_s / step_s)) if step_s else n_steps
        n_steps = min(n_steps, fits)
    warmup = _WARMUP
    if warmup + n_steps > available:
        warmup = min(warmup, max(1, int(available) // 4))
        n_steps = int(available) - warmup
        remarks.append(f"the program runs {int(available)} steps; traceprof measures {n_steps}")
    limit_s = max(_MIN_LIMIT_S, _MAX_DURATION_FACTOR * (starting_s + (warmup + n_steps) * step_s))
    return replace(plan, warmup=warmup, n_steps=max(2, n_steps), limit_s=limit_s), remarks


def _plan_rounds(found: Experiment, names: Sequence[str]) -> Sequence[str]:
    """Return the changes for which there is time, in order.

    Fewer changes with a verdict are worth more than many changes without one.
    """
    step_s = found.pilot.mean_ns / 1e9
    n_steps = found.plan.warmup + found.plan.n_steps
    starting_s = max(0.0, found.pilot.took_s - step_s * (_PILOT_WARMUP + len(found.pilot.step_ns)))
    found.run_s = starting_s + n_steps * step_s
    n_rounds = min(_MIN_ROUNDS, found.wanted.max_runs)
    n_changes = int(np.clip(found._affordable_runs() / n_rounds - 1, 1, max(1, len(names))))
    return names[:n_changes]


def _steps_needed(first: TriedRun) -> int:
    """Return the number of steps per run that makes the confidence interval narrow enough."""
    low, high = interval_of_mean(first.step_ns)
    reach = (high - low) / 2 / first.mean_ns
    if not math.isfinite(reach):
        return _MIN_STEPS
    # The difference of two sides, each with several runs.
    needed = len(first.step_ns) * (reach * math.sqrt(2) / _TARGET_REACH_RATIO) ** 2 / _MIN_ROUNDS
    return int(np.clip(needed, _MIN_STEPS, _MAX_STEPS))


def _run_rounds(found: Experiment, names: Sequence[str], n_rounds: int) -> None:
    """Run the unchanged program and each change alternately, until all effects are clear.

    If time becomes short, only the first changes are continued.
    """
    waiting = list(names)
    for number in range(n_rounds):
        n_changes = int(min(found._affordable_runs() - 1, len(waiting)))
        order = [_UNCHANGED, *waiting[:n_changes]]
        if len(order) == 1:
            return
        found._round += 1
        for name in order if number % 2 == 0 else reversed(order):
            if found._affordable_runs() < 1:
                return
            if name != _UNCHANGED:
                _run_change(found, name)
            else:
                _run_base(found)
        waiting = [name for name in waiting if not _is_clear(found, name)]


def _is_clear(found: Experiment, name: str) -> bool:
    """Return whether a change needs no further round: it failed, or its effect is precise."""
    outcome = found.outcome(name)
    if outcome.failed is not None:
        return True
    clear = max(_TARGET_REACH_RATIO, abs(outcome.saving_ratio) / _MIN_CLEAR_REACHES)
    return outcome.reach_ratio <= clear


def _run_base(found: Experiment) -> None:
    run = _run_and_report(found, (), found.base)
    if run.failure != OK or not len(run.step_ns):
        why = run.reason or "no steps were measured"
        raise RecordingError(f"the unchanged program failed ({run.failure or FAILED}): {why}")


def _run_change(found: Experiment, name: str) -> None:
    _run_and_report(found, found.chosen[name], found.runs[name])


def _run_and_report(
    found: Experiment, changes: Sequence[ChosenChange], runs: list[TriedRun]
) -> TriedRun:
    """Run the program once, append the run to ``runs``, and print its result."""
    name = " + ".join(chosen.text for chosen in changes) or "unchanged"
    number = len(found.order) + 1
    run = replace(run_once(found.plan, changes), round=found._round)
    found.order.append(run)
    runs.append(run)
    result = run.reason if run.failure else f"{run.mean_ns / 1e6:.4g} ms per step"
    found.wanted.say(f"run {number}, {name}: {result} ({run.took_s:.0f} s)")
    return run


def _try_together(found: Experiment) -> None:
    """Add further changes to the best one as long as each makes the program faster."""
    faster = list(find_savings(found.outcomes()))
    if len(faster) < 2:
        return
    best = faster[0]
    for candidate in faster[1:_MAX_COMBINED_CHANGES]:
        combined = (*best.changes, *candidate.changes)
        name = " + ".join(change.text for change in combined)
        found.runs[name], found.chosen[name] = [], combined
        _run_rounds(found, [name], min(_MIN_ROUNDS, found.wanted.max_runs))
        if not found.runs[name]:
            del found.runs[name], found.chosen[name]
            found.remarks.append("no time was left to try the changes together: increase --minutes")
            return
        outcome = found.outcome(name)
        if outcome.saves and outcome.saving_ratio > best.saving_ratio:
            best = outcome


def find_savings(outcomes: Sequence[Outcome]) -> Iterator[Outcome]:
    """Yield the outcomes that save and break nothing, the largest saving first."""
    yield from sorted(
        (outcome for outcome in outcomes if outcome.saves),
        key=lambda outcome: -outcome.saving_ratio,
    )
