"""When launches are those of the backward pass although no range names it.

People name the step, the forward pass and the optimizer, and PyTorch names its optimizers itself;
``loss.backward()`` in between stays without a name. Three things give it away, the surest first:
operators of the autograd engine, threads that launch kernels between forward and optimizer and
at no other time (the engine's own), and, where only the loop's thread launches anything, the time
between forward and optimizer itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.model.intervals import Intervals, nesting_depth
from traceprof.names.ranges import PHASES, are_matched
from traceprof.values import dataclass

__all__ = ["BACKWARD", "InferredBackward", "are_inside", "autograd_rows", "infer_backward"]

_Int64Array = npt.NDArray[np.int64]

BACKWARD: Final = PHASES.index("backward")
_AUTOGRAD: Final = re.compile(r"^(autograd::engine::evaluate_function|torch::autograd::)")
_ZERO_GRAD: Final = re.compile(r"(?i)zero[ _]?grad")
_ALWAYS: Final = (-(1 << 61), 1 << 61)
_NEARLY_ALL: Final = 0.95
_RESTART: Final = frozenset(PHASES.index(phase) for phase in ("data", "eval"))
_FORWARD: Final = PHASES.index("forward")
_OPTIMIZER: Final = PHASES.index("optimizer")
_ZEROES: Final = len(PHASES)


@dataclass(frozen=True, slots=True, eq=False)
class InferredBackward:
    """The backward pass of one process that has phases, but none of that name.

    ``free`` is when its main thread is in no phase; ``when`` says of each thread at which times
    its launches, if no phase claims them, are those of the backward pass.
    """

    thread: int
    free: Intervals
    when: Mapping[int, Intervals]

    def holds(self, threads: _Int64Array, instants: _Int64Array) -> npt.NDArray[np.bool_]:
        """Return which launches, by thread and start, are those of the backward pass."""
        found = np.zeros(len(threads), np.bool_)
        for thread, times in self.when.items():
            mine = np.flatnonzero(threads == thread)
            found[mine] = are_inside(times, instants[mine])
        return found


def autograd_rows(names: pd.Series) -> npt.NDArray[np.bool_]:
    """Return which of a categorical column are operators of PyTorch's autograd engine."""
    if not len(names):
        return np.zeros(0, np.bool_)
    return are_matched(names.cat.categories, _AUTOGRAD)[names.cat.codes.to_numpy()]


def infer_backward(
    ranges: pd.DataFrame,
    phases: _Int64Array,
    autograd: pd.DataFrame,
    threads: _Int64Array,
    instants: _Int64Array,
) -> InferredBackward | None:
    """Return the backward pass of one process; None where it is named, or nothing tells it.

    Args:
        ranges: the ranges of the process that nest and are a phase.
        phases: the place of each in `PHASES`.
        autograd: the thread, start_ns and end_ns of the operators of autograd.
        threads: the thread that launched each kernel of the process whose launch is known.
        instants: when that was.
    """
    if not len(ranges) or (phases == BACKWARD).any():
        return None
    thread = int(ranges["thread"].mode().iloc[0])
    own = (ranges["thread"] == thread).to_numpy()
    loop = _Loop.of(ranges[own], phases[own])
    when = _by_operators(loop.free, autograd, thread)
    if not when:
        when = {
            other: loop.after_forward
            for other in np.unique(threads[threads != thread]).tolist()
            if are_inside(loop.after_forward, instants[threads == other]).mean() >= _NEARLY_ALL
        }
    if not when and not len(np.unique(threads[threads != thread])):
        when = {thread: loop.after_last_forward} if len(loop.after_last_forward) else {}
    return InferredBackward(thread, loop.free, when) if when else None


def _by_operators(free: Intervals, autograd: pd.DataFrame, main: int) -> Mapping[int, Intervals]:
    """Return, for the threads of autograd's operators, when these are what launches."""
    times = {}
    for thread, rows in autograd.groupby("thread").indices.items():
        if thread == main:
            starts, ends = (autograd[name].to_numpy()[rows] for name in ("start_ns", "end_ns"))
            times[main] = Intervals.union_of(starts, ends) & free
        else:
            times[int(str(thread))] = free
    return times


def are_inside(intervals: Intervals, instants: _Int64Array) -> npt.NDArray[np.bool_]:
    """Return which instants lie in ``intervals``."""
    if not len(intervals):
        return np.zeros(len(instants), np.bool_)
    place = np.searchsorted(intervals.starts, instants, side="right") - 1
    return (place >= 0) & (instants < intervals.ends[np.maximum(place, 0)])


@dataclass(slots=True)
class _Loop:
    """When the thread of the loop is in no phase, and which of that lies before an optimizer."""

    free: Intervals
    after_forward: Intervals
    after_last_forward: Intervals

    @classmethod
    def of(cls, ranges: pd.DataFrame, phases: _Int64Array) -> _Loop:
        starts, ends = (ranges[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
        free = Intervals.union_of(starts, ends).gaps(*_ALWAYS)
        outer = nesting_depth(starts, ends) == 0
        codes = np.where(_zeroes_gradients(ranges), _ZEROES, phases)[outer]
        tracker = _Tracker()
        for phase, start, end in zip(
            *(column.tolist() for column in (codes, starts[outer], ends[outer])), strict=True
        ):
            tracker.see(phase, start, end)
        return cls(free, free & _union(tracker.spans), free & _union(tracker.last_spans))


@dataclass(slots=True)
class _Tracker:
    """Goes through the phases of a thread: forward, once or several times, then an optimizer."""

    first: int | None = None
    last: int | None = None
    spans: list[tuple[int, int]] = field(default_factory=list)
    last_spans: list[tuple[int, int]] = field(default_factory=list)

    def see(self, phase: int, start: int, end: int) -> None:
        """Take the next phase."""
        if phase == _FORWARD:
            self.first = end if self.first is None else self.first
            self.last = end
        elif phase == _ZEROES:
            # No gradient that it erases was worth computing: backward comes after it.
            self.first = self.last = None if self.last is None else end
        elif phase == _OPTIMIZER or phase in _RESTART:
            if phase == _OPTIMIZER and self.first is not None and self.last is not None:
                self.spans.append((self.first, start))
                self.last_spans.append((self.last, start))
            self.first = self.last = None


def _zeroes_gradients(ranges: pd.DataFrame) -> npt.NDArray[np.bool_]:
    names = ranges["name"].cat.remove_unused_categories().cat
    return are_matched(names.categories, _ZERO_GRAD)[names.codes.to_numpy()]


def _union(spans: list[tuple[int, int]]) -> Intervals:
    return Intervals.union_of([start for start, _ in spans], [end for _, end in spans])
