"""A line through points, some of which are far off."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.values import dataclass

__all__ = ["Line", "fit_line"]

_FloatArray = npt.NDArray[np.float64]

_FEWEST_POINTS: Final = 8
_MOST_POINTS: Final = 400
_SIGNIFICANT: Final = 3.0


@dataclass(frozen=True, slots=True)
class Line:
    """``level + slope · x``."""

    level: float
    slope: float = 0.0

    def at(self, x: _FloatArray) -> _FloatArray:
        """Return its height at each ``x``."""
        return np.asarray(self.level + self.slope * x, np.float64)


def fit_line(x: _FloatArray, y: _FloatArray) -> Line:
    """Return the line of the median slope between all pairs of points (Theil and Sen).

    Up to 29 % of the points may lie anywhere. The slope is 0 where there are fewer than 8
    points, or where over all ``x`` it amounts to less than three times the uncertainty of a
    median: then it cannot be told from the scatter.
    """
    flat = Line(float(np.median(y)))
    if len(x) < _FEWEST_POINTS:
        return flat
    kept = np.unique(np.linspace(0, len(x) - 1, min(len(x), _MOST_POINTS)).astype(np.int64))
    left, right = np.triu_indices(len(kept), 1)
    run = (x[kept][right] - x[kept][left]).astype(np.float64)
    rise = y[kept][right] - y[kept][left]
    if not run.any():
        return flat
    slope = float(np.median(rise[run != 0] / run[run != 0]))
    level = float(np.median(y - slope * x))
    scatter = float(np.median(np.abs(y - level - slope * x)))
    uncertainty = 1.4826 * scatter * 2 / np.sqrt(len(x))
    if abs(slope) * float(np.ptp(x)) <= _SIGNIFICANT * uncertainty:
        return flat
    return Line(level, slope)
