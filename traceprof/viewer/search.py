"""Finding events by name in all of a trace, whatever the browser has loaded of it."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.render.timeline.channels import Channel, Lanes, NameTotals
from traceprof.values import dataclass

__all__ = ["Found", "Listed", "Search"]

_CHUNK: Final = 1 << 16
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Found:
    """An event: the place of its row in the whole trace, of its channel in the row; times in ns."""

    row: int
    channel: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Listed(Found):
    """An event of a list, with the place of its name."""

    name: int


class Search:
    """Counts, lists and finds the events of exact lanes by name; ``totals`` are theirs."""

    def __init__(self, lanes: Lanes, totals: NameTotals) -> None:
        self.n_names = len(lanes.names)
        self._rows = [row.channels for group in lanes.groups for row in group.rows]
        self._counts = totals.counts
        self._times = totals.times_ns

    def matching(self, bits: bytes) -> BoolArray:
        """Return which names are meant: a bit each, as the page sends them; without any, all.

        What a search means is decided in the page alone (`assets/matching.mjs`).
        """
        if not bits:
            return np.ones(self.n_names, bool)
        is_match = np.zeros(self.n_names, bool)
        given = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")[: self.n_names]
        is_match[: len(given)] = given.astype(bool)
        return is_match

    def count(self, is_match: BoolArray) -> int:
        """Return how many events have one of these names."""
        return int(self._counts[is_match].sum())

    def total_ns(self, is_match: BoolArray) -> int:
        """Return how long they are together."""
        return int(self._times[is_match].sum())

    def count_before(self, is_match: BoolArray, t_ns: int) -> int:
        """Return how many of them start before ``t_ns``."""
        total = 0
        for channels in self._rows:
            for channel in channels:
                last = int(np.searchsorted(channel.starts, np.int64(t_ns)))
                total += int(is_match[channel.names[:last]].sum())
        return total

    def listed(self, is_match: BoolArray, order: str, limit: int) -> list[Listed]:
        """Return ``limit`` of them: the longest, or (order "first") the first."""
        found: list[tuple[int, int, Listed]] = []
        for place, channels in enumerate(self._rows):
            for number, channel in enumerate(channels):
                items = np.flatnonzero(is_match[channel.names])
                rank = channel.starts if order == "first" else channel.starts - channel.ends
                items = items[np.argsort(rank[items], kind="stable")[:limit]]
                for item in items.tolist():
                    start, end = int(channel.starts[item]), int(channel.ends[item])
                    event = Listed(place, number, start, end, int(channel.names[item]))
                    found.append((int(rank[item]), start, event))
        return [event for _, _, event in sorted(found, key=lambda entry: entry[:2])[:limit]]

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
