"""Steps from the phases that traceprof recorded: fetches, passes and the steps of optimizers.

What leads up to a step of an optimizer is a block. A block is a step, unless another optimizer
takes its turn without a batch of its own, again and again (a GAN): these are one step together. So
is all that is done with a batch where several optimizers take turns and one of them once (a critic
that learns several times from each batch). Where no optimizer was seen, a block leads up to a
backward pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.facts.names.phases import PROFILER_RANGES
from traceprof.model.steps import STEP_COLUMNS, empty_steps
from traceprof.values import dataclass

__all__ = ["PhaseSteps", "steps_of_backward", "steps_of_phases"]

_PHASES: Final = ("data", "forward", "eval", "backward", "optimizer", "data.end", "profiler")
_DATA, _FORWARD, _EVAL, _BACKWARD, _OPTIMIZER, _NO_DATA, _PROFILER = range(len(_PHASES))
_OF_BLOCKS: Final = frozenset({_DATA, _FORWARD, _BACKWARD, _OPTIMIZER})
_NONE: Final = int(np.iinfo(np.int64).min)
_REGULAR: Final = 0.5

_Int64Array = npt.NDArray[np.int64]


class PhaseSteps(NamedTuple):
    """Steps, and how many optimizers most of them have."""

    table: pd.DataFrame
    optimizers_count: int


class _Event(NamedTuple):
    """A phase on the thread that trains; ``which`` tells optimizers apart."""

    phase: int
    start: int
    end: int
    which: int


@dataclass(slots=True)
class _Block:
    """What leads up to the step of an optimizer, or to a backward pass; it lasts until ``reach``.

    ``until`` is where the next one begins with a batch, ``optimized`` where its last optimizer is
    done, ``evaluated`` where forward passes
    without training began directly ahead of it. ``is_apart``: an epoch or an evaluation has
    ended ahead of it.
    """

    is_apart: bool = False
    start: int = _NONE
    evaluated: int = _NONE
    reach: int = _NONE
    until: int = _NONE
    is_fetched: bool = False
    is_working: bool = False
    is_complete: bool = False
    has_backward: bool = False
    optimizers: tuple[int, ...] = ()
    optimized: int = _NONE

    def is_ended_by(self, event: _Event) -> bool:
        """Return whether an event is not of this block, which is complete."""
        if not self.is_complete or event.start < self.reach:
            return False
        # Optimizers that step one right after the other share the gradients.
        return event.phase != _OPTIMIZER or event.which in self.optimizers

    def is_begun_anew_by(self, event: _Event) -> bool:
        """Return whether what was fetched up to an event was for an evaluation."""
        return event.phase == _NO_DATA or (event.phase == _DATA and self.evaluated != _NONE)

    def add(self, event: _Event, closing: int) -> None:
        """Let an event belong to the block; one of the phase ``closing`` completes it."""
        phase, start, end, which = event
        if phase == _DATA:
            self.is_fetched |= not self.is_working
        else:
            self.is_working = True
            if phase == _BACKWARD:
                self.has_backward = True
            if phase == _OPTIMIZER and start >= self.optimized:  # else one that another one uses
                self.optimizers += (which,)
                self.optimized = end
            if phase in (_BACKWARD, _OPTIMIZER):
                self.reach = max(self.reach, end)
            self.is_complete |= phase == closing
        if self.start == _NONE:
            # A model that is trained in its mode for evaluation: what went before was its forward.
            is_trained = phase == _BACKWARD and self.evaluated != _NONE
            self.start = self.evaluated if is_trained else start


def steps_of_phases(own: pd.DataFrame) -> PhaseSteps:
    """Return the steps that end with those of optimizers; ``own`` are the ranges of traceprof."""
    return _steps(own, _OPTIMIZER)


def steps_of_backward(own: pd.DataFrame) -> PhaseSteps:
    """Return the steps that end with backward passes, for where no optimizer was seen."""
    return _steps(own, _BACKWARD)


def _steps(own: pd.DataFrame, closing: int) -> PhaseSteps:
    rows, sizes = [], Counter[int]()
    for process, events in _events(own, closing):
        blocks = list(_blocks(events, closing))
        join = _optimizers_joined if closing == _OPTIMIZER else _batches_joined
        for number, step in enumerate(join(_trained(blocks))):
            rows.append((process, number, step.start, _end_of(step), False))
            sizes[len(set(step.optimizers))] += 1
    if not rows:
        return PhaseSteps(empty_steps(), 0)
    usual = sizes.most_common(1)[0][0]
    return PhaseSteps(pd.DataFrame(rows, columns=list(STEP_COLUMNS)), usual)


def _end_of(step: _Block) -> int:
    """Return the end of a step: with a loader, the time up to the next batch is its own."""
    return step.reach if step.until == _NONE else step.until


def _events(own: pd.DataFrame, closing: int) -> Iterator[tuple[int, Iterable[_Event]]]:
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
        if not (is_main & (phase == _BACKWARD)).any():
            is_main |= phase == _BACKWARD
        own_rows = rows[is_main]
        lists = (columns[n][own_rows].tolist() for n in ("phase", "start_ns", "end_ns", "which"))
        yield int(str(process)), map(_Event, *lists)


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
        elif plain in _PHASES and (not number or number.isdecimal()):
            places[row], which[row] = _PHASES.index(plain), int(number or 1)
    return places, which


def _blocks(events: Iterable[_Event], closing: int) -> Iterator[_Block]:
    """Yield the blocks of a process one after another."""
    # One event after the other: where a block begins depends on where the one before ended.
    block = _Block()
    for event in events:
        if block.is_ended_by(event):
            if event.phase == _DATA or (event.phase == _PROFILER and block.is_fetched):
                block.until = event.start
            yield block
            block = _Block()
        if not block.is_working and event.phase == _EVAL:
            block.evaluated = event.start if block.evaluated == _NONE else block.evaluated
        elif not block.is_working and block.is_begun_anew_by(event):
            block = _Block(is_apart=True)
        if event.phase in _OF_BLOCKS:
            block.add(event, closing)
    if block.is_complete:
        yield block


def _trained(blocks: Sequence[_Block]) -> list[_Block]:
    """Return the blocks in which something was learned, with the evaluations that are part of it.

    An optimizer that steps without gradients only makes its state, unless none has any: who
    learns by other means does it in every step.
    """
    trained = [block for block in blocks if block.has_backward] or list(blocks)
    led = [block for block in trained if _NONE < block.evaluated < block.start]
    if len(led) >= _REGULAR * len(trained):
        for block in led:  # a teacher, a policy: forward without gradients in every step
            block.start = block.evaluated
    return trained


def _optimizers_joined(blocks: Sequence[_Block]) -> Iterator[_Block]:
    """Yield the steps, by the turns of optimizers or by what is done with each batch."""
    batches = list(_by_batch(blocks))
    several = [
        len({which for block in batch for which in block.optimizers}) > 1 for batch in batches
    ]
    shared = [batch for batch, is_so in zip(batches, several, strict=True) if is_so]
    once = sum(map(_has_single_turn, shared))
    if once < 2 or once < _REGULAR * len(batches):
        yield from _turns_joined(blocks)
        return
    for batch, is_so in zip(batches, several, strict=True):
        if not is_so:
            yield from _turns_joined(batch)
            continue
        for block in batch[1:]:
            _extend(batch[0], block)
        yield batch[0]


def _by_batch(blocks: Sequence[_Block]) -> Iterator[list[_Block]]:
    """Yield what is done with each batch."""
    batch: list[_Block] = []
    for block in blocks:
        if batch and (block.is_fetched or block.is_apart):
            yield batch
            batch = []
        batch.append(block)
    if batch:
        yield batch


def _has_single_turn(batch: Sequence[_Block]) -> bool:
    """Return whether a batch was fetched, and one of its optimizers stepped once."""
    turns = Counter(which for block in batch for which in block.optimizers)
    return batch[0].is_fetched and min(turns.values()) == 1


def _turns_joined(blocks: Sequence[_Block]) -> Iterator[_Block]:
    """Yield the steps: blocks of optimizers that regularly follow one another are one."""
    counts = Counter(which for block in blocks for which in set(block.optimizers))
    pairs = Counter(_pair(one, other) for one, other in pairwise(blocks) if _may_join(one, other))
    step: _Block | None = None
    last: _Block | None = None
    for block in blocks:
        if step is not None and last is not None and _may_join(step, block):
            least = min(counts[which] for which in _pair(last, block))
            if pairs[_pair(last, block)] >= _REGULAR * least:
                _extend(step, block)
                last = block
                continue
        if step is not None:
            yield step
        step, last = block, block
    if step is not None:
        yield step


def _pair(one: _Block, other: _Block) -> tuple[int, int]:
    return one.optimizers[-1], other.optimizers[0]


def _may_join(one: _Block, other: _Block) -> bool:
    is_free = not other.is_fetched and not other.is_apart
    return is_free and not set(one.optimizers) & set(other.optimizers)


def _batches_joined(blocks: Sequence[_Block]) -> Iterator[_Block]:
    """Yield the steps of a program without optimizers: by batches where most have one."""
    by_batch = sum(block.is_fetched for block in blocks) >= _REGULAR * len(blocks)
    step: _Block | None = None
    for block in blocks:
        if step is not None and by_batch and not block.is_fetched and not block.is_apart:
            _extend(step, block)
            continue
        if step is not None:
            yield step
        step = block
    if step is not None:
        yield step


def _extend(step: _Block, block: _Block) -> None:
    step.reach, step.until = block.reach, block.until
    step.optimizers += block.optimizers
