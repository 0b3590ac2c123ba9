"""Means with intervals, the laws of scaling, and efficiencies that sources print."""

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
"""Student's t of 95 % on both sides, by degrees of freedom from 1."""
_T_95_NORMAL: Final = 1.96


@dataclass(frozen=True, slots=True)
class Rate:
    """A value with the ends of its 95 % interval; NaN: not known."""

    value: float
    low: float = nan
    high: float = nan


def mean_rate(rates: Sequence[Rate]) -> Rate:
    """Return the mean of repeats; of several the interval is that of the mean over them.

    The runs are the unit then: what differs from run to run is not seen within one.
    """
    if len(rates) == 1:
        return rates[0]
    values = [rate.value for rate in rates]
    middle, free = fmean(values), len(values) - 1
    quantile = _T_95[free - 1] if free <= len(_T_95) else _T_95_NORMAL
    half = quantile * stdev(values) / sqrt(len(values))
    return Rate(middle, middle - half, middle + half)


def ratio_of(rate: Rate, base: Rate, factor: float) -> Rate:
    """Return ``factor`` times own over base; relative errors add up by their squares.

    Where the interval of one of the two is not known, that of the ratio is not, either.
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
    """Return the serial share that gives ``speedup`` on ``n`` times as many devices.

    NaN where there are not more devices.
    """
    return (1 / speedup - 1 / n) / (1 - 1 / n) if n > 1 and speedup > 0 else nan


def amdahl_share(points: Sequence[tuple[float, float]]) -> float:
    """Return the serial share s of ``1 / speedup = s + (1 - s) / n`` by least squares.

    ``points`` are pairs of n and speed-up; NaN without any of n above 1.
    """
    pairs = [(1 - 1 / n, 1 / up - 1 / n) for n, up in points if n > 1 and up > 0]
    weight = sum(x * x for x, _ in pairs)
    return sum(x * y for x, y in pairs) / weight if weight else nan


ROUNDED: Final = "rounded"
CUT_OFF: Final = "cut off, not rounded"
NOT_FROM_RATES: Final = "does not follow from the rates"

_TOLERANCE: Final = 1e-9


@dataclass(frozen=True, slots=True)
class PrintedRates:
    """A rate and that of the base as they are printed; ``n``: how many times as many devices."""

    rate: float
    base: float
    n: float

    @property
    def efficiency(self) -> float:
        """What of ideal they give, in %."""
        return 100 * self.rate / self.base / self.n

    @property
    def extremes(self) -> tuple[float, float]:
        """The least and the most, in %, that rates give which would be printed like these."""
        rate_error, base_error = (last_digit(value) / 2 for value in (self.rate, self.base))
        return (
            100 * (self.rate - rate_error) / (self.base + base_error) / self.n,
            100 * (self.rate + rate_error) / (self.base - base_error) / self.n,
        )


def judge_printed(percent: float, rates: PrintedRates) -> str:
    """Return how a printed efficiency follows from the printed rates; "" where one is not known."""
    if not all(map(isfinite, (percent, rates.rate, rates.base, rates.n))):
        return ""
    unit, more = last_digit(percent), rates.efficiency - percent
    if abs(more) <= unit / 2 + _TOLERANCE:
        return ROUNDED
    return CUT_OFF if 0 < more < unit else NOT_FROM_RATES


def last_digit(value: float) -> float:
    """Return the value of the last digit that is written of a number: 0.1 of 99.5, 1 of 100."""
    exponent = Decimal(repr(float(value))).normalize().as_tuple().exponent
    return 10.0 ** min(0, int(exponent))
