"""Finds the step from which steps are slower, or faster, until the end of the window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from traceprof.measures.facts import of_window
from traceprof.measures.rows import Floats, Ints
from traceprof.measures.steps.base import base_of, counted_steps
from traceprof.measures.steps.ledger import all_steps, ledger_of_window
from traceprof.measures.steps.measured import measured_steps
from traceprof.measures.steps.steadiness import find_change
from traceprof.model.grouping import groups_of
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note

_N_END_STEPS: Final = 3
_MIN_GRADUAL_RATIO: Final = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class Drift:
    """A lasting change of the step time from step number ``step`` on.

    ``before_ns`` and ``after_ns`` are mean step times; only processes with steps on both sides
    count. ``excess_ns`` is the mean step time minus ``before_ns`` (negative if steps get faster).
    ``compute_ns`` is the mean compute time per step, and ``compute_excess_ns`` the same minus its
    mean before; both are 0 if unknown. ``first_ns`` and ``last_ns`` are the medians of the first
    and last three steps. ``first_step`` and ``last_step`` are the numbers of the first and the last
    compared steps. ``before`` and ``after`` are rows of `ledger_of_window`. ``is_gradual``: the
    steps before ``step`` change at a similar rate.
    """

    step: int
    first_step: int
    last_step: int
    before_ns: float
    after_ns: float
    excess_ns: float
    first_ns: float
    last_ns: float
    compute_ns: float
    compute_excess_ns: float
    before: Ints
    after: Ints
    is_gradual: bool = False

    def shares_of(self, step_ns: float) -> tuple[float, float]:
        """Return the share of compute that grew, and of the rest of a step of ``step_ns``."""
        grown_ns = min(max(0.0, self.compute_excess_ns), self.excess_ns)
        lost_ns, lost_grown_ns = step_ns - self.compute_ns, self.excess_ns - grown_ns
        return grown_ns / max(1.0, self.compute_ns), min(1.0, lost_grown_ns / max(1.0, lost_ns))

    def notes(self) -> tuple[Note, Note]:
        """Return a note on the change, and a note on the first and the last steps."""
        word, sign = ("slower", "+") if self.excess_ns > 0 else ("faster", "−")
        when = "from step {step} on: {before:ns} before, {after:ns} after"
        if self.is_gradual:
            when = "throughout: {before:ns} before step {step}, {after:ns} from there on"
        change = Note.of(
            f"Steps get {word} {when} ({sign}{{change:ratio}})",
            step=self.step,
            before=self.before_ns,
            after=self.after_ns,
            change=abs(self.after_ns / self.before_ns - 1),
        )
        ends = Note.of(
            "median of the first {n:count} steps {first:ns}, of the last {n:count} steps {last:ns} "
            f"({'+' if self.last_ns > self.first_ns else '−'}{{change:ratio}})",
            n=_N_END_STEPS,
            first=self.first_ns,
            last=self.last_ns,
            change=abs(self.last_ns / self.first_ns - 1),
        )
        return change, ends


@of_window
def find_drift(ranks: Ranks) -> Drift | None:
    """Return the lasting change of the step time in the window; None if there is none.

    The steps are those that the step time averages (see `counted_steps`). With several processes,
    the series has the median over the processes; each process is relative to its own median step.
    """
    ledger, counted = ledger_of_window(ranks), counted_steps(ranks, ranks.span)
    unit = "period_ns" if base_of(ranks).is_unprofiled else "duration_ns"
    rows = np.flatnonzero(counted & (ledger[unit] > 0))
    if all_steps(ranks.whole).is_pattern or not len(rows):
        return None
    lengths_ns = ledger[unit][rows].astype(np.float64)
    process, step = groups_of(ledger["process"][rows]), groups_of(ledger["step"][rows])
    relative = lengths_ns / process.quantiles(lengths_ns)[process.number]
    series = step.quantiles(relative)
    place = find_change(series)
    if place is None:
        return None
    is_late = step.number >= place
    n_late = process.sums(is_late)
    is_compared = ((n_late > 0) & (n_late < process.counts))[process.number]
    if not is_compared.any():
        return None
    before, after = np.flatnonzero(is_compared & ~is_late), np.flatnonzero(is_compared & is_late)
    means = [
        float(groups_of(ledger["process"][rows[at]]).means(lengths_ns[at]).mean())
        for at in (before, after, np.flatnonzero(is_compared))
    ]
    table = measured_steps(ranks).table
    compute = np.nan_to_num(table["compute_ns"][rows]) if "compute_ns" in table else 0 * lengths_ns
    compute_ns = float(compute[is_compared].mean())
    ends = step.number < _N_END_STEPS, step.number >= len(series) - _N_END_STEPS
    first_ns, last_ns = (float(np.median(lengths_ns[is_compared & end])) for end in ends)
    numbers = step.values[0]
    return Drift(
        step=int(numbers[place]),
        first_step=int(numbers[0]),
        last_step=int(numbers[-1]),
        before_ns=means[0],
        after_ns=means[1],
        excess_ns=means[2] - means[0],
        first_ns=first_ns,
        last_ns=last_ns,
        compute_ns=compute_ns,
        compute_excess_ns=compute_ns - float(compute[before].mean()),
        before=rows[before],
        after=rows[after],
        is_gradual=_is_gradual(series, place),
    )


def _is_gradual(series: Floats, place: int) -> bool:
    """Return whether a series grows at a similar rate on both sides of ``place``.

    The growth then has no beginning in the series.
    """
    whole, *sides = (
        (np.median(part[-_N_END_STEPS:]) - np.median(part[:_N_END_STEPS]))
        / max(1, len(part) - _N_END_STEPS)
        for part in (series, series[:place], series[place:])
    )
    is_long = min(place, len(series) - place) >= 2 * _N_END_STEPS
    return is_long and all(side * whole >= _MIN_GRADUAL_RATIO * whole**2 for side in sides)
