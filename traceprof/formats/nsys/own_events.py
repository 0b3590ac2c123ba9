"""The events of traceprof's own NVTX domain in an nsys export: counting and removing them."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from traceprof.errors import TraceError
from traceprof.values import dataclass

__all__ = ["OwnEvents", "read_own_events", "remove_own_events"]

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
