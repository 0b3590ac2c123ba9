"""One axis for two recordings: step k of one begins where step k of the other does.

Each step takes as much of the axis as the longer of the two; after the shorter one the axis goes on
without it. So nothing is stretched, and what is longer on the screen is longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from traceprof.model.intervals import Int64Array
from traceprof.values import dataclass

__all__ = ["Clock", "Extent", "StepAxis", "align_steps"]

_BEFORE: Final = 0


@dataclass(frozen=True, slots=True, eq=False)
class Extent:
    """The steps of one recording and all that it holds; times in ns on its own clock, sorted.

    ``word`` is what they are called: steps, or turns of a pattern.
    """

    first_ns: int
    last_ns: int
    starts: Int64Array
    ends: Int64Array
    numbers: tuple[int, ...]
    word: str = "step"


@dataclass(frozen=True, slots=True, eq=False)
class Clock:
    """Pieces of the own time of a recording, and where on the axis each begins; ns, sorted."""

    own_ns: Int64Array
    axis_ns: Int64Array
    lengths_ns: Int64Array

    def starts(self, own_ns: Int64Array) -> Int64Array:
        """Return where on the axis the instants are at which something starts."""
        return self._at(own_ns, "right")

    def ends(self, own_ns: Int64Array) -> Int64Array:
        """Return where on the axis things end: at the border of two pieces, in the first."""
        return self._at(own_ns, "left")

    def _at(self, own_ns: Int64Array, side: Any) -> Int64Array:
        piece = np.maximum(np.searchsorted(self.own_ns, own_ns, side=side) - 1, 0)
        found: Int64Array = own_ns - self.own_ns[piece] + self.axis_ns[piece]
        return found

    def head(self) -> dict[str, list[int]]:
        """Return what a page must know of it."""
        return {
            "own": self.own_ns.tolist(),
            "axis": self.axis_ns.tolist(),
            "lengths": self.lengths_ns.tolist(),
        }


@dataclass(frozen=True, slots=True)
class StepAxis:
    """The clocks of the recordings, and the steps as they lie on the axis (ns).

    ``own`` holds, for each recording and step, its start and end on the own clock; None where it
    has no such step.
    """

    clocks: tuple[Clock, ...]
    duration_ns: int
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    labels: tuple[str, ...]
    own: tuple[tuple[tuple[int, int] | None, ...], ...]


def align_steps(extents: Sequence[Extent]) -> StepAxis:
    """Return the common axis: steps of one number under one another, else those of one order."""
    keys, places = _matched(extents)
    borders = [_borders(extent, places[side]) for side, extent in enumerate(extents)]
    lengths = np.array([np.diff(border) for border in borders])
    widest = lengths.max(axis=0)
    slots = np.concatenate(([0], np.cumsum(widest)))
    clocks = []
    for border, own in zip(borders, lengths, strict=True):
        axis = slots[:-1].copy()
        axis[_BEFORE] += widest[_BEFORE] - own[_BEFORE]  # what is before the steps ends with them
        kept = np.flatnonzero(own > 0)
        kept = kept if len(kept) else np.array([_BEFORE])
        clocks.append(Clock(border[:-1][kept], axis[kept], own[kept]))
    return StepAxis(
        clocks=tuple(clocks),
        duration_ns=max(1, int(slots[-1])),
        starts=tuple(slots[1:-2].tolist()),
        ends=tuple(slots[2:-1].tolist()),
        labels=tuple(keys),
        own=tuple(_own(extent, places[side]) for side, extent in enumerate(extents)),
    )


def _matched(extents: Sequence[Extent]) -> tuple[list[str], list[list[int | None]]]:
    """Return what each step is called, and its place in each recording, if it has it."""
    by_number = [{number: i for i, number in enumerate(e.numbers)} for e in extents]
    are_sorted = all(list(e.numbers) == sorted(set(e.numbers)) for e in extents)
    if are_sorted and set.intersection(*map(set, by_number)):
        numbers = sorted(set().union(*by_number))
        labels = [f"{extents[0].word} {number}" for number in numbers]
        return labels, [[known.get(number) for number in numbers] for known in by_number]
    most = range(max(len(extent.numbers) for extent in extents))
    places = [[i if i < len(extent.numbers) else None for i in most] for extent in extents]
    return [" | ".join(_label(extent, i) for extent in extents) for i in most], places


def _label(extent: Extent, place: int) -> str:
    return f"{extent.word} {extent.numbers[place]}" if place < len(extent.numbers) else "–"


def _borders(extent: Extent, places: Sequence[int | None]) -> Int64Array:
    """Return where each slot begins in a recording: before, each step, after, and the end.

    A step lasts until the next one begins, the last one until its end. A step that is not there
    takes no time.
    """
    known = [place for place in places if place is not None]
    after = int(extent.ends[known[-1]])
    inner: list[int] = []
    next_ns = after
    for place in reversed(places):
        next_ns = next_ns if place is None else int(extent.starts[place])
        inner.append(next_ns)
    return np.array([extent.first_ns, *reversed(inner), after, extent.last_ns], np.int64)


def _own(extent: Extent, places: Sequence[int | None]) -> tuple[tuple[int, int] | None, ...]:
    return tuple(
        None if place is None else (int(extent.starts[place]), int(extent.ends[place]))
        for place in places
    )
