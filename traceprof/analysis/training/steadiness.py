"""How steady the steps are: spread, trend and outliers of their durations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["Steadiness", "measure_steadiness", "outliers"]

_Float64Array = npt.NDArray[np.float64]

_MOST_PAIRS: Final = 1000
_FLOOR_RATIO: Final = 0.05


@dataclass(frozen=True, slots=True)
class Steadiness:
    """The durations of steps, in ns.

    ``spread_ratio`` is (p90 - p10) / median; ``trend_ns`` how much longer each step is than the
    one before (the median of the slopes between all pairs: outliers do not bend it).
    """

    count: int
    mean_ns: float
    median_ns: float
    p10_ns: float
    p90_ns: float
    min_ns: float
    max_ns: float
    spread_ratio: float
    trend_ns: float

    @property
    def drift_ratio(self) -> float:
        """How much the trend changes a step from the first to the last, of the median."""
        return self.trend_ns * (self.count - 1) / self.median_ns if self.median_ns else 0.0


def measure_steadiness(durations_ns: _Float64Array) -> Steadiness | None:
    """Return the statistics of ``durations_ns``, None where there are none."""
    if not len(durations_ns):
        return None
    p10, median, p90 = np.percentile(durations_ns, [10, 50, 90])
    return Steadiness(
        count=len(durations_ns),
        mean_ns=float(durations_ns.mean()),
        median_ns=float(median),
        p10_ns=float(p10),
        p90_ns=float(p90),
        min_ns=float(durations_ns.min()),
        max_ns=float(durations_ns.max()),
        spread_ratio=float((p90 - p10) / median) if median else 0.0,
        trend_ns=_trend(durations_ns),
    )


def _trend(durations_ns: _Float64Array) -> float:
    if len(durations_ns) < 3:
        return 0.0
    # Evenly thinned, so that the number of pairs stays bounded.
    place = np.unique(np.linspace(0, len(durations_ns) - 1, _MOST_PAIRS).astype(np.int64))
    first, second = np.triu_indices(len(place), k=1)
    rise = durations_ns[place[second]] - durations_ns[place[first]]
    return float(np.median(rise / (place[second] - place[first])))


def outliers(durations_ns: _Float64Array) -> npt.NDArray[np.int64]:
    """Return 1 for each slow outlier, -1 for each fast one, else 0.

    An outlier lies outside median ± 3 · 1.4826 · MAD, and more than 5 % from the median.
    """
    if len(durations_ns) < 4:
        return np.zeros(len(durations_ns), np.int64)
    median = float(np.median(durations_ns))
    spread = 3 * 1.4826 * float(np.median(np.abs(durations_ns - median)))
    away = durations_ns - median
    return np.where(np.abs(away) > max(spread, _FLOOR_RATIO * median), np.sign(away), 0).astype(
        np.int64
    )
