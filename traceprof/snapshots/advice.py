"""Changes that lower the peak of GPU memory, in bytes: what the peak would be without some memory.

The saving of a change is the difference between the peak of the recording and the highest level
over the recording without the memory that the change removes. So it is right if another point in
time becomes the peak. What a change removes is an upper bound, since it may leave a part.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from traceprof.model.grouping import grouped_by
from traceprof.model.results import Note
from traceprof.model.table import Table
from traceprof.snapshots.kinds import ACTIVATIONS, GRADIENTS, OPTIMIZER
from traceprof.snapshots.replay import Counts, Replay, out_of_memory

_MIN_RATIO: Final = 0.02
"""Changes that save less than this share of the peak are omitted."""
_LOSS: Final = re.compile(r"cross_entropy|nll_loss|log_softmax|NllLoss|LogSoftmax|CrossEntropy")
_LOSS_CHUNKS: Final = 8
_MIN_BLOCKS: Final = 3
_MIN_OF_LINE_RATIO: Final = 0.1
_SMALL_STATE_RATIO: Final = 0.75
"""8-bit optimizers keep 1 byte instead of 4 for each value of the state, and scales."""
_EXPANDABLE: Final = "expandable segments"
_CHECKPOINTING: Final = "activation checkpointing"
_FIXES: Final = {
    _CHECKPOINTING: "Wrap each repeated block in torch.utils.checkpoint.checkpoint(block, x, "
    "use_reentrant=False). The backward pass then runs its forward pass again.",
    "loss in chunks": "Compute the output layer and the loss for a part of the tokens at a time, "
    "or use a fused linear cross entropy. Then the logits never exist as a whole.",
    "8-bit optimizer": "Use an optimizer with 8-bit state, such as bitsandbytes.optim.AdamW8bit.",
    "gradients freed earlier": "Call optimizer.zero_grad(set_to_none=True) right after "
    "optimizer.step(), so that gradients do not exist during the next forward pass.",
    _EXPANDABLE: "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
}
"""How to make each change, by its name."""
_TRIED: Final = {_CHECKPOINTING: "checkpoint", "8-bit optimizer": "optimizer_8bit"}
"""The change of `traceprof try` that makes each change, if there is one."""


@dataclass(frozen=True, slots=True)
class MemoryChange:
    """A change and the memory that it removes: ``ratio`` of each allocation in ``lives``."""

    name: str
    lives: Table
    ratio: float = 1.0
    place: str = ""


def advice_rows(replayed: Replay, placed: Table, steps_end: Counts) -> list[dict[str, Any]]:
    """Return a row for each change that lowers the peak, the largest saving first.

    ``placed`` are the allocations with kind, place, and operator. ``steps_end`` is the last event
    of each optimizer step. Without a history, there are no rows.
    """
    if not replayed.n_events:
        return []
    changes = [*_checkpointing(placed), *_rest(placed, steps_end)]
    rows = [_row(replayed, change) for change in changes if len(change.lives)]
    rows += _unused_row(replayed)
    least = _MIN_RATIO * replayed.level_at(replayed.peak)
    return sorted(
        (row for row in rows if row["saves_bytes"] >= least), key=lambda row: -row["saves_bytes"]
    )


def advice_note(advice: dict[str, Any]) -> Note:
    """Return a sentence on a change that lowers the peak, from its row."""
    place = " at {place}" if advice["place"] else ""
    saves = "Saves up to {saves:bytes} at the peak"
    if advice["change"] == _EXPANDABLE:
        saves = "Lowers reserved memory by up to {saves:bytes}"
    if advice["is_enough"]:
        saves = "Saves up to {saves:bytes}, so that the allocation that failed fits"
    return Note.of(
        f"{saves}: {{change}}{place}. {{fix}}",
        saves=advice["failure_saves_bytes"] if advice["is_enough"] else advice["saves_bytes"],
        change=advice["change"],
        place=advice["place"],
        fix=advice["fix"],
    )


def _checkpointing(placed: Table) -> Iterator[MemoryChange]:
    """Yield the activations of each line whose blocks repeat.

    Blocks that repeat make allocations of one operator and size in each forward pass. While the
    backward pass runs a block again, its activations exist; those of the other blocks do not.
    The number of blocks is the lowest number of such allocations, among those with at least a
    tenth of the memory of the line.
    """
    activations = placed.take((placed["kind"] == ACTIVATIONS) & ~_of_loss(placed))
    if not len(activations):
        return
    _, lines = grouped_by(activations, "place")
    for rows in lines.rows:
        of_line = activations.take(rows)
        _, repeated = grouped_by(of_line, "operator", "size_bytes", "module")
        least = _MIN_OF_LINE_RATIO * of_line["size_bytes"].sum()
        large = np.flatnonzero(repeated.sums(of_line["size_bytes"]) >= least).tolist()
        blocks = (_most_at_once(of_line.take(repeated.rows[number])) for number in large)
        n_blocks = min(blocks, default=0)
        if n_blocks >= _MIN_BLOCKS:
            place = str(of_line["place"][0])
            yield MemoryChange(_CHECKPOINTING, of_line, 1 - 1 / n_blocks, place)


def _most_at_once(lives: Table) -> int:
    """Return the highest number of these allocations that exist at the same time."""
    starts, ends = np.sort(lives["start"]), np.sort(lives["end"])
    n_begun = np.arange(1, len(starts) + 1)
    return int((n_begun - np.searchsorted(ends, starts, "right")).max())


def _rest(placed: Table, steps_end: Counts) -> Iterator[MemoryChange]:
    """Yield the changes other than checkpointing."""
    kind = placed["kind"]
    loss = placed.take(_of_loss(placed))
    if len(loss):
        largest = loss.row(int(loss["size_bytes"].argmax()))
        yield MemoryChange("loss in chunks", loss, 1 - 1 / _LOSS_CHUNKS, str(largest["place"]))
    yield MemoryChange("8-bit optimizer", placed.take(kind == OPTIMIZER), _SMALL_STATE_RATIO)
    gradients = placed.take(kind == GRADIENTS)
    following = np.searchsorted(steps_end, gradients["start"])
    outlives = following < len(steps_end)
    unneeded_from = np.append(steps_end, 0)[following] + 1
    late = outlives & (gradients["end"] > unneeded_from)
    yield MemoryChange("gradients freed earlier", gradients.assign(start=unneeded_from).take(late))


def _of_loss(placed: Table) -> Any:
    """Return which allocations hold logits or what the loss makes of them."""
    operators = placed["operator"]
    return operators.by_text([bool(_LOSS.search(text)) for text in operators.texts.tolist()])


def _row(replayed: Replay, change: MemoryChange) -> dict[str, Any]:
    """Return what a change saves at the peak and, if memory ran out, at that moment."""
    lives, n_events = change.lives, replayed.n_events
    removed = np.zeros(n_events + 2)
    sizes = change.ratio * lives["size_bytes"]
    np.add.at(removed, lives["start"] + 1, sizes)
    np.subtract.at(removed, np.minimum(lives["end"], n_events) + 1, sizes)
    removed = np.cumsum(removed)[: n_events + 1]
    left = float((replayed.level_bytes - removed).max())
    failed = out_of_memory(replayed)
    return _named(
        change.name,
        change.place,
        int(replayed.level_bytes.max() - left),
        None if failed is None else int(removed[failed + 1]),
        replayed,
    )


def _unused_row(replayed: Replay) -> list[dict[str, Any]]:
    """Return the memory that the allocator reserved at its peak and did not use at the peak."""
    unused = int(replayed.reserved_bytes.max()) - int(replayed.level_bytes.max())
    failed = out_of_memory(replayed)
    at_failure = None
    if failed is not None:
        at_failure = int(replayed.reserved_bytes[failed + 1] - replayed.level_bytes[failed + 1])
    return [_named(_EXPANDABLE, "", max(unused, 0), at_failure, replayed)]


def _named(
    name: str, place: str, saves_bytes: int, at_failure: int | None, replayed: Replay
) -> dict[str, Any]:
    """Return the row of a change; ``at_failure`` are the bytes that it saves when memory ran out.

    The failed allocation would fit if the change saves what the GPU lacked.
    """
    lacking, failed = None, out_of_memory(replayed)
    if failed is not None:
        events = replayed.memory.events
        lacking = int(events["size_bytes"][failed]) - max(int(events["free_bytes"][failed]), 0)
    return {
        "change": name,
        "place": place,
        "saves_bytes": saves_bytes,
        "failure_saves_bytes": at_failure,
        "is_enough": None if at_failure is None or lacking is None else at_failure >= lacking,
        "fix": _FIXES[name] + _how_to_measure(name),
    }


def _how_to_measure(name: str) -> str:
    """Return a sentence with the command that measures a change; "" if `try` cannot make it."""
    command = f"traceprof try --goal memory --change {_TRIED.get(name)} -- python train.py"
    return f" Measure it: `{command}`." if name in _TRIED else ""
