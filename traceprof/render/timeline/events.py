"""Convert rows of several tables to events of one form, and arrange the events in rows of channels.

A window selects whole rows and does not clip them, so the tooltip shows the real times. Events of
one line never overlap.
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
from traceprof.render.timeline.channels import Channel, LaneRow, sum_known_bytes


class LineAssigner:
    """Assign lines to intervals: 0 is the top line, and overlaps use as few lines as possible.

    The intervals arrive in parts, sorted by start and, for equal starts, by descending end.
    Properly nested intervals get their nesting depth. Two intervals on one line never overlap.
    """

    def __init__(self) -> None:
        self._open = np.empty((3, 0), np.int64)
        self._are_nested = True

    def of(self, starts: Int64Array, ends: Int64Array) -> Int64Array:
        """Return the lines of the next intervals; there must be at least one."""
        before = self._open[:, self._open[1] > starts[0]]
        lines = self._lines_of(before, starts, ends)
        open_and_new = np.concatenate((before, (starts, ends, lines)), axis=1)
        self._open = open_and_new[:, open_and_new[1] > starts[-1]]
        return lines

    def _lines_of(self, before: Int64Array, starts: Int64Array, ends: Int64Array) -> Int64Array:
        """Return the lines of new intervals.

        ``before`` has the rows start, end, and line of the intervals that are still open.
        """
        if not before.size:
            self._are_nested = True
            if bool((starts[1:] >= ends[:-1]).all()):
                return np.zeros(len(starts), np.int64)
        if self._are_nested:  # then the open intervals occupy the lines from 0 without a gap
            all_starts, all_ends = np.concatenate((before[:2], (starts, ends)), axis=1)
            depth = nesting_depth(all_starts, all_ends)[len(before[0]) :]
            if _nest(all_starts, all_ends, np.append(before[2], depth)):
                return depth
            self._are_nested = False
        return _first_free_lines(before, starts, ends)


def _nest(starts: Int64Array, ends: Int64Array, depth: Int64Array) -> bool:
    """Return whether each interval is inside the last earlier interval that is one level up."""
    parent = parents_of(depth)
    inner = np.flatnonzero(depth > 0)
    outer = parent[inner]
    is_inside = (outer >= 0) & (ends[outer] >= ends[inner]) & (ends[outer] > starts[inner])
    return bool(is_inside.all())


def _first_free_lines(before: Int64Array, starts: Int64Array, ends: Int64Array) -> Int64Array:
    """Give each interval the lowest line that is free at its start."""
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
"""Maximum number of lines of one lane."""

_Array = npt.NDArray[Any]


class NameTable:
    """The distinct names of a page, in the order in which they were first needed."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names so far; the id of a name is its index."""
        return tuple(self._places)

    def ids(self, names: Names, parts: Iterable[_Array | slice] = (slice(None),)) -> Packed:
        """Return the id of each name; ``parts`` select the rows that get ids one after another.

        Within a part, frequent names come first: they get small ids, which take fewer bytes.
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
    """The events of one lane. They are added in parts, in the order of their starts.

    Each part is a table with ``starts``, ``ends``, ``names``, ``n_bytes``, ``correlations``, and
    ``categories`` (indices into the palette). For equal starts, the longest event comes first.
    """

    def __init__(self) -> None:
        self._lines = LineAssigner()
        self._pieces: dict[tuple[int, int], list[Table]] = defaultdict(list)

    def add(self, events: Table) -> None:
        """Add the next events."""
        lines = np.minimum(self._lines.of(events["starts"], events["ends"]), MAX_LINES)
        for (line, category), places in rows_by_values(lines, events["categories"]).items():
            rows = events if len(places) == len(events) else events.take(places)
            known_or_not = ("n_bytes", "correlations")
            unknown = (name for name in known_or_not if not (rows[name] != ABSENT).any())
            self._pieces[line, category].append(rows.without("categories", *unknown).on_disk())

    def rows(self, label: str, kind: str) -> tuple[LaneRow, ...]:
        """Return the rows of the lane: one row, or one row per depth if its events overlap.

        Overlaps deeper than `MAX_LINES` are merged on one last row. Its items store their number of
        events.
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
    """Merge the events of each stretch without a gap into one item with their number and bytes."""
    starts, n_bytes = events.starts, events.n_bytes
    stretches = Intervals.union_of(starts, np.maximum(events.ends, starts + 1))
    first = np.searchsorted(starts, stretches.starts, side="left")
    return Channel(
        events.category,
        starts=stretches.starts,
        ends=stretches.ends,
        names=events.names[first],
        n_bytes=sum_known_bytes(n_bytes, first),
        busy_ns=stretches.ends - stretches.starts,
        counts=np.diff(np.append(first, len(events))),
    )


def pieces_by_start(*tables: Table) -> Iterator[tuple[slice, ...]]:
    """Split tables, sorted by start, at common instants; yield the rows of each table per piece."""
    starts = [table["start_ns"] for table in tables]
    firsts = [column[piece.start] for column in starts for piece in pieces_of(len(column))]
    cuts = np.unique(np.array(firsts, np.int64))[1:]
    borders = [[0, *np.searchsorted(column, cuts).tolist(), len(column)] for column in starts]
    yield from zip(*(starmap(slice, pairwise(column)) for column in borders), strict=True)


def in_order(parts: Sequence[Table]) -> Table:
    """Concatenate ``parts``, which have the same columns, in the order that a `Track` requires."""
    joined = Table({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})
    if sum(map(bool, map(len, parts))) < 2:
        return joined
    return joined.take(np.lexsort((-joined["ends"], joined["starts"])))


def rows_inside(trace: Trace, window: TimeWindow) -> Trace:
    """Return ``trace`` with only the rows that overlap ``window``, not clipped."""
    if window == trace.span:
        return trace
    tables: dict[str, Any] = {
        name: _take_overlapping(trace.table(name), window)
        for name, table in TABLES.items()
        if table.has_times
    }
    return replace(trace, **tables)


def count_inside(table: Table, window: TimeWindow) -> int:
    """Return the number of rows of ``table`` that overlap ``window``."""
    before, first, last = _rows_overlapping(table, window)
    return len(before) + last - first


def _take_overlapping(table: Table, window: TimeWindow) -> Table:
    before, first, last = _rows_overlapping(table, window)
    if not len(before) or before[0] == first - len(before):
        return table.take(slice(first - len(before), last))
    return table.take(np.append(before, np.arange(first, last)))


def _rows_overlapping(table: Table, window: TimeWindow) -> tuple[npt.NDArray[np.int64], int, int]:
    """Return the rows that start before the window and overlap it, and the range of later starts.

    The rows that start inside the window are ``first:last``, because rows are sorted by start.
    """
    starts = table["start_ns"]
    first, last = np.searchsorted(starts, [window.start_ns, window.end_ns]).tolist()
    if "end_ns" not in table or not window.duration_ns:
        return np.empty(0, np.int64), first, last
    return np.flatnonzero(table["end_ns"][:first] > window.start_ns), first, last
