"""Means with intervals, scaling laws, and checks of printed efficiencies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import isfinite, nan, sqrt
from statistics import fmean, stdev
from typing import Final

_T_95: Final = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""Two-sided 95% quantiles of Student's t, by degrees of freedom from 1."""
_T_95_NORMAL: Final = 1.96


@dataclass(frozen=True, slots=True)
class Rate:
    """A value with the limits of its 95% interval; NaN: unknown."""

    value: float
    low: float = nan
    high: float = nan


def mean_rate(rates: Sequence[Rate]) -> Rate:
    """Return the mean of repeats with the 95% interval over the repeats.

    The run is the unit, because variation between runs is invisible within one run. A single run
    keeps its own interval.
    """
    if len(rates) == 1:
        return rates[0]
    values = [rate.value for rate in rates]
    middle, free = fmean(values), len(values) - 1
    quantile = _T_95[free - 1] if free <= len(_T_95) else _T_95_NORMAL
    half = quantile * stdev(values) / sqrt(len(values))
    return Rate(middle, middle - half, middle + half)


def ratio_of(rate: Rate, base: Rate, factor: float) -> Rate:
    """Return ``factor`` times ``rate`` / ``base``; relative errors add in quadrature.

    The interval is unknown if one of the two intervals is unknown.
    """
    value = factor * rate.value / base.value if base.value else nan
    down = sqrt(
        ((rate.value - rate.low) / rate.value) ** 2 + ((base.high - base.value) / base.value) ** 2
    )
    up = sqrt(
        ((rate.high - rate.value) / rate.value) ** 2 + ((base.value - base.low) / base.value) ** 2
    )
    return Rate(value, max(0.0, value * (1 - down)) if down == down else nan, value * (1 + up))


def karp_flatt(speedup: float, n: float) -> float:
    """Return the serial share that gives ``speedup`` on ``n`` times as many devices (Karp–Flatt).

    NaN if ``n`` is not above 1.
    """
    return (1 / speedup - 1 / n) / (1 - 1 / n) if n > 1 and speedup > 0 else nan


def amdahl_share(points: Sequence[tuple[float, float]]) -> float:
    """Return the serial share s of Amdahl's law, ``1 / speedup = s + (1 - s) / n``.

    It is a least-squares fit. ``points`` are pairs of n and speedup; NaN if no n is above 1.
    """
    pairs = [(1 - 1 / n, 1 / up - 1 / n) for n, up in points if n > 1 and up > 0]
    weight = sum(x * x for x, _ in pairs)
    return sum(x * y for x, y in pairs) / weight if weight else nan


ROUNDED: Final = "rounded"
CUT_OFF: Final = "cut off, not rounded"
NOT_FROM_RATES: Final = "does not follow from the rates"

ABSENT_BASE: Final = "refers to a base that is not among the runs"

_TOLERANCE: Final = 1e-9


@dataclass(frozen=True, slots=True)
class PrintedRates:
    """A printed rate, the printed rate of the base, and ``n``, the factor between their sizes."""

    rate: float
    base: float
    n: float

    @property
    def efficiency(self) -> float:
        """The efficiency that the rates give, in %."""
        return 100 * self.rate / self.base / self.n

    @property
    def extremes(self) -> tuple[float, float]:
        """The lowest and highest efficiency, in %, of rates that round to the printed rates."""
        rate_error, base_error = (last_digit(value) / 2 for value in (self.rate, self.base))
        return (
            100 * (self.rate - rate_error) / (self.base + base_error) / self.n,
            100 * (self.rate + rate_error) / (self.base - base_error) / self.n,
        )


def check_printed(percent: float, rates: PrintedRates) -> str:
    """Return how a printed efficiency follows from the printed rates; "" if one is unknown."""
    if not all(map(isfinite, (percent, rates.rate, rates.base, rates.n))):
        return ""
    unit, more = last_digit(percent), rates.efficiency - percent
    if abs(more) <= unit / 2 + _TOLERANCE:
        return ROUNDED
    return CUT_OFF if 0 < more < unit else NOT_FROM_RATES


def find_absent_base(points: Sequence[tuple[float, float, float]]) -> Rate | None:
    """Return the rate of one device that explains most of the printed efficiencies.

    ``points`` are efficiencies in %, rates, and sizes. None if no rate explains more than half of
    them, and at least two.
    """
    ranges = [base_range(*point) for point in points]
    best: list[tuple[float, float]] = []
    for start, _ in ranges:
        agreeing = [(low, high) for low, high in ranges if low <= start <= high]
        best = max(best, agreeing, key=len)
    if len(best) < 2 or 2 * len(best) <= len(ranges):
        return None
    low, high = max(low for low, _ in best), min(high for _, high in best)
    return Rate((low + high) / 2, low, high)


def base_range(percent: float, rate: float, n: float) -> tuple[float, float]:
    """Return the lowest and highest rate of one device that give a printed efficiency.

    The rate is rounded. The efficiency is rounded or cut off.
    """
    unit, error = last_digit(percent), last_digit(rate) / 2
    if percent <= unit or n <= 0:
        return nan, nan
    return (
        100 * (rate - error) / (percent + unit) / n,
        100 * (rate + error) / (percent - unit / 2) / n,
    )


def last_digit(value: float) -> float:
    """Return the place value of the last written digit of a number: 0.1 for 99.5, 1 for 100."""
    exponent = Decimal(repr(float(value))).normalize().as_tuple().exponent
    return 10.0 ** min(0, int(exponent))
