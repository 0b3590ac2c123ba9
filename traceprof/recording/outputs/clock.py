"""The clock of an nsys export against the wall clock."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["ProfilerClock"]

Times = npt.NDArray[np.int64]


class ProfilerClock:
    """Turns ns since 1970 into the clock of the export.

    The two drift by some µs a second: ``marks`` are pairs (time on the export's clock, ns since
    1970) that were taken every second; between them the offset is interpolated. Without marks
    the start of the session, ``epoch_ns``, has to do.
    """

    def __init__(self, epoch_ns: int, marks: Sequence[tuple[int, int]]) -> None:
        self.epoch_ns = epoch_ns
        pairs = np.array(marks or [(0, epoch_ns)], np.int64)
        # Counted from the session start, the offsets are small enough for floating point.
        self._at = pairs[:, 1] - epoch_ns
        self._offset = pairs[:, 0] - self._at

    def __call__(self, epoch_times: Times) -> Times:
        """Return the times on the clock of the export."""
        since = np.asarray(epoch_times, np.int64) - self.epoch_ns
        offset = np.interp(since, self._at, self._offset)
        shifted: Times = since + np.rint(offset).astype(np.int64)
        return shifted
