"""What is known of event tables whose rows are not read: by SQL aggregates over the file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property, reduce
from operator import or_
from typing import Any, Final

import numpy as np
import pandas as pd

from traceprof.formats.contract import OUTLINED_TABLES, Outline
from traceprof.formats.sqlite.database import Database
from traceprof.formats.sqlite.scan import Extent, Owners, Scan, Source, scan_each
from traceprof.model.tables import ABSENT, TABLES
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import DEVICE_TABLES, Trace

__all__ = ["EVENT_TABLES", "SELF_DESCRIPTION", "Survey", "outline_from"]

EVENT_TABLES: Final = tuple(
    name for name, table in TABLES.items() if table.has_times and not table.detail_of
)
SELF_DESCRIPTION: Final = frozenset(name for name, table in TABLES.items() if not table.has_times)
"""The tables that say what the file is of: devices, processes, threads, environment."""


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

    def look(self) -> None:
        """Look at all tables that were not read, which also tells where the rows of windows are."""
        _ = self._scans

    def extent(self, name: str) -> Extent:
        """Return the extent of a table of the Trace."""
        if name not in self._extents:
            if name in self._frames:
                self._extents[name] = Extent.of(self._frames[name])
            else:
                correct = self._corrections.get(name)
                scans = (self._scans[name, source] for source in self._sources.get(name, ()))
                found = reduce(or_, (scan.extent for scan in scans), Extent())
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
        return any(
            self._has_row_of(name, source, processes)
            for name, source in self._unread_sources(EVENT_TABLES)
        )

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

    def _owners(self, names: Iterable[str]) -> list[tuple[str, Source, Owners]]:
        """Return who has rows in the sources of the tables that were not read."""
        return [
            (name, source, self._scans[name, source].owners)
            for name, source in self._unread_sources(names)
        ]

    def _unread_sources(self, names: Iterable[str]) -> list[tuple[str, Source]]:
        """Return the sources of the tables that were not read that say whose their rows are."""
        return [
            (name, source)
            for name in names
            for source in self._sources.get(name, ())
            if source.process and name not in self._frames
        ]

    @property
    def _places(self) -> set[tuple[int, int]]:
        """(Process, device as the file numbers it) of the device work that was not read."""
        found = self._owners(DEVICE_TABLES)
        return {_place(source, owner) for _, source, owners in found for owner in owners}

    @cached_property
    def _counts(self) -> dict[str, dict[Any, int]]:
        """Table → process or, of device work, (process, device) → how many rows it has."""
        owned = [
            (name, source, self._scans[name, source])
            for name, source in self._unread_sources((*DEVICE_TABLES, *OUTLINED_TABLES))
        ]
        unknown = [one for one in owned if one[2].n_of is None]
        answers = self._database.rows_of_each(
            # To group is to sort: it is spared where all rows have one owner.
            source.select(self._database, ", ".join((*_owner(name, source), "count(*)")))
            + f" GROUP BY {'1, 2' if name in DEVICE_TABLES else 1}"
            if len(scan.owners) > 1
            else source.select(self._database, "count(*)")
            for name, source, scan in unknown
        )
        told = [
            (name, source, owner, n_rows)
            for name, source, scan in owned
            for owner, n_rows in (scan.n_of or {}).items()
        ]
        for (name, source, scan), rows in zip(unknown, answers, strict=True):
            counted = rows if len(scan.owners) > 1 else [(*one, *rows[0]) for one in scan.owners]
            told += [(name, source, tuple(owner), n_rows) for *owner, n_rows in counted]
        counts: dict[str, dict[Any, int]] = {name: {} for name in EVENT_TABLES}
        for name, source, owner, n_rows in told:
            place = _place(source, owner)
            key: Any = place if name in DEVICE_TABLES else place[0]
            counts[name][key] = counts[name].get(key, 0) + n_rows
        return counts

    @cached_property
    def _scans(self) -> dict[tuple[str, Source], Scan]:
        """What the sources of the tables that were not read hold."""
        unread = (name for name in EVENT_TABLES if name not in self._frames)
        places = [(name, one) for name in unread for one in self._sources.get(name, ())]
        columns = [_owner(*place) for place in places]
        sources = [source for _, source in places]
        found = scan_each(self._database, sources, columns, self._zero_ns)
        return dict(zip(places, found, strict=True))

    def _owned(self) -> Iterable[pd.DataFrame]:
        frames = (self._frames[name] for name in EVENT_TABLES if name in self._frames)
        return (frame for frame in frames if "process" in frame)

    def _has_row_of(self, name: str, source: Source, processes: Collection[int] | None) -> bool:
        if source.counted is not None:
            found = {source.process_of(owner[0]) for owner in self._scans[name, source].owners}
            known = {one for one in found if one >= 0}
            return bool(known.intersection(processes) if processes is not None else known)
        if source.process_of is not int:
            (rows,) = self._database.rows_of_each(
                [source.select(self._database, f"DISTINCT {source.process}")]
            )
            found = {source.process_of(value) for (value,) in rows}
            return bool(found.intersection(processes) if processes is not None else found)
        told = ">= 0" if processes is None else f"IN ({', '.join(map(str, processes)) or 'NULL'})"
        query = source.select(self._database, "1", f"{source.process} {told}") + " LIMIT 1"
        return bool(self._database.rows_of_each([query])[0])


def _owner(name: str, source: Source) -> tuple[str, ...]:
    """Return the columns of whom rows are."""
    if not source.process:
        return ()
    return (source.process, source.device) if name in DEVICE_TABLES else (source.process,)


def _place(source: Source, owner: Sequence[Any]) -> tuple[int, int]:
    """Return the process, and the device where there is one."""
    return source.process_of(owner[0]), int(owner[1]) if len(owner) > 1 else ABSENT


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
