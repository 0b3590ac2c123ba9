"""What is known of event tables whose rows are not read: how many, from when to when, and whose.

Found in one pass over each table of the file, by its pages or by aggregates in SQL.
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
    """Rows of a table of the file that become rows of a table of the Trace, each one of one.

    ``start``, ``end``, ``process`` and ``device`` are SQL. ``end`` is empty for instants, and
    where it is smaller than the start or NULL the row ends where it starts. ``process_of`` makes
    the process of what ``process`` gives; a negative one is not known. ``counted`` says the same by
    columns, where that is possible: what can then be decoded from pages is.
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
        """The SQL of whom a row is: its process, and its device where it has one; of none ()."""
        return tuple(filter(None, (self.process, self.device))) if self.process else ()

    def place(self, owner: Sequence[Any]) -> tuple[int, int]:
        """Return process and device of what ``owner`` gives; `ABSENT` where there is no device."""
        device = owner[1] if len(owner) > 1 else ABSENT
        return self.process_of(owner[0]), ABSENT if isinstance(device, str) else int(device)

    def select(self, database: Database, what: str, *conditions: str) -> str:
        """Return a query of these rows, on the table as it is stored."""
        told = " AND ".join(f"({one})" for one in (self.where, *conditions) if one)
        rows = f" WHERE {told}" if told else ""
        return f"SELECT {what} FROM {database.stored_name(self.table)}{rows}"


def scan_each(database: Database, sources: Sequence[RowSource], zero_ns: int = 0) -> list[Scan]:
    """Return what each of ``sources`` holds: of tables that can be decoded in one pass over each.

    ``zero_ns`` is the time in the file that is time 0 of the Trace.
    """
    by_table: dict[str, dict[int, Counted]] = {}
    for number, source in enumerate(sources):
        if source.counted is not None:
            by_table.setdefault(source.table, {})[number] = source.counted
    found: dict[int, Scan] = {}
    for table, counted in by_table.items():
        asked = tuple(counted.values())
        scans, pages = database.found.get((table, asked)), database.pages_of(table)
        if scans is None and pages is not None:
            with suppress(NotPlainError):
                sound = database.catalogue.soundness(table)
                scans = database.found[table, asked] = scans_of(pages, database.rows, asked, sound)
        found |= dict(zip(counted, scans or (), strict=False))
    rest = [number for number in range(len(sources)) if number not in found]
    if rest:
        by_sql = _scans_by_sql(database, [sources[number] for number in rest])
        found |= dict(zip(rest, by_sql, strict=True))
    every = [found[number] for number in range(len(sources))]
    if not zero_ns:
        return every
    return [replace(scan, extent=scan.extent.since(zero_ns)) for scan in every]


def _scans_by_sql(database: Database, sources: Sequence[RowSource]) -> list[Scan]:
    """Return what each source holds, by aggregates of SQLite."""
    _check_rows(database, dict.fromkeys(source.table for source in sources))
    totals = [
        source.select(
            database,
            f"count(*), count({source.end or '*'}), min({source.start}), max({source.start}), "
            f"max({source.end or 'NULL'})",
        )
        for source in sources
    ]
    # To group is to sort: who has rows is found without.
    owned = [source for source in sources if source.owner]
    distinct = [source.select(database, f"DISTINCT {', '.join(source.owner)}") for source in owned]
    answers = iter(database.rows_of_each([*totals, *distinct]))
    extents = []
    for ((n_rows, n_ended, first, latest, last),) in islice(answers, len(sources)):
        end = latest if last is None else max(latest, last)
        told = n_rows, n_rows - n_ended, first, end
        extents.append(TableExtent(*map(int, told)) if n_rows else TableExtent())
    return [
        Scan(extent, next(answers) if source.owner else [])
        for source, extent in zip(sources, extents, strict=True)
    ]


def _check_rows(database: Database, tables: Iterable[str]) -> None:
    """Check that the rows of ``tables`` can be, which no total tells of all that may be wrong."""
    told = [(table, database.catalogue.soundness(table)) for table in tables]
    asked = [(table, sound) for table, sound in told if sound is not None]
    answers = database.rows_of_each(
        f"SELECT 1 FROM {database.stored_name(table)} WHERE {sound.sought()} LIMIT 1"
        for table, sound in asked
    )
    for (table, _), rows in zip(asked, answers, strict=True):
        if rows:
            raise UnsoundRowsError(table)
        database.catalogue.is_sound(table)


EVENT_TABLES: Final = tuple(
    name for name, table in TABLES.items() if table.has_times and not table.detail_of
)
SELF_DESCRIPTION: Final = frozenset(name for name, table in TABLES.items() if not table.has_times)
"""The tables that say what the file is of: devices, processes, threads, environment."""


@dataclass(eq=False)
class Survey:
    """What the event tables of a file are like as a whole, whichever of them were read.

    ``sources`` say where the rows of each table of the Trace come from; of ``tables``, which were
    read whole, nothing is asked in SQL. ``corrections`` tell what no `RowSource` describes: table →
    its extent of that of its sources. ``zero_ns`` is the time in the file that is time 0 of the
    Trace. ``elsewhere`` are tables that were not read, and would be made of others: whether they
    had rows.
    """

    database: Database
    sources: Mapping[str, Sequence[RowSource]]
    tables: Mapping[str, Table]
    corrections: Mapping[str, Callable[[TableExtent], TableExtent]]
    zero_ns: int = 0
    elsewhere: Mapping[str, Callable[[], bool]] = field(default_factory=dict)
    _extents: dict[str, TableExtent] = field(default_factory=dict)

    def look(self) -> None:
        """Look at all tables that were not read, which also tells where the rows of windows are."""
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
        every = reduce(or_, extents, TableExtent())
        return TimeWindow(every.start_ns or 0, every.end_ns or 0)

    def with_rows(self) -> set[str]:
        """Return the names of the tables that have rows."""
        found = {name for name, has_rows in self.elsewhere.items() if has_rows()}
        here = [name for name in EVENT_TABLES if name not in self.elsewhere]
        return found | {name for name in here if self.extent(name).n_rows}

    @cached_property
    def processes(self) -> np.ndarray:
        """The processes that have rows, in order."""
        tables = (self.tables[name] for name in EVENT_TABLES if name in self.tables)
        owned = (table["process"] for table in tables if "process" in table)
        found = {one for owners in owned for one in places_of(owners)[1]}
        unread = self._owned(EVENT_TABLES)
        found |= {one.process_of(owner[0]) for one, scan in unread for owner in scan.owners}
        return np.array(sorted(one for one in found if one >= 0), np.int64)

    def process_rows(self, name: str) -> dict[int, int]:
        """Return process → how many rows; of a table of `OUTLINED_TABLES` that was not read."""
        found = Counter[int]()
        for (process, _), n_rows in self.device_rows(name).items():
            found[process] += n_rows
        return found

    def device_rows(self, name: str) -> dict[tuple[int, int], int]:
        """Return (process, device as the file numbers it) → how many kernels or copies.

        Of tables that were not read.
        """
        found = Counter[tuple[int, int]]()
        for source, scan in self._owned([name]):
            for owner, n_rows in self._n_of(source, scan).items():
                found[source.place(owner)] += n_rows
        return found

    def worked(self, device_of: Callable[[int, int], int]) -> set[int]:
        """Return the devices that have kernels or copies.

        ``device_of`` tells the device of the Trace, which tables have, of a process and the number
        that the file gives it.
        """
        tables = (self.tables[name] for name in DEVICE_TABLES if name in self.tables)
        found = {one for table in tables for one in places_of(table["device"])[1]}
        unread = self._owned(DEVICE_TABLES)
        places = {one.place(owner) for one, scan in unread for owner in scan.owners}
        return found | {device_of(*place) for place in places}

    def count(self, name: str, condition: Callable[[RowSource], str]) -> int:
        """Return how many rows of a table satisfy a condition in SQL."""
        sources = self.sources.get(name, ())
        queries = [one.select(self.database, "count(*)", condition(one)) for one in sources]
        return sum(int(rows[0][0]) for rows in self.database.rows_of_each(queries))

    def unclosed(self, n_read: int | None) -> list[str]:
        """Return what is to be said of ranges that were never closed; of what was read it is known.

        ``n_read`` is how many those are that were read, None where not all ranges were.
        """
        n_rows = self.extent("ranges").n_open if n_read is None else n_read
        told = f"{n_rows} NVTX ranges were never closed; traceprof ends them with the capture"
        return [told] if n_rows else []

    def _owned(self, names: Iterable[str]) -> list[tuple[RowSource, Scan]]:
        """Return the sources of tables that were not read that say whose their rows are."""
        return [
            (source, self._scans[name, source])
            for name in names
            for source in self.sources.get(name, ())
            if source.process and name not in self.tables
        ]

    def _n_of(self, source: RowSource, scan: Scan) -> Mapping[tuple[Any, ...], int]:
        """Return how many rows each owner has."""
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
        """What the sources of the tables that were not read hold."""
        unread = (name for name in EVENT_TABLES if name not in self.tables)
        places = [(name, one) for name in unread for one in self.sources.get(name, ())]
        found = scan_each(self.database, [source for _, source in places], self.zero_ns)
        return dict(zip(places, found, strict=True))


def outline_from(
    trace: Trace, survey: Survey, device_of: Callable[[int, int], int] = lambda _, device: device
) -> Outline:
    """Return the outline of a file whose events were not read.

    ``trace`` has the tables of `SELF_DESCRIPTION`; ``device_of`` is as in `Survey.worked`.
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
