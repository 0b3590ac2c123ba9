"""Whether two runs differ by more than their steps do among themselves.

Neighbouring steps are not independent (clocks of a GPU that warms up, a loader that falls behind),
so that what one step tells is told in part by the next one, too. The error of a median is that of
medians of blocks of neighbours drawn anew (the moving-block bootstrap); the length of blocks
follows from how much neighbours have in common. Intervals are of Student's t with as many degrees
of freedom as there are blocks' worth of knowledge, so that few steps make no false alarms. Where
several runs are given the run is the unit, and its median one number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["FEWEST", "LEAST", "Difference", "Median", "compare_runs", "compare_steps", "median_of"]

_Float64Array: TypeAlias = npt.NDArray[np.float64]

FEWEST: Final = 5
"""Of fewer steps nothing is said about how much they differ among themselves."""

LEAST: Final = 0.01
"""With one run of each a smaller difference is no change: runs of one program differ by that."""

_DRAWS: Final = 400
_SEED: Final = 20
_LEVEL: Final = 0.05
_POWER: Final = 0.8
_MOST_ALIKE: Final = 0.9


@dataclass(frozen=True, slots=True)
class Median:
    """The median of a series: of its logarithm the standard error and the degrees of freedom.

    ``error`` is None where the series is too short; ``block`` counts the steps of a block.
    """

    value: float
    count: int
    error: float | None = None
    freedom: float = 1.0
    block: int = 1

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval; NaN where it is not known."""
        if self.error is None:
            return math.nan, math.nan
        reach = math.exp(_quantile(1 - _LEVEL / 2, self.freedom) * self.error)
        return self.value / reach, self.value * reach


@dataclass(frozen=True, slots=True)
class Difference:
    """How much larger the new median is, as a share of the base's (below 0: smaller).

    ``low_ratio`` and ``high_ratio`` are the 95 % interval, NaN where it is not known (``why`` says
    why). ``smallest_ratio`` is the change that would have been seen four times in five.
    ``larger_ratio`` is the share of pairs of a new and a base value in which the new one is larger
    (1/2: no effect). ``base`` and ``new`` are the medians, of ``base_count`` and ``new_count``
    values. ``of_runs``: these are runs, not steps.
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
    block: int = 1
    of_runs: bool = False
    why: str = ""

    @property
    def is_known(self) -> bool:
        """Whether anything is known of how large a difference there is without a change."""
        return not math.isnan(self.low_ratio)

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval holds no 0."""
        return self.is_known and (self.low_ratio > 0 or self.high_ratio < 0)

    @property
    def is_shown(self) -> bool:
        """Whether a difference is shown: by the interval, and more than runs differ by anyway."""
        return self.excludes_zero and (self.of_runs or abs(self.change_ratio) >= LEAST)


def median_of(values: _Float64Array) -> Median:
    """Return the median of a series in its order, and how sure it is; values are above 0."""
    n = len(values)
    value = float(np.median(values)) if n else math.nan
    if n < FEWEST:
        return Median(value, n)
    logs = np.log(values)
    alike = _likeness(logs)
    block = _block_length(n, alike)
    draws = np.random.default_rng(_SEED)
    starts = draws.integers(0, n - block + 1, size=(_DRAWS, -(-n // block)))
    rows = (starts[:, :, None] + np.arange(block)).reshape(_DRAWS, -1)[:, :n]
    variance = float(np.median(logs[rows], axis=1).var()) * _correction(n, block, alike)
    freedom = n - 1.0 if block == 1 else max(1.0, 1.5 * n / block - 1)
    return Median(value, n, math.sqrt(variance), freedom, block)


def compare_steps(base: _Float64Array, new: _Float64Array) -> Difference:
    """Return how the medians of two series of steps differ, each in its order."""
    first, second = median_of(base), median_of(new)
    found = _plain(first.value, second.value, len(base), len(new))
    if first.error is None or second.error is None:
        return found
    errors = (first.error, second.error)
    freedom = _welch(errors, (first.freedom, second.freedom))
    error = math.hypot(*errors)
    return _with_interval(
        found,
        error,
        freedom,
        larger_ratio=_larger_ratio(base, new),
        block=max(first.block, second.block),
    )


def compare_runs(base: Sequence[float], new: Sequence[float]) -> Difference:
    """Return how runs differ, each told by its median: the run is the unit."""
    first, second = (np.log(np.asarray(own, np.float64)) for own in (base, new))
    values = [float(np.exp(own.mean())) for own in (first, second)]
    found = _plain(values[0], values[1], len(base), len(new), of_runs=True)
    spreads = [float(own.var(ddof=1)) for own in (first, second) if len(own) > 1]
    if not spreads:
        return found
    larger_ratio = _larger_ratio(np.asarray(base), np.asarray(new))
    if len(spreads) == 1:
        # Runs of the side that has one alone are taken to spread as those of the other.
        n = max(len(base), len(new))
        error = math.sqrt(spreads[0] * (1 + 1 / n))
        return _with_interval(found, error, n - 1.0, larger_ratio=larger_ratio)
    errors = [math.sqrt(spreads[0] / len(base)), math.sqrt(spreads[1] / len(new))]
    freedom = _welch(errors, [len(base) - 1.0, len(new) - 1.0])
    return _with_interval(found, math.hypot(*errors), freedom, larger_ratio=larger_ratio)


def _plain(
    base: float, new: float, n_base: int, n_new: int, *, of_runs: bool = False
) -> Difference:
    change = new / base - 1 if base and not math.isnan(base) else math.nan
    what = "runs" if of_runs else "steps"
    why = f"too few {what} to say how much they differ among themselves"
    return Difference(base, new, n_base, n_new, change, of_runs=of_runs, why=why)


def _with_interval(
    found: Difference, error: float, freedom: float, *, larger_ratio: float, block: int = 1
) -> Difference:
    reach = _quantile(1 - _LEVEL / 2, freedom) * error
    middle = math.log1p(found.change_ratio)
    return Difference(
        base=found.base,
        new=found.new,
        base_count=found.base_count,
        new_count=found.new_count,
        change_ratio=found.change_ratio,
        low_ratio=math.expm1(middle - reach),
        high_ratio=math.expm1(middle + reach),
        smallest_ratio=math.expm1(reach + NormalDist().inv_cdf(_POWER) * error),
        larger_ratio=larger_ratio,
        block=block,
        of_runs=found.of_runs,
    )


def _welch(errors: Sequence[float], freedoms: Sequence[float]) -> float:
    """Return the degrees of freedom of a difference (Welch, Satterthwaite)."""
    whole = sum(error**2 for error in errors) ** 2
    parts = sum(error**4 / freedom for error, freedom in zip(errors, freedoms, strict=True))
    return whole / parts if parts else min(freedoms)


def _likeness(values: _Float64Array) -> float:
    """Return the correlation of neighbours, by their order, so that outliers have no say.

    That of few steps comes out too small, by about (1 + 4 rho) / n.
    """
    order = np.argsort(np.argsort(values, kind="stable"), kind="stable").astype(np.float64)
    order -= order.mean()
    whole = float(order @ order)
    found = float(order[1:] @ order[:-1]) / whole if whole else 0.0
    return min(max(found + (1 + 4 * found) / len(values), 0.0), _MOST_ALIKE)


def _block_length(n: int, alike: float) -> int:
    """Return how many steps make a block (Andrews' choice for a triangular kernel)."""
    strength = 4 * alike**2 / (1 - alike**2) ** 2
    wanted = math.ceil(1.1447 * math.cbrt(strength * n))
    return max(1, min(wanted, n // 3))


def _correction(n: int, block: int, alike: float) -> float:
    """Return by how much blocks of this length find a variance too small."""
    lags = np.arange(1, block)
    seen = 1 + 2 * float(np.sum((1 - lags / block) * alike**lags))
    return (1 + alike) / (1 - alike) / seen * n / max(1, n - block)


def _larger_ratio(base: _Float64Array, new: _Float64Array) -> float:
    """Return the share of pairs in which the new value is larger; equal ones count half."""
    order = np.sort(base)
    below = np.searchsorted(order, new, side="left")
    upto = np.searchsorted(order, new, side="right")
    return float((below + upto).mean() / (2 * len(base)))


def _quantile(p: float, freedom: float) -> float:
    """Return the quantile of Student's t: exact for 1 and 2, an expansion from 3 on."""
    if freedom >= 3:
        return _expanded(p, freedom)
    known = [math.tan(math.pi * (p - 0.5)), (2 * p - 1) * math.sqrt(2 / (4 * p * (1 - p)))]
    known.append(_expanded(p, 3))
    places = [1 / 3, 1 / 2, 1.0]
    logs = np.log(known[::-1])
    return float(np.exp(np.interp(1 / max(1.0, freedom), places, logs)))


def _expanded(p: float, freedom: float) -> float:
    """Return the quantile by Cornish and Fisher's expansion about that of the normal."""
    z = NormalDist().inv_cdf(p)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92_160,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, 1))
