"""What is known of event tables whose rows are not read: how many, from when to when, and whose.

Found in one pass over each table of the file, by its pages or by aggregates in SQL.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from operator import or_
from typing import Any, Final

import numpy as np
import pandas as pd

from traceprof.formats.contract import OUTLINED_TABLES, Outline
from traceprof.formats.sqlite.database import Database
from traceprof.formats.sqlite.pages.totals import Counted, Totals, totals_of
from traceprof.formats.sqlite.pages.tree import NotPlainError
from traceprof.formats.sqlite.schema import UnsoundRowsError
from traceprof.model.tables import ABSENT, TABLES
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import DEVICE_TABLES, Trace

_SAMPLE: Final = 1000
_MOST_KNOWN: Final = 16
"""Comparing each row with more owners costs more than a second pass."""

Owners = list[tuple[Any, ...]]
"""Whose rows are: process, or process and device, as the file has them."""


@dataclass(frozen=True, slots=True)
class RowSource:
    """Rows of a table of the file that become rows of a table of the Trace, each one of one.

    ``start``, ``end``, ``process`` and ``device`` are SQL. ``end`` is empty for instants, and
    where it is smaller than the start or NULL the row ends where it starts. ``process_of`` makes
    the process of what ``process`` gives; a negative one is not known. Rows whose number in the
    column ``number`` is the same without its lowest ``number_bits`` are of one process. ``counted``
    says the same by columns, where that is possible: what can then be decoded from pages is.
    """

    table: str
    start: str = "start"
    end: str = "[end]"
    process: str = ""
    device: str = ""
    where: str = ""
    process_of: Callable[[Any], int] = int
    number: str = ""
    number_bits: int = 0
    counted: Counted | None = None

    def select(self, database: Database, what: str, *conditions: str) -> str:
        """Return a query of these rows, on the table as it is stored."""
        told = " AND ".join(f"({one})" for one in (self.where, *conditions) if one)
        rows = f" WHERE {told}" if told else ""
        return f"SELECT {what} FROM {database.stored_name(self.table)}{rows}"


@dataclass(frozen=True, slots=True)
class TableExtent:
    """How many rows a table has, how many of them without an end, and the time they cover (ns).

    Without rows it covers nothing: ``start_ns`` and ``end_ns`` are None.
    """

    n_rows: int = 0
    n_open: int = 0
    start_ns: int | None = None
    end_ns: int | None = None

    def __or__(self, other: TableExtent) -> TableExtent:
        """Return the extent of the rows of both."""
        starts = [one for one in (self.start_ns, other.start_ns) if one is not None]
        ends = [one for one in (self.end_ns, other.end_ns) if one is not None]
        return TableExtent(
            self.n_rows + other.n_rows,
            self.n_open + other.n_open,
            min(starts, default=None),
            max(ends, default=None),
        )

    @staticmethod
    def of(frame: pd.DataFrame) -> TableExtent:
        """Return the extent of a table that was read."""
        if frame.empty:
            return TableExtent()
        ends = frame["end_ns" if "end_ns" in frame else "start_ns"]
        return TableExtent(len(frame), 0, int(frame["start_ns"].iloc[0]), int(ends.max()))


@dataclass(frozen=True, slots=True)
class Scan:
    """What a source holds; ``n_of`` says how many rows each owner has, where it is known."""

    extent: TableExtent
    owners: Owners
    n_of: Mapping[tuple[Any, ...], int] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class _Sample:
    """What some rows of a source hold: the time that they cover, and who has them, in SQL."""

    first: int
    last: int
    owners: Owners
    is_known: str


def scan_each(
    database: Database,
    sources: Sequence[RowSource],
    owners: Sequence[Sequence[str]],
    zero_ns: int = 0,
) -> list[Scan]:
    """Return what each of ``sources`` holds.

    Rows are nearly in the order of time, and their owners are few: only a row outside of what a
    sample holds can add to it, and to refuse the others costs half of aggregating them.

    Args:
        database: the open file.
        sources: whose rows are looked at, side by side.
        owners: of each source the columns in SQL of whom a row is; none where nothing tells.
        zero_ns: the time in the file that is time 0 of the Trace.
    """
    found = _scans_of_pages(database, sources, owners, zero_ns)
    rest = [number for number in range(len(sources)) if number not in found]
    by_sql = _scans_by_sql(
        database, [sources[one] for one in rest], [owners[one] for one in rest], zero_ns
    )
    found |= dict(zip(rest, by_sql, strict=True))
    return [found[number] for number in range(len(sources))]


def _scans_of_pages(
    database: Database,
    sources: Sequence[RowSource],
    owners: Sequence[Sequence[str]],
    zero_ns: int,
) -> dict[int, Scan]:
    """Return what those sources hold whose tables can be decoded."""
    by_table: dict[str, list[int]] = {}
    for number, source in enumerate(sources):
        if source.counted is not None:
            by_table.setdefault(source.table, []).append(number)
    found: dict[int, Scan] = {}
    for table, numbers in by_table.items():
        pages = database.pages_of(table)
        asked = [sources[one].counted for one in numbers]
        if pages is None:
            continue
        totals = database.found.get((table, *asked))
        if totals is None:
            try:
                totals = totals_of(
                    pages,
                    database.rows,
                    [one for one in asked if one],
                    database.catalogue.soundness(table),
                )
            except NotPlainError:
                continue
            database.found[table, *asked] = totals
        for number, one in zip(numbers, totals, strict=True):
            found[number] = _scan_of_totals(one, len(owners[number]), zero_ns)
    return found


def _scan_of_totals(totals: Totals, n_owner_columns: int, zero_ns: int) -> Scan:
    n_of: dict[tuple[Any, ...], int] = {}
    for owner, n_rows in totals.n_of.items():
        key = owner[:n_owner_columns]
        n_of[key] = n_of.get(key, 0) + n_rows
    extent = TableExtent()
    if totals.n_rows:
        first, last = totals.first - zero_ns, totals.last - zero_ns
        extent = TableExtent(totals.n_rows, totals.n_open, first, last)
    return Scan(extent, list(n_of) if n_owner_columns else [], n_of if n_owner_columns else None)


def _scans_by_sql(
    database: Database,
    sources: Sequence[RowSource],
    owners: Sequence[Sequence[str]],
    zero_ns: int,
) -> list[Scan]:
    """Return what each source holds, in one pass of SQLite over each."""
    _check_rows(database, dict.fromkeys(source.table for source in sources))
    samples = [
        _sample(database, source, columns) for source, columns in zip(sources, owners, strict=True)
    ]
    asked = list(zip(sources, owners, samples, strict=True))
    answers = database.rows_of_each(_query(database, *one) for one in asked)
    scans = [
        _scan_of(rows[0], sample, zero_ns) for rows, sample in zip(answers, samples, strict=True)
    ]
    unsure = [
        number
        for number, (rows, columns) in enumerate(zip(answers, owners, strict=True))
        if columns and rows[0][-1]
    ]
    distinct = database.rows_of_each(
        sources[number].select(database, f"DISTINCT {', '.join(owners[number])}")
        for number in unsure
    )
    for number, rows in zip(unsure, distinct, strict=True):
        scans[number] = Scan(scans[number].extent, rows)
    return scans


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


def _query(
    database: Database, source: RowSource, columns: Sequence[str], sample: _Sample | None
) -> str:
    """Return the query of rows, those without an end, first and last times, and new owners."""
    n_open = f"count(*) - count({source.end})" if source.end else "0"
    last = f"max({source.end})" if source.end else "NULL"
    times = f"{n_open}, min({source.start}), max({source.start}), {last}"
    known = sample.is_known if sample else ""
    if sample is None:
        return source.select(database, f"count(*), {times}, {'count(*)' if columns else 0}")
    inside = [f"{source.start} >= {sample.first}", f"{source.start} <= {sample.last}"]
    inside += [f"{source.end} <= {sample.last}"] if source.end else []
    inside += [f"({known})"] if known else []
    # NOT alone, in spite of NULLs, since IS NOT TRUE takes SQLite twice as long.
    outside = [f"NOT ({' AND '.join(inside)})"]
    outside += [f"{source.end} IS NULL"] if source.end else []
    outside += [f"{source.number} IS NULL"] if known else []
    n_rows = f"({source.select(database, 'count(*)')})"
    is_new = f"max(({known}) IS NOT 1)" if known else n_rows
    what = f"{n_rows}, {times}, {is_new if columns else 0}"
    return source.select(database, what, " OR ".join(outside))


def _scan_of(row: Sequence[Any], sample: _Sample | None, zero_ns: int) -> Scan:
    n_rows, n_open, first, *last, _ = row
    if not n_rows:
        return Scan(TableExtent(), [])
    known = [(sample.first, sample.last)] if sample else []
    starts = [one for one in (first, *(pair[0] for pair in known)) if one is not None]
    ends = [one for one in (*last, *(pair[1] for pair in known)) if one is not None]
    extent = TableExtent(n_rows, n_open, int(min(starts)) - zero_ns, int(max(ends)) - zero_ns)
    return Scan(extent, sample.owners if sample else [])


def _sample(database: Database, source: RowSource, columns: Sequence[str]) -> _Sample | None:
    """Return what the first, the last and some rows between them hold; None where that is none."""
    table, row_id = database.stored_name(source.table), database.catalogue.row_id(source.table)
    if row_id is None:
        return None
    # Both in one query would be sought in all rows, each alone is looked up.
    ((first, last),) = database.rows(
        f"SELECT (SELECT min({row_id}) FROM {table}), (SELECT max({row_id}) FROM {table})"
    )
    if first is None:
        return None
    between = ", ".join(map(str, range(first, last + 1, max((last - first) // _SAMPLE, 1))))
    number = [f"{source.number} >> {source.number_bits}"] if source.number else []
    times = f"min({source.start}), max({source.start})"
    times += f", max({source.end})" if source.end else ", NULL"
    grouped = [str(place) for place in range(4, 4 + len(columns) + len(number))]
    groups = f" GROUP BY {', '.join(grouped)}" if grouped else ""
    rows = [
        row
        for edge_or_between in (
            f"{row_id} < {first + _SAMPLE} OR {row_id} > {last - _SAMPLE}",
            f"{row_id} IN ({between})",
        )
        for row in database.rows(
            source.select(database, ", ".join((times, *columns, *number)), edge_or_between) + groups
        )
    ]
    starts = [int(row[0]) for row in rows if row[0] is not None]
    lasts = [int(one) for row in rows for one in row[1:3] if one is not None]
    if not starts:
        return None
    owners = {tuple(row[3 : 3 + len(columns)]) for row in rows}
    known = {tuple(row[4:]) for row in rows} if columns and source.number else set()
    is_known = _is_known(source, columns[1:], known) if len(known) <= _MOST_KNOWN else ""
    return _Sample(min(starts), max(lasts), sorted(owners, key=repr), is_known)


def _is_known(source: RowSource, places: Sequence[str], known: set[tuple[Any, ...]]) -> str:
    """Return SQL of whether a row is of one of the ``known`` (place …, upper bits)."""
    told = []
    for *where, upper in known:
        if upper is not None:
            least = upper << source.number_bits
            most = least + (1 << source.number_bits) - 1
            is_there = [
                f"{place} IS {'NULL' if value is None else value}"
                for place, value in zip(places, where, strict=True)
            ]
            told.append(" AND ".join([f"{source.number} BETWEEN {least} AND {most}", *is_there]))
    return " OR ".join(f"({one})" for one in told)


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
        sources: Mapping[str, Sequence[RowSource]],
        frames: Mapping[str, pd.DataFrame],
        corrections: Mapping[str, Callable[[TableExtent], TableExtent]],
        zero_ns: int = 0,
        found_elsewhere: Mapping[str, Callable[[], bool]] | None = None,
    ) -> None:
        self._database = database
        self._sources = sources
        self._frames = frames
        self._zero_ns = zero_ns
        self._corrections = corrections
        self._found_elsewhere = found_elsewhere or {}
        self._extents: dict[str, TableExtent] = {}

    def look(self) -> None:
        """Look at all tables that were not read, which also tells where the rows of windows are."""
        _ = self._scans

    def extent(self, name: str) -> TableExtent:
        """Return the extent of a table of the Trace."""
        if name not in self._extents:
            if name in self._frames:
                self._extents[name] = TableExtent.of(self._frames[name])
            else:
                correct = self._corrections.get(name)
                scans = (self._scans[name, source] for source in self._sources.get(name, ()))
                found = reduce(or_, (scan.extent for scan in scans), TableExtent())
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

    def count(self, name: str, condition: Callable[[RowSource], str]) -> int:
        """Return how many rows of a table satisfy a condition in SQL."""
        queries = [
            source.select(self._database, "count(*)", condition(source))
            for source in self._sources.get(name, ())
        ]
        return sum(int(rows[0][0]) for rows in self._database.rows_of_each(queries))

    def _owners(self, names: Iterable[str]) -> list[tuple[str, RowSource, Owners]]:
        """Return who has rows in the sources of the tables that were not read."""
        return [
            (name, source, self._scans[name, source].owners)
            for name, source in self._unread_sources(names)
        ]

    def _unread_sources(self, names: Iterable[str]) -> list[tuple[str, RowSource]]:
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
            source.select(self._database, ", ".join((*_owner_columns(name, source), "count(*)")))
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
    def _scans(self) -> dict[tuple[str, RowSource], Scan]:
        """What the sources of the tables that were not read hold."""
        unread = (name for name in EVENT_TABLES if name not in self._frames)
        places = [(name, one) for name in unread for one in self._sources.get(name, ())]
        columns = [_owner_columns(*place) for place in places]
        sources = [source for _, source in places]
        found = scan_each(self._database, sources, columns, self._zero_ns)
        return dict(zip(places, found, strict=True))

    def _owned(self) -> Iterable[pd.DataFrame]:
        frames = (self._frames[name] for name in EVENT_TABLES if name in self._frames)
        return (frame for frame in frames if "process" in frame)

    def _has_row_of(self, name: str, source: RowSource, processes: Collection[int] | None) -> bool:
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


def _owner_columns(name: str, source: RowSource) -> tuple[str, ...]:
    """Return the columns of whom rows are."""
    if not source.process:
        return ()
    return (source.process, source.device) if name in DEVICE_TABLES else (source.process,)


def _place(source: RowSource, owner: Sequence[Any]) -> tuple[int, int]:
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
        trace,
        {name: survey.extent(name).n_rows for name in EVENT_TABLES},
        device_rows,
        {name: survey.process_rows(name) for name in OUTLINED_TABLES},
    )
