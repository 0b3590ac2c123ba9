"""Estimate the precision of the mean of a series whose neighbors are correlated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

_Float64Array: TypeAlias = npt.NDArray[np.float64]

_SIGNIFICANCE_LEVEL: Final = 0.05
_MAX_CORRELATION: Final = 0.9


@dataclass(frozen=True, slots=True)
class MeanEstimate:
    """The precision of the mean of a series with correlated neighbors.

    ``error`` is the standard error, ``freedom`` its degrees of freedom, and ``correlation`` that of
    neighbors.
    """

    error: float
    freedom: float
    correlation: float

    @classmethod
    def of(
        cls,
        places: _Float64Array,
        correlation_of: _Float64Array | None = None,
        *,
        is_cautious: bool = False,
    ) -> MeanEstimate:
        """Estimate the precision of the mean of ``places``, a series in order.

        The correlation is that of the series ``correlation_of``, by default ``places``.
        ``is_cautious`` adds the standard error of the correlation to it.
        """
        n = len(places)
        correlation = autocorrelation(places if correlation_of is None else correlation_of)
        correlation = min(correlation + is_cautious / math.sqrt(n), _MAX_CORRELATION)
        variance = float(places.var(ddof=1)) * (1 + correlation) / (1 - correlation)
        stretch = _bandwidth(n, correlation)
        freedom = n - 1.0 if stretch == 1 else max(1.0, 1.5 * n / stretch - 1)
        return cls(math.sqrt(variance / n), freedom, correlation)

    @property
    def reach(self) -> float:
        """Half the width of the 95% interval."""
        return interval_reach(self.freedom) * self.error


def welch_freedom(errors: Sequence[float], freedoms: Sequence[float]) -> float:
    """Return the degrees of freedom of a difference (Welch–Satterthwaite)."""
    whole = sum(error**2 for error in errors) ** 2
    parts = sum(error**4 / freedom for error, freedom in zip(errors, freedoms, strict=True))
    return whole / parts if parts else min(freedoms)


def autocorrelation(values: _Float64Array) -> float:
    """Return the rank correlation of neighbors; ranks limit the effect of outliers.

    The estimate of a short series is too low by about (1 + 4 rho) / n, which is corrected.
    """
    order = centered_ranks(values)
    whole = float(order @ order)
    found = float(order[1:] @ order[:-1]) / whole if whole else 0.0
    return min(max(found + (1 + 4 * found) / len(values), 0.0), _MAX_CORRELATION)


def centered_ranks(values: _Float64Array) -> _Float64Array:
    """Return the rank of each value, minus the mean rank; equal values share their mean rank."""
    _, number, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[number]
    return np.asarray(ranks - ranks.mean(), np.float64)


def _bandwidth(n: int, correlation: float) -> int:
    """Return the length of a stretch of dependent neighbors (Andrews' bandwidth)."""
    strength = 4 * correlation**2 / (1 - correlation**2) ** 2
    return max(1, min(math.ceil(1.1447 * math.cbrt(strength * n)), n // 3))


def interval_reach(freedom: float, level: float = _SIGNIFICANCE_LEVEL) -> float:
    """Return half the width of an interval in standard errors (Student's t); default: 95%."""
    return student_quantile(1 - level / 2, freedom)


def student_quantile(p: float, freedom: float) -> float:
    """Return the quantile of Student's t: exact for 1 and 2, an expansion from 3 on.

    Values between 1 and 3 are interpolated.
    """
    if freedom >= 3:
        return _cornish_fisher(p, freedom)
    known = [math.tan(math.pi * (p - 0.5)), (2 * p - 1) * math.sqrt(2 / (4 * p * (1 - p)))]
    known.append(_cornish_fisher(p, 3))
    places = [1 / 3, 1 / 2, 1.0]
    return float(np.exp(np.interp(1 / max(1.0, freedom), places, np.log(known[::-1]))))


def _cornish_fisher(p: float, freedom: float) -> float:
    """Return the quantile of Student's t by the Cornish–Fisher expansion of the normal quantile."""
    z = NormalDist().inv_cdf(p)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92_160,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, 1))
