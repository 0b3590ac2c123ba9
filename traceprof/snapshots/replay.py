"""Compute the memory use of a device over time: the lifetime and the size of each allocation.

Events contain requested bytes, like torch's ``requested_bytes``. Blocks of a snapshot have rounded
sizes (``allocated_bytes``). Memory counts as allocated until it is freed, even if a stream still
uses it (``active_bytes`` includes it until then).
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
"""The start event of memory that existed before the first event."""


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """The memory use of a device.

    Attributes:
        memory: the events and blocks of the device.
        lives: the allocations: address, size_bytes, start, end, stack. start and end are rows of
            events. A start of BEFORE means that the memory existed already; an end equal to the
            number of events means that it still exists at the time of the snapshot.
        level_bytes: allocated bytes before all events, then after each event.
        reserved_bytes: reserved bytes before all events, then after each event.
    """

    memory: DeviceMemory
    lives: Table
    level_bytes: Counts
    reserved_bytes: Counts

    @property
    def n_events(self) -> int:
        """The number of events."""
        return len(self.memory.events)

    @property
    def peak(self) -> int:
        """The first event with the highest level; BEFORE if no event exceeds the initial level."""
        return int(self.level_bytes.argmax()) - 1

    def alive_at(self, event: int) -> Table:
        """Return the allocations that exist after ``event``."""
        return self.lives.take((self.lives["start"] <= event) & (self.lives["end"] > event))

    def level_at(self, event: int) -> int:
        """Return the allocated bytes after ``event``."""
        return int(self.level_bytes[event + 1])

    def at_ns(self, event: int) -> int:
        """Return the time of an event in ns after the first event; −1 if unknown."""
        times = self.memory.events["at_ns"]
        if not len(times) or times[0] < 0:
            return -1
        return int(times[max(event, 0)] - times[0])


def replay(memory: DeviceMemory) -> Replay:
    """Return the memory use of a device over time."""
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
    """Return the allocations of a device, from pairs of events with the same address."""
    events, n_events = memory.events, len(memory.events)
    actions = events["action"]
    # Older versions of torch, without times, record only when memory was finally free. Later ones
    # record a request first. If the history begins after the request, the memory was free already.
    has_times = n_events > 0 and bool(events["at_ns"][0] >= 0)
    free = FREED if has_times or (actions == FREED).any() else COMPLETED
    rows = np.flatnonzero((actions == ALLOCATED) | (actions == free))
    rows = rows[np.lexsort((rows, events["address"][rows]))]
    address, is_made = events["address"][rows], (actions == ALLOCATED)[rows]
    is_next = np.zeros(len(rows), np.bool_)
    is_next[:-1] = address[1:] == address[:-1]
    after = np.append(rows[1:], n_events)
    # An address that is allocated again was freed before, even without an event.
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
    """Return the blocks in use that no event allocated: they existed before the first event."""
    blocks = memory.blocks.take(memory.blocks["state"] == LIVE)
    touched = np.unique(address[memory.events["action"][rows] == ALLOCATED])
    return blocks.take(~np.isin(blocks["address"], touched))


def out_of_memory(replayed: Replay) -> int | None:
    """Return the last event at which memory ran out, or None."""
    found = np.flatnonzero(replayed.memory.events["action"] == OUT_OF_MEMORY)
    return int(found[-1]) if len(found) else None


def unaccounted_bytes(replayed: Replay) -> int:
    """Return the difference between the bytes of all events and of the blocks in use."""
    blocks = replayed.memory.blocks
    in_use = int(blocks["requested_bytes"][blocks["state"] == LIVE].sum())
    return int(replayed.level_bytes[-1]) - in_use
