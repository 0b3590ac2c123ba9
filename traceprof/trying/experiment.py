"""The order of runs: the program as it is and with each change, in turns, until it is known enough.

What drifts (a machine that warms up, other users) meets all of them alike, since every round runs
the unchanged program and each change once. Several changes share the runs of the unchanged one.
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
from traceprof.trying.changes import Chosen, predicted_ratio
from traceprof.trying.judged import FASTER, Outcome, judged
from traceprof.trying.runs import FAILED, OK, InterruptedTryingError, TriedRun, TryPlan, run_once

_PILOT_STEPS = 12
_PILOT_WARMUP = 3
_PILOT_S = 600.0
"""Nothing is known yet of how long the program takes."""

_WARMUP = 5
_FEWEST_STEPS, _MOST_STEPS = 20, 200
_WANTED_RATIO = 0.02
"""Half of the interval that is aimed at."""

_ROUNDS, _MOST_ROUNDS = 2, 5
_MOST_TOGETHER = 4
_PATIENCE = 5.0
_LEAST_PATIENCE_S = float(os.environ.get("TRACEPROF_TRY_PATIENCE_S", "60"))


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked for: steps (None: as many as are needed), at most so many minutes."""

    n_steps: int | None = None
    minutes: float = 15.0
    say: Callable[[str], None] = field(default=lambda _line: None)


@dataclass(slots=True)
class Experiment:
    """What was run until now; ``remarks`` are what is odd about it."""

    plan: TryPlan
    wanted: Wanted
    predicted: Mapping[str, float]
    pilot: TriedRun
    base: list[TriedRun] = field(default_factory=list)
    runs: dict[str, list[TriedRun]] = field(default_factory=dict)
    chosen: dict[str, Sequence[Chosen]] = field(default_factory=dict)
    order: list[TriedRun] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    is_interrupted: bool = False
    _until_s: float = math.inf

    def outcomes(self) -> list[Outcome]:
        """Return what each change did, in the order in which they were tried."""
        return [self.outcome(name) for name in self.runs]

    def outcome(self, name: str) -> Outcome:
        """Return what the changes called ``name`` did."""
        changes = self.chosen[name]
        known = predicted_ratio(changes[0], self.predicted) if len(changes) == 1 else None
        return judged(changes, self.base, self.runs[name], known)


def pilot(plan: TryPlan, wanted: Wanted) -> TriedRun:
    """Return a first, short run of the unchanged program: what its steps and loaders are like.

    Raises:
        RecordingError: it fails, or its steps cannot be seen.
    """
    wanted.say("running a few steps of the unchanged program")
    n_steps = min(wanted.n_steps or _PILOT_STEPS, _PILOT_STEPS)
    limit_s = max(_PILOT_S, wanted.minutes * 60)
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
    changes: Sequence[Chosen],
    predicted: Mapping[str, float],
) -> Experiment:
    """Try every change by itself, then those together that save; return what was found.

    Whatever happens to a change is told of it; Ctrl-C leaves what was measured.

    Raises:
        RecordingError: the unchanged program fails.
    """
    plan, remarks = _planned(plan, wanted, first, len(changes))
    found = Experiment(plan, wanted, predicted, first, remarks=remarks)
    found._until_s = time.monotonic() + wanted.minutes * 60
    for one in changes:
        name = one.text
        found.runs[name], found.chosen[name] = [], (one,)
    try:
        _rounds(found, list(found.runs))
        _together(found)
    except (InterruptedTryingError, KeyboardInterrupt):  # the latter between two runs
        found.is_interrupted = True
        found.remarks.append("interrupted: the results contain only the finished runs")
    found.runs = {name: runs for name, runs in found.runs.items() if runs}
    return found


def _planned(
    plan: TryPlan, wanted: Wanted, first: TriedRun, n_changes: int
) -> tuple[TryPlan, list[str]]:
    """Return how every run is measured, by what the first one showed."""
    remarks = []
    available = math.inf if first.is_whole else first.steps_count
    n_steps = wanted.n_steps or _steps_needed(first)
    step_s = first.mean_ns / 1e9
    starting_s = max(0.0, first.took_s - step_s * (_PILOT_WARMUP + len(first.step_ns)))
    n_runs = _ROUNDS * (1 + n_changes) + _ROUNDS
    if wanted.n_steps is None:
        room_s = wanted.minutes * 60 / n_runs - starting_s - _WARMUP * step_s
        fits = max(_FEWEST_STEPS, int(room_s / step_s)) if step_s else n_steps
        n_steps = min(n_steps, fits)
    warmup = _WARMUP
    if warmup + n_steps > available:
        warmup = min(warmup, max(1, int(available) // 4))
        n_steps = int(available) - warmup
        remarks.append(f"the program runs {int(available)} steps; traceprof measures {n_steps}")
    limit_s = max(_LEAST_PATIENCE_S, _PATIENCE * (starting_s + (warmup + n_steps) * step_s))
    return replace(plan, warmup=warmup, n_steps=max(2, n_steps), limit_s=limit_s), remarks


def _steps_needed(first: TriedRun) -> int:
    """Return how many steps make the interval of a difference as narrow as is wanted."""
    low, high = interval_of_mean(first.step_ns)
    reach = (high - low) / 2 / first.mean_ns
    if not math.isfinite(reach):
        return _FEWEST_STEPS
    # Of two sides, each of several runs.
    needed = len(first.step_ns) * (reach * math.sqrt(2) / _WANTED_RATIO) ** 2 / _ROUNDS
    return int(np.clip(needed, _FEWEST_STEPS, _MOST_STEPS))


def _rounds(found: Experiment, names: Sequence[str]) -> None:
    """Run the program as it is and with each change in turns, until enough is known of all."""
    waiting = list(names)
    for number in range(_MOST_ROUNDS):
        if not waiting or (number and _is_late(found)):
            break
        _run_base(found)
        for name in waiting:
            if number and _is_late(found):
                break
            _run(found, name)
        waiting = [name for name in waiting if not _is_known(found, name, number + 1)]


def _is_known(found: Experiment, name: str, n_rounds: int) -> bool:
    """Return whether a change needs no further round."""
    runs = found.runs[name]
    if not runs or runs[-1].failure != OK:
        return True
    return n_rounds >= _ROUNDS and found.outcome(name).reach_ratio <= _WANTED_RATIO


def _is_late(found: Experiment) -> bool:
    return time.monotonic() + found.base[-1].took_s > found._until_s


def _run_base(found: Experiment) -> None:
    run = _told(found, (), found.base)
    if run.failure != OK or not len(run.step_ns):
        why = run.reason or "no steps were measured"
        raise RecordingError(f"the unchanged program failed ({run.failure or FAILED}): {why}")


def _run(found: Experiment, name: str) -> None:
    _told(found, found.chosen[name], found.runs[name])


def _told(found: Experiment, changes: Sequence[Chosen], runs: list[TriedRun]) -> TriedRun:
    """Run once, add that to ``runs``, and say what came of it: what was said stays."""
    name = " + ".join(one.text for one in changes) or "unchanged"
    number = len(found.order) + 1
    run = run_once(found.plan, changes)
    found.order.append(run)
    runs.append(run)
    said = run.reason if run.failure else f"{run.mean_ns / 1e6:.4g} ms per step"
    found.wanted.say(f"run {number}, {name}: {said} ({run.took_s:.0f} s)")
    return run


def _together(found: Experiment) -> None:
    """Add to the best change the next ones, as long as each makes it faster still."""
    faster = list(savers(found.outcomes()))
    if len(faster) < 2:
        return
    best = faster[0]
    for one in faster[1:_MOST_TOGETHER]:
        both = (*best.changes, *one.changes)
        name = " + ".join(change.text for change in both)
        found.runs[name], found.chosen[name] = [], both
        for _ in range(_ROUNDS):
            if _is_late(found):
                break
            _run_base(found)
            _run(found, name)
            if found.runs[name][-1].failure != OK:
                break
        if not found.runs[name]:
            found.remarks.append("no time was left to try the changes together: increase --minutes")
            return
        outcome = found.outcome(name)
        if outcome.verdict == FASTER and outcome.saving_ratio > best.saving_ratio:
            best = outcome


def savers(outcomes: Sequence[Outcome]) -> Iterator[Outcome]:
    """Yield what makes the program faster, most first."""
    yield from sorted(
        (one for one in outcomes if one.verdict == FASTER), key=lambda one: -one.saving_ratio
    )
