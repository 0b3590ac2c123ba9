"""Blocks of recorded phases: each leads up to the step of an optimizer, or to a backward pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.names.ranges import PROFILER_RANGES
from traceprof.values import dataclass

__all__ = ["BACKWARD", "NEVER", "OPTIMIZER", "Block", "are_of_phase", "blocks_of", "events_of"]

_PHASES: Final = (
    *("data", "forward", "eval", "backward", "optimizer", "data.end", "gradients.kept"),
    "profiler",
)
_DATA, _FORWARD, _EVAL, BACKWARD, OPTIMIZER, _NO_DATA, _KEPT, _PROFILER = range(len(_PHASES))
_SKIPPED: Final = "optimizer.skipped"
_OF_BLOCKS: Final = frozenset({_DATA, _FORWARD, BACKWARD, OPTIMIZER, _KEPT})
NEVER: Final = int(np.iinfo(np.int64).min)
_Int64Array = npt.NDArray[np.int64]


class Event(NamedTuple):
    """A phase on the thread that trains; ``which`` tells optimizers apart."""

    phase: int
    start: int
    end: int
    which: int


@dataclass(slots=True)
class Block:
    """What leads up to the step of an optimizer, or to a backward pass; it lasts until ``reach``.

    ``until`` is where the next one begins with a batch, ``optimized`` where its last optimizer is
    done, ``evaluated`` where forward passes
    without training began directly ahead of it. ``is_apart``: an epoch or an evaluation has
    ended ahead of it. ``adds``: to the gradients of the block before.
    """

    is_apart: bool = False
    start: int = NEVER
    evaluated: int = NEVER
    reach: int = NEVER
    until: int = NEVER
    is_fetched: bool = False
    is_working: bool = False
    is_complete: bool = False
    has_backward: bool = False
    adds: bool = False
    optimizers: tuple[int, ...] = ()
    optimized: int = NEVER

    def is_ended_by(self, event: Event) -> bool:
        """Return whether an event is not of this block, which is complete."""
        if not self.is_complete or event.start < self.reach:
            return False
        # Optimizers that step one right after the other share the gradients.
        return event.phase != OPTIMIZER or event.which in self.optimizers

    def is_begun_anew_by(self, event: Event) -> bool:
        """Return whether what was fetched up to an event was for an evaluation."""
        return event.phase == _NO_DATA or (event.phase == _DATA and self.evaluated != NEVER)

    def add(self, event: Event, closing: int) -> None:
        """Let an event belong to the block; one of the phase ``closing`` completes it."""
        phase, start, end, which = event
        if phase == _KEPT:
            self.adds = True
            return
        if phase == _DATA:
            self.is_fetched |= not self.is_working
        else:
            self.is_working = True
            if phase == BACKWARD:
                self.has_backward = True
            if phase == OPTIMIZER and start >= self.optimized:  # else one that another one uses
                self.optimizers += (which,)
                self.optimized = end
            if phase in (BACKWARD, OPTIMIZER):
                self.reach = max(self.reach, end)
            self.is_complete |= phase == closing
        if self.start == NEVER:
            # A model that is trained in its mode for evaluation: what went before was its forward.
            is_trained = phase == BACKWARD and self.evaluated != NEVER
            self.start = self.evaluated if is_trained else start


def events_of(own: pd.DataFrame, closing: int) -> Iterator[tuple[int, Iterable[Event]]]:
    """Yield the events of each process that trains, sorted by start."""
    names = own["name"].cat
    phase_of, which_of = (
        np.append(values, -1)[names.codes.to_numpy()]
        for values in _named([str(name) for name in names.categories])
    )
    chosen = own.assign(phase=phase_of, which=which_of)[phase_of >= 0]
    columns = {
        name: chosen[name].to_numpy(np.int64)
        for name in ("phase", "start_ns", "end_ns", "which", "thread")
    }
    for process, rows in chosen.groupby("process").indices.items():
        thread = columns["thread"][rows]
        phase = columns["phase"][rows]
        closes = thread[phase == closing]
        if not len(closes):
            continue
        # Of several threads that train the one with most; fetches ahead have threads of their own.
        is_main = thread == _most_common(closes)
        if not (is_main & (phase == BACKWARD)).any():
            is_main |= phase == BACKWARD
        own_rows = rows[is_main]
        lists = (columns[n][own_rows].tolist() for n in ("phase", "start_ns", "end_ns", "which"))
        yield int(str(process)), map(Event, *lists)


def blocks_of(events: Iterable[Event], closing: int) -> Iterator[Block]:
    """Yield the blocks of a process, one after another."""
    # One event after the other: where a block begins depends on where the one before ended.
    block = Block()
    for event in events:
        if block.is_ended_by(event):
            if event.phase == _DATA or (event.phase == _PROFILER and block.is_fetched):
                block.until = event.start
            yield block
            block = Block()
        if not block.is_working and event.phase == _EVAL:
            block.evaluated = event.start if block.evaluated == NEVER else block.evaluated
        elif not block.is_working and block.is_begun_anew_by(event):
            block = Block(is_apart=True)
        if event.phase in _OF_BLOCKS:
            block.add(event, closing)
    if block.is_complete:
        yield block


def are_of_phase(own: pd.DataFrame, phase: int) -> npt.NDArray[np.bool_]:
    """Return which ranges of traceprof are of a phase (`BACKWARD`, `OPTIMIZER`)."""
    names = own["name"].cat
    phases, _ = _named([str(name) for name in names.categories])
    return np.asarray(np.append(phases, -1)[names.codes.to_numpy()] == phase, np.bool_)


def _most_common(values: _Int64Array) -> int:
    distinct, counts = np.unique(values, return_counts=True)
    return int(distinct[counts.argmax()])


def _named(names: Sequence[str]) -> tuple[_Int64Array, _Int64Array]:
    """Return the place in `_PHASES` of each name (-1: none), and which optimizer it names."""
    places, which = np.full(len(names), -1, np.int64), np.zeros(len(names), np.int64)
    for row, name in enumerate(names):
        plain, _, number = name.partition("#")
        if name in PROFILER_RANGES:
            places[row] = _PROFILER
        elif plain == _SKIPPED:
            places[row], which[row] = OPTIMIZER, int(number or 1)
        elif plain in _PHASES and (not number or number.isdecimal()):
            places[row], which[row] = _PHASES.index(plain), int(number or 1)
    return places, which
