"""The runs that a viewer shows, each with its lanes ready to be cut, and to be searched."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from threading import Lock
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.comparison.summary.summarise import summarise
from traceprof.model.intervals import Int64Array
from traceprof.model.summary import Summary
from traceprof.model.tables import ABSENT
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace
from traceprof.processes import give_back
from traceprof.render.formatting import sentences
from traceprof.render.timeline.channels import Channel, LaneGroup, Lanes, NameTotals
from traceprof.session.answer import Document, answer, page
from traceprof.session.doubts import selected
from traceprof.session.run import Run, open_run
from traceprof.viewer.timeline import About, Timeline, TimelineStore, read_timeline, write_timeline

_CHUNK: Final = 1 << 16
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class FoundEvent:
    """An event: the place of its row in the whole trace, of its channel in the row; times in ns."""

    row: int
    channel: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ListedEvent(FoundEvent):
    """An event of a list, with the place of its name."""

    name: int


class Search:
    """Counts, lists and finds the events of exact lanes by name; ``totals`` are theirs.

    ``kinds`` are those of the rows that are looked at, None for all.
    """

    def __init__(
        self, lanes: Lanes, totals: NameTotals, kinds: Collection[str] | None = None
    ) -> None:
        self.n_names = len(lanes.names)
        self._lanes = lanes
        self._of_all = totals
        rows = enumerate((group, row) for group in lanes.groups for row in group.rows)
        self._places = [(place, group, row) for place, (group, row) in rows]
        self._rows = [
            (place, row.channels)
            for place, _, row in self._places
            if kinds is None or row.kind in kinds
        ]
        numbers = (n for n, group in enumerate(lanes.groups) for _ in group.rows)
        self._groups = tuple(numbers)
        self._totals = totals if kinds is None else self._summed()

    def among(self, kinds: Collection[str]) -> Search:
        """Return the same among rows of these kinds; of none, this."""
        return Search(self._lanes, self._of_all, kinds) if kinds else self

    def _summed(self) -> NameTotals:
        counts, times_ns = np.zeros(self.n_names, np.int64), np.zeros(self.n_names, np.int64)
        for channel in (channel for _, channels in self._rows for channel in channels):
            counts += np.bincount(channel.names, minlength=self.n_names)
            np.add.at(times_ns, channel.names, channel.ends - channel.starts)
        return NameTotals(counts, times_ns)

    def matching(self, bits: bytes) -> BoolArray:
        """Return which names are meant: a bit each, as the page sends them; without any, all.

        What a search means is decided in the page alone (`assets/matching.mjs`).
        """
        if not bits:
            return np.ones(self.n_names, bool)
        is_match = np.zeros(self.n_names, bool)
        given = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")[: self.n_names]
        is_match[: len(given)] = given.astype(bool)
        return is_match

    def count(self, is_match: BoolArray) -> int:
        """Return how many events have one of these names."""
        return int(self._totals.counts[is_match].sum())

    def count_names(self, is_match: BoolArray) -> int:
        """Return how many of these names there are."""
        return int(np.count_nonzero(self._totals.counts[is_match]))

    def total_ns(self, is_match: BoolArray) -> int:
        """Return how long they are together."""
        return int(self._totals.times_ns[is_match].sum())

    def count_before(self, is_match: BoolArray, t_ns: int) -> int:
        """Return how many of them start before ``t_ns``."""
        total = 0
        for _, channels in self._rows:
            for channel in channels:
                last = int(np.searchsorted(channel.starts, np.int64(t_ns)))
                total += int(is_match[channel.names[:last]].sum())
        return total

    def listed(self, is_match: BoolArray, order: str, limit: int) -> list[ListedEvent]:
        """Return ``limit`` of them: the longest, or (order "first") the first."""
        found: list[tuple[int, int, ListedEvent]] = []
        for place, channels in self._rows:
            for number, channel in enumerate(channels):
                items = np.flatnonzero(is_match[channel.names])
                rank = channel.starts if order == "first" else channel.starts - channel.ends
                items = items[np.argsort(rank[items], kind="stable")[:limit]]
                for item in items.tolist():
                    start, end = int(channel.starts[item]), int(channel.ends[item])
                    event = ListedEvent(place, number, start, end, int(channel.names[item]))
                    found.append((int(rank[item]), start, event))
        return [event for _, _, event in sorted(found, key=lambda entry: entry[:2])[:limit]]

    def lit(self, is_match: BoolArray, window: TimeWindow, width: int) -> dict[int, list[int]]:
        """Return, for each group with matches in ``window``, which of ``width`` bins have any."""
        found: dict[int, npt.NDArray[np.int64]] = {}
        bin_ns = window.duration_ns / width
        for place, channels in self._rows:
            for channel in channels:
                first = int(np.searchsorted(channel.ends, np.int64(window.start_ns)))
                last = int(np.searchsorted(channel.starts, np.int64(window.end_ns)))
                items = first + np.flatnonzero(is_match[channel.names[first:last]])
                if not len(items):
                    continue
                edges = [channel.starts[items], channel.ends[items]]
                bins = [((edge - window.start_ns) // bin_ns).astype(np.int64) for edge in edges]
                begin, end = (np.clip(places, 0, width - 1) for places in bins)
                depth = found.setdefault(self._groups[place], np.zeros(width + 1, np.int64))
                np.add.at(depth, begin, 1)
                np.subtract.at(depth, end + 1, 1)
        return {
            group: np.flatnonzero(np.cumsum(depth)[:width]).tolist()
            for group, depth in found.items()
        }

    def launched_in(self, events: Sequence[FoundEvent]) -> list[int | None]:
        """Return the name of the innermost range around the launch of each event of a device.

        -1 where there is none, None where the launch is not known.
        """
        wanted = [self._correlation_of(event) for event in events]
        launches = self._launches({key for key in wanted if key is not None})
        return [
            self._enclosing_range(*launches[key]) if key in launches else None for key in wanted
        ]

    def _correlation_of(self, event: FoundEvent) -> tuple[int, int] | None:
        _, group, row = self._places[event.row]
        channel = row.channels[event.channel]
        if channel.correlations is None:
            return None
        number = channel.correlations[np.searchsorted(channel.starts, np.int64(event.start))]
        return None if number == ABSENT else (group.process, int(number))

    def _launches(
        self, wanted: Collection[tuple[int, int]]
    ) -> dict[tuple[int, int], tuple[LaneGroup, int]]:
        """Return the thread and the start of each of the calls (process, correlation)."""
        numbers = np.array(sorted({number for _, number in wanted}), np.int64)
        found = {}
        for _, group, row in self._places:
            for channel in row.channels if row.kind == "api" else ():
                if channel.correlations is None:
                    continue
                for item in np.flatnonzero(np.isin(channel.correlations, numbers)).tolist():
                    key = (group.process, int(channel.correlations[item]))
                    found[key] = (group, int(channel.starts[item]))
        return found

    def _enclosing_range(self, group: LaneGroup, at_ns: int) -> int:
        best, name = -1, -1
        for channel in (c for row in group.rows if row.kind == "range" for c in row.channels):
            item = int(np.searchsorted(channel.starts, np.int64(at_ns), "right")) - 1
            if item >= 0 and at_ns < channel.ends[item] and channel.starts[item] >= best:
                best, name = int(channel.starts[item]), int(channel.names[item])
        return name

    def nearest(
        self, is_match: BoolArray, from_ns: int, direction: int, row: int | None = None
    ) -> FoundEvent | None:
        """Return the first match that starts after ``from_ns``, or (-1) the last before it."""
        best: FoundEvent | None = None
        for place, channels in self._rows:
            if row is not None and place != row:
                continue
            for number, channel in enumerate(channels):
                item = _next_item(channel, is_match, from_ns, direction)
                if item is None:
                    continue
                start = int(channel.starts[item])
                if best is None or (start - best.start) * direction < 0:
                    best = FoundEvent(place, number, start, int(channel.ends[item]))
        return best


def _next_item(channel: Channel, is_match: BoolArray, from_ns: int, direction: int) -> int | None:
    # The first that starts later, or the first that does not start earlier.
    bound = np.int64(from_ns + 1 if direction > 0 else from_ns)
    at = int(np.searchsorted(channel.starts, bound))
    if direction > 0:
        for begin in range(at, len(channel), _CHUNK):
            hits = np.flatnonzero(is_match[channel.names[begin : begin + _CHUNK]])
            if len(hits):
                return begin + int(hits[0])
        return None
    for end in range(at, 0, -_CHUNK):
        begin = max(0, end - _CHUNK)
        hits = np.flatnonzero(is_match[channel.names[begin:end]])
        if len(hits):
            return begin + int(hits[-1])
    return None


_N_BINS: Final = 24
_WIDE: Final = 40
_DEVICE: Final = "gpu"
_Event = tuple[int, int, int]


class Alike:
    """Answers what the panel says of an event beyond what the browser has loaded."""

    def __init__(self, lanes: Lanes) -> None:
        self._rows: list[tuple[int, LaneGroup, str, tuple[Channel, ...]]] = [
            (place, group, row.kind, row.channels)
            for place, group in enumerate(lanes.groups)
            for row in group.rows
        ]

    def of(self, row: int, channel: int, start_ns: int) -> dict[str, Any] | None:
        """Return the numbers of all of this event's name, and who else has it; None for none."""
        found = self._event(row, channel, start_ns)
        if found is None:
            return None
        name, duration = found
        kind = self._rows[row][2]
        return {
            "population": self._population(name, kind, duration),
            **self._peers(name, kind, (start_ns, row, channel)),
        }

    def _event(self, row: int, channel: int, start_ns: int) -> tuple[int, int] | None:
        channels = self._rows[row][3] if row < len(self._rows) else ()
        if channel >= len(channels):
            return None
        events = channels[channel]
        item = int(np.searchsorted(events.starts, np.int64(start_ns)))
        if item >= len(events) or events.starts[item] != start_ns:
            return None
        return int(events.names[item]), int(events.ends[item] - events.starts[item])

    def _population(self, name: int, kind: str, duration_ns: int) -> dict[str, Any]:
        """Return the same numbers as `assets/population.mjs`."""
        parts = [
            (c.ends - c.starts)[c.names == name]
            for _, _, other, channels in self._rows
            if (other == _DEVICE) == (kind == _DEVICE)
            for c in channels
        ]
        durations = np.sort(np.concatenate(parts))
        n = len(durations)
        return {
            "n": n,
            "total": int(durations.sum()),
            "min": int(durations[0]),
            "median": float(np.median(durations)),
            "max": int(durations[-1]),
            "place": n - int(np.searchsorted(durations, duration_ns, side="right")) + 1,
            "bins": _bins(durations),
        }

    def _peers(self, name: int, kind: str, event: _Event) -> dict[str, Any]:
        """Return the same as `assets/peers.mjs`: by number where all have as many, else by time."""
        parties: dict[tuple[bool, int], list[_Event]] = defaultdict(list)
        groups: dict[_Event, int] = {}
        mine: tuple[bool, int] | None = None
        for row, (place, group, other, channels) in enumerate(self._rows):
            if other != kind:
                continue
            is_device = group.kind == "device"
            party = (is_device, place if is_device else group.process)
            mine = party if row == event[1] else mine
            for number, channel in enumerate(channels):
                for start in channel.starts[channel.names == name].tolist():
                    parties[party].append((start, row, number))
                    groups[start, row, number] = place
        if len(parties) < 2 or mine is None:
            return {"peers": [], "by_number": True}
        for events in parties.values():
            events.sort()
        number_of_event = parties[mine].index(event)
        by_number = len({len(events) for events in parties.values()}) == 1
        peers = []
        for party, events in parties.items():
            is_same_party = party == mine
            same = (
                events[number_of_event]
                if is_same_party or by_number
                else min(events, key=lambda one: (abs(one[0] - event[0]), one))
            )
            start, row, number = same
            channel = self._rows[row][3][number]
            end = int(channel.ends[np.searchsorted(channel.starts, np.int64(start))])
            fields = asdict(FoundEvent(row, number, start, end))
            peers.append({**fields, "group": groups[same], "is_own": is_same_party})
        return {"peers": peers, "by_number": by_number}


def _bins(durations: Int64Array) -> list[int]:
    low, high = float(durations[0]), float(durations[-1])
    values = durations.astype(np.float64)
    if low > 0 and high / low > _WIDE:
        low, high, values = np.log(low), np.log(high), np.log(values)
    if high <= low:
        return [len(durations)]
    places = np.floor((values - low) / ((high - low) / _N_BINS)).astype(np.int64)
    found: list[int] = np.bincount(places.clip(0, _N_BINS - 1), minlength=_N_BINS).tolist()
    return found


FINDINGS: Final = "findings"
_KEPT: Final = ("timeline of the viewer",)
_OVERVIEW: Final = ("overview of the viewer",)
_MOST_HELD: Final = 5_000_000
"""Of runs with more events nothing is held between two questions: each reads what it needs."""
_OF_VERDICT: Final = ("steps", "breakdown", "idle", "phases")


@dataclass(frozen=True, slots=True, eq=False)
class Pane:
    """One run; ``title`` is untrusted text.

    Requests come in threads, and what is computed of a run is kept with it: one asks at a time.
    """

    title: str
    run: Run
    about: About
    store: TimelineStore
    search: Search
    alike: Alike
    _one_asks: Lock = field(default_factory=Lock)

    def answer(self, window: str | None, names: Sequence[str]) -> Document:
        """Return what the analyses ``names`` say about a window, as ``--window`` takes it.

        With the findings comes the verdict, and what else it takes for one.

        Raises:
            UsageError: the window is none of this run.
        """
        with self._asked() as whole:
            run = whole.within(window)
            if FINDINGS in names:
                return page(run, tuple(dict.fromkeys((*names, *_OF_VERDICT))))
            return answer(run, names)

    def drawn(self, window: str | None) -> tuple[Trace, TimeWindow | None]:
        """Return all events of the run, and the window that was asked for.

        Raises:
            UsageError: the window is none of this run.
        """
        with self._asked() as run:
            whole = run.within("all").trace()
            return whole, selected(run.within(window)).window.hull if window else None

    def summary(self, window: str | None, name: str) -> Summary:
        """Return what a comparison needs to know of a window, of a run that is called ``name``.

        Raises:
            TraceprofError: the window is none of this run, or nothing can be told of it.
        """
        with self._asked() as run:
            return summarise(run.within(window), name=name)

    @contextmanager
    def _asked(self) -> Iterator[Run]:
        """Give the run as far as it was read; of a large one that can be read again, anew."""
        with self._one_asks:
            if not _is_read_anew(self.run, self.about):
                yield self.run
                return
            try:
                yield open_run(self.run.paths, self.run.opening)
            finally:
                give_back()


def open_pane(title: str, run: Run) -> Pane:
    """Return ``run`` with all its levels of detail: as they were kept, else seconds per million."""
    timeline = _kept(run) or _made(run)
    store = TimelineStore(timeline, run.cache.get(*_OVERVIEW))
    run.cache.put({_OVERVIEW: store.overview})
    if _is_read_anew(run, timeline.about):
        run = open_run(run.paths, run.opening)
        give_back()
    search, alike = Search(timeline.lanes, timeline.totals), Alike(timeline.lanes)
    return Pane(title, run, timeline.about, store, search, alike)


def _is_read_anew(run: Run, about: About) -> bool:
    return about.n_events > _MOST_HELD and run.cache.keeps


def _kept(run: Run) -> Timeline | None:
    with run.cache.file(_KEPT) as path:
        return None if path is None else read_timeline(path)


def _made(run: Run) -> Timeline:
    """Return the timeline, mapped from the file in which it is kept where it can be."""
    whole = run.within("all")
    timeline = Timeline.of(whole.trace(), sentences(whole.selection.notes))
    run.cache.put_file(_KEPT, lambda path: write_timeline(timeline, path))
    return _kept(run) or timeline
