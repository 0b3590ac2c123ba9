"""Steps from the phases that traceprof recorded: fetches, passes and the steps of optimizers.

What leads up to a step of an optimizer is a block. A block is a step, unless another optimizer
takes its turn without a batch of its own, again and again (a GAN): these are one step together. So
is all that is done with a batch where several optimizers take turns and one of them once (a critic
that learns several times from each batch). Where no optimizer was seen, a block leads up to a
backward pass, and those that add to gradients which nobody reset are one step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.facts.steps.blocks import (
    BACKWARD,
    NEVER,
    OPTIMIZER,
    Block,
    are_of_phase,
    blocks_of,
    events_of,
)
from traceprof.model.timing import STEP_COLUMNS, empty_steps

__all__ = ["PhaseSteps", "steps_of_backward", "steps_of_phases"]

_CAPTURE: Final = "traceprof.capture"
_REGULAR: Final = 0.5
_MOST_ADDED: Final = 64  # as the hooks: where so many passes add, gradients are reset unseen

_Int64Array = npt.NDArray[np.int64]


class PhaseSteps(NamedTuple):
    """Steps, and how many optimizers most of them have."""

    table: pd.DataFrame
    optimizers_count: int


def steps_of_phases(own: pd.DataFrame) -> PhaseSteps:
    """Return the steps that end with those of optimizers; ``own`` are the ranges of traceprof."""
    return _steps(own, OPTIMIZER)


def steps_of_backward(own: pd.DataFrame) -> PhaseSteps:
    """Return the steps that end with backward passes, for where no optimizer was seen."""
    return _steps(own, BACKWARD)


def _steps(own: pd.DataFrame, closing: int) -> PhaseSteps:
    rows, sizes = [], Counter[int]()
    first = _first_numbers(own, closing)
    for process, events in events_of(own, closing):
        blocks = list(blocks_of(events, closing))
        join = _optimizers_joined if closing == OPTIMIZER else _batches_joined
        for number, step in enumerate(join(_trained(blocks)), first.get(process, 0)):
            rows.append((process, number, step.start, _end_of(step), False))
            sizes[len(set(step.optimizers))] += 1
    if not rows:
        return PhaseSteps(empty_steps(), 0)
    usual = sizes.most_common(1)[0][0]
    return PhaseSteps(pd.DataFrame(rows, columns=list(STEP_COLUMNS)), usual)


def _first_numbers(own: pd.DataFrame, closing: int) -> dict[int, int]:
    """Return the number of the first step of each process of which only a part was captured."""
    captured = own.loc[own["name"] == _CAPTURE, "process"].unique()
    if not len(captured):
        return {}
    closes = are_of_phase(own, closing) & own["process"].isin(captured) & (own["payload"] >= 0)
    firsts = own[closes].sort_values("start_ns", kind="stable").drop_duplicates("process")
    return dict(zip(firsts["process"].astype(int), firsts["payload"].astype(int), strict=True))


def _end_of(step: Block) -> int:
    """Return the end of a step: with a loader, the time up to the next batch is its own."""
    return step.reach if step.until == NEVER else step.until


def _trained(blocks: Sequence[Block]) -> list[Block]:
    """Return the blocks in which something was learned, with the evaluations that are part of it.

    An optimizer that steps without gradients only makes its state, unless none has any: who
    learns by other means does it in every step.
    """
    trained = [block for block in blocks if block.has_backward] or list(blocks)
    led = [block for block in trained if NEVER < block.evaluated < block.start]
    if len(led) >= _REGULAR * len(trained):
        for block in led:  # a teacher, a policy: forward without gradients in every step
            block.start = block.evaluated
    return trained


def _optimizers_joined(blocks: Sequence[Block]) -> Iterator[Block]:
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


def _by_batch(blocks: Sequence[Block]) -> Iterator[list[Block]]:
    """Yield what is done with each batch."""
    batch: list[Block] = []
    for block in blocks:
        if batch and (block.is_fetched or block.is_apart):
            yield batch
            batch = []
        batch.append(block)
    if batch:
        yield batch


def _has_single_turn(batch: Sequence[Block]) -> bool:
    """Return whether a batch was fetched, and one of its optimizers stepped once."""
    turns = Counter(which for block in batch for which in block.optimizers)
    return batch[0].is_fetched and min(turns.values()) == 1


def _turns_joined(blocks: Sequence[Block]) -> Iterator[Block]:
    """Yield the steps: blocks of optimizers that regularly follow one another are one."""
    counts = Counter(which for block in blocks for which in set(block.optimizers))
    pairs = Counter(_pair(one, other) for one, other in pairwise(blocks) if _may_join(one, other))
    step: Block | None = None
    last: Block | None = None
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


def _pair(one: Block, other: Block) -> tuple[int, int]:
    return one.optimizers[-1], other.optimizers[0]


def _may_join(one: Block, other: Block) -> bool:
    is_free = not other.is_fetched and not other.is_apart
    return is_free and not set(one.optimizers) & set(other.optimizers)


def _batches_joined(blocks: Sequence[Block]) -> Iterator[Block]:
    """Yield the steps of a program without optimizers.

    By what was added to the same gradients, and by batches where most have one.
    """
    by_batch = sum(block.is_fetched for block in blocks) >= _REGULAR * len(blocks)
    by_gradients = _are_reset(blocks)
    step: Block | None = None
    for block in blocks:
        is_of_batch = by_batch and not block.is_fetched and not block.is_apart
        if step is not None and (is_of_batch or (by_gradients and block.adds)):
            _extend(step, block)
            continue
        if step is not None:
            yield step
        step = block
    if step is not None:
        yield step


def _are_reset(blocks: Sequence[Block]) -> bool:
    """Return whether gradients are reset where it can be seen: never very many are added."""
    added = 0
    for block in blocks:
        added = added + 1 if block.adds else 0
        if added >= _MOST_ADDED:
            return False
    return True


def _extend(step: Block, block: Block) -> None:
    step.reach, step.until = block.reach, block.until
    step.optimizers += block.optimizers
