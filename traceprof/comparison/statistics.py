"""Test whether two runs differ by more than the variation of their steps.

Steps are compared pair by pair (Mann–Whitney), so an outlier counts as much as any other step. The
change is the median over all pairs (Hodges–Lehmann). Its interval contains the changes that balance
the pairs.

Neighboring steps are not independent (GPU clocks during warm-up, a data loader that falls behind).
The variance is that of a series with the measured correlation of neighbors. Intervals use Student's
t; the degrees of freedom are the number of independent stretches.

Periodic steps (two loader workers, a log line every ten steps) are averaged over each period. Steps
of two kinds in irregular order (some wait, others do not) have no typical pair, so their means are
compared. With several runs per side, the run is the unit, represented by its median.

Steps that drift (a line, or two levels) are not a sample of one duration. Their means are compared,
and the error is that of the deviations from the drift. If the steps of the two sides are far apart,
the interval may contain the changes of all pairs. `scripts/planted_pairs` measures false alarms,
power, and coverage on generated series.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from traceprof.comparison.precision import (
    MeanEstimate,
    autocorrelation,
    centered_ranks,
    interval_reach,
    welch_freedom,
)
from traceprof.measures.steps.steadiness import are_long, find_rise, long_step_period

_Float64Array: TypeAlias = npt.NDArray[np.float64]

MIN_STEPS: Final = 5
"""Minimum number of steps for which the variation is estimated."""

MIN_CHANGE_RATIO: Final = 0.01
"""Minimum change with one run per side: runs of the same program differ by up to this ratio."""

_SERIES_LEVEL: Final = 0.035
"""Nominal level of 95% intervals of series: estimated correlations add false alarms, up to 5%."""
POWER: Final = 0.8
_ROUNDING: Final = 1e-9
_BISECTION_STEPS: Final = 60
_MAX_PERIOD_STEPS: Final = 32
_MIN_PERIODS: Final = 8
_MIN_STANDARD_ERRORS: Final = 3.0
"""Minimum height of a periodic correlation, in standard errors."""
_MIN_DRIFTING_STEPS: Final = 10
_MIN_DRIFT_EXPLAINED_RATIO: Final = 0.85
"""Minimum share of the variance that a drift explains."""
_MIN_GAP_RATIO: Final = 1 / 3
"""Minimum gap between two sides that are apart, as a ratio of the wider range of steps."""
_MAX_CORRELATION_AFTER_DRIFT: Final = 0.6
"""Maximum correlation of neighboring deviations from a drift; otherwise it is correlated noise."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The change from base to new, as a ratio of the base; below 0: smaller.

    ``base`` and ``new`` are medians of ``base_count`` and ``new_count`` values. ``change_ratio`` is
    the median over all pairs of a new and a base value. ``low_ratio`` and ``high_ratio`` are its
    95% interval: NaN if unlimited or unknown (``why`` gives the reason).

    ``smallest_ratio`` is the smallest change detected with 80% power (NaN: none). ``larger_ratio``
    is the share of pairs in which the new value is larger (1/2: no effect). ``autocorrelation`` is
    the correlation of neighboring values (0: none). ``together`` steps are averaged into one value.
    ``of_runs``: the values are runs, not steps. ``of_means``: ``base``, ``new`` and the change are
    means, because the steps of a side are of two kinds. ``is_drifting``: the steps of a side get
    longer or shorter; the change is that of means. ``is_apart``: all steps of one side are longer
    than all steps of the other side, and the interval contains the changes of all pairs.
    """

    base: float
    new: float
    base_count: int
    new_count: int
    change_ratio: float
    low_ratio: float = math.nan
    high_ratio: float = math.nan
    smallest_ratio: float = math.nan
    larger_ratio: float = math.nan
    autocorrelation: float = math.nan
    together: int = 1
    of_runs: bool = False
    why: str = ""
    of_means: bool = False
    is_drifting: bool = False
    is_apart: bool = False

    @property
    def is_known(self) -> bool:
        """Whether the variation is known, so that the change can be tested."""
        return not self.why

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval excludes 0."""
        return self.is_known and (self.low_ratio > 0 or self.high_ratio < 0)

    @property
    def is_shown(self) -> bool:
        """Whether the change is significant and larger than the usual variation between runs."""
        return self.excludes_zero and (self.of_runs or abs(self.change_ratio) >= MIN_CHANGE_RATIO)

    @property
    def is_inconclusive(self) -> bool:
        """Whether the test is inconclusive: the interval contains a factor of 2.

        An unlimited interval contains it.
        """
        is_narrow = self.low_ratio > -0.5 and self.high_ratio < 1
        return self.is_known and not self.is_shown and not is_narrow

    def as_unchanged(self) -> Difference:
        """Return the result for a recording compared with itself: no change."""
        return replace(
            self,
            change_ratio=0.0,
            low_ratio=0.0,
            high_ratio=0.0,
            smallest_ratio=MIN_CHANGE_RATIO,
            larger_ratio=0.5,
            why="",
        )


def compare_steps(
    base: _Float64Array, new: _Float64Array, *, are_rates: bool = False, of_means: bool = False
) -> Difference:
    """Test the difference of two series of steps, each in order; all values are above 0.

    Rates are averaged over time, that is, by their harmonic mean. ``of_means`` compares means,
    which include outliers, instead of pairs of steps.
    """
    counts = len(base), len(new)
    # The caller of `of_means` may join the steps of several processes, which differ in their level.
    drifts: list[_Float64Array | None] = [None, None]
    if not of_means:
        drifts = _drifts_of(base, new, are_rates=are_rates)
    is_drifting = any(drift is not None for drift in drifts)
    period = 1 if is_drifting else _period_of_both(base, new)
    base, new = (_average_periods(values, period, are_rates) for values in (base, new))
    found = _untested(float(np.median(base)), float(np.median(new)), *counts)
    if min(len(base), len(new)) < MIN_STEPS:
        return found
    times = [1 / values if are_rates else values for values in (base, new)]
    if period > 1 and not of_means:
        drifts = _drifts_of(base, new, are_rates=are_rates)
    is_drifting = any(drift is not None for drift in drifts)
    if of_means or is_drifting or any(are_long(values) is not None for values in (base, new)):
        rests = [
            series if drift is None else series - drift
            for series, drift in zip(times, drifts, strict=True)
        ]
        found = _compare_means(found, times, rests, are_rates=are_rates, is_cautious=is_drifting)
        found = replace(found, is_drifting=is_drifting)
    else:
        found = _compare_pairs(found, base, new)
        if math.isnan(found.low_ratio + found.high_ratio):  # few independent steps
            means = _compare_means(found, times, times, are_rates=are_rates, is_cautious=True)
            found = found if means.is_inconclusive else means
    return _with_range_of_pairs(replace(found, together=period), base, new)


def _compare_pairs(found: Difference, base: _Float64Array, new: _Float64Array) -> Difference:
    """Return the difference of two series by all pairs of their values."""
    first, second = np.sort(np.log(base)), np.sort(np.log(new))
    change = _pair_quantile(first, second, 0.5)
    shifted = np.log(new) - change
    sides = [
        MeanEstimate.of(_share_below(np.sort(shifted), np.log(base))),
        MeanEstimate.of(_share_below(first, shifted)),
    ]
    error = math.hypot(*(side.error for side in sides))
    freedom = welch_freedom([side.error for side in sides], [side.freedom for side in sides])
    reach = interval_reach(freedom, _SERIES_LEVEL) * error
    detectable = reach + NormalDist().inv_cdf(POWER) * error
    low, high, detectable_change = (
        _pair_quantile(first, second, share)
        for share in (0.5 - reach, 0.5 + reach, 0.5 + detectable)
    )
    return replace(
        found,
        change_ratio=math.expm1(change),
        low_ratio=math.expm1(low) if math.isfinite(low) else math.nan,
        high_ratio=math.expm1(high) if math.isfinite(high) else math.nan,
        smallest_ratio=_smallest_detectable(first, second, change, detectable_change, reach),
        larger_ratio=_share_of_larger(first, second),
        autocorrelation=max(side.correlation for side in sides),
        why="",
    )


def _with_range_of_pairs(found: Difference, base: _Float64Array, new: _Float64Array) -> Difference:
    """Return the difference with the changes of all pairs as interval, if the sides are far apart.

    A drift leaves few independent steps, and the test then cannot exclude any change. Steps of the
    two sides that do not overlap show the difference without a model of the noise.
    """
    low, high = float(new.min() / base.max() - 1), float(new.max() / base.min() - 1)
    gap = max(new.min() - base.max(), base.min() - new.max())
    if found.excludes_zero or gap < _MIN_GAP_RATIO * max(np.ptp(base), np.ptp(new)):
        return found
    return replace(found, low_ratio=low, high_ratio=high, is_apart=True, smallest_ratio=high - low)


def _drifts_of(
    base: _Float64Array, new: _Float64Array, *, are_rates: bool
) -> list[_Float64Array | None]:
    return [_drift_of(1 / values if are_rates else values) for values in (base, new)]


def _drift_of(values: _Float64Array) -> _Float64Array | None:
    """Return the drift of a series at each step: a line, or two levels; None if there is none.

    A drift explains most of the variance, and the remaining deviations are hardly correlated.
    Noise with correlated neighbors can resemble a drift, but its deviations remain correlated.
    """
    n = len(values)
    if n < _MIN_DRIFTING_STEPS:
        return None
    place = np.arange(n) - (n - 1) / 2
    candidates = [values.mean() + place * (place @ values) / (place @ place)]
    rise, fall = find_rise(values), find_rise(values[::-1])
    for split in (rise, None if fall is None else n - fall):
        if split is not None and 0 < split < n:
            levels = [values[:split].mean(), values[split:].mean()]
            candidates.append(np.where(np.arange(n) < split, *levels))
    whole = float(((values - values.mean()) ** 2).sum())
    drift: _Float64Array = min(candidates, key=lambda fitted: float(((values - fitted) ** 2).sum()))
    rest = values - drift
    if float(rest @ rest) > (1 - _MIN_DRIFT_EXPLAINED_RATIO) * whole or not whole:
        return None
    if float(np.ptp(rest)) < _ROUNDING * float(values.max()):
        return drift
    return drift if autocorrelation(rest) <= _MAX_CORRELATION_AFTER_DRIFT else None


def with_displayed_values(found: Difference, base: float | None, new: float | None) -> Difference:
    """Return the difference with the displayed values of the two runs, if they are known.

    The change is that of the displayed values, and its interval is widened to contain it. The
    smallest detectable change is at least `MIN_CHANGE_RATIO`, because smaller changes are not
    reported.
    """
    if not base or not new:
        return replace(found, smallest_ratio=max(found.smallest_ratio, MIN_CHANGE_RATIO))
    change = new / base - 1
    return replace(
        found,
        base=base,
        new=new,
        change_ratio=change,
        low_ratio=min(found.low_ratio, change) if found.is_known else found.low_ratio,
        high_ratio=max(found.high_ratio, change) if found.is_known else found.high_ratio,
        smallest_ratio=max(found.smallest_ratio, MIN_CHANGE_RATIO),
    )


def _compare_means(
    found: Difference,
    times: Sequence[_Float64Array],
    rests: Sequence[_Float64Array],
    *,
    are_rates: bool,
    is_cautious: bool,
) -> Difference:
    """Return the difference of the means of two series: their ratio, with the errors of both.

    ``rests`` are the deviations of ``times`` from their drifts. ``is_cautious``: the correlation of
    neighbors may be larger than estimated (see `MeanEstimate.of`).
    """
    sides = [MeanEstimate.of(series, is_cautious=is_cautious) for series in rests]
    means = [float(series.mean()) for series in times]
    errors = [side.error / mean for side, mean in zip(sides, means, strict=True)]
    error, freedom = math.hypot(*errors), welch_freedom(errors, [side.freedom for side in sides])
    reach = interval_reach(freedom, _SERIES_LEVEL) * error
    values = [1 / mean if are_rates else mean for mean in means]
    change = math.log(values[1] / values[0])
    return replace(
        found,
        base=values[0],
        new=values[1],
        change_ratio=math.expm1(change),
        low_ratio=math.expm1(change - reach),
        high_ratio=math.expm1(change + reach),
        smallest_ratio=math.expm1(reach + NormalDist().inv_cdf(POWER) * error),
        larger_ratio=_share_of_larger(*times, are_rates=are_rates),
        autocorrelation=max(side.correlation for side in sides),
        why="",
        of_means=True,
    )


def _smallest_detectable(
    base: _Float64Array, new: _Float64Array, change: float, detectable_change: float, reach: float
) -> float:
    """Return the smallest detectable change; NaN: none.

    ``detectable_change`` is infinite if all pairs must agree. Then it is the change at which every
    new value exceeds every base value, if an imbalance of ``reach`` is possible.
    """
    if math.isfinite(detectable_change):
        return math.expm1(detectable_change - change)
    if reach >= 0.5:
        return math.nan
    return math.expm1(max(new[-1] - base[0] - change, change - (new[0] - base[-1])))


def compare_runs(base: Sequence[float], new: Sequence[float]) -> Difference:
    """Test the difference of several runs, each represented by one value, such as its median."""
    first, second = (np.log(np.asarray(values, np.float64)) for values in (base, new))
    means = [float(np.exp(values.mean())) for values in (first, second)]
    found = _untested(means[0], means[1], len(base), len(new), of_runs=True)
    spreads = [float(values.var(ddof=1)) for values in (first, second) if len(values) > 1]
    if not spreads:
        return found
    if len(spreads) == 1:
        # One side has a single run, so both sides are assumed to have the same variance.
        n = max(len(base), len(new))
        error, freedom = math.sqrt(spreads[0] * (1 + 1 / n)), n - 1.0
    else:
        errors = [math.sqrt(spreads[0] / len(base)), math.sqrt(spreads[1] / len(new))]
        freedom = welch_freedom(errors, [len(base) - 1.0, len(new) - 1.0])
        error = math.hypot(*errors)
    reach = interval_reach(freedom) * error
    middle = math.log1p(found.change_ratio)
    return replace(
        found,
        low_ratio=math.expm1(middle - reach),
        high_ratio=math.expm1(middle + reach),
        smallest_ratio=math.expm1(reach + NormalDist().inv_cdf(POWER) * error),
        larger_ratio=float(_share_below(np.sort(first), second).mean()),
        why="",
    )


def interval_of_median(values: _Float64Array) -> tuple[float, float]:
    """Return the 95% interval of the median of an ordered series; NaN if it is too short."""
    if len(values) < MIN_STEPS:
        return math.nan, math.nan
    is_above = (values > np.median(values)).astype(np.float64)
    # The reach is the uncertainty of the share of values below the median.
    reach = MeanEstimate.of(is_above, correlation_of=values).reach
    low, high = np.quantile(values, [max(0.0, 0.5 - reach), min(1.0, 0.5 + reach)])
    return float(low), float(high)


def interval_of_mean(values: _Float64Array) -> tuple[float, float]:
    """Return the 95% interval of the mean of an ordered series; NaN if it is too short."""
    if len(values) < MIN_STEPS:
        return math.nan, math.nan
    middle, reach = float(values.mean()), MeanEstimate.of(values).reach
    return middle - reach, middle + reach


def _untested(
    base: float, new: float, n_base: int, n_new: int, *, of_runs: bool = False
) -> Difference:
    """Return a difference without a test."""
    change = new / base - 1 if base > 0 else math.nan
    what = "runs" if of_runs else "steps"
    return Difference(base, new, n_base, n_new, change, of_runs=of_runs, why=f"not enough {what}")


def _period_of_both(base: _Float64Array, new: _Float64Array) -> int:
    """Return the common period of both series in steps; 1 if they are not periodic."""
    fewest = min(len(base), len(new))
    most = min(_MAX_PERIOD_STEPS, fewest // _MIN_PERIODS)
    kinds = [are_long(values) for values in (base, new)]
    regular = [1 if is_long is None else long_step_period(is_long) for is_long in kinds]
    found = math.lcm(
        *(
            period if period > 1 else _find_period(values, most)
            for period, values in zip(regular, (base, new), strict=True)
        )
    )
    if found <= most:
        return found
    # The periods of long steps alone may be known even if noise hides the common period.
    found = math.lcm(*regular)
    return found if found * MIN_STEPS <= fewest else 1


def _find_period(values: _Float64Array, most: int) -> int:
    """Return the lag, up to ``most``, with the highest autocorrelation; 1 if none stands out."""
    if most < 2:
        return 1
    order = centered_ranks(values)
    whole = float(order @ order)
    if not whole:
        return 1
    correlations = [float(order[lag:] @ order[:-lag]) / whole for lag in range(1, most + 1)]
    best = int(np.argmax(correlations))
    height = correlations[best] - max(correlations[0], 0.0)
    return best + 1 if height > _MIN_STANDARD_ERRORS / math.sqrt(len(values)) else 1


def _average_periods(values: _Float64Array, period: int, are_rates: bool) -> _Float64Array:
    """Return the mean of every ``period`` neighbors; an incomplete last period is dropped."""
    if period == 1:
        return values
    if are_rates:
        return np.asarray(1 / _average_periods(1 / values, period, are_rates=False), np.float64)
    n = len(values) // period
    return np.asarray(values[: n * period].reshape(n, period).mean(axis=1), np.float64)


def _share_below(order: _Float64Array, values: _Float64Array) -> _Float64Array:
    """Return the share of ``order`` (sorted) below each value; equal values count half."""
    below = np.searchsorted(order, values, side="left")
    not_above = np.searchsorted(order, values, side="right")
    return np.asarray((below + not_above) / (2 * len(order)), np.float64)


def _share_of_larger(base: _Float64Array, new: _Float64Array, *, are_rates: bool = False) -> float:
    """Return the share of pairs in which the new value is larger; of times, or of their rates."""
    share = float(_share_below(np.sort(base), new).mean())
    return 1 - share if are_rates else share


def _pair_quantile(base: _Float64Array, new: _Float64Array, share: float) -> float:
    """Return the quantile ``share`` of the differences of all pairs of new and base values.

    Both inputs are sorted. The result is infinite for shares that are not between 0 and 1, because
    then no change can be excluded.
    """
    if not 0 < share < 1:
        return -math.inf if share <= 0 else math.inf
    low, high = float(new[0] - base[-1]), float(new[-1] - base[0])
    for _ in range(_BISECTION_STEPS):
        middle = (low + high) / 2
        # The difference of a pair is below ``middle`` if new is below base + middle.
        if float(_share_below(new, base + middle).mean()) < share:
            low = middle
        else:
            high = middle
    return high
