"""The runs on each side of a comparison: units of time, step series, and metric curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from traceprof.measures.rows import Array, Bools, Floats, Ints, floats
from traceprof.measures.steps.ledger import USUAL
from traceprof.model.grouping import grouped_by
from traceprof.model.results import Unit
from traceprof.model.summary import SUMMARY, Summary, is_accuracy
from traceprof.model.table import Table, objects

STEP, ITERATION, WINDOW = "step", "iteration", "window"
"""Units of time: a step, an iteration of a repeating pattern, or the whole window."""

MAX_NAME_LENGTH: Final = 600
"""Summaries truncate the names of causes to this length."""


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """The runs of one side; ``unit`` is STEP, ITERATION or WINDOW, the same on both sides.

    ``groups`` are the runs by the row of a table that the other side has, too; () if the runs are
    repeats.
    """

    runs: tuple[Summary, ...]
    unit: str = WINDOW
    groups: tuple[tuple[Summary, ...], ...] = ()

    @property
    def name(self) -> str:
        """The display name."""
        return ", ".join(run.name for run in self.runs)

    @property
    def units_count(self) -> int:
        """The number of units times devices in the total composition of all runs."""
        return sum(units_of(run, self.unit) * _count_places(run) for run in self.runs)

    @property
    def composition(self) -> Table | None:
        """The composition of the windows of all runs; None if one run does not have it."""
        tables = [run.table("makeup") for run in self.runs]
        return None if any(table.empty for table in tables) else Table.stacked(tables)

    def table(self, name: str) -> Table | None:
        """Return the stacked table of an analysis of all runs; None if one run does not have it."""
        if not all(name in run.results for run in self.runs):
            return None
        return Table.stacked([run.results[name].table for run in self.runs])

    def measure(self, name: str) -> float | None:
        """Return a measure: the geometric mean over runs, None if one run does not have it.

        The arithmetic mean replaces it if a value is not above 0. Each group counts once.
        """
        if self.groups:
            return _mean([mean_of(group, name) for group in self.groups])
        return mean_of(self.runs, name)

    def environment_value(self, name: str) -> str:
        """Return the distinct values of an environment setting of the runs, joined."""
        return ", ".join(
            value
            for value in dict.fromkeys(run.environment.get(name, "") for run in self.runs)
            if value
        )


def mean_of(runs: Sequence[Summary], name: str) -> float | None:
    """Return the geometric mean of a measure over runs; None if one run does not have it."""
    return _mean([run.measure(name) for run in runs])


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    if len(known) < len(values) or not known:
        return None
    if len(known) == 1 or min(known) <= 0:
        return float(np.mean(known))
    return float(np.exp(np.mean(np.log(known))))


def _count_places(run: Summary) -> int:
    """Return the number of devices of a run; without devices, the number of ranks."""
    return run.devices_count or ranks_count_of(run) or int(run.measure("world_size") or 0) or 1


def ranks_count_of(run: Summary) -> int:
    """Return the number of ranks whose steps are known."""
    return len(set(run.table("steps").known("rank")["rank"].tolist()))


def are_ranks_of_one(first: Summary, second: Summary) -> bool:
    """Return whether two recordings are different ranks of one job."""
    size = first.measure("world_size")
    ranks = [{rank for file in run.sources for rank in file.ranks} for run in (first, second)]
    is_apart = all(ranks) and ranks[0].isdisjoint(ranks[1])
    return is_apart and (size or 0) > 1 and size == second.measure("world_size")


def are_identical(first: Summary, second: Summary) -> bool:
    """Return whether two summaries contain identical measures, steps and compositions."""
    if first is second:
        return True
    tables = [(first.table(name), second.table(name)) for name in ("measures", "steps", "makeup")]
    known = [(one, other) for one, other in tables if len(one) or len(other)]
    # NaN is not equal to itself, so the comparison uses repr.
    return bool(known) and all(repr(one.rows()) == repr(other.rows()) for one, other in known)


def units_of(run: Summary, unit: str) -> int:
    """Return the number of steps, iterations or windows in ``makeup``; 0 if unknown.

    If the step time is from unprofiled steps, ``makeup`` covers the profiled steps.
    """
    if unit == STEP:
        return int(run.measure("profiled_count") or run.steps_count or 0)
    return int(run.measure("turns_count") or 0) if unit == ITERATION else 1


def count_measured_units(run: Summary, unit: str) -> int:
    """Return the number of steps, iterations or windows behind mean times; 0 if unknown."""
    return run.steps_count or 0 if unit == STEP else units_of(run, unit)


def time_unit_of(run: Summary) -> str:
    """Return the unit of times of a run: STEP, ITERATION or WINDOW; "" if no times are known."""
    unit = common_unit([run])
    return "" if unit == WINDOW and run.table("makeup").empty else unit


def warmup_count_of(run: Summary) -> int | None:
    """Return the number of warm-up steps per rank, which are excluded; None if unknown."""
    steps = run.table("steps")
    if steps.empty or "is_warmup" not in steps:
        return None
    warmup = steps.take(steps["is_warmup"].astype(bool))
    ranks = grouped_by(steps, "attempt", "rank")[1].counts
    return round(float(np.nansum(floats(warmup, "steps_count")[0])) / max(1, len(ranks)))


def common_unit(runs: Sequence[Summary]) -> str:
    """Return the most specific unit that all ``runs`` have."""
    units = (unit for unit in (STEP, ITERATION) if all(units_of(run, unit) for run in runs))
    return next(units, WINDOW)


def shares_of(totals: Ints, n: int) -> Ints:
    """Divide each total by ``n`` with the floor of the cumulated share, so sums stay exact."""
    reached = np.append(0, np.cumsum(totals)) // max(1, n)
    return np.asarray(np.diff(reached), np.int64)


def series_of(run: Summary, measure: str, unit: str) -> Floats:
    """Return a measure for each step in order, without warm-up: the mean over ranks.

    ``measure`` is period_ns (of `timed_steps`), device_ns, step_without_waits_ns (device_ns
    without waited_ns) or samples_per_s. Iterations only have their duration, as period_ns. Steps
    and iterations that some ranks lack are omitted (see `count_omitted`).
    """
    if unit == ITERATION and measure != "period_ns":
        return np.empty(0)
    steps = _steps_of(run, measure, unit)
    return np.empty(0) if steps.empty else _means_by_step(steps, measure)


def count_omitted(run: Summary, unit: str) -> tuple[int, int]:
    """Return the number of steps that `series_of` omits because ranks lack them, and of all."""
    steps = _steps_of(run, "period_ns", unit)
    if steps.empty:
        return 0, 0
    counts = grouped_by(steps, "attempt", "step")[1].counts
    return int((counts < counts.max()).sum()), len(counts)


def _steps_of(run: Summary, measure: str, unit: str) -> Table:
    """Return the steps or usual iterations of all ranks with a known ``measure``; may be empty."""
    if unit == ITERATION:
        return _usual_iterations(run)
    steps = steady_steps(run.table("steps"))
    if steps.empty:
        return steps
    # Step numbers may restart in each epoch.
    if (grouped_by(steps, "attempt", "rank", "step")[1].counts > 1).any():
        steps = steps.assign(step=grouped_by(steps, "attempt", "rank")[1].earlier)
    if measure in ("period_ns", "samples_per_s"):
        steps = timed_steps(steps)
    needed = _NEEDED_COLUMNS[measure]
    return steps.known(*needed) if set(needed) <= set(steps) else Table({})


def steady_steps(steps: Table) -> Table:
    """Return the measured steps, in the order of each rank.

    In a trace, these are the steps behind the mean step time; in a log, all steps except warm-up.
    """
    if steps.empty:
        return steps
    counts = steps["is_counted"] if "is_counted" in steps else ~steps["is_warmup"].astype(bool)
    return steps.take(counts.astype(bool)).in_order("attempt", "rank", "at_ns")


def timed_steps(steady: Table) -> Table:
    """Return the steps with a known duration, as period_ns.

    In a log, the period of the last step of a rank ends with the step itself. It is dropped, unless
    it is the only step.
    """
    if "duration_ns" in steady:
        return steady.assign(period_ns=steady["duration_ns"])
    groups = grouped_by(steady, "attempt", "rank")[1]
    is_last = groups.earlier == groups.counts[groups.number] - 1
    return steady if is_last.all() else steady.take(~is_last)


def _means_by_step(known: Table, measure: str) -> Floats:
    """Return the positive values of a measure per step; steps that some ranks lack are omitted."""
    _, groups = grouped_by(known, "attempt", "step")
    # A step that some ranks lack would have a different mean.
    n_ranks = int(groups.counts.max(initial=0))
    is_whole = groups.counts == n_ranks
    sums = {
        name: groups.sums(known[name])[is_whole].astype(np.float64)
        for name in (*_NEEDED_COLUMNS[measure], "steps_count")
    }
    if measure == "samples_per_s":
        # The total number of samples divided by the mean period over ranks.
        found = sums["samples_count"] / (sums["period_ns"] / n_ranks) * 1e9
    elif measure == "step_without_waits_ns":
        found = (sums["device_ns"] - sums["waited_ns"]) / sums["steps_count"]
    else:
        found = sums[measure] / sums["steps_count"]
    return np.asarray(found[found > 0], np.float64)


_NEEDED_COLUMNS: Final = {
    "period_ns": ("period_ns",),
    "device_ns": ("device_ns",),
    "step_without_waits_ns": ("device_ns", "waited_ns"),
    "samples_per_s": ("period_ns", "samples_count"),
}


_INTERVALS: Final = ("step", "interval")
_SCOPES: Final = ("run", "device", "rank")


def metric_series(run: Summary, metric: str) -> Floats:
    """Return the values of a rate or duration that a log prints for its intervals, in order.

    The first value of a run is dropped, because it may include warm-up.
    """
    rows = run.table("metrics")
    if rows.empty:
        return np.empty(0)
    rows = rows.take((rows["metric"] == metric) & np.isin(rows["over"], _INTERVALS))
    scope = next((scope for scope in _SCOPES if (rows["scope"] == scope).any()), "")
    rows = rows.take(rows["scope"] == scope)
    rank, value = floats(rows, "rank", "value")
    ranks = np.nan_to_num(rank, nan=-1.0)
    rows = rows.take((ranks == ranks.min(initial=np.inf)) & np.isfinite(value) & (value > 0))
    return np.asarray(floats(rows, "value")[0][1:], np.float64)


def _usual_iterations(run: Summary) -> Table:
    """Return the usual iterations of all ranks, with their duration as period_ns."""
    table = run.results["steps"].table if "steps" in run.results else Table({})
    if table.empty or "duration_ns" not in table:
        return Table({})
    if "kind" in table:
        table = table.take(table["kind"] == USUAL)
    one = np.ones(len(table), np.int64)
    return table.assign(period_ns=table["duration_ns"], attempt=0 * one, steps_count=one)


_EVALUATION_UNITS: Final = ("run", "epoch")
_EVALUATION_PREFIXES: Final = ("val", "eval", "test")
_SMOOTHED_VALUES: Final = 5
_SIZE_MEASURES: Final = ("devices_count", "gpus_count", "world_size", "ranks_count")


@dataclass(frozen=True, slots=True)
class Target:
    """A target value of a metric, reached from below or (``is_lower``) from above."""

    metric: str
    value: float
    is_lower: bool

    def reached(self, values: Floats) -> Bools:
        """Return a mask of ``values`` that reach the target."""
        return values <= self.value if self.is_lower else values >= self.value

    def best(self, values: Array) -> float:
        """Return the best of ``values``."""
        return float(values.min() if self.is_lower else values.max())


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """A metric over one run: ``rows`` have time_ns, epoch, step, samples_count, value, attempt.

    ``is_smoothed``: values of single steps are noisy, so the median of the last few values is
    compared with a target.
    """

    run: Summary
    rows: Table
    is_smoothed: bool = False

    def first(self, target: Target) -> dict[str, Any] | None:
        """Return the first row that reaches ``target``; None if no row does."""
        values = self.rows["value"]
        if self.is_smoothed:
            ends = range(1, len(values) + 1)
            values = np.array([np.median(values[max(0, n - _SMOOTHED_VALUES) : n]) for n in ends])
        places = np.flatnonzero(target.reached(values))
        return self.rows.row(int(places[0])) if len(places) else None


def metric_names(run: Summary) -> list[str]:
    """Return the names of the metrics of a run."""
    return list(map(str, dict.fromkeys(run.table("metrics")["metric"])))


def devices_of(run: Summary) -> float:
    """Return the number of devices of a run; NaN if unknown."""
    known = [run.measure(name) for name in _SIZE_MEASURES] + [run.devices_count]
    return float(max((value for value in known if value), default=math.nan))


def curve_of(run: Summary, metric: str) -> Curve:
    """Return the values of ``metric``, from evaluations if there are any, otherwise from steps."""
    rows = table_of(run, "metrics")
    rows = rows.take(rows["metric"] == metric)
    rows = rows.assign(over=objects(over or "" for over in rows["over"]))
    of_epochs = np.isin(rows["over"], _EVALUATION_UNITS)
    rows = rows.take(of_epochs) if of_epochs.any() else rows
    (ranks,) = floats(rows, "rank")
    of_run = np.isnan(ranks)
    rows = rows.take(of_run if of_run.any() else ranks == ranks.min(initial=np.inf))
    names = ("epoch", "step", "samples_count", "value")
    attempt, at_ns = floats(rows, "attempt", "at_ns")
    numbers = dict(zip(names, floats(rows, *names), strict=True))
    attempt = np.nan_to_num(attempt).astype(np.int64)
    curve = Table({**numbers, "attempt": attempt, "time_ns": at_ns - _began_ns(run)})
    curve = _fill_positions(curve.take(np.isfinite(curve["value"])), run)
    is_evaluated = is_accuracy(metric) or metric.startswith(_EVALUATION_PREFIXES)
    is_step = not is_evaluated and set(rows["over"]) <= {"step", ""}
    return Curve(run, curve, is_step and len(curve) > _SMOOTHED_VALUES)


def table_of(run: Summary, name: str) -> Table:
    """Return a table of a run with all columns of its specification."""
    table, unknown = run.table(name), {Unit.TEXT: None}
    missing = (column for column in SUMMARY.table(name) if column.name not in table)
    return table.assign(
        **{
            missing_column.name: unknown.get(missing_column.unit, math.nan)
            for missing_column in missing
        }
    )


def _began_ns(run: Summary) -> float:
    """Return when training began, in ns since the start of the run.

    In a recording, it is the first step; for a restarted job, the end of the first setup. In a log,
    it is the event "start". Otherwise, it is the start of the run, 0.
    """
    events = table_of(run, "events")
    known = floats(events, "at_ns", rows=events["kind"] == "start")[0]
    if len(run.table("attempts")):  # a restarted job: its steps are from one attempt only
        is_first = np.isin(events["kind"], _BEFORE_STEPS) & (floats(events, "attempt")[0] == 0)
        at_ns, took_ns = floats(events, "at_ns", "duration_ns", rows=is_first)
        known = np.sort(at_ns)[:1] + took_ns.sum()
    elif run.origin and not run.origin.startswith(("log:", "table")):
        known = floats(table_of(run, "steps"), "at_ns")[0]
    return float(np.nanmin(known)) if not np.isnan(known).all() else 0.0


_BEFORE_STEPS: Final = ("setup", "initialization")
"""Events of the first start of a job, from the start of its process to its first step."""


def _fill_positions(curve: Table, run: Summary) -> Table:
    """Fill unknown steps, samples and epochs from one another."""
    batch = run.measure("global_batch_count") or math.nan
    size = run.measure("train_samples_count") or math.nan
    samples = curve["samples_count"]
    for other in (curve["step"] * batch, curve["epoch"] * size):
        samples = np.where(np.isnan(samples), other, samples)
    step, epoch = (
        np.where(np.isnan(curve[name]), samples / each, curve[name])
        for name, each in (("step", batch), ("epoch", size))
    )
    return curve.assign(samples_count=samples, step=step, epoch=epoch)
