"""The levels of detail of one channel, and the part of it that a view needs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np

from traceprof.model.timing import TimeWindow
from traceprof.render.timeline.channels import Channel
from traceprof.render.timeline.condense import FIRST_BIN_NS, condense_channel
from traceprof.values import dataclass

__all__ = ["COLUMNS", "GROWTH", "Level", "build_levels", "cut_channel", "level_for"]

GROWTH: Final = 4
_LEAST_GAIN: Final = 0.7
_FEW: Final = 2_000
COLUMNS: Final = ("starts", "ends", "names", "n_bytes", "correlations", "busy_ns", "counts")
"""The columns of a channel, as far as it has them."""


@dataclass(frozen=True, slots=True)
class Level:
    """A channel whose events shorter than ``bin_ns`` are merged per bin; 0: exact."""

    bin_ns: int
    channel: Channel


def build_levels(channel: Channel, duration_ns: int) -> tuple[Level, ...]:
    """Return the exact channel and coarser ones, each worth its memory, the finest first.

    Every level stands for the same number of events, busy for the same time.
    """
    levels = [Level(0, channel)]
    bin_ns = FIRST_BIN_NS * GROWTH
    while len(levels[-1].channel) > _FEW and bin_ns < duration_ns // 200:
        condensed = condense_channel(levels[-1].channel, bin_ns)
        if len(condensed) <= _LEAST_GAIN * len(levels[-1].channel):
            levels.append(Level(bin_ns, condensed))
        bin_ns *= GROWTH
    return tuple(levels)


def level_for(levels: tuple[Level, ...], pixel_ns: int) -> Level:
    """Return the coarsest level whose bins are no wider than a pixel."""
    fitting = [level for level in levels if level.bin_ns <= pixel_ns]
    return fitting[-1]


def cut_channel(channel: Channel, window: TimeWindow) -> Channel:
    """Return the items with a part in ``window`` or at its edges, whole."""
    # An integer of numpy: a float would make searchsorted convert the whole array.
    first = int(np.searchsorted(channel.ends, np.int64(window.start_ns), "left"))
    last = int(np.searchsorted(channel.starts, np.int64(window.end_ns), "left"))
    part = slice(first, max(first, last))
    columns = {name: getattr(channel, name) for name in COLUMNS}
    # Columns of a file may be narrower.
    cut: dict[str, Any] = {
        name: None if values is None else values[part].astype(np.int64, copy=False)
        for name, values in columns.items()
    }
    return replace(channel, **cut)
