"""What is known of event tables whose rows are not read: by SQL aggregates over the file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import pandas as pd

from traceprof.formats.base import OUTLINED_TABLES, Outline
from traceprof.formats.sqlite.database import Database
from traceprof.model.tables import TABLES
from traceprof.model.trace import DEVICE_TABLES, Trace
from traceprof.model.window import TimeWindow

__all__ = ["EVENT_TABLES", "SELF_DESCRIPTION", "Extent", "Source", "Survey", "outline_from"]

EVENT_TABLES: Final = tuple(name for name, table in TABLES.items() if table.has_times)
SELF_DESCRIPTION: Final = frozenset(TABLES.keys() - set(EVENT_TABLES))
"""The tables that say what the file is of: devices, processes, threads, environment."""


@dataclass(frozen=True, slots=True)
class Source:
    """Rows of a table of the file that become rows of a table of the Trace, each one of one.

    ``start``, ``end``, ``process`` and ``device`` are SQL. ``end`` is empty for instants, and
    where it is smaller than the start or NULL the row ends where it starts. ``process_of`` makes
    the process of what ``process`` gives; a negative one is not known.
    """

    table: str
    start: str = "start"
    end: str = "[end]"
    process: str = ""
    device: str = ""
    where: str = ""
    process_of: Callable[[Any], int] = int

    def select(self, database: Database, what: str, *conditions: str) -> str:
        """Return a query of these rows, on the table as it is stored."""
        told = " AND ".join(f"({one})" for one in (self.where, *conditions) if one)
        return f"SELECT {what} FROM {database.stored_name(self.table)} WHERE {told or 1}"


@dataclass(frozen=True, slots=True)
class Extent:
    """How many rows a table has, how many of them without an end, and the time they cover (ns).

    Without rows it covers nothing: ``start_ns`` and ``end_ns`` are None.
    """

    n_rows: int = 0
    n_open: int = 0
    start_ns: int | None = None
    end_ns: int | None = None

    def __or__(self, other: Extent) -> Extent:
        """Return the extent of the rows of both."""
        starts = [one for one in (self.start_ns, other.start_ns) if one is not None]
        ends = [one for one in (self.end_ns, other.end_ns) if one is not None]
        return Extent(
            self.n_rows + other.n_rows,
            self.n_open + other.n_open,
            min(starts, default=None),
            max(ends, default=None),
        )

    @staticmethod
    def of(frame: pd.DataFrame) -> Extent:
        """Return the extent of a table that was read."""
        if frame.empty:
            return Extent()
        ends = frame["end_ns" if "end_ns" in frame else "start_ns"]
        return Extent(len(frame), 0, int(frame["start_ns"].iloc[0]), int(ends.max()))


class Survey:
    """What the event tables of a file are like as a whole, whichever of them were read.

    Args:
        database: the open file.
        sources: where the rows of each table of the Trace come from.
        frames: the tables that were read whole; of these nothing is asked in SQL.
        corrections: what no `Source` describes: table → its extent of that of its sources.
        zero_ns: the time in the file that is time 0 of the Trace.
    """

    def __init__(
        self,
        database: Database,
        sources: Mapping[str, Sequence[Source]],
        frames: Mapping[str, pd.DataFrame],
        corrections: Mapping[str, Callable[[Extent], Extent]],
        zero_ns: int = 0,
    ) -> None:
        self._database = database
        self._sources = sources
        self._frames = frames
        self._zero_ns = zero_ns
        self._corrections = corrections
        self._extents: dict[str, Extent] = {}

    def extent(self, name: str) -> Extent:
        """Return the extent of a table of the Trace."""
        if name not in self._extents:
            if name in self._frames:
                self._extents[name] = Extent.of(self._frames[name])
            else:
                correct = self._corrections.get(name)
                found = self._scanned[name]
                self._extents[name] = correct(found) if correct else found
        return self._extents[name]

    @property
    def span(self) -> TimeWindow:
        """The time from the first to the last row of any table."""
        extents = [self.extent(name) for name in EVENT_TABLES]
        starts = [one.start_ns for one in extents if one.start_ns is not None]
        ends = [one.end_ns for one in extents if one.end_ns is not None]
        return TimeWindow(min(starts, default=0), max(ends, default=0))

    def with_rows(self) -> set[str]:
        """Return the names of the tables that have rows."""
        return {name for name in EVENT_TABLES if self.extent(name).n_rows}

    def processes(self) -> np.ndarray:
        """Return the processes that have rows, in order."""
        found = {int(one) for frame in self._owned() for one in pd.unique(frame["process"])}
        sources = self._unread(EVENT_TABLES)
        queries = [one.select(self._database, f"DISTINCT {one.process}") for one in sources]
        for source, rows in zip(sources, self._database.rows_of_each(queries), strict=True):
            found.update(source.process_of(value) for (value,) in rows)
        return np.array(sorted(one for one in found if one >= 0), np.int64)

    def has_rows_of(self, processes: Collection[int] | None = None) -> bool:
        """Return whether one of these processes (None: any that is known) has a row."""
        for frame in self._owned():
            owner = frame["process"]
            if (owner.ge(0) if processes is None else owner.isin(list(processes))).any():
                return True
        return any(self._has_row_of(source, processes) for source in self._unread(EVENT_TABLES))

    def process_rows(self, name: str) -> dict[int, int]:
        """Return process → how many rows of a table it has; by SQL, read or not."""
        counts: dict[int, int] = {}
        for source, rows in self._grouped(name, "process"):
            for value, n_rows in rows:
                process = source.process_of(value)
                counts[process] = counts.get(process, 0) + n_rows
        return counts

    def device_rows(self, name: str) -> dict[tuple[int, int], int]:
        """Return (process, device as the file numbers it) → how many rows; by SQL, read or not."""
        counts: dict[tuple[int, int], int] = {}
        for source, rows in self._grouped(name, "process", "device"):
            for value, device, n_rows in rows:
                place = source.process_of(value), int(device)
                counts[place] = counts.get(place, 0) + n_rows
        return counts

    def worked(self) -> set[tuple[int, int]]:
        """Return (process, device as the file numbers it) of the device work, read or not."""
        sources = [one for name in DEVICE_TABLES for one in self._sources.get(name, ())]
        queries = [
            one.select(self._database, f"DISTINCT {one.process}, {one.device}") for one in sources
        ]
        answers = zip(sources, self._database.rows_of_each(queries), strict=True)
        return {
            (source.process_of(value), int(device))
            for source, rows in answers
            for value, device in rows
        }

    def count(self, name: str, condition: Callable[[Source], str]) -> int:
        """Return how many rows of a table satisfy a condition in SQL."""
        queries = [
            source.select(self._database, "count(*)", condition(source))
            for source in self._sources.get(name, ())
        ]
        return sum(int(rows[0][0]) for rows in self._database.rows_of_each(queries))

    @cached_property
    def _scanned(self) -> dict[str, Extent]:
        """The extents of the tables that were not read, as their sources tell."""
        unread = [name for name in EVENT_TABLES if name not in self._frames]
        sources = [(name, one) for name in unread for one in self._sources.get(name, ())]
        queries = [one.select(self._database, _aggregates(one)) for _, one in sources]
        extents = dict.fromkeys(unread, Extent())
        answers = self._database.rows_of_each(queries)
        for (name, source), ((n_rows, *times),) in zip(sources, answers, strict=True):
            if n_rows:
                extents[name] |= self._extent_of(source, n_rows, *times)
        return extents

    def _extent_of(self, source: Source, n_rows: int, first: int, last: int, *ends: Any) -> Extent:
        n_open, last_end = 0, last
        if source.end:
            n_ended, last_end = ends
            n_open, last_end = n_rows - n_ended, max(last, last if last_end is None else last_end)
        return Extent(n_rows, n_open, int(first) - self._zero_ns, int(last_end) - self._zero_ns)

    def _owned(self) -> Iterable[pd.DataFrame]:
        frames = (self._frames[name] for name in EVENT_TABLES if name in self._frames)
        return (frame for frame in frames if "process" in frame)

    def _unread(self, names: Iterable[str]) -> list[Source]:
        """Return the sources of the tables that were not read and say whose their rows are."""
        unread = (name for name in names if name not in self._frames)
        return [one for name in unread for one in self._sources.get(name, ()) if one.process]

    def _has_row_of(self, source: Source, processes: Collection[int] | None) -> bool:
        if source.process_of is not int:
            (rows,) = self._database.rows_of_each(
                [source.select(self._database, f"DISTINCT {source.process}")]
            )
            found = {source.process_of(value) for (value,) in rows}
            return bool(found.intersection(processes) if processes is not None else found)
        told = ">= 0" if processes is None else f"IN ({', '.join(map(str, processes)) or 'NULL'})"
        query = source.select(self._database, "1", f"{source.process} {told}") + " LIMIT 1"
        return bool(self._database.rows_of_each([query])[0])

    def _grouped(self, name: str, *by: str) -> Iterable[tuple[Source, list[tuple[Any, ...]]]]:
        sources = self._sources.get(name, ())
        queries = []
        for source in sources:
            keys = ", ".join(getattr(source, key) for key in by)
            places = ", ".join(str(place + 1) for place in range(len(by)))
            select = source.select(self._database, f"{keys}, count(*)")
            queries.append(f"{select} GROUP BY {places}")
        return zip(sources, self._database.rows_of_each(queries), strict=True)


def _aggregates(source: Source) -> str:
    starts = f"count(*), min({source.start}), max({source.start})"
    return f"{starts}, count({source.end}), max({source.end})" if source.end else starts


def outline_from(
    trace: Trace, survey: Survey, device_of: Callable[[int, int], int] = lambda _, device: device
) -> Outline:
    """Return the outline of a file whose events were not read.

    Args:
        trace: with the tables of `SELF_DESCRIPTION`.
        survey: of the same file.
        device_of: the device of the Trace, of a process and the number that the file gives it.
    """
    device_rows: dict[str, dict[tuple[int, int], int]] = {}
    for name in DEVICE_TABLES:
        counts = device_rows[name] = {}
        for (process, ordinal), n_rows in survey.device_rows(name).items():
            place = process, device_of(process, ordinal)
            counts[place] = counts.get(place, 0) + n_rows
    return Outline(
        info=trace.info,
        recorded=trace.recorded,
        span=trace.span,
        n_rows={name: survey.extent(name).n_rows for name in EVENT_TABLES},
        device_rows=device_rows,
        process_rows={name: survey.process_rows(name) for name in OUTLINED_TABLES},
        devices=trace.devices,
        processes=trace.processes,
        threads=trace.threads,
        environment=trace.environment,
    )
