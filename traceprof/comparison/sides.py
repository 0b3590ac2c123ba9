"""The runs on either side of a comparison, and what their times are counted by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from traceprof.measures.rows import Floats, Ints
from traceprof.model.summary import Summary

STEP, TURN, WINDOW = "step", "iteration", "window"
UNITS: Final = (STEP, TURN, WINDOW)
"""What times are told of: a step; a turn of a repeating pattern; the window as it is."""


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """One or several runs of one side; ``unit`` is one of `UNITS`, the same on both sides."""

    runs: tuple[Summary, ...]
    unit: str = WINDOW

    @property
    def name(self) -> str:
        """What the side is called."""
        return ", ".join(run.name for run in self.runs)

    @property
    def units_count(self) -> int:
        """How many units on how many devices the composition of all runs adds up."""
        return sum(units_of(run, self.unit) * _places_of(run) for run in self.runs)

    @property
    def composition(self) -> pd.DataFrame | None:
        """What the windows of all runs are made of; None where it is not known of every one."""
        tables = [run.table("makeup") for run in self.runs]
        if any(table.empty for table in tables):
            return None
        return pd.concat(tables, ignore_index=True)

    def frame(self, name: str) -> pd.DataFrame | None:
        """Return the table of an analysis of all runs, one below the other; None: one has none."""
        if not all(name in run.results for run in self.runs):
            return None
        frames = [run.results[name].to_frame() for run in self.runs]
        filled = [frame for frame in frames if len(frame)]
        return pd.concat(filled, ignore_index=True) if filled else frames[0]

    def measure(self, name: str) -> float | None:
        """Return a measure: of several runs the geometric mean; None where one does not know it."""
        values = [run.measure(name) for run in self.runs]
        known = [value for value in values if value is not None]
        if len(known) < len(values) or not known:
            return None
        if min(known) <= 0:
            return float(np.mean(known))
        return float(np.exp(np.mean(np.log(known))))

    def said(self, name: str) -> str:
        """Return what the runs say of their environment by this name, each value once."""
        values = dict.fromkeys(run.environment.get(name, "") for run in self.runs)
        return ", ".join(value for value in values if value)


def _places_of(run: Summary) -> int:
    """Return on how many devices a run worked; without devices on how many ranks."""
    ranks = run.table("steps")["rank"].nunique()
    return run.devices_count or int(ranks) or int(run.measure("world_size") or 0) or 1


def units_of(run: Summary, unit: str) -> int:
    """Return how many steps, turns or windows what is kept of a run is about; 0: not known."""
    if unit == STEP:
        return run.steps_count or 0
    return int(run.measure("turns_count") or 0) if unit == TURN else 1


def common_unit(runs: Sequence[Summary]) -> str:
    """Return what the times of all ``runs`` can be counted by."""
    for unit in (STEP, TURN):
        if all(units_of(run, unit) for run in runs):
            return unit
    return WINDOW


def shares_of(totals: Ints, n: int) -> Ints:
    """Return the ``n``-th part of each, by floor of the cumulated share: they add up as all do."""
    reached = np.append(0, np.cumsum(totals)) // max(1, n)
    return np.asarray(np.diff(reached), np.int64)


def series_of(run: Summary, measure: str, unit: str) -> Floats:
    """Return a measure step by step, in their order: of several ranks the mean; warm-up is out.

    ``measure``: period_ns, device_ns, own_ns (device_ns without waited_ns) or samples_per_s; of
    turns duration_ns alone.
    """
    if unit == TURN:
        return _of_turns(run) if measure == "period_ns" else np.empty(0)
    steps = run.table("steps")
    if steps.empty:
        return np.empty(0)
    steps = steps[~steps["is_warmup"].astype(bool)].sort_values(["life", "rank", "at_ns"])
    own = ["life", "rank"]
    if steps.duplicated([*own, "step"]).any():  # numbers that begin anew in every epoch
        steps = steps.assign(step=steps.groupby(own).cumcount())
    if measure in ("period_ns", "samples_per_s"):
        # The last period of a rank ends with its step: what lies behind it is not known.
        is_last = steps.groupby(own).cumcount(ascending=False) == 0
        steps = steps[~is_last] if not is_last.all() else steps
    return _by_step(steps, measure)


def _by_step(steps: pd.DataFrame, measure: str) -> Floats:
    needed = list(_NEEDED[measure])
    if not set(needed) <= set(steps):
        return np.empty(0)
    known = steps[steps[needed].notna().all(axis=1).to_numpy()]
    if known.empty:
        return np.empty(0)
    keys = ["life", "step"]
    sums = known.groupby(keys, sort=True)[[*needed, "steps_count"]].sum()
    # A step that is not known of all ranks is another one in the mean.
    size = known.groupby(keys, sort=True).size()
    sums = sums[(size == size.max()).to_numpy()]
    values = sums.astype(np.float64)
    if measure == "samples_per_s":
        # The sum of all samples over the mean of the periods.
        n_ranks = float(size.max())
        found = values["samples_count"] / (values["period_ns"] / n_ranks) * 1e9
    elif measure == "own_ns":
        found = (values["device_ns"] - values["waited_ns"]) / values["steps_count"]
    else:
        found = values[measure] / values["steps_count"]
    numbers = found.to_numpy(np.float64)
    return np.asarray(numbers[numbers > 0], np.float64)


_NEEDED: Final = {
    "period_ns": ("period_ns",),
    "device_ns": ("device_ns",),
    "own_ns": ("device_ns", "waited_ns"),
    "samples_per_s": ("period_ns", "samples_count"),
}


def _of_turns(run: Summary) -> Floats:
    if "steps" not in run.results:
        return np.empty(0)
    table = run.results["steps"].table
    if table.empty or "duration_ns" not in table:
        return np.empty(0)
    by_turn = table.groupby("step")["duration_ns"]
    values = by_turn.mean()[by_turn.size() == by_turn.size().max()]
    return values.to_numpy(np.float64)
