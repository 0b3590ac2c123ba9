"""What the timeline draws: channels of intervals on rows, rows in groups, groups in sections.

A *channel* holds sorted intervals of one category that do not overlap. A *row* is one line of
the screen. A *group* is a thread or a device; a *section* is a process (a rank).
All times are integer ns after the origin of the page.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.model.intervals import Int64Array
from traceprof.model.tables import ABSENT
from traceprof.values import dataclass

__all__ = ["STATES", "Channel", "Group", "Lanes", "NameTotals", "Row", "channels_by_kind"]

STATES: Final = "state"
"""The kind under which the states of devices are kept among those of rows."""


@dataclass(frozen=True, slots=True, eq=False)
class Channel:
    """Sorted, non-overlapping intervals of one category (a key of the palette).

    ``names`` are places in `Lanes.names`. ``n_bytes`` and ``correlations`` hold ABSENT (-1)
    where not known, and are None where no interval has any. In a condensed channel an item may
    stand for several events: ``counts`` of them, busy for ``busy_ns``, between start and end.
    """

    category: str
    starts: Int64Array
    ends: Int64Array
    names: npt.NDArray[np.int64]
    n_bytes: Int64Array | None = None
    correlations: Int64Array | None = None
    busy_ns: Int64Array | None = None
    counts: Int64Array | None = None

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def n_events(self) -> int:
        """How many events the items stand for."""
        return len(self.starts) if self.counts is None else int(self.counts.sum())


@dataclass(frozen=True, slots=True)
class Row:
    """One line: ``kind`` is range, host_op, api, gpu, sync, mark, collective or overhead."""

    label: str
    kind: str
    channels: tuple[Channel, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """The rows of one thread or one device; ``states`` are channels of what a device does.

    ``device`` is the number of the device in the run, ABSENT for threads.
    """

    section: str
    label: str
    kind: str
    rows: tuple[Row, ...]
    process: int
    states: tuple[Channel, ...] = ()
    device: int = ABSENT

    def described(self, channel: Callable[[Channel], Any]) -> dict[str, Any]:
        """Return the group as JSON has it, where ``channel`` says how a channel is told."""
        return {
            "section": self.section,
            "label": self.label,
            "kind": self.kind,
            "process": self.process,
            "device": self.device,
            "rows": [
                {"label": row.label, "kind": row.kind, "channels": list(map(channel, row.channels))}
                for row in self.rows
            ],
            "states": list(map(channel, self.states)),
        }


@dataclass(frozen=True, slots=True)
class Lanes:
    """Everything to draw, in the order of the screen, and the names that it refers to."""

    groups: tuple[Group, ...]
    names: tuple[str, ...]

    @property
    def channels(self) -> tuple[Channel, ...]:
        """Every channel that holds events (not the derived states)."""
        return tuple(c for group in self.groups for row in group.rows for c in row.channels)

    @property
    def n_events(self) -> int:
        """How many events of the trace the lanes stand for."""
        return sum(channel.n_events for channel in self.channels)

    @property
    def n_items(self) -> int:
        """How many items the page holds for them."""
        return sum(len(channel) for channel in self.channels)


@dataclass(frozen=True, slots=True, eq=False)
class NameTotals:
    """For each name how many events have it, and how long they are together."""

    counts: Int64Array
    times_ns: Int64Array

    @classmethod
    def of(cls, lanes: Lanes) -> NameTotals:
        """Return the totals of the items of ``lanes`` that stand for one event."""
        counts, times = (np.zeros(len(lanes.names), np.int64) for _ in range(2))
        for channel in lanes.channels:
            alone = slice(None) if channel.counts is None else channel.counts == 1
            names = channel.names[alone]
            counts += np.bincount(names, minlength=len(counts))
            np.add.at(times, names, (channel.ends - channel.starts)[alone])
        return cls(counts, times)

    @classmethod
    def of_every(cls, lanes: Lanes) -> NameTotals:
        """Return the totals of all items of ``lanes``, by the name that each has."""
        counts, times = (np.zeros(len(lanes.names), np.int64) for _ in range(2))
        for channel in lanes.channels:
            counts += np.bincount(channel.names, minlength=len(counts))
            np.add.at(times, channel.names, channel.ends - channel.starts)
        return cls(counts, times)

    def less(self, other: NameTotals) -> NameTotals:
        """Return what ``other`` lacks."""
        return NameTotals(self.counts - other.counts, self.times_ns - other.times_ns)

    def more(self, other: NameTotals) -> NameTotals:
        """Return both together."""
        return NameTotals(self.counts + other.counts, self.times_ns + other.times_ns)


def channels_by_kind(lanes: Lanes) -> Mapping[str, Sequence[Channel]]:
    """Return all channels by the kind of their rows, each in the order of the screen."""
    found: dict[str, list[Channel]] = defaultdict(list)
    for group in lanes.groups:
        for row in group.rows:
            found[row.kind].extend(row.channels)
        found[STATES].extend(group.states)
    return found
