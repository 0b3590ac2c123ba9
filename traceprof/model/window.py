"""A window: the half-open span of time ``[start_ns, end_ns)`` that an analysis looks at."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from traceprof.values import dataclass

__all__ = ["TimeWindow"]


@dataclass(frozen=True, slots=True, order=True)
class TimeWindow:
    """The instants from ``start_ns`` up to but not including ``end_ns``, on a trace's clock."""

    start_ns: int
    end_ns: int

    @property
    def duration_ns(self) -> int:
        """Its length; 0 for an empty window, never negative."""
        return max(0, self.end_ns - self.start_ns)

    def __and__(self, other: TimeWindow) -> TimeWindow:
        """Return the time in both windows (empty where they do not meet)."""
        start = max(self.start_ns, other.start_ns)
        return TimeWindow(start, max(start, min(self.end_ns, other.end_ns)))

    def __or__(self, other: TimeWindow) -> TimeWindow:
        """Return the time from the beginning of the first of the windows to the end of the last."""
        return TimeWindow(min(self.start_ns, other.start_ns), max(self.end_ns, other.end_ns))

    def overlaps(
        self, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        """Return which rows ``[starts[i], ends[i])`` have a part inside.

        A row without duration is inside if its instant is.
        """
        lasting = np.minimum(ends, self.end_ns) > np.maximum(starts, self.start_ns)
        inside: npt.NDArray[np.bool_] = lasting | ((starts == ends) & self.holds(starts))
        return inside

    def holds(self, instants: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which instants are inside."""
        return (instants >= self.start_ns) & (instants < self.end_ns)
