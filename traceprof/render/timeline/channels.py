"""What the timeline draws: channels of intervals on rows, rows in groups, groups in sections.

A *channel* holds sorted intervals of one category that do not overlap. A *row* is one line of
the screen. A *group* is a thread or a device; a *section* is a process (a rank).
All times are integer ns after the origin of the page.

Where a page holds too many items, short events of one bin become one that says how many it is.
Nothing is lost silently: every item keeps the number of events, their busy time and their
bytes, and an event that is at least as long as a bin stays as it is.
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
"""The kind under which the states of devices are kept among those of rows."""


class _Column:
    """A column of a channel, joined of its pieces where somebody looks at it; None: it has none."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, channel: Channel, owner: type) -> Any:
        return channel.column(self._name)


class Channel:
    """Sorted, non-overlapping intervals of one category (a key of the palette).

    ``names`` are places in `Lanes.names`. ``n_bytes`` and ``correlations`` hold ABSENT (-1)
    where not known, and are None where no interval has any. In a condensed channel an item may
    stand for several events: ``counts`` of them, busy for ``busy_ns``, between start and end.
    Of idle times the item tells when the longest of them begins and how long that is, too.
    Long channels are in pieces, which are on the disk while nobody looks at them.
    """

    __slots__ = ("_pieces", "category")

    starts, ends, names, n_bytes, correlations = (_Column() for _ in range(5))
    busy_ns, counts, longest_starts, longest_ns = (_Column() for _ in range(4))

    def __init__(self, category: str, *pieces: Table, **columns: Int64Array | None) -> None:
        """Make a channel of its columns, or of tables of them: the earliest first, at least one.

        Of the bytes or correlations that a piece lacks none is known.
        """
        known = {name: values for name, values in columns.items() if values is not None}
        self.category, self._pieces = category, pieces or (Table(known),)

    def __len__(self) -> int:
        return sum(map(len, self._pieces))

    @property
    def n_events(self) -> int:
        """How many events the items stand for."""
        counts = self.counts
        return len(self) if counts is None else int(counts.sum())

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of its columns."""
        return tuple(dict.fromkeys(name for piece in self._pieces for name in piece))

    def column(self, name: str) -> Any:
        """Return a column; None where it has none of that name."""
        if len(self._pieces) == 1 or name not in self.columns:
            return self._pieces[0].get(name)
        return np.concatenate([piece.column(name) for piece in self.pieces()])

    def changed(self, **columns: Int64Array | None) -> Channel:
        """Return the channel with other columns, in one piece."""
        known = {name: self.column(name) for name in self.columns}
        return Channel(self.category, **(known | columns))

    def whole(self) -> Channel:
        """Return the channel in one piece."""
        return self if len(self._pieces) == 1 else self.changed()

    def pieces(self) -> Sequence[Channel]:
        """Return its pieces, all with the same columns."""
        every, found = dict.fromkeys(self.columns), []
        for piece in self._pieces:
            unknown = np.broadcast_to(np.int64(ABSENT), len(piece))
            lacking = dict.fromkeys(every.keys() - {*piece}, unknown)
            found.append(Channel(self.category, piece.assign(**lacking)))
        return found

    def part(self, rows: slice) -> Channel:
        """Return some of the items of a channel in one piece."""
        return Channel(self.category, self._pieces[0].take(rows))

    def followed_by(self, *others: Channel) -> Channel:
        """Return the channel and what comes after it, of the same columns, in one piece."""
        pieces = (piece for own in (self, *others) for piece in own._pieces)
        return Channel(self.category, *pieces).whole()


def state_channel(key: str, *times: Intervals) -> Channel:
    """Return the channel of a state: when a device is in it, the earliest times first."""
    pieces = (Table({"starts": own.starts, "ends": own.ends}).on_disk() for own in times)
    return Channel(key, *(own.assign(names=np.broadcast_to(0, len(own))) for own in pieces))


@dataclass(frozen=True, slots=True)
class LaneRow:
    """One line: ``kind`` is range, host_op, api, gpu, sync, mark, collective or overhead."""

    label: str
    kind: str
    channels: tuple[Channel, ...]


@dataclass(frozen=True, slots=True)
class LaneGroup:
    """The rows of one thread or one device; ``states`` are channels of what a device does.

    Of an exact page they are only when it was not recorded: the others follow from the rows.
    ``device`` is the number of the device in the run, ABSENT for threads.
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
        """Return the group with what ``change`` makes of channels, ``of_state`` of states."""
        rows = (replace(row, channels=tuple(map(change, row.channels))) for row in self.rows)
        states = self.states if of_state is None else tuple(map(of_state, self.states))
        return replace(self, rows=tuple(rows), states=states)

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

    groups: tuple[LaneGroup, ...]
    names: tuple[str, ...]

    def mapped(
        self,
        change: Callable[[Channel], Channel],
        of_state: Callable[[Channel], Channel] | None = None,
    ) -> Lanes:
        """Return the lanes with what ``change`` makes of channels, ``of_state`` of states."""
        return replace(self, groups=tuple(one.mapped(change, of_state) for one in self.groups))

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
    def of(cls, lanes: Lanes, *, every: bool = False) -> NameTotals:
        """Return the totals of the items of ``lanes`` that stand for one event, or of ``every``."""
        counts, times = (np.zeros(len(lanes.names), np.int64) for _ in range(2))
        for channel in (piece for own in lanes.channels for piece in own.pieces()):
            is_any = every or channel.counts is None
            chosen = slice(None) if is_any else channel.counts == 1
            names = channel.names[chosen]
            counts += np.bincount(names, minlength=len(counts))
            np.add.at(times, names, (channel.ends - channel.starts)[chosen])
        return cls(counts, times)

    @classmethod
    def together(
        cls, names: Sequence[str], parts: Iterable[tuple[Sequence[str], NameTotals]]
    ) -> NameTotals:
        """Return the sums by ``names`` of several totals, each with the names that it is by."""
        place = {name: i for i, name in enumerate(names)}
        counts, times = (np.zeros(len(names), np.int64) for _ in range(2))
        for own, totals in parts:
            places = [place[name] for name in own]
            counts[places] += totals.counts
            times[places] += totals.times_ns
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


FIRST_BIN_NS: Final = 1_000
_GROWTH: Final = 2
_MOST_TIMES: Final = 52  # beyond all clocks
_POWERS: Final = np.int64(_GROWTH) ** np.arange(_MOST_TIMES)


def condense_until(
    lanes: Lanes, max_items: int, exact: TimeWindow | None = None
) -> tuple[Lanes, int]:
    """Return lanes of at most ``max_items`` items, and the width of the bins in ns (0: exact).

    What has a part in ``exact`` is merged with nothing.
    """
    widened = times_to_widen(items_by_width(lanes, exact), max_items)
    bin_ns = width_of(widened)
    return (condense(lanes, bin_ns, exact) if widened else lanes), bin_ns


def items_by_width(lanes: Lanes, exact: TimeWindow | None = None) -> list[int]:
    """Return of how many items lanes would be with bins that were widened 0, 1, 2 … times.

    Two neighbors of a channel are apart in bins of w ns where they start in different ones or
    one of them is at least as long: as long as w / FIRST_BIN_NS has no more bits than the greater
    of the two lengths, or than what differs between the two starts, in bins of the first width.
    """
    found = np.zeros(_MOST_TIMES + 1, np.int64)
    for channel in filter(len, lanes.channels):
        pieces = channel.pieces()
        found += 1 + sum(_n_apart(piece, exact) for piece in pieces)
        for before, after in pairwise(pieces):
            found += _n_apart(before.part(slice(-1, None)).followed_by(after.part(slice(1))), exact)
    return [lanes.n_items, *found[1:].tolist()]


def _n_apart(channel: Channel, exact: TimeWindow | None) -> Int64Array:
    """Return how many neighbors are apart with bins that were widened 0, 1, 2 … times."""
    starts = channel.starts // FIRST_BIN_NS
    lengths = (channel.ends - channel.starts) // FIRST_BIN_NS
    differing = (starts[1:] ^ starts[:-1]) | lengths[1:] | lengths[:-1]
    n_bits = np.searchsorted(_POWERS, differing, side="right")
    n_bits[differing < 0] = _MOST_TIMES  # to both sides of 0
    is_kept = _inside(channel, exact)
    n_bits[is_kept[1:] | is_kept[:-1]] = _MOST_TIMES
    apart = np.bincount(n_bits, minlength=_MOST_TIMES + 1)[: _MOST_TIMES + 1]
    return np.asarray(apart[::-1].cumsum()[::-1])


def times_to_widen(n_items: Sequence[int], max_items: int) -> int:
    """Return how often bins have to be widened for at most so many of the items, or can be."""
    fitting = (times for times, n in enumerate(n_items) if n <= max_items)
    return next(fitting, len(n_items) - 1)


def width_of(n_times: int) -> int:
    """Return the width in ns of bins that were widened so often: 0 for none."""
    return FIRST_BIN_NS * _GROWTH ** (n_times - 1) if n_times else 0


def condense(lanes: Lanes, bin_ns: int, exact: TimeWindow | None = None) -> Lanes:
    """Return lanes with events shorter than ``bin_ns`` merged.

    Lanes that were condensed to narrower bins, of which these are multiples, become what they
    would at once.
    """
    condensed = partial(condense_channel, bin_ns=bin_ns, exact=exact)
    return lanes.mapped(condensed, condensed)


def condense_channel(channel: Channel, bin_ns: int, exact: TimeWindow | None = None) -> Channel:
    """Return ``channel`` with events shorter than ``bin_ns`` merged per bin of that width.

    What has a part in ``exact`` stays as it is.
    """
    found: list[Channel] = []
    rest: list[Channel] = []  # the last item of a piece may have more events in the next one
    pieces = channel.pieces() if len(channel) else ()
    for piece in pieces:
        own = rest[0].followed_by(piece) if rest else piece
        first = _first_events(own, bin_ns, exact)
        n_done = len(own) if piece is pieces[-1] else int(first[-1])
        if n_done:
            found.append(_of_items(own.part(slice(n_done)), first[first < n_done]))
        rest = [own.part(slice(n_done, None))]
    return found[0].followed_by(*found[1:]) if found else channel


def _first_events(channel: Channel, bin_ns: int, exact: TimeWindow | None) -> Int64Array:
    """Return the first event of each item that events are merged to."""
    bins = channel.starts // bin_ns
    is_long = (channel.ends - channel.starts >= bin_ns) | _inside(channel, exact)
    opens = np.ones(len(channel), bool)
    opens[1:] = (bins[1:] != bins[:-1]) | is_long[1:] | is_long[:-1]
    return np.flatnonzero(opens)


def _of_items(channel: Channel, first: Int64Array) -> Channel:
    """Return ``channel`` with events merged to items, which begin with the ``first``."""
    durations = channel.ends - channel.starts
    last = np.append(first[1:], len(channel)) - 1
    counts = _sums(channel.counts, first, last - first + 1)
    alone = counts == 1
    longest = _longest(channel, durations, first) if channel.category == IDLE else {}
    return Channel(
        category=channel.category,
        starts=channel.starts[first],
        ends=channel.ends[last],
        names=np.where(alone, channel.names[first], 0),
        n_bytes=known_sum(channel.n_bytes, first),
        correlations=None
        if channel.correlations is None
        else np.where(alone, channel.correlations[first], ABSENT),
        busy_ns=_sums(channel.busy_ns, first, np.add.reduceat(durations, first)),
        counts=counts,
        **longest,
    )


def _inside(channel: Channel, exact: TimeWindow | None) -> npt.NDArray[np.bool_]:
    """Return which items have a part in ``exact``."""
    if exact is None:
        return np.zeros(len(channel), np.bool_)
    return exact.overlaps(channel.starts, channel.ends)


def _longest(channel: Channel, durations: Int64Array, first: Int64Array) -> dict[str, Int64Array]:
    """Return when the longest of the events of each item begins, and how long it is."""
    lengths = durations if channel.longest_ns is None else channel.longest_ns
    starts = channel.starts if channel.longest_starts is None else channel.longest_starts
    item = np.zeros(len(channel), np.int64)
    item[first[1:]] = 1
    item = np.cumsum(item)
    # Of each item the longest comes first, of equals the earliest.
    place = np.lexsort((starts, -lengths, item))[first]
    return {"longest_starts": starts[place], "longest_ns": lengths[place]}


def _sums(values: Int64Array | None, first: Int64Array, otherwise: Int64Array) -> Int64Array:
    return otherwise if values is None else np.add.reduceat(values, first)


def known_sum(n_bytes: Int64Array | None, first: Int64Array) -> Int64Array | None:
    """Return the bytes of each item, whose ``first`` events are; ABSENT where none has any."""
    if n_bytes is None:
        return None
    total = np.add.reduceat(np.maximum(n_bytes, 0), first)
    is_known = np.maximum.reduceat(n_bytes, first) != ABSENT
    return np.where(is_known, total, ABSENT)
