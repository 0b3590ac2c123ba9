"""Events of several tables in one shape, and how they become rows of channels.

Rows that a window cuts stay whole, so that a hover shows real times; no two events of a line
overlap.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, starmap
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.model.grouping import pieces_of, rows_by_values
from traceprof.model.intervals import Int64Array, Intervals, nesting_depth
from traceprof.model.nesting import parents_of
from traceprof.model.packed import Packed
from traceprof.model.table import Names, Table
from traceprof.model.tables import ABSENT, TABLES
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace
from traceprof.render.escape import plain_text
from traceprof.render.palette import CATEGORIES
from traceprof.render.timeline.channels import Channel, LaneRow, known_sum


class Lines:
    """Gives intervals their lines: 0 at the top, as few as the overlaps allow.

    They come sorted by start and, where starts are equal, by descending end, some after the others.
    Properly nested ones get their depth. Two intervals of one line never overlap.
    """

    def __init__(self) -> None:
        self._open = np.empty((3, 0), np.int64)
        self._are_nested = True

    def of(self, starts: Int64Array, ends: Int64Array) -> Int64Array:
        """Return the lines of the next intervals, of which there is at least one."""
        before = self._open[:, self._open[1] > starts[0]]
        lines = self._lines_of(before, starts, ends)
        every = np.concatenate((before, (starts, ends, lines)), axis=1)
        self._open = every[:, every[1] > starts[-1]]
        return lines

    def _lines_of(self, before: Int64Array, starts: Int64Array, ends: Int64Array) -> Int64Array:
        if not before.size:
            self._are_nested = True
            if bool((starts[1:] >= ends[:-1]).all()):
                return np.zeros(len(starts), np.int64)
        if self._are_nested:  # then those that are open have the lines from 0 on
            begun, until = np.concatenate((before[:2], (starts, ends)), axis=1)
            depth = nesting_depth(begun, until)[len(before[0]) :]
            if _nest(begun, until, np.append(before[2], depth)):
                return depth
            self._are_nested = False
        return _first_free_lines(before, starts, ends)


def _nest(starts: Int64Array, ends: Int64Array, depth: Int64Array) -> bool:
    """Return whether each interval lies in the last one before it that is less deep by one."""
    parent = parents_of(depth)
    inner = np.flatnonzero(depth > 0)
    outer = parent[inner]
    is_inside = (outer >= 0) & (ends[outer] >= ends[inner]) & (ends[outer] > starts[inner])
    return bool(is_inside.all())


def _first_free_lines(before: Int64Array, starts: Int64Array, ends: Int64Array) -> Int64Array:
    lines = np.empty(len(starts), np.int64)
    busy = sorted((end, line) for _, end, line in before.T.tolist())
    free = sorted({*range(max(before[2], default=0))}.difference(before[2].tolist()))
    for i, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        line = heapq.heappop(free) if free else len(busy)
        lines[i] = line
        heapq.heappush(busy, (end, line))
    return lines


MAX_LINES: Final = 32
"""How many lines one lane has at most."""

_Array = npt.NDArray[Any]


class NameTable:
    """The distinct names of a page, in the order in which they were first needed."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names so far; an id is a place in it."""
        return tuple(self._places)

    def ids(self, names: Names, parts: Iterable[_Array | slice] = (slice(None),)) -> Packed:
        """Return the id of each name, which come a part of the rows after the other.

        In each part frequent ones come first: they get small ids, which take fewer bytes.
        """
        place = np.zeros(len(names.texts), np.int64)
        for part in parts:
            codes, counts = names.packed[part], np.zeros(len(place), np.int64)
            for piece in pieces_of(len(codes)):
                counts += np.bincount(codes[piece], minlength=len(counts))
            used = np.flatnonzero(counts)
            used = used[np.argsort(-counts[used], kind="stable")]
            place[used] = [self.id_of(text) for text in names.texts[used].tolist()]
        return Packed(place)[names.packed]

    def id_of(self, name: str) -> int:
        """Return the id of one name."""
        return self._places.setdefault(plain_text(name) or "(no name)", len(self._places))


class Track:
    """The events of one lane, which come by their starts, some after the others.

    They are tables of ``starts``, ``ends``, ``names``, ``n_bytes``, ``correlations`` and
    ``categories``, which are places in the palette; of equal starts the longest comes first.
    """

    def __init__(self) -> None:
        self._lines = Lines()
        self._pieces: dict[tuple[int, int], list[Table]] = defaultdict(list)

    def add(self, events: Table) -> None:
        """Add the next events."""
        lines = np.minimum(self._lines.of(events["starts"], events["ends"]), MAX_LINES)
        for (line, category), places in rows_by_values(lines, events["categories"]).items():
            own = events if len(places) == len(events) else events.take(places)
            known_or_not = ("n_bytes", "correlations")
            unknown = (name for name in known_or_not if not (own[name] != ABSENT).any())
            self._pieces[line, category].append(own.without("categories", *unknown).on_disk())

    def rows(self, label: str, kind: str) -> tuple[LaneRow, ...]:
        """Return the rows of the lane: one, or one for each depth where its events overlap.

        Beyond `MAX_LINES` what overlaps is merged on one last row, whose items say how many events
        they stand for.
        """
        by_line: dict[int, list[Channel]] = defaultdict(list)
        for line, category in sorted(self._pieces):
            pieces = self._pieces[line, category]
            by_line[line].append(Channel(CATEGORIES[category].key, *pieces))
        return tuple(
            LaneRow(f"merged below {line}", kind, tuple(map(merge_overlapping, channels)))
            if line == MAX_LINES
            else LaneRow(f"{line}" if line else label, kind, tuple(channels))
            for line, channels in by_line.items()
        )


def merge_overlapping(events: Channel) -> Channel:
    """Return one item for each stretch without a gap: its events, their number and bytes."""
    starts, n_bytes = events.starts, events.n_bytes
    stretches = Intervals.union_of(starts, np.maximum(events.ends, starts + 1))
    first = np.searchsorted(starts, stretches.starts, side="left")
    return Channel(
        events.category,
        starts=stretches.starts,
        ends=stretches.ends,
        names=events.names[first],
        n_bytes=known_sum(n_bytes, first),
        busy_ns=stretches.ends - stretches.starts,
        counts=np.diff(np.append(first, len(events))),
    )


def pieces_in_time(*tables: Table) -> Iterator[tuple[slice, ...]]:
    """Yield the rows of tables, which come by start, that start in a time after the other."""
    starts = [table["start_ns"] for table in tables]
    firsts = [own[piece.start] for own in starts for piece in pieces_of(len(own))]
    cuts = np.unique(np.array(firsts, np.int64))[1:]
    borders = [[0, *np.searchsorted(own, cuts).tolist(), len(own)] for own in starts]
    yield from zip(*(starmap(slice, pairwise(own)) for own in borders), strict=True)


def in_order(parts: Sequence[Table]) -> Table:
    """Return the events of all ``parts``, of the same columns, sorted as those of a `Track` are."""
    joined = Table({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})
    if sum(map(bool, map(len, parts))) < 2:
        return joined
    return joined.take(np.lexsort((-joined["ends"], joined["starts"])))


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
