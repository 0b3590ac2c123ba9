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
from traceprof.model.tables import ABSENT, TABLES
from traceprof.model.trace import DEVICE_TABLES, Trace
from traceprof.model.window import TimeWindow

__all__ = ["EVENT_TABLES", "SELF_DESCRIPTION", "Extent", "Source", "Survey", "outline_from"]

EVENT_TABLES: Final = tuple(name for name, table in TABLES.items() if table.has_times)
SELF_DESCRIPTION: Final = frozenset(TABLES.keys() - set(EVENT_TABLES))
"""The tables that say what the file is of: devices, processes, threads, environment."""
_SAMPLE: Final = 1000


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
        found_elsewhere: of tables that may be made of others: whether they would have rows.
    """

    def __init__(
        self,
        database: Database,
        sources: Mapping[str, Sequence[Source]],
        frames: Mapping[str, pd.DataFrame],
        corrections: Mapping[str, Callable[[Extent], Extent]],
        zero_ns: int = 0,
        found_elsewhere: Mapping[str, Callable[[], bool]] | None = None,
    ) -> None:
        self._database = database
        self._sources = sources
        self._frames = frames
        self._zero_ns = zero_ns
        self._corrections = corrections
        self._found_elsewhere = found_elsewhere or {}
        self._extents: dict[str, Extent] = {}
        self._known_owners: dict[tuple[str, Source], list[tuple[Any, ...]]] = {}

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
        extents = [self.extent(name) for name in EVENT_TABLES if not self._is_elsewhere(name)]
        starts = [one.start_ns for one in extents if one.start_ns is not None]
        ends = [one.end_ns for one in extents if one.end_ns is not None]
        return TimeWindow(min(starts, default=0), max(ends, default=0))

    def with_rows(self) -> set[str]:
        """Return the names of the tables that have rows."""
        return {
            name
            for name in EVENT_TABLES
            if (
                self._found_elsewhere[name]()
                if self._is_elsewhere(name)
                else self.extent(name).n_rows
            )
        }

    def _is_elsewhere(self, name: str) -> bool:
        """Return whether only other tables tell of this one, which was not read."""
        is_told = name in self._found_elsewhere and not self._sources.get(name)
        return is_told and name not in self._frames

    def processes(self) -> np.ndarray:
        """Return the processes that have rows, in order."""
        found = {int(one) for frame in self._owned() for one in pd.unique(frame["process"])}
        for _, source, owners in self._owners(EVENT_TABLES):
            found |= {source.process_of(owner[0]) for owner in owners}
        return np.array(sorted(one for one in found if one >= 0), np.int64)

    def has_rows_of(self, processes: Collection[int] | None = None) -> bool:
        """Return whether one of these processes (None: any that is known) has a row."""
        if processes is not None and not processes:
            return False
        for frame in self._owned():
            owner = frame["process"]
            if (owner.ge(0) if processes is None else owner.isin(list(processes))).any():
                return True
        return any(self._has_row_of(source, processes) for source in self._unread(EVENT_TABLES))

    def process_rows(self, name: str) -> dict[int, int]:
        """Return process → how many rows; of a table of `OUTLINED_TABLES` that was not read."""
        return dict(self._counts[name])

    def device_rows(self, name: str) -> dict[tuple[int, int], int]:
        """Return (process, device as the file numbers it) → how many kernels or copies.

        Of tables that were not read.
        """
        return dict(self._counts[name])

    def worked(self, device_of: Callable[[int, int], int]) -> set[int]:
        """Return the devices that have kernels or copies.

        ``device_of`` tells the device of the Trace, which frames have, of a process and the number
        that the file gives it.
        """
        frames = (self._frames[name] for name in DEVICE_TABLES if name in self._frames)
        found = {int(one) for frame in frames for one in pd.unique(frame["device"])}
        return found | {device_of(*place) for place in self._places}

    def count(self, name: str, condition: Callable[[Source], str]) -> int:
        """Return how many rows of a table satisfy a condition in SQL."""
        queries = [
            source.select(self._database, "count(*)", condition(source))
            for source in self._sources.get(name, ())
        ]
        return sum(int(rows[0][0]) for rows in self._database.rows_of_each(queries))

    def _owners(self, names: Iterable[str]) -> list[tuple[str, Source, list[tuple[Any, ...]]]]:
        """Return who has rows in the sources of the tables that were not read.

        (Process, device) of device work, of all else (process,), as the file has them.
        """
        wanted = [
            (name, source)
            for name in names
            for source in self._sources.get(name, ())
            if source.process and name not in self._frames
        ]
        new = [one for one in wanted if one not in self._known_owners]
        answers = self._database.rows_of_each(
            source.select(self._database, f"DISTINCT {_owner(name, source)}")
            for name, source in new
        )
        self._known_owners |= zip(new, answers, strict=True)
        return [(*one, self._known_owners[one]) for one in wanted]

    @property
    def _places(self) -> set[tuple[int, int]]:
        """(Process, device as the file numbers it) of the device work that was not read."""
        found = self._owners(DEVICE_TABLES)
        return {_place(source, owner) for _, source, owners in found for owner in owners}

    @cached_property
    def _counts(self) -> dict[str, dict[Any, int]]:
        """Table → process or, of device work, (process, device) → how many rows it has."""
        owned = self._owners((*DEVICE_TABLES, *OUTLINED_TABLES))
        answers = self._database.rows_of_each(
            # To group is to sort: it is spared where all rows have one owner.
            source.select(self._database, f"{_owner(name, source)}, count(*)")
            + f" GROUP BY {'1, 2' if name in DEVICE_TABLES else 1}"
            if len(owners) > 1
            else source.select(self._database, "count(*)")
            for name, source, owners in owned
        )
        counts: dict[str, dict[Any, int]] = {name: {} for name in EVENT_TABLES}
        for (name, source, owners), rows in zip(owned, answers, strict=True):
            told = rows if len(owners) > 1 else [(*one, *rows[0]) for one in owners]
            for *owner, n_rows in told:
                key: Any = _place(source, owner)
                key = key if name in DEVICE_TABLES else key[0]
                counts[name][key] = counts[name].get(key, 0) + n_rows
        return counts

    @cached_property
    def _scanned(self) -> dict[str, Extent]:
        """The extents of the tables that were not read, as their sources tell."""
        unread = [name for name in EVENT_TABLES if name not in self._frames]
        sources = [(name, one) for name in unread for one in self._sources.get(name, ())]
        brackets = [self._sampled(source) for _, source in sources]
        answers = self._database.rows_of_each(
            source.select(self._database, *_aggregates(source, self._database, bracket))
            for (_, source), bracket in zip(sources, brackets, strict=True)
        )
        extents = dict.fromkeys(unread, Extent())
        for (name, _), bracket, ((n_rows, n_open, *found),) in zip(
            sources, brackets, answers, strict=True
        ):
            times = [int(one) - self._zero_ns for one in (*bracket, *found) if one is not None]
            if n_rows:
                extents[name] |= Extent(n_rows, n_open, min(times), max(times))
        return extents

    def _sampled(self, source: Source) -> tuple[int, ...]:
        """Return the first and the last instant among some rows, where that says much."""
        if source.where:
            return ()
        times = f"{source.start} AS first, {source.end or source.start} AS last"
        table = self._database.stored_name(source.table)
        ends = (f"SELECT {times} FROM {table} ORDER BY rowid {order}" for order in ("", "DESC"))
        both = " UNION ALL ".join(f"SELECT * FROM ({end} LIMIT {_SAMPLE})" for end in ends)
        ((first, *last),) = self._database.rows(
            f"SELECT min(first), max(first), max(last) FROM ({both})"
        )
        known = [int(one) for one in last if one is not None]
        return (int(first), max(known)) if known else ()

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


def _owner(name: str, source: Source) -> str:
    return f"{source.process}, {source.device}" if name in DEVICE_TABLES else source.process


def _place(source: Source, owner: Sequence[Any]) -> tuple[int, int]:
    """Return the process, and the device where there is one."""
    return source.process_of(owner[0]), int(owner[1]) if len(owner) > 1 else ABSENT


def _aggregates(source: Source, database: Database, bracket: Sequence[int]) -> tuple[str, str]:
    """Return what to select for an `Extent`, and of which rows.

    Rows are nearly in the order of time. Only those outside a ``bracket`` that is already known
    to be covered can extend it, and to refuse the others costs half of aggregating them.
    """
    n_rows = (
        f"(SELECT count(*) FROM {database.stored_name(source.table)})" if bracket else "count(*)"
    )
    starts = f"min({source.start}), max({source.start})"
    outside = [f"{source.start} NOT BETWEEN {bracket[0]} AND {bracket[1]}"] if bracket else []
    if not source.end:
        return f"{n_rows}, 0, {starts}", " OR ".join(outside)
    outside += [f"{source.end} > {bracket[1]}", f"{source.end} IS NULL"] if bracket else []
    what = f"{n_rows}, count(*) - count({source.end}), {starts}, max({source.end})"
    return what, " OR ".join(outside)


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
