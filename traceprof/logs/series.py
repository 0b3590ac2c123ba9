"""The values of one metric over a run, thinned where there are too many of them."""

from __future__ import annotations

import math
from array import array
from collections import OrderedDict
from dataclasses import field
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from traceprof.values import dataclass

__all__ = ["CUMULATIVE", "INTERVALS", "Key", "Point", "Series"]

INTERVALS: Final = ("step", "interval")
CUMULATIVE: Final = ("ema", "run")
_RECENT: Final = 32


class Key(NamedTuple):
    """What a series is of; rank −1: of the run, or not known."""

    metric: str
    life: int
    rank: int
    scope: str
    over: str


class Point(NamedTuple):
    """Where in the run a value belongs; NaN: not known."""

    step: float = math.nan
    epoch: float = math.nan
    at_s: float = math.nan
    samples: float = math.nan


@dataclass(slots=True)
class Series:
    """Values of one metric. ``is_elapsed``: times count from the start of training.

    What several ranks print of the same place without saying who they are are *copies*: their mean
    is kept, and ``copies`` is the most that were seen of one place.
    """

    is_elapsed: bool = False
    steps: array[float] = field(default_factory=lambda: array("d"))
    epochs: array[float] = field(default_factory=lambda: array("d"))
    at_s: array[float] = field(default_factory=lambda: array("d"))
    samples: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("d"))
    copies: int = 1
    stride: int = 1
    total: int = 0
    _last: tuple[Point, float] | None = None
    _recent: OrderedDict[tuple[float, float], list[int]] = field(default_factory=OrderedDict)

    def add(self, point: Point, value: float, limit: int, *, is_redrawn: bool = False) -> None:
        """Add a value; ``is_redrawn``: it takes the place of an earlier one of the same place."""
        place = (point.step, point.epoch)
        if not (math.isnan(point.step) and math.isnan(point.epoch)):
            seen = self._recent.get(place)
            if seen is not None:
                self._merge(seen, value, is_redrawn=is_redrawn)
                return
        self.total += 1
        self._last = (point, value)
        if (self.total - 1) % self.stride:
            return
        self._recent[place] = [len(self.values), 1]
        if len(self._recent) > _RECENT:
            self._recent.popitem(last=False)
        self._append(point, value)
        if len(self.values) > limit:
            for column in (self.steps, self.epochs, self.at_s, self.samples, self.values):
                del column[1::2]
            self._recent.clear()
            self.stride *= 2

    def _merge(self, seen: list[int], value: float, *, is_redrawn: bool) -> None:
        at, count = seen
        if is_redrawn:
            self.values[at] = value
            return
        seen[1] = count + 1
        self.copies = max(self.copies, count + 1)
        self.values[at] += (value - self.values[at]) / (count + 1)

    def _append(self, point: Point, value: float) -> None:
        self.steps.append(point.step)
        self.epochs.append(point.epoch)
        self.at_s.append(point.at_s)
        self.samples.append(point.samples)
        self.values.append(value)

    def end(self) -> None:
        """Note that nothing follows: the last value is kept whatever was thinned."""
        if self._last is not None and (self.total - 1) % self.stride:
            self._append(*self._last)
            self._last = None

    @property
    def begins(self) -> bool:
        """Whether its first value is about the first steps of the run."""
        steps = np.asarray(self.steps)
        if len(steps) < 2 or math.isnan(steps[0]) or math.isnan(steps[1]):
            return False
        return bool(0 <= steps[0] <= max(1.0, (steps[1] - steps[0]) / self.stride))

    def steady(self, *, has_warmup: bool = True) -> npt.NDArray[np.float64]:
        """Return its finite values, without the first where that is of the first steps."""
        values = np.asarray(self.values, np.float64)
        if has_warmup and len(values) >= 3 and self.begins:
            values = values[1:]
        return values[np.isfinite(values)]
