"""What a change did: time against time, losses against losses, memory beside memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from traceprof.comparison.statistics import Difference, compare_steps
from traceprof.model.results import Note
from traceprof.trying.changes import Chosen
from traceprof.trying.runs import OK, TriedRun

_BATCH: Final = "batch_size"
FASTER, SLOWER, ALIKE, UNKNOWN = "faster", "slower", "no difference shown", "not judged"
_SAME_RATIO: Final = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What a change, or several together, did; ``difference`` is of the times of steps."""

    changes: Sequence[Chosen]
    runs: Sequence[TriedRun]
    difference: Difference | None = None
    losses: Note | None = None
    predicted_ratio: float | None = None

    @property
    def name(self) -> str:
        """The changes, as they are written."""
        return " + ".join(one.text for one in self.changes)

    @property
    def failed(self) -> TriedRun | None:
        """The run that failed, if one did."""
        return next((run for run in self.runs if run.failure != OK), None)

    @property
    def verdict(self) -> str:
        """What to make of it, in a word or three."""
        if self.failed is not None:
            return self.failed.failure
        if self.difference is None or not self.difference.is_known:
            return UNKNOWN
        if not self.difference.is_shown:
            return ALIKE
        return FASTER if self.difference.change_ratio < 0 else SLOWER

    @property
    def saving_ratio(self) -> float:
        """The share of the step that it saves; below 0: it costs."""
        return math.nan if self.difference is None else -self.difference.change_ratio

    @property
    def reach_ratio(self) -> float:
        """Half of the 95 % interval of the saving; infinite where it has no end."""
        one = self.difference
        if one is None or not one.is_known or not math.isfinite(one.high_ratio - one.low_ratio):
            return math.inf
        return (one.high_ratio - one.low_ratio) / 2


def judged(
    changes: Sequence[Chosen],
    base: Sequence[TriedRun],
    runs: Sequence[TriedRun],
    predicted: float | None = None,
) -> Outcome:
    """Return what changes did: the steps of all runs of one side against those of the other.

    Steps of one process are alike, and processes differ: both widen the interval, since neighbors
    in the series are as alike as those of one process.
    """
    good = [run for run in runs if run.failure == OK and len(run.step_ns)]
    outcome = Outcome(changes, runs, predicted_ratio=predicted)
    if not good or outcome.failed is not None:
        return outcome
    factor = 1.0
    if any(one.change.name == _BATCH for one in changes):
        factor = _samples(base[0]) / _samples(good[0])
        if not math.isfinite(factor):
            return outcome
    before = np.concatenate([run.step_ns for run in base])
    after = np.concatenate([run.step_ns for run in good]) * factor
    found = compare_steps(before, after, of_means=True)
    return replace(outcome, difference=found, losses=losses_of(base, good))


def _samples(run: TriedRun) -> float:
    """Return the batch of the program's first loader; NaN: none is known."""
    sizes = [one.get("batch") for one in run.facts.get("loaders", ())]
    return float(next((size for size in sizes if size), math.nan))


def losses_of(base: Sequence[TriedRun], runs: Sequence[TriedRun]) -> Note | None:
    """Return in words how the losses of both sides differ; None where there are none."""
    first, other = base[0].losses, runs[0].losses
    steps = [step for step in first if step in other]
    if not steps:
        return None
    spread = max((_apart(first, one.losses, steps) for one in base[1:]), default=0.0)
    apart = _apart(first, other, steps)
    if apart <= _SAME_RATIO:
        return Note("the same")
    if apart <= spread:
        return Note.of("differ by {far:ratio}, no more than two unchanged runs do", far=apart)
    beyond = max(spread, _SAME_RATIO)
    begin = next(step for step in steps if _gap(first[step], other[step]) > beyond)
    return Note.of(
        "differ from step {step:number}, by up to {far:ratio}, and by {last:ratio} at the end",
        step=begin,
        far=apart,
        last=_gap(first[steps[-1]], other[steps[-1]]),
    )


def _apart(first: Mapping[int, float], other: Mapping[int, float], steps: Sequence[int]) -> float:
    return max((_gap(first[step], other[step]) for step in steps if step in other), default=0.0)


def _gap(one: float, other: float) -> float:
    whole = max(abs(one), abs(other))
    return abs(one - other) / whole if whole else 0.0
