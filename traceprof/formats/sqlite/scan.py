"""What big tables of a file hold, found in one pass of SQLite over each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, Final

import pandas as pd

from traceprof.formats.sqlite.database import Database
from traceprof.formats.sqlite.pages.file import NotPlainError
from traceprof.formats.sqlite.pages.totals import Counted, Totals, totals_of
from traceprof.formats.sqlite.soundness import UnsoundRowsError
from traceprof.values import dataclass

__all__ = ["Extent", "Owners", "Scan", "Source", "scan_each"]

_SAMPLE: Final = 1000
_MOST_KNOWN: Final = 16
"""Comparing each row with more owners costs more than a second pass."""

Owners = list[tuple[Any, ...]]
"""Whose rows are: process, or process and device, as the file has them."""


@dataclass(frozen=True, slots=True)
class Source:
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


@dataclass(frozen=True, slots=True)
class Scan:
    """What a source holds; ``n_of`` says how many rows each owner has, where it is known."""

    extent: Extent
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
    sources: Sequence[Source],
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
    sources: Sequence[Source],
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
    extent = Extent()
    if totals.n_rows:
        first, last = totals.first - zero_ns, totals.last - zero_ns
        extent = Extent(totals.n_rows, totals.n_open, first, last)
    return Scan(extent, list(n_of) if n_owner_columns else [], n_of if n_owner_columns else None)


def _scans_by_sql(
    database: Database,
    sources: Sequence[Source],
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
    database: Database, source: Source, columns: Sequence[str], sample: _Sample | None
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
        return Scan(Extent(), [])
    known = [(sample.first, sample.last)] if sample else []
    starts = [one for one in (first, *(pair[0] for pair in known)) if one is not None]
    ends = [one for one in (*last, *(pair[1] for pair in known)) if one is not None]
    extent = Extent(n_rows, n_open, int(min(starts)) - zero_ns, int(max(ends)) - zero_ns)
    return Scan(extent, sample.owners if sample else [])


def _sample(database: Database, source: Source, columns: Sequence[str]) -> _Sample | None:
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


def _is_known(source: Source, places: Sequence[str], known: set[tuple[Any, ...]]) -> str:
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
