"""Which line of a lane an interval is drawn on, so that no two overlap on one line."""

from __future__ import annotations

import heapq

import numpy as np

from traceprof.model.intervals import Int64Array, nesting_depth

__all__ = ["assign_lines"]


def assign_lines(starts: Int64Array, ends: Int64Array) -> Int64Array:
    """Return the line of each interval: 0 at the top, as few as the overlaps allow.

    The intervals are sorted by start and, where starts are equal, by descending end. Properly
    nested intervals get their depth. Two intervals of one line never overlap.
    """
    if len(starts) == 0 or bool((starts[1:] >= ends[:-1]).all()):
        return np.zeros(len(starts), np.int64)
    depth = nesting_depth(starts, ends)
    if _are_disjoint(starts, ends, depth):
        return depth
    return _first_free_line(starts, ends)


def _are_disjoint(starts: Int64Array, ends: Int64Array, lines: Int64Array) -> bool:
    order = np.argsort(lines, kind="stable")
    same_line = lines[order][1:] == lines[order][:-1]
    return bool((starts[order][1:] >= ends[order][:-1])[same_line].all())


def _first_free_line(starts: Int64Array, ends: Int64Array) -> Int64Array:
    lines = np.empty(len(starts), np.int64)
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    for i, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        line = heapq.heappop(free) if free else len(busy)
        lines[i] = line
        heapq.heappush(busy, (end, line))
    return lines
