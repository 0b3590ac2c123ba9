"""Compare runs with a change and unchanged runs: step times, losses, and memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from traceprof.comparison.precision import student_quantile
from traceprof.comparison.statistics import (
    MIN_CHANGE_RATIO,
    Difference,
)
from traceprof.model.results import Note
from traceprof.trying.changes import LOSS_CURVE, OTHER_TRAINING, ChosenChange
from traceprof.trying.runs import OK, TriedRun

_BATCH: Final = "batch_size"
FASTER, SLOWER, ALIKE = "faster", "slower", "no difference shown"
LESS, MORE = "less memory", "more memory"
TIME, MEMORY = "time", "memory"
"""Goals: the step time, or the peak memory."""
_VERDICTS: Final = {TIME: (FASTER, SLOWER), MEMORY: (LESS, MORE)}
UNDECIDED: Final = "not decided"
_MAX_REACH_RATIO: Final = 0.05
"""With a wider interval that contains 0, the effect is not decided."""
MIN_PAIRS: Final = 3
"""Minimum number of runs of each for a verdict."""
_LEVEL: Final = 0.015
"""Significance level of one look. traceprof looks after each round, and all looks together have 5%
(`scripts/false_alarms`)."""
_MAX_NEEDED_RUNS: Final = 1000
_MAX_EQUAL_LOSS_RATIO: Final = 1e-6
_MAX_ROUNDING_RATIO: Final = 1e-3
"""Rounding in another order grows to this ratio within some hundred steps."""
_MAX_SHIFT_RATIO: Final = 0.02


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """The effect of a change, or of several together; ``difference`` compares values of the goal.

    The goal is `TIME` (ns per step) or `MEMORY` (bytes at the peak). ``broken``: what must stay
    equal, and does not.
    """

    changes: Sequence[ChosenChange]
    runs: Sequence[TriedRun]
    difference: Difference | None = None
    losses: Note | None = None
    predicted_ratio: float | None = None
    undecided: Note | None = None
    broken: Note | None = None
    goal: str = TIME

    @property
    def name(self) -> str:
        """The changes as the user writes them."""
        return " + ".join(change.text for change in self.changes)

    @property
    def failed(self) -> TriedRun | None:
        """The first run that failed, or None."""
        return next((run for run in self.runs if run.failure != OK), None)

    @property
    def verdict(self) -> str:
        """The effect in a few words: faster, slower, or the reason why it is unknown."""
        if self.failed is not None:
            return self.failed.failure
        if self.difference is None or not self.difference.is_known:
            return UNDECIDED
        if not self._is_shown:
            return ALIKE if self.reach_ratio <= _MAX_REACH_RATIO else UNDECIDED
        saves, costs = _VERDICTS[self.goal]
        return saves if self.difference.change_ratio < 0 else costs

    @property
    def _is_shown(self) -> bool:
        found = self.difference
        return (
            found is not None
            and found.excludes_zero
            and abs(found.change_ratio) >= MIN_CHANGE_RATIO
        )

    @property
    def bound_ratio(self) -> float:
        """The largest effect in the interval, as a share of the step time."""
        difference = self.difference
        if difference is None or not difference.is_known:
            return math.inf
        return max(abs(difference.low_ratio), abs(difference.high_ratio))

    @property
    def needed_runs(self) -> int:
        """The number of runs of each side that would decide the effect; 0 if it is unknown."""
        if not math.isfinite(self.reach_ratio) or self.difference is None:
            return 0
        n = self.difference.base_count
        error = self.reach_ratio / _reach(n) * math.sqrt(n)
        return next(
            (
                count
                for count in range(n + 1, _MAX_NEEDED_RUNS)
                if _reach(count) * error / math.sqrt(count) <= _MAX_REACH_RATIO
            ),
            _MAX_NEEDED_RUNS,
        )

    @property
    def saves(self) -> bool:
        """Whether the change saves time or memory, and breaks nothing."""
        return self.verdict in (FASTER, LESS) and self.broken is None

    @property
    def saving_ratio(self) -> float:
        """The saving as a share of the goal; negative if the change costs time or memory."""
        return math.nan if self.difference is None else -self.difference.change_ratio

    @property
    def reach_ratio(self) -> float:
        """Half of the 95% confidence interval of the saving.

        Infinite if the interval is unbounded.
        """
        difference = self.difference
        if (
            difference is None
            or not difference.is_known
            or not math.isfinite(difference.high_ratio - difference.low_ratio)
        ):
            return math.inf
        return (difference.high_ratio - difference.low_ratio) / 2


def evaluate(
    changes: Sequence[ChosenChange],
    base: Sequence[TriedRun],
    runs: Sequence[TriedRun],
    predicted: float | None = None,
    goal: str = TIME,
) -> Outcome:
    """Return the effect of changes: each changed run compared with the unchanged run of its round.

    The unit is the run, not the step: the steps of one process differ less than those of two
    processes. So the variation of steps does not show how far two unchanged runs differ.
    """
    outcome = Outcome(changes, runs, predicted_ratio=predicted, goal=goal)
    base_of_round = {run.round: run for run in base}
    pairs = [
        (base_of_round[run.round], run)
        for run in runs
        if run.failure == OK and len(run.step_ns) and run.round in base_of_round
    ]
    if not pairs or outcome.failed is not None:
        return outcome
    factor = 1.0
    if goal == MEMORY:
        pairs = [pair for pair in pairs if all(run.peak_bytes for run in pair)]
        if not pairs:
            return outcome
    elif any(change.change.name == _BATCH for change in changes):
        factor = _samples(pairs[0][0]) / _samples(pairs[0][1])
        if not math.isfinite(factor):
            return outcome
    difference = _compare_pairs(
        [_value(before, goal) for before, _ in pairs],
        [_value(after, goal) * factor for _, after in pairs],
    )
    finished = [after for _, after in pairs]
    return replace(
        outcome,
        difference=difference,
        losses=losses_of(base, finished),
        broken=_broken_losses([part.change.equal for part in changes], base, finished),
    )


def _value(run: TriedRun, goal: str) -> float:
    """Return the value of the goal in a run: ns per step, or bytes at the peak."""
    return float(run.peak_bytes or 0) if goal == MEMORY else run.mean_ns


def _broken_losses(
    equal: Sequence[str], base: Sequence[TriedRun], runs: Sequence[TriedRun]
) -> Note | None:
    """Return a sentence if the losses had to stay equal and do not; None without losses.

    Losses are compared with the scatter of unchanged runs, and a loss curve also with the scatter
    of its steps.
    """
    before, after = base[0].losses, runs[0].losses
    steps = [step for step in before if step in after]
    if OTHER_TRAINING in equal or not steps:
        return None
    spread = max((_largest_gap(before, run.losses, steps) for run in base[1:]), default=0.0)
    if LOSS_CURVE not in equal:
        largest = _largest_gap(before, after, steps)
        if largest <= max(2 * spread, _MAX_ROUNDING_RATIO):
            return None
        return Note.of(
            "the losses must stay the same, but differ by up to {far:ratio}", far=largest
        )
    curve, changed = (np.array([losses[step] for step in steps]) for losses in (before, after))
    shift, level = float((changed - curve).mean()), float(np.abs(curve).mean())
    noise = float(np.diff(curve).std()) / math.sqrt(len(curve)) if len(curve) > 2 else math.inf
    if abs(shift) <= max(2 * noise, spread * level, _MAX_SHIFT_RATIO * level):
        return None
    return Note.of(
        "the loss curve must stay within its noise, but is {far:ratio} "
        + ("higher" if shift > 0 else "lower"),
        far=abs(shift) / level,
    )


def _compare_pairs(base: Sequence[float], new: Sequence[float]) -> Difference:
    """Test the difference of runs in pairs: each value of ``new`` is compared with its ``base``.

    Runs of a pair share the state of the machine, so a drift between pairs does not count.
    """
    first, second = (np.log(values) for values in (base, new))
    n, changes = len(base), second - first
    middle = float(changes.mean())
    found = Difference(
        base=float(np.exp(first.mean())),
        new=float(np.exp(second.mean())),
        base_count=n,
        new_count=n,
        change_ratio=math.expm1(middle),
        of_runs=True,
    )
    if n < MIN_PAIRS:
        return replace(found, why="not enough runs")
    reach = _reach(n) * float(changes.std(ddof=1)) / math.sqrt(n)
    return replace(
        found, low_ratio=math.expm1(middle - reach), high_ratio=math.expm1(middle + reach)
    )


def _reach(n: int) -> float:
    """Return half the interval of a mean of ``n`` values, in standard errors."""
    return student_quantile(1 - _LEVEL / 2, n - 1.0)


def _samples(run: TriedRun) -> float:
    """Return the batch size of the program's first data loader; NaN if unknown."""
    sizes = [loader.get("batch") for loader in run.facts.get("loaders", ())]
    return float(next((size for size in sizes if size), math.nan))


def losses_of(base: Sequence[TriedRun], runs: Sequence[TriedRun]) -> Note | None:
    """Return a sentence on the differences of the losses; None if there are no common steps."""
    base_losses, changed_losses = base[0].losses, runs[0].losses
    steps = [step for step in base_losses if step in changed_losses]
    if not steps:
        return None
    spread = max((_largest_gap(base_losses, run.losses, steps) for run in base[1:]), default=0.0)
    largest = _largest_gap(base_losses, changed_losses, steps)
    if largest <= _MAX_EQUAL_LOSS_RATIO:
        return Note("the same")
    if largest <= spread:
        return Note.of("differ by {far:ratio}, no more than two unchanged runs do", far=largest)
    threshold = max(spread, _MAX_EQUAL_LOSS_RATIO)
    first_step = next(
        step for step in steps if _relative_gap(base_losses[step], changed_losses[step]) > threshold
    )
    return Note.of(
        "differ from step {step:number}, by up to {far:ratio}, and by {last:ratio} at the end",
        step=first_step,
        far=largest,
        last=_relative_gap(base_losses[steps[-1]], changed_losses[steps[-1]]),
    )


def _largest_gap(
    first: Mapping[int, float], other: Mapping[int, float], steps: Sequence[int]
) -> float:
    return max(
        (_relative_gap(first[step], other[step]) for step in steps if step in other), default=0.0
    )


def _relative_gap(one: float, other: float) -> float:
    whole = max(abs(one), abs(other))
    return abs(one - other) / whole if whole else 0.0
