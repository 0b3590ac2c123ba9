"""Data model of the drawing: channels of intervals on rows, rows in groups, groups in sections.

A *channel* holds sorted intervals of one category that do not overlap. A *row* is one line of the
screen. A *group* is a thread or a device. A *section* is a process (a rank). All times are integer
ns after the origin of the page.

If a page would hold too many items, the short events of each time bin are merged into one item. No
information is lost silently: each item stores its number of events, their busy time, and their
bytes. Events that are at least as long as a bin stay unchanged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.model.activity import IDLE
from traceprof.model.intervals import Int64Array, Intervals
from traceprof.model.table import Table
from traceprof.model.tables import ABSENT
from traceprof.model.timing import TimeWindow

STATES: Final = "state"
"""The kind of the channels with device states in mappings whose other keys are kinds of rows."""


class _Column:
    """A column of a channel. Reading it concatenates the pieces; None if the channel lacks it."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, channel: Channel, owner: type) -> Any:
        return channel.column(self._name)


class Channel:
    """Sorted, non-overlapping intervals of one category (a key of the palette).

    ``names`` are indices into `Lanes.names`. ``n_bytes`` and ``correlations`` hold ABSENT (-1) for
    unknown values, and are None if all values are unknown. In a condensed channel, an item can
    stand for several events: ``counts`` is their number, and ``busy_ns`` is the time they cover
    between start and end. Items of idle time also store the start (``longest_starts``) and length
    (``longest_ns``) of their longest event. Long channels consist of pieces, which stay on disk
    until a column is read.
    """

    __slots__ = ("_pieces", "category")

    starts, ends, names, n_bytes, correlations = (_Column() for _ in range(5))
    busy_ns, counts, longest_starts, longest_ns = (_Column() for _ in range(4))

    def __init__(self, category: str, *pieces: Table, **columns: Int64Array | None) -> None:
        """Make a channel from columns, or from one or more tables of columns in time order.

        If a piece lacks bytes or correlations, they are unknown for its rows.
        """
        known = {name: values for name, values in columns.items() if values is not None}
        self.category, self._pieces = category, pieces or (Table(known),)

    def __len__(self) -> int:
        return sum(map(len, self._pieces))

    @property
    def n_events(self) -> int:
        """Number of events that the items stand for."""
        counts = self.counts
        return len(self) if counts is None else int(counts.sum())

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that at least one piece has."""
        return tuple(dict.fromkeys(name for piece in self._pieces for name in piece))

    def column(self, name: str) -> Any:
        """Return a column, or None if the channel has no column of that name."""
        if len(self._pieces) == 1 or name not in self.columns:
            return self._pieces[0].get(name)
        return np.concatenate([piece.column(name) for piece in self.pieces()])

    def changed(self, **columns: Int64Array | None) -> Channel:
        """Return the channel in one piece with ``columns`` replaced or added."""
        columns_now = {name: self.column(name) for name in self.columns}
        return Channel(self.category, **(columns_now | columns))

    def whole(self) -> Channel:
        """Return the channel in one piece."""
        return self if len(self._pieces) == 1 else self.changed()

    def pieces(self) -> Sequence[Channel]:
        """Return each piece as a channel.

        All pieces have the same columns; unknown values are ABSENT.
        """
        columns = self.columns
        return [
            Channel(
                self.category,
                piece.assign(
                    **{
                        name: np.broadcast_to(np.int64(ABSENT), len(piece))
                        for name in columns
                        if name not in piece
                    }
                ),
            )
            for piece in self._pieces
        ]

    def part(self, rows: slice) -> Channel:
        """Return some of the items. The channel must consist of one piece."""
        return Channel(self.category, self._pieces[0].take(rows))

    def followed_by(self, *following: Channel) -> Channel:
        """Return the channel and the ``following`` channels in one piece.

        All must have the same columns.
        """
        pieces = (piece for channel in (self, *following) for piece in channel._pieces)
        return Channel(self.category, *pieces).whole()


def state_channel(key: str, *times: Intervals) -> Channel:
    """Return the channel of a device state from the times of that state, in time order."""
    pieces = (Table({"starts": table.starts, "ends": table.ends}).on_disk() for table in times)
    return Channel(key, *(table.assign(names=np.broadcast_to(0, len(table))) for table in pieces))


@dataclass(frozen=True, slots=True)
class LaneRow:
    """One line of the screen.

    ``kind`` is range, host_op, api, gpu, sync, mark, collective, or overhead.
    """

    label: str
    kind: str
    channels: tuple[Channel, ...]


@dataclass(frozen=True, slots=True)
class LaneGroup:
    """The rows of one thread or one device, and the channels of the device's states.

    In exact pages, ``states`` holds only the times that were not recorded; the browser derives the
    other states from the rows. ``device`` is the number of the device in the run, ABSENT for
    threads.
    """

    section: str
    label: str
    kind: str
    rows: tuple[LaneRow, ...]
    process: int
    states: tuple[Channel, ...] = ()
    device: int = ABSENT

    def mapped(
        self,
        change: Callable[[Channel], Channel],
        of_state: Callable[[Channel], Channel] | None = None,
    ) -> LaneGroup:
        """Apply ``change`` to the channels of rows and ``of_state`` to the channels of states."""
        rows = (replace(row, channels=tuple(map(change, row.channels))) for row in self.rows)
        states = self.states if of_state is None else tuple(map(of_state, self.states))
        return replace(self, rows=tuple(rows), states=states)

    def described(self, channel: Callable[[Channel], Any]) -> dict[str, Any]:
        """Return the group as JSON-compatible data; ``channel`` describes one channel."""
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
    """Everything to draw, in screen order, and the names that the channels refer to."""

    groups: tuple[LaneGroup, ...]
    names: tuple[str, ...]

    def mapped(
        self,
        change: Callable[[Channel], Channel],
        of_state: Callable[[Channel], Channel] | None = None,
    ) -> Lanes:
        """Apply ``change`` to the channels of rows and ``of_state`` to the channels of states."""
        return replace(self, groups=tuple(group.mapped(change, of_state) for group in self.groups))

    @property
    def channels(self) -> tuple[Channel, ...]:
        """Every channel that holds events. The derived states are not included."""
        return tuple(c for group in self.groups for row in group.rows for c in row.channels)

    @property
    def n_events(self) -> int:
        """Number of events of the trace that the lanes stand for."""
        return sum(channel.n_events for channel in self.channels)

    @property
    def n_items(self) -> int:
        """Number of items that the page stores for these events."""
        return sum(len(channel) for channel in self.channels)


@dataclass(frozen=True, slots=True, eq=False)
class NameTotals:
    """Number of events and their total duration (ns) for each name."""

    counts: Int64Array
    times_ns: Int64Array

    @classmethod
    def of(cls, lanes: Lanes, *, every: bool = False) -> NameTotals:
        """Sum the items that stand for a single event; with ``every``, sum all items."""
        counts, times = (np.zeros(len(lanes.names), np.int64) for _ in range(2))
        for piece in (piece for channel in lanes.channels for piece in channel.pieces()):
            is_any = every or piece.counts is None
            chosen = slice(None) if is_any else piece.counts == 1
            names = piece.names[chosen]
            counts += np.bincount(names, minlength=len(counts))
            np.add.at(times, names, (piece.ends - piece.starts)[chosen])
        return cls(counts, times)

    @classmethod
    def summed(
        cls, names: Sequence[str], parts: Iterable[tuple[Sequence[str], NameTotals]]
    ) -> NameTotals:
        """Sum several totals, given with their own names, into totals by ``names``."""
        place = {name: i for i, name in enumerate(names)}
        counts, times = (np.zeros(len(names), np.int64) for _ in range(2))
        for part_names, totals in parts:
            places = [place[name] for name in part_names]
            counts[places] += totals.counts
            times[places] += totals.times_ns
        return cls(counts, times)

    def minus(self, other: NameTotals) -> NameTotals:
        """Return the totals of the events that ``other`` does not count."""
        return NameTotals(self.counts - other.counts, self.times_ns - other.times_ns)

    def plus(self, other: NameTotals) -> NameTotals:
        """Return the sum of both totals."""
        return NameTotals(self.counts + other.counts, self.times_ns + other.times_ns)


def channels_by_kind(lanes: Lanes) -> Mapping[str, Sequence[Channel]]:
    """Return all channels by the kind of their rows, in screen order within each kind."""
    channels: dict[str, list[Channel]] = defaultdict(list)
    for group in lanes.groups:
        for row in group.rows:
            channels[row.kind].extend(row.channels)
        channels[STATES].extend(group.states)
    return channels


FIRST_BIN_NS: Final = 1_000
_WIDENING_FACTOR: Final = 2
_MAX_WIDENINGS: Final = 52  # wider than any recording
_POWERS: Final = np.int64(_WIDENING_FACTOR) ** np.arange(_MAX_WIDENINGS)


def condense_until(
    lanes: Lanes, max_items: int, exact: TimeWindow | None = None
) -> tuple[Lanes, int]:
    """Merge events until at most ``max_items`` items remain; return the lanes and the bin width.

    The width is in ns; 0 means that no events were merged. Events that overlap ``exact`` are never
    merged.
    """
    widened = find_widening(items_by_width(lanes, exact), max_items)
    bin_ns = bin_width_ns(widened)
    return (condense(lanes, bin_ns, exact) if widened else lanes), bin_ns


def items_by_width(lanes: Lanes, exact: TimeWindow | None = None) -> list[int]:
    """Return the number of items with bins that were widened 0, 1, 2 … times.

    Two neighbors of a channel stay separate in bins of w ns if they start in different bins or if
    one of them is at least as long as a bin. Both conditions are tested on bits: a neighbor pair is
    separate until w / FIRST_BIN_NS has more bits than the greater of the two lengths, and than the
    bits in which the two starts differ. Lengths and starts count in bins of FIRST_BIN_NS.
    """
    n_items = np.zeros(_MAX_WIDENINGS + 1, np.int64)
    for channel in filter(len, lanes.channels):
        pieces = channel.pieces()
        n_items += 1 + sum(_count_unmerged(piece, exact) for piece in pieces)
        for before, after in pairwise(pieces):
            n_items += _count_unmerged(
                before.part(slice(-1, None)).followed_by(after.part(slice(1))), exact
            )
    return [lanes.n_items, *n_items[1:].tolist()]


def _count_unmerged(channel: Channel, exact: TimeWindow | None) -> Int64Array:
    """Count the pairs of neighbors that stay separate in bins that were widened 0, 1, 2 … times."""
    starts = channel.starts // FIRST_BIN_NS
    lengths = (channel.ends - channel.starts) // FIRST_BIN_NS
    differing = (starts[1:] ^ starts[:-1]) | lengths[1:] | lengths[:-1]
    n_bits = np.searchsorted(_POWERS, differing, side="right")
    n_bits[differing < 0] = _MAX_WIDENINGS  # the starts have different signs
    is_exact = _overlaps(channel, exact)
    n_bits[is_exact[1:] | is_exact[:-1]] = _MAX_WIDENINGS
    counts = np.bincount(n_bits, minlength=_MAX_WIDENINGS + 1)[: _MAX_WIDENINGS + 1]
    return np.asarray(counts[::-1].cumsum()[::-1])


def find_widening(n_items: Sequence[int], max_items: int) -> int:
    """Return the smallest number of widenings with at most ``max_items`` items, else the largest.

    ``n_items`` is the result of `items_by_width`.
    """
    fitting = (times for times, n in enumerate(n_items) if n <= max_items)
    return next(fitting, len(n_items) - 1)


def bin_width_ns(n_times: int) -> int:
    """Return the width in ns of bins that were widened ``n_times``; 0 means no bins."""
    return FIRST_BIN_NS * _WIDENING_FACTOR ** (n_times - 1) if n_times else 0


def condense(lanes: Lanes, bin_ns: int, exact: TimeWindow | None = None) -> Lanes:
    """Return lanes in which events shorter than ``bin_ns`` are merged.

    Lanes that were already condensed to narrower bins can be condensed again if ``bin_ns`` is a
    multiple of the narrower width. The result equals condensing once.
    """
    condensed = partial(condense_channel, bin_ns=bin_ns, exact=exact)
    return lanes.mapped(condensed, condensed)


def condense_channel(channel: Channel, bin_ns: int, exact: TimeWindow | None = None) -> Channel:
    """Return ``channel`` with events shorter than ``bin_ns`` merged per bin of that width.

    Events that overlap ``exact`` are never merged.
    """
    condensed: list[Channel] = []
    open_item: list[Channel] = []  # the last item of a piece can continue in the next piece
    pieces = channel.pieces() if len(channel) else ()
    for piece in pieces:
        events = open_item[0].followed_by(piece) if open_item else piece
        first = _first_event_of_items(events, bin_ns, exact)
        n_done = len(events) if piece is pieces[-1] else int(first[-1])
        if n_done:
            condensed.append(_merge_events(events.part(slice(n_done)), first[first < n_done]))
        open_item = [events.part(slice(n_done, None))]
    return condensed[0].followed_by(*condensed[1:]) if condensed else channel


def _first_event_of_items(channel: Channel, bin_ns: int, exact: TimeWindow | None) -> Int64Array:
    """Return the index of the first event of each merged item."""
    bins = channel.starts // bin_ns
    is_long = (channel.ends - channel.starts >= bin_ns) | _overlaps(channel, exact)
    is_first = np.ones(len(channel), bool)
    is_first[1:] = (bins[1:] != bins[:-1]) | is_long[1:] | is_long[:-1]
    return np.flatnonzero(is_first)


def _merge_events(channel: Channel, first: Int64Array) -> Channel:
    """Merge the events of ``channel`` into items; ``first`` holds the first event of each item."""
    durations = channel.ends - channel.starts
    last = np.append(first[1:], len(channel)) - 1
    counts = _sum_by_item(channel.counts, first, last - first + 1)
    is_single = counts == 1
    longest = _longest_of_items(channel, durations, first) if channel.category == IDLE else {}
    return Channel(
        category=channel.category,
        starts=channel.starts[first],
        ends=channel.ends[last],
        names=np.where(is_single, channel.names[first], 0),
        n_bytes=sum_known_bytes(channel.n_bytes, first),
        correlations=None
        if channel.correlations is None
        else np.where(is_single, channel.correlations[first], ABSENT),
        busy_ns=_sum_by_item(channel.busy_ns, first, np.add.reduceat(durations, first)),
        counts=counts,
        **longest,
    )


def _overlaps(channel: Channel, exact: TimeWindow | None) -> npt.NDArray[np.bool_]:
    """Return a mask of the items that overlap ``exact``."""
    n = len(channel)
    return np.zeros(n, np.bool_) if exact is None else exact.overlaps(channel.starts, channel.ends)


def _longest_of_items(
    channel: Channel, durations: Int64Array, first: Int64Array
) -> dict[str, Int64Array]:
    """Return the start and the length of the longest event of each item."""
    lengths = durations if channel.longest_ns is None else channel.longest_ns
    starts = channel.starts if channel.longest_starts is None else channel.longest_starts
    item = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(channel))))
    # Sort the events of each item by descending length, then by start.
    place = np.lexsort((starts, -lengths, item))[first]
    return {"longest_starts": starts[place], "longest_ns": lengths[place]}


def _sum_by_item(values: Int64Array | None, first: Int64Array, otherwise: Int64Array) -> Int64Array:
    return otherwise if values is None else np.add.reduceat(values, first)


def sum_known_bytes(n_bytes: Int64Array | None, first: Int64Array) -> Int64Array | None:
    """Sum the bytes of each item, whose first events are ``first``; ABSENT if none is known."""
    if n_bytes is None:
        return None
    total = np.add.reduceat(np.maximum(n_bytes, 0), first)
    is_known = np.maximum.reduceat(n_bytes, first) != ABSENT
    return np.where(is_known, total, ABSENT)
