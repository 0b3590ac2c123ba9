"""Split an nsys export by processes, and remove traceprof's own NVTX domain from it."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from traceprof.errors import TraceError, UsageError, WritingError
from traceprof.formats.nsys import schema
from traceprof.formats.nsys.secrets import edited
from traceprof.formats.sqlite.copying import DatabaseCopy, copying
from traceprof.formats.sqlite.schema import quoted
from traceprof.model.cutting import no_progress

_OWNERS: Final = ("globalTid", "globalPid")
"""Columns with the process of a row; if a table has both, the first one counts."""
_CACHE_KIB: Final = 2_000  # one cache per rank: all ranks are copied at once
_TIME_COLUMNS: Final = frozenset({"start", "timestamp"})
_NODE_PREFIXES: Final = ("TARGET_INFO_", "DIAGNOSTIC_EVENT")
"""Prefixes of the tables that are copied whole although some of their rows name a process."""
_OVERHEADS: Final = schema.OVERHEADS[0]
_PROCESS: Final = schema.process_sql("globalTid")
_CLOCK_MARKS: Final = f"""
    SELECT start, int64Value FROM {schema.NVTX} LEFT JOIN StringIds ON StringIds.id = textId
    WHERE eventType = {schema.NVTX_MARK} AND coalesce(text, value) = 'clock' AND int64Value > 0
    ORDER BY int64Value"""
_SESSION: Final = "SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME"
_DOMAINS: Final = f"""
    SELECT {_PROCESS}, domainId FROM {schema.NVTX}
    WHERE eventType = {schema.NVTX_DOMAIN} AND text = 'traceprof'"""
_COUNTS: Final = f"""
    SELECT {_PROCESS} AS process, domainId, count(*), max(start) FROM {schema.NVTX}
    WHERE {schema.ARE_RANGES} GROUP BY process, domainId"""
_REMOVE: Final = f"""
    DELETE FROM {schema.NVTX} WHERE (eventType = {schema.NVTX_MARK} OR {schema.ARE_RANGES})
    AND {_PROCESS} = ? AND domainId = ?"""


def copy_processes(export: Path, path: Path, processes: Collection[int], *, others: bool) -> int:
    """Write the rows of ``processes`` of an nsys export to the new file ``path``.

    Rows without a process (the machine, its GPUs and counters, strings, codes) are copied too, so
    that the file is complete. Times are those of the export. Memory use does not grow with the size
    of the file. ``path`` must not exist, or be empty; it is deleted if copying fails. ``others``:
    copy the rows of all other processes, and those with unknown process. Return the number of
    events of processes in the new file.

    Raises:
        WritingError: the file cannot be written.
    """
    try:
        # The source is opened immutable, because several processes read it at once.
        with copying(export, path, no_progress) as copy:
            copy.execute(f"PRAGMA source.cache_size = -{_CACHE_KIB}")
            return _copy_tables(copy, processes, others=others)
    except (TraceError, UsageError, OSError) as error:
        path.unlink(missing_ok=True)
        raise WritingError(f"{path}: cannot be written ({error.__cause__ or error})") from error


def _copy_tables(copy: DatabaseCopy, processes: Collection[int], *, others: bool) -> int:
    """Copy all tables; return the number of copied events that belong to processes."""
    n_events = 0
    for name, table in sorted(copy.tables.items(), key=lambda item: item[0] in schema.DETAILS):
        owner = next(filter(table.has, _OWNERS), None)
        condition = "1"
        if owner is not None and not name.startswith(_NODE_PREFIXES):
            condition = _process_condition(owner, processes, others=others)
        elif name in schema.DETAILS:
            column, events, reference = schema.DETAILS[name]
            if events in copy.tables:
                condition = f"{column} IN (SELECT {reference} FROM main.{events})"
        n_rows = copy.copy(name, condition)
        if owner and _TIME_COLUMNS & table.types.keys():
            n_events += 0 if name.startswith((*_NODE_PREFIXES, _OVERHEADS)) else n_rows
    return n_events


def _process_condition(owner: str, processes: Collection[int], *, others: bool) -> str:
    """Return the SQL condition for rows of ``processes``; with ``others``, of all others."""
    listed = ", ".join(str(int(process) & 0xFFFFFF) for process in processes)
    process = schema.process_sql(owner)
    return f"coalesce({process} NOT IN ({listed}), 1)" if others else f"{process} IN ({listed})"


def remove_lone_overheads(export: Path, processes: Collection[int]) -> None:
    """Remove profiler overhead of processes of which the export has no other events.

    The overhead of a launcher comes first. The time of a single file would start there, but the
    time of rank files would not. Overhead of ``processes`` stays.

    Raises:
        TraceError: the export cannot be changed.
    """
    with edited(export, "cannot be changed") as connection:
        owners = _owners_of_events(connection)
        overheads = [name for name in owners if name.startswith(_OVERHEADS)]
        kept = {int(process) & 0xFFFFFF for process in processes}
        for name in owners.keys() - set(overheads):
            sql = f"SELECT DISTINCT {schema.process_sql(owners[name])} FROM {quoted(name)}"
            kept |= {process for (process,) in connection.execute(sql) if process is not None}
        for name in overheads:
            condition = f"NOT ({_process_condition(owners[name], kept, others=False)})"
            connection.execute(f"DELETE FROM {quoted(name)} WHERE {condition}")


def _owners_of_events(connection: sqlite3.Connection) -> dict[str, str]:
    """Return table of events → its column with the process of a row."""
    found = {}
    tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    for (name,) in tables:
        columns = {row[1] for row in connection.execute(f"PRAGMA table_info({quoted(name)})")}
        owner = next((column for column in _OWNERS if column in columns), None)
        if owner and _TIME_COLUMNS & columns and not name.startswith(_NODE_PREFIXES):
            found[name] = owner
    return found


@dataclass(frozen=True, slots=True)
class TraceprofEvents:
    """The content of traceprof's own NVTX domain in an nsys export.

    ``epoch_ns`` is the session start in ns since 1970; 0 if unknown. ``clock_marks`` are pairs
    (time on the export's clock, ns since 1970), in this order. ``n_ranges`` is the number of ranges
    of each process; ``last_ns`` is the start of its last range, on the export's clock.
    """

    epoch_ns: int
    clock_marks: Sequence[tuple[int, int]]
    n_ranges: Counter[int]
    last_ns: Mapping[int, int]


def read_traceprof_events(database: Path) -> TraceprofEvents:
    """Return the content of traceprof's own domain in the nsys export ``database``.

    Raises:
        TraceError: the export is not readable.
    """
    with edited(database, "not a readable nsys export") as connection:
        session = _rows(connection, "TARGET_INFO_SESSION_START_TIME", _SESSION)
        marks = _rows(connection, schema.NVTX, _CLOCK_MARKS)
        domains = set(_rows(connection, schema.NVTX, _DOMAINS))
        counts = _rows(connection, schema.NVTX, _COUNTS)
    n_ranges: Counter[int] = Counter()
    last_ns: dict[int, int] = {}
    for process, domain, count, last in counts:
        if (process, domain) in domains:
            n_ranges[process] += count
            last_ns[process] = max(last, last_ns.get(process, last))
    return TraceprofEvents(session[0][0] if session else 0, marks, n_ranges, last_ns)


def remove_traceprof_events(database: Path, processes: Collection[int]) -> None:
    """Remove the ranges and marks of traceprof's own domain of these processes from the export.

    Raises:
        TraceError: the export cannot be changed.
    """
    with edited(database, "cannot be changed") as connection:
        for row in _rows(connection, schema.NVTX, _DOMAINS):
            if row[0] in processes:
                connection.execute(_REMOVE, row)


def _rows(connection: sqlite3.Connection, needed: str, sql: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query; none if the export lacks the table ``needed``."""
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    return connection.execute(sql).fetchall() if needed in tables else []
