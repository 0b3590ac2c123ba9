"""What the timeline draws: channels of intervals on rows, rows in groups, groups in sections.

A *channel* holds sorted intervals of one category that do not overlap. A *row* is one line of
the screen. A *group* is a thread or a device; a *section* is a process (a rank).
All times are integer ns after the origin of the page.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traceprof.model.intervals import Int64Array
from traceprof.model.tables import ABSENT

__all__ = ["Channel", "Group", "Lanes", "Row"]


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
