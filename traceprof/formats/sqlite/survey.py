"""Measure event tables without reading their rows: number of rows, time span, and owners.

The measurement takes one pass over each table of the file, over its pages or in SQL.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from itertools import islice
from operator import or_
from typing import Any, Final

import numpy as np

from traceprof.formats.contract import OUTLINED_TABLES, Outline
from traceprof.formats.sqlite.database import Database
from traceprof.formats.sqlite.pages.totals import Counted, Scan, TableExtent, scans_of
from traceprof.formats.sqlite.pages.tree import NotPlainError
from traceprof.formats.sqlite.schema import UnsoundRowsError
from traceprof.model.grouping import places_of
from traceprof.model.table import Table
from traceprof.model.tables import ABSENT, TABLES
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import DEVICE_TABLES, Trace


@dataclass(frozen=True, slots=True)
class RowSource:
    """Rows of a table of the file, each of which becomes one row of a table of the Trace.

    ``start``, ``end``, ``process`` and ``device`` are SQL. ``end`` is empty for instants. A row
    ends where it starts if ``end`` is NULL or smaller than the start. ``process_of`` converts the
    value of ``process`` to a process; a negative process is unknown. ``counted`` describes the same
    rows by columns, if possible, so that they can be decoded from pages.
    """

    table: str
    start: str = "start"
    end: str = "[end]"
    process: str = ""
    device: str = ""
    where: str = ""
    process_of: Callable[[Any], int] = int
    counted: Counted | None = None

    @property
    def owner(self) -> tuple[str, ...]:
        """The SQL of a row's owner: process, and device if it has one; () without a process."""
        return tuple(filter(None, (self.process, self.device))) if self.process else ()

    def place(self, owner: Sequence[Any]) -> tuple[int, int]:
        """Return process and device of the values of ``owner``; device `ABSENT` without one."""
        device = owner[1] if len(owner) > 1 else ABSENT
        return self.process_of(owner[0]), ABSENT if isinstance(device, str) else int(device)

    def select(self, database: Database, what: str, *conditions: str) -> str:
        """Return a query of ``what`` for these rows, from the stored table."""
        condition = " AND ".join(f"({part})" for part in (self.where, *conditions) if part)
        rows = f" WHERE {condition}" if condition else ""
        return f"SELECT {what} FROM {database.stored_name(self.table)}{rows}"


def scan_each(database: Database, sources: Sequence[RowSource], zero_ns: int = 0) -> list[Scan]:
    """Return the scan of each of ``sources``; tables that can be decoded need one pass each.

    ``zero_ns`` is the time in the file that is time 0 of the Trace.
    """
    by_table: dict[str, dict[int, Counted]] = {}
    for number, source in enumerate(sources):
        if source.counted is not None:
            by_table.setdefault(source.table, {})[number] = source.counted
    found: dict[int, Scan] = {}
    for table, counted in by_table.items():
        requests = tuple(counted.values())
        scans, pages = database.found.get((table, requests)), database.pages_of(table)
        if scans is None and pages is not None:
            with suppress(NotPlainError):
                scans = database.found[table, requests] = scans_of(
                    pages, database.rows, requests, database.catalogue.soundness(table)
                )
        found |= dict(zip(counted, scans or (), strict=False))
    remaining = [number for number in range(len(sources)) if number not in found]
    if remaining:
        by_sql = _scans_by_sql(database, [sources[number] for number in remaining])
        found |= dict(zip(remaining, by_sql, strict=True))
    scans_in_order = [found[number] for number in range(len(sources))]
    if not zero_ns:
        return scans_in_order
    return [replace(scan, extent=scan.extent.since(zero_ns)) for scan in scans_in_order]


def _scans_by_sql(database: Database, sources: Sequence[RowSource]) -> list[Scan]:
    """Return the scan of each source, from aggregates of SQLite."""
    _check_rows(database, dict.fromkeys(source.table for source in sources))
    totals = [
        source.select(
            database,
            f"count(*), count({source.end or '*'}), min({source.start}), max({source.start}), "
            f"max({source.end or 'NULL'})",
        )
        for source in sources
    ]
    # GROUP BY sorts all rows; DISTINCT finds the owners without sorting.
    owned = [source for source in sources if source.owner]
    distinct = [source.select(database, f"DISTINCT {', '.join(source.owner)}") for source in owned]
    answers = iter(database.rows_of_each([*totals, *distinct]))
    extents = []
    for ((n_rows, n_ended, first, latest, last),) in islice(answers, len(sources)):
        end = latest if last is None else max(latest, last)
        numbers = n_rows, n_rows - n_ended, first, end
        extents.append(TableExtent(*map(int, numbers)) if n_rows else TableExtent())
    return [
        Scan(extent, next(answers) if source.owner else [])
        for source, extent in zip(sources, extents, strict=True)
    ]


def _check_rows(database: Database, tables: Iterable[str]) -> None:
    """Check that the rows of ``tables`` are possible; aggregates do not reveal all faults."""
    rules = [(table, database.catalogue.soundness(table)) for table in tables]
    checked = [(table, sound) for table, sound in rules if sound is not None]
    answers = database.rows_of_each(
        f"SELECT 1 FROM {database.stored_name(table)} WHERE {sound.sought()} LIMIT 1"
        for table, sound in checked
    )
    for (table, _), rows in zip(checked, answers, strict=True):
        if rows:
            raise UnsoundRowsError(table)
        database.catalogue.is_sound(table)


EVENT_TABLES: Final = tuple(
    name for name, table in TABLES.items() if table.has_times and not table.detail_of
)
SELF_DESCRIPTION: Final = frozenset(name for name, table in TABLES.items() if not table.has_times)
"""The tables that describe the recording: devices, processes, threads, environment."""


@dataclass(eq=False)
class Survey:
    """Totals of a file's event tables, whether or not their rows were read.

    ``sources`` maps each table of the Trace to its rows in the file. ``tables`` were read
    completely and need no SQL. ``corrections`` adjust what no `RowSource` can describe: table → a
    function that converts the extent of its sources to its extent. ``zero_ns`` is the time in the
    file that is time 0 of the Trace. ``elsewhere`` are unread tables that are made of other data →
    whether they have rows.
    """

    database: Database
    sources: Mapping[str, Sequence[RowSource]]
    tables: Mapping[str, Table]
    corrections: Mapping[str, Callable[[TableExtent], TableExtent]]
    zero_ns: int = 0
    elsewhere: Mapping[str, Callable[[], bool]] = field(default_factory=dict)
    _extents: dict[str, TableExtent] = field(default_factory=dict)

    def look(self) -> None:
        """Scan all unread tables, which also finds where the rows of windows are."""
        _ = self._scans

    def extent(self, name: str) -> TableExtent:
        """Return the extent of a table of the Trace."""
        if name not in self._extents:
            if name in self.tables:
                self._extents[name] = TableExtent.of(self.tables[name])
            else:
                correct = self.corrections.get(name)
                scans = (self._scans[name, source] for source in self.sources.get(name, ()))
                found = reduce(or_, (scan.extent for scan in scans), TableExtent())
                self._extents[name] = correct(found) if correct else found
        return self._extents[name]

    @property
    def span(self) -> TimeWindow:
        """The time from the first to the last row of any table."""
        extents = [self.extent(name) for name in EVENT_TABLES if name not in self.elsewhere]
        extent = reduce(or_, extents, TableExtent())
        return TimeWindow(extent.start_ns or 0, extent.end_ns or 0)

    def with_rows(self) -> set[str]:
        """Return the names of the tables that have rows."""
        found = {name for name, has_rows in self.elsewhere.items() if has_rows()}
        surveyed = [name for name in EVENT_TABLES if name not in self.elsewhere]
        return found | {name for name in surveyed if self.extent(name).n_rows}

    @cached_property
    def processes(self) -> np.ndarray:
        """The processes that have rows, in ascending order."""
        tables = (self.tables[name] for name in EVENT_TABLES if name in self.tables)
        owned = (table["process"] for table in tables if "process" in table)
        found = {process for owners in owned for process in places_of(owners)[1]}
        unread = self._owned(EVENT_TABLES)
        found |= {source.process_of(owner[0]) for source, scan in unread for owner in scan.owners}
        return np.array(sorted(process for process in found if process >= 0), np.int64)

    def process_rows(self, name: str) -> dict[int, int]:
        """Return process → number of rows, of a table of `OUTLINED_TABLES` that was not read."""
        found = Counter[int]()
        for (process, _), n_rows in self.device_rows(name).items():
            found[process] += n_rows
        return found

    def device_rows(self, name: str) -> dict[tuple[int, int], int]:
        """Return (process, device number in the file) → number of kernels or copies.

        ``name`` is a table that was not read.
        """
        found = Counter[tuple[int, int]]()
        for source, scan in self._owned([name]):
            for owner, n_rows in self._n_of(source, scan).items():
                found[source.place(owner)] += n_rows
        return found

    def worked(self, device_of: Callable[[int, int], int]) -> set[int]:
        """Return the devices that have kernels or copies.

        ``device_of`` converts a process and the device number in the file to the device number of
        the Trace, which the tables contain.
        """
        tables = (self.tables[name] for name in DEVICE_TABLES if name in self.tables)
        found = {device for table in tables for device in places_of(table["device"])[1]}
        unread = self._owned(DEVICE_TABLES)
        places = {source.place(owner) for source, scan in unread for owner in scan.owners}
        return found | {device_of(*place) for place in places}

    def count(self, name: str, condition: Callable[[RowSource], str]) -> int:
        """Return how many rows of a table satisfy a SQL condition."""
        queries = [
            source.select(self.database, "count(*)", condition(source))
            for source in self.sources.get(name, ())
        ]
        return sum(int(rows[0][0]) for rows in self.database.rows_of_each(queries))

    def unclosed(self, n_read: int | None) -> list[str]:
        """Return a sentence about ranges that were never closed, if there are any.

        ``n_read`` is the number of unclosed ranges if all ranges were read, otherwise None.
        """
        n_rows = self.extent("ranges").n_open if n_read is None else n_read
        sentence = f"{n_rows} NVTX ranges were never closed; traceprof ends them with the capture"
        return [sentence] if n_rows else []

    def _owned(self, names: Iterable[str]) -> list[tuple[RowSource, Scan]]:
        """Return the sources of unread tables whose rows have an owner, and their scans."""
        return [
            (source, self._scans[name, source])
            for name in names
            for source in self.sources.get(name, ())
            if source.process and name not in self.tables
        ]

    def _n_of(self, source: RowSource, scan: Scan) -> Mapping[tuple[Any, ...], int]:
        """Return owner → number of rows."""
        if scan.n_of is not None:
            return scan.n_of
        if len(scan.owners) <= 1:
            return {tuple(owner): scan.extent.n_rows for owner in scan.owners}
        query = source.select(self.database, ", ".join((*source.owner, "count(*)")))
        places = ", ".join(str(place) for place, _ in enumerate(source.owner, 1))
        (rows,) = self.database.rows_of_each([f"{query} GROUP BY {places}"])
        return {tuple(owner): n_rows for *owner, n_rows in rows}

    @cached_property
    def _scans(self) -> dict[tuple[str, RowSource], Scan]:
        """The scans of the sources of unread tables."""
        unread = (name for name in EVENT_TABLES if name not in self.tables)
        keys = [(name, source) for name in unread for source in self.sources.get(name, ())]
        found = scan_each(self.database, [source for _, source in keys], self.zero_ns)
        return dict(zip(keys, found, strict=True))


def outline_from(
    trace: Trace, survey: Survey, device_of: Callable[[int, int], int] = lambda _, device: device
) -> Outline:
    """Return the outline of a file whose events were not read.

    ``trace`` has the tables of `SELF_DESCRIPTION`. ``device_of`` is as in `Survey.worked`.
    """
    device_rows: dict[str, Counter[tuple[int, int]]] = {}
    for name in DEVICE_TABLES:
        counts = device_rows[name] = Counter()
        for (process, ordinal), n_rows in survey.device_rows(name).items():
            counts[process, device_of(process, ordinal)] += n_rows
    return Outline(
        trace,
        {name: survey.extent(name).n_rows for name in EVENT_TABLES},
        device_rows,
        {name: survey.process_rows(name) for name in OUTLINED_TABLES},
    )
