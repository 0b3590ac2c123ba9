"""Taking an nsys export apart: by processes, and without traceprof's own NVTX domain."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from traceprof.errors import TraceError, UsageError
from traceprof.formats.sqlite.schema import quoted

_OWNERS: Final = ("globalTid", "globalPid")
"""Columns that say whose a row is; where there are both, the first counts."""
_OF_THE_NODE: Final = ("TARGET_INFO_", "DIAGNOSTIC_EVENT")
"""Tables that are copied whole although some of their rows name a process."""
_NO_EVENTS: Final = ("PROFILER_OVERHEAD",)
_DETAILS: Final = {
    "CUDA_CALLCHAINS": ("id", "CUPTI_ACTIVITY_KIND_RUNTIME", "callchainId"),
    "OSRT_CALLCHAINS": ("id", "OSRT_API", "callchainId"),
    "SAMPLING_CALLCHAINS": ("id", "COMPOSITE_EVENTS", "id"),
    "GENERIC_EVENT_DATA": ("genericEventId", "GENERIC_EVENTS", "genericEventId"),
}
"""Table → (its column, the table of events that it tells more about, the column there)."""


def copy_processes(export: Path, path: Path, processes: Collection[int], *, others: bool) -> int:
    """Write the rows of some processes of an nsys export to the new file ``path``.

    Rows that belong to no process (the machine, its GPUs and counters, strings, codes) are in
    it, too, so that the file stands alone; times are those of the export. Memory does not grow
    with the file.

    Args:
        export: is only read.
        path: must not exist, or be empty; where the copying fails nothing is left there.
        processes: their ids.
        others: write the rows of all processes but these, and those whose process is unknown.

    Returns:
        How many events of processes the file has.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            for pragma in ("journal_mode = OFF", "synchronous = OFF", "locking_mode = EXCLUSIVE"):
                connection.execute(f"PRAGMA {pragma}")
            # Immutable: several of these read the same file side by side.
            address = f"file:{quote(str(export.absolute()))}?mode=ro&immutable=1"
            connection.execute("ATTACH ? AS export", (address,))
            connection.execute("BEGIN")
            n_events = _copy_tables(connection, processes, others=others)
            connection.execute("COMMIT")
    except sqlite3.Error as error:
        path.unlink(missing_ok=True)
        raise UsageError(f"{path}: cannot be written ({error})") from error
    return n_events


def remove_lone_overheads(export: Path, processes: Collection[int]) -> None:
    """Remove the profiler's own time in processes of which the export has nothing else.

    That of a launcher comes first, and times would count from there in one file, but not in files
    of ranks. What it took in ``processes`` stays.

    Raises:
        TraceError: the export cannot be changed.
    """
    try:
        with closing(sqlite3.connect(export)) as connection, connection:
            owners = _owners_of_events(connection)
            overheads = [name for name in owners if name.startswith(_NO_EVENTS)]
            kept = {int(process) & 0xFFFFFF for process in processes}
            for name in owners.keys() - set(overheads):
                sql = f"SELECT DISTINCT {owners[name]} >> 24 & 0xFFFFFF FROM {quoted(name)}"
                kept |= {process for (process,) in connection.execute(sql) if process is not None}
            for name in overheads:
                condition = f"NOT ({_belongs(owners[name], kept, others=False)})"
                connection.execute(f"DELETE FROM {quoted(name)} WHERE {condition}")
    except sqlite3.Error as error:
        raise TraceError(f"{export}: cannot be changed ({error})") from error


def _owners_of_events(connection: sqlite3.Connection) -> dict[str, str]:
    """Return table → the column that says whose a row is, of the tables of events."""
    found = {}
    tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    for (name,) in tables:
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({quoted(name)})")]
        owner = next((column for column in _OWNERS if column in columns), None)
        if owner and {"start", "timestamp"} & set(columns) and not name.startswith(_OF_THE_NODE):
            found[name] = owner
    return found


def _copy_tables(
    connection: sqlite3.Connection, processes: Collection[int], *, others: bool
) -> int:
    tables = connection.execute(
        "SELECT name, sql FROM export.sqlite_master"
        " WHERE type = 'table' AND substr(name, 1, 7) <> 'sqlite_'"
    ).fetchall()
    n_events = 0
    for name, sql in sorted(tables, key=lambda table: table[0] in _DETAILS):
        connection.execute(sql)
        columns = [row[1] for row in connection.execute(f"PRAGMA main.table_info({quoted(name)})")]
        owner = next((column for column in _OWNERS if column in columns), None)
        condition = "1"
        if owner is not None and not name.startswith(_OF_THE_NODE):
            condition = _belongs(owner, processes, others=others)
        elif name in _DETAILS:
            condition = _is_wanted(name, {table for table, _ in tables})
        n_rows = connection.execute(
            f"INSERT INTO main.{quoted(name)} SELECT * FROM export.{quoted(name)} WHERE {condition}"
        ).rowcount
        is_event = owner is not None and {"start", "timestamp"} & set(columns)
        if is_event and not name.startswith((*_OF_THE_NODE, *_NO_EVENTS)):
            n_events += n_rows
    return n_events


def _belongs(owner: str, processes: Collection[int], *, others: bool) -> str:
    """Return the condition on rows of ``processes``, or of all others."""
    listed = ", ".join(str(int(process) & 0xFFFFFF) for process in processes)
    process = f"({owner} >> 24 & 0xFFFFFF)"
    return f"coalesce({process} NOT IN ({listed}), 1)" if others else f"{process} IN ({listed})"


def _is_wanted(name: str, tables: set[str]) -> str:
    """Return the condition on the details of events that have been copied."""
    column, events, reference = _DETAILS[name]
    return f"{column} IN (SELECT {reference} FROM main.{events})" if events in tables else "1"


_CLOCK_MARKS: Final = """
    SELECT start, int64Value FROM NVTX_EVENTS
    LEFT JOIN StringIds ON StringIds.id = textId
    WHERE eventType = 34 AND coalesce(text, value) = 'clock' AND int64Value > 0
    ORDER BY int64Value"""
_SESSION: Final = "SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME"
_DOMAINS: Final = """
    SELECT globalTid >> 24, domainId FROM NVTX_EVENTS WHERE eventType = 75 AND text = 'traceprof'"""
_COUNTS: Final = """
    SELECT globalTid >> 24 AS process, domainId, count(*), max(start) FROM NVTX_EVENTS
    WHERE eventType IN (59, 60) GROUP BY process, domainId"""
_REMOVE: Final = """
    DELETE FROM NVTX_EVENTS
    WHERE eventType IN (34, 59, 60) AND globalTid >> 24 = ? AND domainId = ?"""
_PID: Final = 0xFFFFFF


@dataclass(frozen=True, slots=True)
class OwnEvents:
    """What an nsys export has of traceprof's own NVTX domain.

    Attributes:
        epoch_ns: the start of the session in ns since 1970; 0 where it is not known.
        clock_marks: pairs (time on the export's clock, ns since 1970), in the order of time.
        n_ranges: process → number of its ranges, 0 for any other.
        last_ns: process → start of its last range, on the export's clock.
    """

    epoch_ns: int
    clock_marks: Sequence[tuple[int, int]]
    n_ranges: Counter[int]
    last_ns: Mapping[int, int]


def read_own_events(database: Path) -> OwnEvents:
    """Return what the nsys export ``database`` has of our own domain.

    Raises:
        TraceError: the export is not readable.
    """
    with _opened(database, "not a readable export of nsys") as connection:
        session = _rows(connection, "TARGET_INFO_SESSION_START_TIME", _SESSION)
        marks = _rows(connection, "NVTX_EVENTS", _CLOCK_MARKS)
        domains = set(_rows(connection, "NVTX_EVENTS", _DOMAINS))
        counts = _rows(connection, "NVTX_EVENTS", _COUNTS)
    n_ranges: Counter[int] = Counter()
    last_ns: dict[int, int] = {}
    for process, domain, count, last in counts:
        if (process, domain) in domains:
            n_ranges[process & _PID] += count
            last_ns[process & _PID] = max(last, last_ns.get(process & _PID, last))
    return OwnEvents(session[0][0] if session else 0, marks, n_ranges, last_ns)


def remove_own_events(database: Path, processes: Collection[int]) -> None:
    """Remove the ranges and marks of our domain that these processes left in the export.

    Raises:
        TraceError: the export cannot be changed.
    """
    with _opened(database, "cannot be changed") as connection:
        for row in _rows(connection, "NVTX_EVENTS", _DOMAINS):
            if row[0] & _PID in processes:
                connection.execute(_REMOVE, row)


@contextmanager
def _opened(database: Path, complaint: str) -> Iterator[sqlite3.Connection]:
    """Open an export; what goes wrong becomes a `TraceError` that begins with ``complaint``."""
    try:
        with closing(sqlite3.connect(database)) as connection, connection:
            yield connection
    except sqlite3.Error as error:
        raise TraceError(f"{database}: {complaint} ({error})") from error


def _rows(connection: sqlite3.Connection, needed: str, sql: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query; none where the export lacks the table ``needed``."""
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    return connection.execute(sql).fetchall() if needed in tables else []
