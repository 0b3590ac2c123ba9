"""Finding events by name in all of a trace, whatever the browser has loaded of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.render.timeline.channels import Channel, Lanes

__all__ = ["Found", "Search"]

_CHUNK: Final = 1 << 16
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Found:
    """An event: the place of its row in the whole trace, of its channel in the row; times in ns."""

    row: int
    channel: int
    start: int
    end: int


class Search:
    """Counts and finds the events of exact lanes by name."""

    def __init__(self, lanes: Lanes) -> None:
        self._names = [name.lower() for name in lanes.names]
        self._rows = [row.channels for group in lanes.groups for row in group.rows]
        self._counts = np.zeros(len(lanes.names), np.int64)
        for channel in lanes.channels:
            self._counts += np.bincount(channel.names, minlength=len(lanes.names))

    def matching(self, text: str) -> BoolArray:
        """Return which names contain ``text``; upper and lower case are the same."""
        wanted = text.strip().lower()
        return np.array([wanted in name for name in self._names], bool)

    def count(self, is_match: BoolArray) -> int:
        """Return how many events have one of these names."""
        return int(self._counts[is_match].sum())

    def nearest(
        self, is_match: BoolArray, from_ns: int, direction: int, row: int | None = None
    ) -> Found | None:
        """Return the first match that starts after ``from_ns``, or (-1) the last before it."""
        best: Found | None = None
        for place, channels in enumerate(self._rows):
            if row is not None and place != row:
                continue
            for number, channel in enumerate(channels):
                item = _next_item(channel, is_match, from_ns, direction)
                if item is None:
                    continue
                start = int(channel.starts[item])
                if best is None or (start - best.start) * direction < 0:
                    best = Found(place, number, start, int(channel.ends[item]))
        return best


def _next_item(channel: Channel, is_match: BoolArray, from_ns: int, direction: int) -> int | None:
    # The first that starts later, or the first that does not start earlier.
    bound = np.int64(from_ns + 1 if direction > 0 else from_ns)
    at = int(np.searchsorted(channel.starts, bound))
    if direction > 0:
        for begin in range(at, len(channel), _CHUNK):
            hits = np.flatnonzero(is_match[channel.names[begin : begin + _CHUNK]])
            if len(hits):
                return begin + int(hits[0])
        return None
    for end in range(at, 0, -_CHUNK):
        begin = max(0, end - _CHUNK)
        hits = np.flatnonzero(is_match[channel.names[begin:end]])
        if len(hits):
            return begin + int(hits[-1])
    return None
