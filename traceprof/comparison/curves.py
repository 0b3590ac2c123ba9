"""The values of a metric over one run, and where it first reached a target."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from traceprof.model.summary import SUMMARY, Summary, is_accuracy

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
