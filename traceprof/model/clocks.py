"""What a clock shows too much."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from traceprof.values import dataclass

__all__ = ["ClockCorrection"]

_Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ClockCorrection:
    """What a clock shows too much: ``offset_ns`` at ``at_ns``, growing by ``drift_ratio``."""

    offset_ns: float = 0.0
    drift_ratio: float = 0.0
    at_ns: int = 0

    def error_ns(self, instants: _Int64Array) -> npt.NDArray[np.float64]:
        """Return what the clock shows too much at each instant (on that clock)."""
        return np.asarray(self.offset_ns + self.drift_ratio * (instants - self.at_ns), np.float64)

    def apply(self, instants: _Int64Array) -> _Int64Array:
        """Return the instants on the common clock, rounded to whole nanoseconds."""
        return instants - np.rint(self.error_ns(instants)).astype(np.int64)
