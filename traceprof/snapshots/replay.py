"""How a device's memory was used over time: what lived from when to when, and how much of it.

The events tell bytes as they were asked for, as torch's own ``requested_bytes`` does; the blocks of
a snapshot are rounded up (``allocated_bytes``). Memory counts as allocated until it is freed, also
where a stream still uses it (``active_bytes`` goes on until then).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traceprof.model.table import Table
from traceprof.snapshots.reading import (
    ALLOCATED,
    COMPLETED,
    FREED,
    GROWN,
    LIVE,
    NO_STACK,
    OUT_OF_MEMORY,
    SHRUNK,
    DeviceMemory,
)

Counts = npt.NDArray[np.int64]

BEFORE = -1
"""The event that made what was there before the first one."""


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """The use of one device's memory.

    ``lives``: what was allocated: address, size_bytes, start and end (rows of events; BEFORE: it
    was there already; as many as there are events: it is there as the snapshot is taken), stack.
    ``level_bytes`` and ``reserved_bytes``: after each event; their first entry is before all.
    """

    memory: DeviceMemory
    lives: Table
    level_bytes: Counts
    reserved_bytes: Counts

    @property
    def n_events(self) -> int:
        """How many events there are."""
        return len(self.memory.events)

    @property
    def peak(self) -> int:
        """The event at which most is allocated, first; BEFORE: no event adds to what is there."""
        return int(self.level_bytes.argmax()) - 1

    def alive_at(self, event: int) -> Table:
        """Return the lives of what is allocated once ``event`` has happened."""
        return self.lives.take((self.lives["start"] <= event) & (self.lives["end"] > event))

    def level_at(self, event: int) -> int:
        """Return how many bytes are allocated once ``event`` has happened."""
        return int(self.level_bytes[event + 1])

    def at_ns(self, event: int) -> int:
        """Return when an event happened, after the first one; −1: not known."""
        times = self.memory.events["at_ns"]
        if not len(times) or times[0] < 0:
            return -1
        return int(times[max(event, 0)] - times[0])


def replay(memory: DeviceMemory) -> Replay:
    """Return how the memory of a device was used."""
    events = memory.events
    lives = _lives(memory)
    changes = np.zeros(len(events) + 1, np.int64)
    np.add.at(changes, lives["start"] + 1, lives["size_bytes"])
    ended = lives.take(lives["end"] < len(events))
    np.subtract.at(changes, ended["end"] + 1, ended["size_bytes"])
    sizes = events["size_bytes"]
    grown = np.where(events["action"].isin(GROWN), sizes, 0)
    grown -= np.where(events["action"].isin(SHRUNK), sizes, 0)
    at_end = int(memory.segments["size_bytes"].sum())
    reserved = at_end - int(grown.sum()) + np.concatenate([[0], np.cumsum(grown)])
    return Replay(memory, lives, np.cumsum(changes), reserved)


def _lives(memory: DeviceMemory) -> Table:
    events, n_events = memory.events, len(memory.events)
    actions = events["action"]
    # Where it is not told when memory was freed, only that it is: older versions of torch.
    free = FREED if (actions == FREED).any() else COMPLETED
    rows = np.flatnonzero((actions == ALLOCATED) | (actions == free))
    rows = rows[np.lexsort((rows, events["address"][rows]))]
    address, is_made = events["address"][rows], (actions == ALLOCATED)[rows]
    is_next = np.zeros(len(rows), np.bool_)
    is_next[:-1] = address[1:] == address[:-1]
    after = np.append(rows[1:], n_events)
    # An address that is given out again was free before, though no event says when.
    ends = np.where(is_next, after, n_events)
    is_first = ~np.insert(is_next[:-1], 0, False)[: len(rows)]
    made, earlier = rows[is_made], rows[is_first & ~is_made]
    kept = _kept_from_before(memory, rows, address)
    parts = (
        (events["address"][made], events["size_bytes"][made], made, ends[is_made]),
        (events["address"][earlier], events["size_bytes"][earlier], earlier * 0 + BEFORE, earlier),
        (kept["address"], kept["requested_bytes"], BEFORE, n_events),
    )
    stacks = (events["stack"][made], NO_STACK, kept["stack"])
    names = ("address", "size_bytes", "start", "end", "stack")
    return Table.stacked(
        [
            Table(dict(zip(names, (*part, stack), strict=True)))
            for part, stack in zip(parts, stacks, strict=True)
        ]
    )


def _kept_from_before(memory: DeviceMemory, rows: Counts, address: Counts) -> Table:
    """Return the blocks in use that no event made: they were there before the first one."""
    blocks = memory.blocks.take(memory.blocks["state"] == LIVE)
    touched = np.unique(address[memory.events["action"][rows] == ALLOCATED])
    return blocks.take(~np.isin(blocks["address"], touched))


def out_of_memory(replayed: Replay) -> int | None:
    """Return the last event at which memory ran out; None: it never did."""
    found = np.flatnonzero(replayed.memory.events["action"] == OUT_OF_MEMORY)
    return int(found[-1]) if len(found) else None


def unaccounted_bytes(replayed: Replay) -> int:
    """Return how many bytes the events add up to beyond those of the blocks that are in use."""
    blocks = replayed.memory.blocks
    in_use = int(blocks["requested_bytes"][blocks["state"] == LIVE].sum())
    return int(replayed.level_bytes[-1]) - in_use
