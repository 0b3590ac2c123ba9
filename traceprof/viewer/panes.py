"""Hold the runs that a viewer shows: their timelines, searches in their events, and analyses."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.comparison.summary.summarize import summarize
from traceprof.model.summary import Summary
from traceprof.model.tables import ABSENT
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace
from traceprof.processes import give_back
from traceprof.render.formatting import sentences
from traceprof.render.timeline.channels import Channel, LaneGroup, Lanes, NameTotals
from traceprof.session.answer import Document, answer, page
from traceprof.session.caveats import selected
from traceprof.session.run import Run, open_run
from traceprof.viewer.same_name import FoundEvent, SameName, rows_of
from traceprof.viewer.timeline import About, Timeline, TimelineStore, read_timeline, write_timeline

_CHUNK_EVENTS: Final = 1 << 16  # names are compared in chunks, so that a near match is found fast
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ListedEvent(FoundEvent):
    """An event of a list, with the index of its name."""

    name: int


class Search:
    """Counts, lists, and finds events in exact lanes by their names.

    ``totals`` are the totals of ``lanes``. Only rows of ``kinds`` are searched; None for all rows.
    """

    def __init__(
        self, lanes: Lanes, totals: NameTotals, kinds: Collection[str] | None = None
    ) -> None:
        self.n_names = len(lanes.names)
        self._lanes = lanes
        self._all_totals = totals
        self._rows = rows_of(lanes)
        # Numbers of row and channel, and the channel, of all channels that are searched.
        self._channels = [
            (place, number, channel)
            for place, (_, _, row) in enumerate(self._rows)
            if kinds is None or row.kind in kinds
            for number, channel in enumerate(row.channels)
        ]
        self._totals = totals if kinds is None else self._sum_totals()

    def within_kinds(self, kinds: Collection[str]) -> Search:
        """Return a search in rows of these kinds only, or this search if ``kinds`` is empty."""
        return Search(self._lanes, self._all_totals, kinds) if kinds else self

    def _sum_totals(self) -> NameTotals:
        """Return the number and total duration of the events of each name in the searched rows."""
        counts, times_ns = np.zeros(self.n_names, np.int64), np.zeros(self.n_names, np.int64)
        for _, _, channel in self._channels:
            counts += np.bincount(channel.names, minlength=self.n_names)
            np.add.at(times_ns, channel.names, channel.ends - channel.starts)
        return NameTotals(counts, times_ns)

    def matching(self, bits: bytes) -> BoolArray:
        """Return which names match: ``bits`` has one bit per name; if it is empty, all match.

        The page evaluates the search text (`assets/matching.mjs`) and sends the bits.
        """
        if not bits:
            return np.ones(self.n_names, bool)
        is_match = np.zeros(self.n_names, bool)
        given = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")[: self.n_names]
        is_match[: len(given)] = given.astype(bool)
        return is_match

    def count(self, is_match: BoolArray) -> int:
        """Return the number of events with a matching name."""
        return int(self._totals.counts[is_match].sum())

    def count_names(self, is_match: BoolArray) -> int:
        """Return the number of matching names that have events."""
        return int(np.count_nonzero(self._totals.counts[is_match]))

    def total_ns(self, is_match: BoolArray) -> int:
        """Return the total duration of the matching events."""
        return int(self._totals.times_ns[is_match].sum())

    def count_before(self, is_match: BoolArray, t_ns: int) -> int:
        """Return the number of matching events that start before ``t_ns``."""
        total = 0
        for _, _, channel in self._channels:
            end = int(np.searchsorted(channel.starts, np.int64(t_ns)))
            total += int(is_match[channel.names[:end]].sum())
        return total

    def listed(self, is_match: BoolArray, order: str, limit: int) -> list[ListedEvent]:
        """Return at most ``limit`` matching events, longest first, or earliest (order "first")."""
        found: list[tuple[int, int, ListedEvent]] = []
        for place, number, channel in self._channels:
            items = np.flatnonzero(is_match[channel.names])
            rank = channel.starts if order == "first" else channel.starts - channel.ends
            items = items[np.argsort(rank[items], kind="stable")[:limit]]
            for item in items.tolist():
                start, end = int(channel.starts[item]), int(channel.ends[item])
                event = ListedEvent(place, number, start, end, int(channel.names[item]))
                found.append((int(rank[item]), start, event))
        return [event for _, _, event in sorted(found, key=lambda entry: entry[:2])[:limit]]

    def lit(self, is_match: BoolArray, window: TimeWindow, width: int) -> dict[int, list[int]]:
        """Return, by group number, which of ``width`` bins of ``window`` contain matches."""
        depths: dict[int, npt.NDArray[np.int64]] = {}
        bin_ns = window.duration_ns / width
        for place, _, channel in self._channels:
            first = int(np.searchsorted(channel.ends, np.int64(window.start_ns)))
            last = int(np.searchsorted(channel.starts, np.int64(window.end_ns)))
            items = first + np.flatnonzero(is_match[channel.names[first:last]])
            if not len(items):
                continue
            edges = [channel.starts[items], channel.ends[items]]
            bins = [((edge - window.start_ns) // bin_ns).astype(np.int64) for edge in edges]
            begin, end = (np.clip(indices, 0, width - 1) for indices in bins)
            group = self._rows[place][0]
            # +1 where an event begins and -1 after its end: the running sum counts events per bin.
            depth = depths.setdefault(group, np.zeros(width + 1, np.int64))
            np.add.at(depth, begin, 1)
            np.subtract.at(depth, end + 1, 1)
        return {
            group: np.flatnonzero(np.cumsum(depth)[:width]).tolist()
            for group, depth in depths.items()
        }

    def launched_in(self, events: Sequence[FoundEvent]) -> list[int | None]:
        """Return the name of the innermost range that contains the launch of each device event.

        The name is -1 if no range contains the launch, and None if the launch is unknown.
        """
        calls = [self._launch_call(event) for event in events]
        launches = self._launches({call for call in calls if call is not None})
        return [
            self._enclosing_range(*launches[call]) if call in launches else None for call in calls
        ]

    def _launch_call(self, event: FoundEvent) -> tuple[int, int] | None:
        """Return process and correlation of the call that launched a device event."""
        _, group, row = self._rows[event.row]
        channel = row.channels[event.channel]
        if channel.correlations is None:
            return None
        number = channel.correlations[np.searchsorted(channel.starts, np.int64(event.start))]
        return None if number == ABSENT else (group.process, int(number))

    def _launches(
        self, calls: Collection[tuple[int, int]]
    ) -> dict[tuple[int, int], tuple[LaneGroup, int]]:
        """Return the thread and the start time of each call (process, correlation)."""
        numbers = np.array(sorted({number for _, number in calls}), np.int64)
        launches = {}
        for _, group, row in self._rows:
            for channel in row.channels if row.kind == "api" else ():
                if channel.correlations is None:
                    continue
                for item in np.flatnonzero(np.isin(channel.correlations, numbers)).tolist():
                    key = (group.process, int(channel.correlations[item]))
                    launches[key] = (group, int(channel.starts[item]))
        return launches

    def _enclosing_range(self, group: LaneGroup, at_ns: int) -> int:
        """Return the name of the innermost range of a thread at a time; -1 for none."""
        last_start, name = -1, -1
        for channel in (c for row in group.rows if row.kind == "range" for c in row.channels):
            item = int(np.searchsorted(channel.starts, np.int64(at_ns), "right")) - 1
            if item >= 0 and at_ns < channel.ends[item] and channel.starts[item] >= last_start:
                last_start, name = int(channel.starts[item]), int(channel.names[item])
        return name

    def nearest(
        self, is_match: BoolArray, from_ns: int, direction: int, row: int | None = None
    ) -> FoundEvent | None:
        """Return the first match that starts after ``from_ns``, or the last before it.

        ``direction`` is 1 or -1. If ``row`` is given, only that row is searched.
        """
        found: list[FoundEvent] = []
        for place, number, channel in self._channels:
            in_row = row is None or place == row
            item = _next_item(channel, is_match, from_ns, direction) if in_row else None
            if item is not None:
                start, end = int(channel.starts[item]), int(channel.ends[item])
                found.append(FoundEvent(place, number, start, end))
        return min(found, key=lambda event: event.start * direction, default=None)


def _next_item(channel: Channel, is_match: BoolArray, from_ns: int, direction: int) -> int | None:
    """Return the index of the next (1) or previous (-1) match in a channel; None without any."""
    if direction > 0:
        after = int(np.searchsorted(channel.starts, np.int64(from_ns), "right"))
        for begin in range(after, len(channel), _CHUNK_EVENTS):
            hits = np.flatnonzero(is_match[channel.names[begin : begin + _CHUNK_EVENTS]])
            if len(hits):
                return begin + int(hits[0])
        return None
    before = int(np.searchsorted(channel.starts, np.int64(from_ns)))
    for end in range(before, 0, -_CHUNK_EVENTS):
        begin = max(0, end - _CHUNK_EVENTS)
        hits = np.flatnonzero(is_match[channel.names[begin:end]])
        if len(hits):
            return begin + int(hits[-1])
    return None


FINDINGS: Final = "findings"
_TIMELINE_KEY: Final = ("timeline of the viewer",)
_OVERVIEW_KEY: Final = ("overview of the viewer",)
_MAX_EVENTS_IN_MEMORY: Final = 5_000_000
"""A run with more events is read again for each request and not kept in memory."""
_VERDICT_ANALYSES: Final = ("steps", "breakdown", "idle", "phases")


@dataclass(frozen=True, slots=True, eq=False)
class Pane:
    """One run; ``title`` is untrusted text.

    Requests come in several threads and share the results that are kept with the run. A lock lets
    one request at a time use the run.
    """

    title: str
    run: Run
    about: About
    store: TimelineStore
    search: Search
    same_name: SameName
    _lock: Lock = field(default_factory=Lock)

    def answer(self, window: str | None, names: Sequence[str]) -> Document:
        """Return the results of the analyses ``names`` for a window in the syntax of ``--window``.

        If findings are among them, the document has a verdict and the results that it needs.

        Raises:
            UsageError: the window is not valid for this run.
        """
        with self._locked_run() as whole:
            run = whole.within(window)
            if FINDINGS in names:
                return page(run, tuple(dict.fromkeys((*names, *_VERDICT_ANALYSES))))
            return answer(run, names)

    def drawn(self, window: str | None) -> tuple[Trace, TimeWindow | None]:
        """Return all events of the run, and the span of the window (None for the default window).

        Raises:
            UsageError: the window is not valid for this run.
        """
        with self._locked_run() as run:
            whole = run.within("all").trace()
            return whole, selected(run.within(window)).window.hull if window else None

    def summary(self, window: str | None, name: str) -> Summary:
        """Return the summary of a window for a comparison, in which the run is called ``name``.

        Raises:
            TraceprofError: the window is not valid for this run, or it cannot be summarized.
        """
        with self._locked_run() as run:
            return summarize(run.within(window), name=name)

    @contextmanager
    def _locked_run(self) -> Iterator[Run]:
        """Lock and yield the run. A large run is opened again and its memory freed at the end."""
        with self._lock:
            if not _is_reopened(self.run, self.about):
                yield self.run
                return
            try:
                yield open_run(self.run.paths, self.run.opening)
            finally:
                give_back()


def open_pane(title: str, run: Run) -> Pane:
    """Return ``run`` with its timeline, cached or newly built (some seconds per million events)."""
    timeline = _cached_timeline(run) or _new_timeline(run)
    store = TimelineStore(timeline, run.cache.get(*_OVERVIEW_KEY))
    run.cache.put({_OVERVIEW_KEY: store.overview})
    if _is_reopened(run, timeline.about):
        run = open_run(run.paths, run.opening)
        give_back()
    search, same_name = Search(timeline.lanes, timeline.totals), SameName(timeline.lanes)
    return Pane(title, run, timeline.about, store, search, same_name)


def _is_reopened(run: Run, about: About) -> bool:
    """Return whether each request opens the run again: it is large and the cache keeps facts."""
    return about.n_events > _MAX_EVENTS_IN_MEMORY and run.cache.keeps


def _cached_timeline(run: Run) -> Timeline | None:
    with run.cache.file(_TIMELINE_KEY) as path:
        return None if path is None else read_timeline(path)


def _new_timeline(run: Run) -> Timeline:
    """Build the timeline, write it to the cache, and return it, mapped from the file if cached."""
    whole = run.within("all")
    timeline = Timeline.of(whole.trace(), sentences(whole.selection.notes))
    run.cache.put_file(_TIMELINE_KEY, lambda path: write_timeline(timeline, path))
    return _cached_timeline(run) or timeline
