"""Events of several tables in one shape, and how they become rows of channels.

Rows that a window cuts stay whole, so that a hover shows real times; no two events of a line
overlap.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.model.intervals import Int64Array, Intervals, nesting_depth
from traceprof.model.table import Names, Table
from traceprof.model.tables import ABSENT, TABLES
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace
from traceprof.render.escape import plain_text
from traceprof.render.palette import CATEGORIES
from traceprof.render.timeline.channels import Channel, LaneRow


def assign_lines(starts: Int64Array, ends: Int64Array) -> Int64Array:
    """Return the line of each interval: 0 at the top, as few as the overlaps allow.

    The intervals are sorted by start and, where starts are equal, by descending end. Properly
    nested intervals get their depth. Two intervals of one line never overlap.
    """
    if len(starts) == 0 or bool((starts[1:] >= ends[:-1]).all()):
        return np.zeros(len(starts), np.int64)
    depth = nesting_depth(starts, ends)
    if _are_disjoint(starts, ends, depth):
        return depth
    return _first_free_line(starts, ends)


def _are_disjoint(starts: Int64Array, ends: Int64Array, lines: Int64Array) -> bool:
    order = np.argsort(lines, kind="stable")
    same_line = lines[order][1:] == lines[order][:-1]
    return bool((starts[order][1:] >= ends[order][:-1])[same_line].all())


def _first_free_line(starts: Int64Array, ends: Int64Array) -> Int64Array:
    lines = np.empty(len(starts), np.int64)
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    for i, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        line = heapq.heappop(free) if free else len(busy)
        lines[i] = line
        heapq.heappush(busy, (end, line))
    return lines


MAX_LINES: Final = 32
"""How many lines one lane has at most."""

_IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class LaneEvents:
    """Events as equally long columns; ``categories`` are places in the palette."""

    starts: Int64Array
    ends: Int64Array
    categories: _IntArray
    names: _IntArray
    n_bytes: Int64Array
    correlations: Int64Array

    def __len__(self) -> int:
        return len(self.starts)

    def take(self, rows: npt.NDArray[np.int64]) -> LaneEvents:
        """Return the events at the places ``rows``."""
        return LaneEvents(*(getattr(self, column)[rows] for column in self.__slots__))


class NameTable:
    """The distinct names of a page, in the order in which they were first needed."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names so far; an id is a place in it."""
        return tuple(self._places)

    def ids(self, names: Names) -> _IntArray:
        """Return the id of each name; frequent ones get small ids, which take fewer bytes."""
        counts = np.bincount(names.codes, minlength=len(names.texts))
        place = np.zeros(len(names.texts), np.int64)
        used = np.flatnonzero(counts)
        used = used[np.argsort(-counts[used], kind="stable")]
        place[used] = [self.id_of(text) for text in names.texts[used].tolist()]
        return names.by_text(place)

    def id_of(self, name: str) -> int:
        """Return the id of one name."""
        return self._places.setdefault(plain_text(name) or "(no name)", len(self._places))


def join_events(parts: Sequence[LaneEvents]) -> tuple[LaneEvents, _IntArray]:
    """Return the events of all ``parts`` sorted as a trace's tables are, and where each came from.

    The second array holds, for each event, its place in the concatenation of the parts.
    """
    joined = LaneEvents(
        *(
            np.concatenate([getattr(part, column) for part in parts])
            for column in LaneEvents.__slots__
        )
    )
    order = np.lexsort((-joined.ends, joined.starts))
    return joined.take(order), order


def split_by(*keys: _IntArray) -> Iterator[tuple[tuple[int, ...], _IntArray]]:
    """Yield each distinct combination of ``keys``, ascending, with the places that have it.

    The places keep their order.
    """
    if len(keys[0]) == 0:
        return
    order = np.lexsort(keys[::-1])
    table = np.stack([key[order] for key in keys])
    changes = np.flatnonzero((table[:, 1:] != table[:, :-1]).any(axis=0)) + 1
    for places in np.split(order, changes):
        yield tuple(int(key[places[0]]) for key in keys), places


def make_rows(label: str, kind: str, events: LaneEvents) -> tuple[LaneRow, ...]:
    """Return the rows of one lane: one, or one for each depth where its events overlap.

    Beyond `MAX_LINES` what overlaps is merged on one last row, whose items say how many events
    they stand for.
    """
    lines = np.minimum(assign_lines(events.starts, events.ends), MAX_LINES)
    return tuple(
        LaneRow(f"merged below {line}", kind, _channels(events.take(places), merge_overlapping))
        if line == MAX_LINES
        else LaneRow(f"{line}" if line else label, kind, _channels(events.take(places), _channel))
        for (line,), places in split_by(lines)
    )


def merge_overlapping(category: str, events: LaneEvents) -> Channel:
    """Return one item for each stretch without a gap: its events, their number and bytes."""
    stretches = Intervals.union_of(events.starts, np.maximum(events.ends, events.starts + 1))
    first = np.searchsorted(events.starts, stretches.starts, side="left")
    counts = np.diff(np.append(first, len(events)))
    known = np.maximum(events.n_bytes, 0)
    n_bytes = np.where(
        np.maximum.reduceat(events.n_bytes, first) == ABSENT, ABSENT, np.add.reduceat(known, first)
    )
    return Channel(
        category=category,
        starts=stretches.starts,
        ends=stretches.ends,
        names=events.names[first],
        n_bytes=_unless_absent(n_bytes),
        busy_ns=stretches.ends - stretches.starts,
        counts=counts,
    )


def _channels(
    events: LaneEvents, channel: Callable[[str, LaneEvents], Channel]
) -> tuple[Channel, ...]:
    return tuple(
        channel(CATEGORIES[category].key, events.take(places))
        for (category,), places in split_by(events.categories)
    )


def _channel(category: str, events: LaneEvents) -> Channel:
    return Channel(
        category=category,
        starts=events.starts,
        ends=events.ends,
        names=events.names,
        n_bytes=_unless_absent(events.n_bytes),
        correlations=_unless_absent(events.correlations),
    )


def _unless_absent(values: Int64Array) -> Int64Array | None:
    return values if bool((values != ABSENT).any()) else None


def rows_inside(trace: Trace, window: TimeWindow) -> Trace:
    """Return ``trace`` with only the rows that have a part inside ``window``, not clipped."""
    if window == trace.span:
        return trace
    kept: dict[str, Any] = {
        name: _inside(trace.table(name), window)
        for name, table in TABLES.items()
        if table.has_times
    }
    return replace(trace, **kept)


def count_inside(table: Table, window: TimeWindow) -> int:
    """Return how many rows of ``table`` have a part inside ``window``."""
    before, first, last = _places_inside(table, window)
    return len(before) + last - first


def _inside(table: Table, window: TimeWindow) -> Table:
    before, first, last = _places_inside(table, window)
    if not len(before) or before[0] == first - len(before):
        return table.take(slice(first - len(before), last))
    return table.take(np.append(before, np.arange(first, last)))


def _places_inside(table: Table, window: TimeWindow) -> tuple[npt.NDArray[np.int64], int, int]:
    """Return the rows that begin before the window and reach into it, and those that begin in it.

    The latter stand together: rows come by start.
    """
    starts = table["start_ns"]
    first, last = np.searchsorted(starts, [window.start_ns, window.end_ns]).tolist()
    if "end_ns" not in table or not window.duration_ns:
        return np.empty(0, np.int64), first, last
    return np.flatnonzero(table["end_ns"][:first] > window.start_ns), first, last
