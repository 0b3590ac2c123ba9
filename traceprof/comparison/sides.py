"""The runs on either side of a comparison: what times are counted by, series, curves of metrics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from traceprof.measures.rows import Floats, Ints
from traceprof.model.summary import SUMMARY, Summary, is_accuracy

STEP, TURN, WINDOW = "step", "iteration", "window"
"""What times are told of: a step; a turn of a repeating pattern; the window as it is."""


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """One or several runs of one side; ``unit`` is STEP, TURN or WINDOW, the same of both."""

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
    table = run.results["steps"].to_frame()
    if table.empty or "duration_ns" not in table:
        return np.empty(0)
    by_turn = table.groupby("step")["duration_ns"]
    values = by_turn.mean()[by_turn.size() == by_turn.size().max()]
    return values.to_numpy(np.float64)


_EVALUATED: Final = ("run", "epoch")
_EVALUATIONS: Final = ("val", "eval", "test")
_SMOOTHED: Final = 5
_COLUMNS: Final = [column.name for column in SUMMARY.table("metrics")]
_SIZES: Final = ("devices_count", "gpus_count", "world_size", "ranks_count")


@dataclass(frozen=True, slots=True)
class Target:
    """A value of a metric to be reached, from below or (``is_lower``) from above."""

    metric: str
    value: float
    is_lower: bool

    def reached(self, values: pd.Series) -> pd.Series:
        """Return which of ``values`` reach it."""
        return values <= self.value if self.is_lower else values >= self.value

    def best(self, values: pd.Series) -> float:
        """Return the best of ``values``."""
        return float(values.min() if self.is_lower else values.max())


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """A metric over one run: ``rows`` have time_ns, epoch, step, samples_count, value, life.

    ``is_smoothed``: single steps are too noisy to say when a target was reached, and the median of
    the last few stands for each.
    """

    run: Summary
    rows: pd.DataFrame
    is_smoothed: bool = False

    def first(self, target: Target) -> pd.Series | None:
        """Return the first row that reaches ``target``."""
        values = self.rows["value"]
        if self.is_smoothed:
            values = values.rolling(_SMOOTHED, min_periods=1).median()
        rows = self.rows[target.reached(values)]
        return None if rows.empty else rows.iloc[0]


def metric_names(run: Summary) -> list[str]:
    """Return the metrics that a run has."""
    return [str(name) for name in run.table("metrics")["metric"].unique()]


def devices_of(run: Summary) -> float:
    """Return on how many devices a run trained, NaN where it is not known."""
    known = [run.measure(name) for name in _SIZES] + [run.devices_count]
    return float(max((value for value in known if value), default=math.nan))


def curve_of(run: Summary, metric: str) -> Curve:
    """Return the values of ``metric``, of evaluations where there are such, else of steps."""
    metrics = run.table("metrics").reindex(columns=_COLUMNS)
    rows = metrics[(metrics["metric"] == metric).to_numpy()]
    over = rows["over"].astype(object)
    rows = rows.assign(over=over.where(over.notna(), ""))
    evaluated = rows[rows["over"].isin(_EVALUATED).to_numpy()]
    rows = evaluated if len(evaluated) else rows
    ranks = rows["rank"].astype(np.float64)
    if ranks.nunique() > 1 or ranks.isna().any():
        rows = rows[(ranks.isna() if ranks.isna().any() else ranks == ranks.min()).to_numpy()]
    numbers = rows[["epoch", "step", "samples_count", "value"]].astype(np.float64)
    times = rows["at_ns"].astype(np.float64) - _began_ns(run)
    curve = numbers.assign(life=rows["life"].fillna(0).astype(np.int64), time_ns=times)
    curve = _filled(curve[np.isfinite(curve["value"])], run)
    is_evaluated = is_accuracy(metric) or metric.startswith(_EVALUATIONS)
    is_step = bool(rows["over"].isin(["step", ""]).all()) and not is_evaluated
    return Curve(run, curve.reset_index(drop=True), is_step and len(curve) > _SMOOTHED)


def _began_ns(run: Summary) -> float:
    """Return when training began: at the event that says so, else with the run."""
    events = run.table("events")
    events = events.reindex(columns=["kind", "at_ns"])
    starts = events[(events["kind"] == "start").to_numpy()]["at_ns"].dropna()
    return float(starts.min()) if len(starts) else 0.0


def _filled(curve: pd.DataFrame, run: Summary) -> pd.DataFrame:
    """Return the curve with steps, samples and epochs as far as they follow from one another."""
    batch = run.measure("global_batch_count") or math.nan
    size = run.measure("train_samples_count") or math.nan
    samples = curve["samples_count"].fillna(curve["step"] * batch)
    samples = samples.fillna(curve["epoch"] * size)
    return curve.assign(
        samples_count=samples,
        step=curve["step"].fillna(samples / batch),
        epoch=curve["epoch"].fillna(samples / size),
    )
