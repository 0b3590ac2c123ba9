"""Builds steps from recorded phases: blocks that end with an optimizer step or a backward pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from traceprof.measures.rows import Bools, Ints, rows_by
from traceprof.model.grouping import rows_by_value
from traceprof.model.table import Table
from traceprof.model.timing import STEP_COLUMNS, TRACEPROF_DOMAIN, empty_steps
from traceprof.names.ranges import PROFILER_RANGES
from traceprof.names.ranges import phase_of as phase_of_range

_PHASES: Final = (
    *("data", "forward", "eval", "backward", "optimizer", "data.end", "gradients.kept"),
    *("profiler", "generation", "scores", "unused"),
)
_DATA, _FORWARD, _EVAL, BACKWARD, OPTIMIZER, _NO_DATA, _KEPT, _PROFILER, _GENERATION, _SCORES = (
    range(len(_PHASES) - 1)
)
_OTHER_DATA: Final = len(_PHASES) - 1
RECORDED_PHASES: Final = "recorded phases"
"""The source of steps that `steps_of_phases` finds."""
ROLLOUT: Final = "a rollout"
"""Part of the source of steps that are iterations of post-training."""
_OF_ROLLOUTS: Final = {
    **dict.fromkeys(("rollout", "generation", "environment"), _GENERATION),
    **dict.fromkeys(("reward", "logprobs", "advantage"), _SCORES),
}
"""Phases of post-training that precede updates: the rollout itself, and the scores of a rollout."""
_SKIPPED: Final = "optimizer.skipped"
_MARKS: Final = {"rollout.used": _SCORES, "rollout.unused": _OTHER_DATA}
_OF_BLOCKS: Final = frozenset({_DATA, _FORWARD, BACKWARD, OPTIMIZER, _KEPT})
NEVER: Final = int(np.iinfo(np.int64).min)


class PhaseEvent(NamedTuple):
    """A phase on the training thread; ``optimizer`` is the number of the optimizer."""

    phase: int
    start: int
    end: int
    optimizer: int


@dataclass(slots=True)
class PhaseBlock:
    """Phases that lead to an optimizer step, or to a backward pass.

    ``next_start``: start of the next block if it begins with a batch, or of the recorder range
    before it. ``optimizer_end``: end of the last optimizer. ``evaluation_start``: start of forward
    passes without training directly before the block. ``is_separate``: an epoch or an evaluation
    ended before the block. ``adds_gradients``: the block adds to the gradients of the previous
    block. ``rollout_start``: start of the rollout directly before the block, with the batch of
    prompts before it. ``is_scored``: rewards or log-probabilities were computed before it, or it
    trains on generated sequences. ``has_other_data``: it trains on many more sequences than were
    generated.
    Times are in ns; `NEVER` means none.
    """

    is_separate: bool = False
    start: int = NEVER
    evaluation_start: int = NEVER
    end: int = NEVER
    next_start: int = NEVER
    is_fetched: bool = False
    is_working: bool = False
    is_complete: bool = False
    has_backward: bool = False
    adds_gradients: bool = False
    optimizers: tuple[int, ...] = ()
    optimizer_end: int = NEVER
    rollout_start: int = NEVER
    is_scored: bool = False
    has_other_data: bool = False

    def is_ended_by(self, event: PhaseEvent) -> bool:
        """Return whether the block is complete and the event belongs to the next block."""
        if not self.is_complete or event.start < self.end:
            return False
        # Different optimizers that step directly after each other share the gradients.
        return event.phase != OPTIMIZER or event.optimizer in self.optimizers

    def is_restarted_by(self, event: PhaseEvent) -> bool:
        """Return whether the batch fetched before the event was for an evaluation.

        The block then restarts with the event.
        """
        return event.phase == _NO_DATA or (event.phase == _DATA and self.evaluation_start != NEVER)

    def restarted(self) -> PhaseBlock:
        """Return the block without the batch of an evaluation; its rollout still counts."""
        return PhaseBlock(True, rollout_start=self.rollout_start, is_scored=self.is_scored)

    def add_before(self, event: PhaseEvent) -> None:
        """Note an evaluation, a rollout, or the scores of a rollout, before the block's work."""
        if event.phase == _EVAL:
            if self.evaluation_start == NEVER:
                self.evaluation_start = event.start
        elif event.phase == _SCORES:
            self.is_scored = True
        elif self.rollout_start == NEVER:
            # A policy may run before the first step of its environment.
            known = {self.start, self.evaluation_start, event.start} - {NEVER}
            self.rollout_start = min(known)

    def add(self, event: PhaseEvent, closing: int) -> None:
        """Add an event to the block; an event of the phase ``closing`` completes the block."""
        phase, start, end, optimizer = event
        if phase == _KEPT:
            self.adds_gradients = True
            return
        if phase == _DATA:
            self.is_fetched |= not self.is_working
        else:
            self.is_working = True
            self.has_backward |= phase == BACKWARD
            # An optimizer that starts earlier is nested in another optimizer.
            if phase == OPTIMIZER and start >= self.optimizer_end:
                self.optimizers += (optimizer,)
                self.optimizer_end = end
            if phase in (BACKWARD, OPTIMIZER):
                self.end = max(self.end, end)
            self.is_complete |= phase == closing
        if self.start == NEVER:
            # The model is trained in eval mode: the preceding evaluation was its forward pass.
            is_trained = phase == BACKWARD and self.evaluation_start != NEVER
            self.start = self.evaluation_start if is_trained else start


def events_of(ranges: Table, closing: int) -> Iterator[tuple[int, int, Iterable[PhaseEvent]]]:
    """Yield process, training thread, and events sorted by start, of each process that trains."""
    phase_of, which_of = map(ranges["name"].by_text, _parse_names(ranges["name"].texts.tolist()))
    all_columns = (ranges["thread"], phase_of, ranges["start_ns"], ranges["end_ns"], which_of)
    chosen = np.flatnonzero(phase_of >= 0)
    columns = np.stack([column[chosen] for column in all_columns])
    for process, rows in rows_by_value(ranges["process"][chosen]).items():
        thread, phase, *_ = columns[:, rows]
        closing_threads = thread[phase == closing]
        if not len(closing_threads):
            continue
        # Several threads may train: use the one with the most. Prefetching runs on other threads.
        distinct, counts = np.unique(closing_threads, return_counts=True)
        main = distinct[counts.argmax()]
        if 2 * counts.max() < counts.sum() and not (phase == BACKWARD).any():
            continue  # a parameter server: the requests of its clients take turns
        is_main = thread == main
        if not (is_main & (phase == BACKWARD)).any():
            is_main |= phase == BACKWARD
        yield process, int(main), map(PhaseEvent, *columns[1:, rows[is_main]].tolist())


def blocks_of(events: Iterable[PhaseEvent], closing: int) -> Iterator[PhaseBlock]:
    """Yield the blocks of a process in order."""
    # A sequential loop, because the start of a block depends on the end of the previous block.
    block = PhaseBlock()
    for border, event in _with_borders(_without_evaluations(events)):
        if block.is_ended_by(event):
            if event.phase == _DATA:
                block.next_start = border
            yield block
            block = PhaseBlock()
        block.has_other_data |= event.phase == _OTHER_DATA
        if not block.is_working and event.phase in (_EVAL, _GENERATION, _SCORES):
            block.add_before(event)
        elif not block.is_working and block.is_restarted_by(event):
            block = block.restarted()
        if event.phase in _OF_BLOCKS:
            block.add(event, closing)
    if block.is_complete:
        yield block


def _without_evaluations(events: Iterable[PhaseEvent]) -> Iterator[PhaseEvent]:
    """Yield each event except generation and scores within an evaluation.

    Scores within a generation are part of it: a model verifies the drafts of another.
    """
    evaluated_until = generated_until = NEVER
    for event in events:
        if event.phase == _EVAL:
            evaluated_until = max(evaluated_until, event.end)
        elif event.phase in (_GENERATION, _SCORES) and event.start < evaluated_until:
            continue
        elif event.phase == _GENERATION:
            generated_until = max(generated_until, event.end)
        elif event.phase == _SCORES and event.start < generated_until:
            continue
        yield event


def _with_borders(events: Iterable[PhaseEvent]) -> Iterator[tuple[int, PhaseEvent]]:
    """Yield each event except recorder events, with its start or that of the recorder before it."""
    border = NEVER
    for event in events:
        border = event.start if border == NEVER else border
        if event.phase != _PROFILER:
            yield border, event
            border = NEVER


def are_of_phase(ranges: Table, phase: int) -> Bools:
    """Return which ranges of traceprof belong to a phase (`BACKWARD`, `OPTIMIZER`)."""
    phases, _ = _parse_names(ranges["name"].texts.tolist())
    found: Bools = ranges["name"].by_text(phases == phase)
    return found


def _parse_names(names: Sequence[str]) -> tuple[Ints, Ints]:
    """Return the index in `_PHASES` (-1 if none) and the optimizer number of each name."""
    places, which = np.full(len(names), -1, np.int64), np.zeros(len(names), np.int64)
    for row, name in enumerate(names):
        plain, _, number = name.partition("#")
        if name in PROFILER_RANGES:
            places[row] = _PROFILER
        elif plain == _SKIPPED:
            places[row], which[row] = OPTIMIZER, int(number or 1)
        elif name in _MARKS:
            places[row] = _MARKS[name]
        elif (phase := phase_of_range(name, TRACEPROF_DOMAIN)) in _OF_ROLLOUTS:
            places[row] = _OF_ROLLOUTS[phase]
        elif plain in _PHASES and (not number or number.isdecimal()):
            places[row], which[row] = _PHASES.index(plain), int(number or 1)
    return places, which


_CAPTURE: Final = "traceprof.capture"
_MIN_REGULAR_RATIO: Final = 0.5
_MAX_ADDED_PASSES: Final = 64
"""As in the hooks: where more passes add gradients, gradients are reset without being seen."""


def steps_of_phases(ranges: Table, closing: int = OPTIMIZER) -> tuple[Table, str]:
    """Return the steps that end with an optimizer step, and words on several optimizers or updates.

    In post-training, a step is one iteration: a rollout and the updates that learn from it. With
    ``closing=BACKWARD``, steps end with backward passes, for recordings without an optimizer.
    ``ranges`` are the ranges of traceprof.
    """
    rows, sizes, updates = [], Counter[int](), Counter[int]()
    first_numbers = _first_numbers(ranges, closing)
    for process, thread, events in events_of(ranges, closing):
        blocks = list(blocks_of(events, closing))
        join = _join_optimizer_blocks if closing == OPTIMIZER else _join_backward_blocks
        first_number, rollouts = first_numbers.get(process, 0), _group_by_rollout(blocks)
        if rollouts:
            updates.update(map(len, rollouts))
            first_number, blocks = 0, [_join_rollout(group) for group in rollouts]
        steps = blocks if rollouts else join(_training_blocks(blocks))
        for number, step in enumerate(steps, first_number):
            # With a loader, the time until the next batch belongs to the step.
            end = step.end if step.next_start == NEVER else step.next_start
            rows.append((process, thread, number, step.start, end, False))
            sizes[len(set(step.optimizers))] += 1
    if not rows:
        return empty_steps(), ""
    usual = sizes.most_common(1)[0][0]
    several = f", {usual} optimizers per step" if usual > 1 else ""
    if updates:
        several = with_updates(updates.most_common(1)[0][0])
    return Table(dict(zip(STEP_COLUMNS, zip(*rows, strict=True), strict=True))), several


def with_updates(n_updates: int) -> str:
    """Return the part of the source of steps that are iterations of post-training."""
    return f", {ROLLOUT} and {n_updates} update{'s' * (n_updates > 1)} per step"


def _first_numbers(ranges: Table, closing: int) -> dict[int, int]:
    """Return the number of the first step of each process of which only a part was captured."""
    captured = ranges["process"][ranges["name"] == _CAPTURE]
    if not len(captured):
        return {}
    numbered = ranges.take(
        are_of_phase(ranges, closing)
        & np.isin(ranges["process"], captured)
        & (ranges["payload"] >= 0)
    )
    numbers = numbered["payload"]
    return {
        process: int(numbers[rows[0]]) for process, rows in rows_by(numbered, "process").items()
    }


_MAX_UNSCORED_UPDATES: Final = 64
"""If more updates follow each rollout, and nothing scores it, it only prints a sample."""


def _group_by_rollout(blocks: Sequence[PhaseBlock]) -> list[list[PhaseBlock]]:
    """Return the blocks of each iteration of post-training; [] if rollouts do not begin iterations.

    A program that evaluates by generation looks similar. It trains before it generates, or its
    updates fetch new batches. A rollout is learned from: it precedes the first update, and it is
    scored, or the updates fetch nothing, and no other data is trained on.
    """
    groups: list[list[PhaseBlock]] = []
    for block in blocks:
        if block.rollout_start != NEVER:
            groups.append([])
        elif not groups:
            return []
        groups[-1].append(block)
    later = [block for group in groups for block in group[1:]]
    if not later or any(block.is_scored for block in blocks):
        return groups
    has_other_data = any(block.has_other_data for block in blocks)
    is_learned = len(groups) > 1 and not (has_other_data or any(b.is_fetched for b in later))
    return groups if is_learned and max(map(len, groups)) <= _MAX_UNSCORED_UPDATES else []


def _join_rollout(group: Sequence[PhaseBlock]) -> PhaseBlock:
    """Return one step for a rollout and its updates."""
    step = group[0]
    step.start = step.rollout_start
    for block in group[1:]:
        _extend(step, block)
    return step


def _training_blocks(blocks: Sequence[PhaseBlock]) -> list[PhaseBlock]:
    """Return the blocks with a backward pass, including the evaluations that are part of each step.

    An optimizer step without gradients only creates optimizer state. If no block has a backward
    pass, the program trains without autograd, and all blocks count.
    """
    trained = [block for block in blocks if block.has_backward] or list(blocks)
    with_evaluation = [block for block in trained if NEVER < block.evaluation_start < block.start]
    if len(with_evaluation) >= _MIN_REGULAR_RATIO * len(trained):
        # A teacher or policy model runs forward without gradients in every step.
        for block in with_evaluation:
            block.start = block.evaluation_start
    return trained


def _join_optimizer_blocks(blocks: Sequence[PhaseBlock]) -> Iterator[PhaseBlock]:
    """Yield the steps of a program with optimizers, joined by batch or by the optimizers' order."""
    batches = [
        (batch, len({optimizer for block in batch for optimizer in block.optimizers}) > 1)
        for batch in _group_by_batch(blocks)
    ]
    n_single = sum(_has_single_step(batch) for batch, has_several in batches if has_several)
    if n_single < 2 or n_single < _MIN_REGULAR_RATIO * len(batches):
        yield from _join_optimizers_in_turn(blocks)
        return
    for batch, has_several in batches:
        if not has_several:
            yield from _join_optimizers_in_turn(batch)
            continue
        for block in batch[1:]:
            _extend(batch[0], block)
        yield batch[0]


def _group_by_batch(blocks: Sequence[PhaseBlock]) -> Iterator[list[PhaseBlock]]:
    """Yield the blocks that use the same batch."""
    batch: list[PhaseBlock] = []
    for block in blocks:
        if batch and (block.is_fetched or block.is_separate):
            yield batch
            batch = []
        batch.append(block)
    if batch:
        yield batch


def _has_single_step(batch: Sequence[PhaseBlock]) -> bool:
    """Return whether a batch was fetched, and one of its optimizers stepped exactly once."""
    counts = Counter(optimizer for block in batch for optimizer in block.optimizers)
    return batch[0].is_fetched and min(counts.values()) == 1


def _join_optimizers_in_turn(blocks: Sequence[PhaseBlock]) -> Iterator[PhaseBlock]:
    """Yield the steps: blocks of different optimizers that regularly follow each other are one."""
    counts = Counter(optimizer for block in blocks for optimizer in set(block.optimizers))
    pairs = Counter(_pair(one, other) for one, other in pairwise(blocks) if _may_join(one, other))
    step: PhaseBlock | None = None
    last: PhaseBlock | None = None
    for block in blocks:
        if step is not None and last is not None and _may_join(step, block):
            min_count = min(counts[optimizer] for optimizer in _pair(last, block))
            if pairs[_pair(last, block)] >= _MIN_REGULAR_RATIO * min_count:
                _extend(step, block)
                last = block
                continue
        if step is not None:
            yield step
        step, last = block, block
    if step is not None:
        yield step


def _pair(one: PhaseBlock, other: PhaseBlock) -> tuple[int, int]:
    """Return the last optimizer of one block and the first optimizer of the other."""
    return one.optimizers[-1], other.optimizers[0]


def _may_join(one: PhaseBlock, other: PhaseBlock) -> bool:
    """Return whether ``other`` has no batch of its own and no optimizer of ``one``."""
    return (not other.is_fetched and not other.is_separate) and not set(one.optimizers) & set(
        other.optimizers
    )


def _join_backward_blocks(blocks: Sequence[PhaseBlock]) -> Iterator[PhaseBlock]:
    """Yield the steps of a program without optimizers.

    Blocks that add to the same gradients are one step. If most blocks fetch a batch, blocks that
    share a batch are also one step.
    """
    by_batch = sum(block.is_fetched for block in blocks) >= _MIN_REGULAR_RATIO * len(blocks)
    by_gradients = _are_reset(blocks)
    step: PhaseBlock | None = None
    for block in blocks:
        is_of_batch = by_batch and not block.is_fetched and not block.is_separate
        if step is not None and (is_of_batch or (by_gradients and block.adds_gradients)):
            _extend(step, block)
            continue
        if step is not None:
            yield step
        step = block
    if step is not None:
        yield step


def _are_reset(blocks: Sequence[PhaseBlock]) -> bool:
    """Return whether gradients are visibly reset: no long run of blocks only adds to them."""
    added = 0
    for block in blocks:
        added = added + 1 if block.adds_gradients else 0
        if added >= _MAX_ADDED_PASSES:
            return False
    return True


def _extend(step: PhaseBlock, block: PhaseBlock) -> None:
    """Extend ``step`` to the end of ``block``."""
    step.end, step.next_start = block.end, block.next_start
    step.optimizers += block.optimizers
