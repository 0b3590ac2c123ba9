"""Warm-up: the leading steps that are unlike the rest."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["count_warmup"]

_MAD_TO_DEVIATION: Final = 1.4826
"""Times the median absolute deviation: the standard deviation, if durations are normal."""
_FLOOR_RATIO: Final = 0.05
_FEWEST_KEPT: Final = 3


def count_warmup(durations_ns: npt.NDArray[np.int64]) -> int:
    """Return how many leading steps are warm-up.

    A leading step is warm-up while it lies outside median ± 3 · 1.4826 · MAD of the steps after
    it; a step within 5 % of the median never counts as outside. At least half of the steps are
    kept, and at least three.
    """
    n_dropped = 0
    durations = durations_ns.astype(np.float64)
    while len(durations) - n_dropped > max(_FEWEST_KEPT, len(durations) / 2):
        rest = durations[n_dropped + 1 :]
        median = float(np.median(rest))
        spread = 3 * _MAD_TO_DEVIATION * float(np.median(np.abs(rest - median)))
        if abs(durations[n_dropped] - median) <= max(spread, _FLOOR_RATIO * median):
            break
        n_dropped += 1
    return n_dropped
