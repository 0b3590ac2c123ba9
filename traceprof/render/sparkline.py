"""A row of numbers as a line of blocks, for terminals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

__all__ = ["sparkline"]

_BLOCKS: Final = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int) -> str:
    """Return ``values`` as blocks from 0 to their largest, in at most ``width`` characters.

    Where there are more values than characters, a character shows the largest of its share, so
    that a single slow one is still seen.
    """
    numbers = np.asarray(values, np.float64)
    if len(numbers) == 0 or width < 1:
        return ""
    shares = np.array_split(numbers, min(width, len(numbers)))
    heights = np.array([share.max() for share in shares])
    top = heights.max()
    if top <= 0:
        return _BLOCKS[0] * len(heights)
    places = np.ceil(heights / top * len(_BLOCKS)).astype(int) - 1
    return "".join(_BLOCKS[place] for place in places.clip(0))
