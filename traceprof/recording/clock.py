"""What nsys recorded of our own events: its clock against the wall clock, and our ranges."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.errors import RecordingError

__all__ = ["ProfilerClock", "read_profiler_clock", "remove_our_events"]

_CLOCK_MARKS: Final = """
    SELECT start, int64Value FROM NVTX_EVENTS
    LEFT JOIN StringIds ON StringIds.id = textId
    WHERE eventType = 34 AND coalesce(text, value) = 'clock' AND int64Value > 0
    ORDER BY int64Value"""
_SESSION: Final = "SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME"
_DOMAINS: Final = """
    SELECT globalTid >> 24, domainId FROM NVTX_EVENTS WHERE eventType = 75 AND text = 'traceprof'"""
_COUNTS: Final = """
    SELECT globalTid >> 24 AS process, domainId, count(*) FROM NVTX_EVENTS
    WHERE eventType IN (59, 60) GROUP BY process, domainId"""
_REMOVE: Final = """
    DELETE FROM NVTX_EVENTS
    WHERE eventType IN (34, 59, 60) AND globalTid >> 24 = ? AND domainId = ?"""
_PID: Final = 0xFFFFFF

Times = npt.NDArray[np.int64]


class ProfilerClock:
    """Turns ns since 1970 into the clock of the export.

    The two drift by some µs a second: ``marks`` are pairs (time on the export's clock, ns since
    1970) that were taken every second; between them the offset is interpolated. Without marks
    the start of the session, ``epoch_ns``, has to do.
    """

    def __init__(self, epoch_ns: int, marks: list[tuple[int, int]]) -> None:
        self.epoch_ns = epoch_ns
        pairs = np.array(marks or [(0, epoch_ns)], np.int64)
        # Counted from the session start, the offsets are small enough for floating point.
        self._at = pairs[:, 1] - epoch_ns
        self._offset = pairs[:, 0] - self._at

    def __call__(self, epoch_times: Times) -> Times:
        """Return the times on the clock of the export."""
        since = np.asarray(epoch_times, np.int64) - self.epoch_ns
        offset = np.interp(since, self._at, self._offset)
        shifted: Times = since + np.rint(offset).astype(np.int64)
        return shifted


def read_profiler_clock(database: Path) -> tuple[ProfilerClock, Counter[int]]:
    """Return the clock of an nsys export and the number of our ranges in it by process.

    Raises:
        RecordingError: the export is not readable.
    """
    try:
        with closing(sqlite3.connect(database)) as connection:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
            session = _rows(connection, tables, "TARGET_INFO_SESSION_START_TIME", _SESSION)
            marks = _rows(connection, tables, "NVTX_EVENTS", _CLOCK_MARKS)
            ours = set(_rows(connection, tables, "NVTX_EVENTS", _DOMAINS))
            counts = _rows(connection, tables, "NVTX_EVENTS", _COUNTS)
    except sqlite3.Error as error:
        raise RecordingError(f"{database}: not a readable export of nsys ({error})") from error
    epoch_ns = session[0][0] if session else 0
    n_ranges: Counter[int] = Counter()
    for process, domain, count in counts:
        if (process, domain) in ours:
            n_ranges[process & _PID] += count
    return ProfilerClock(epoch_ns, marks), n_ranges


def remove_our_events(database: Path, processes: list[int]) -> None:
    """Remove the ranges and marks of our domain that these processes left in the export.

    Raises:
        RecordingError: the export cannot be changed.
    """
    try:
        with closing(sqlite3.connect(database)) as connection, connection:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
            ours = _rows(connection, tables, "NVTX_EVENTS", _DOMAINS)
            for row in ours:
                if row[0] & _PID in processes:
                    connection.execute(_REMOVE, row)
    except sqlite3.Error as error:
        raise RecordingError(f"{database}: cannot be changed ({error})") from error


def _rows(
    connection: sqlite3.Connection, tables: set[str], needed: str, sql: str
) -> list[tuple[Any, ...]]:
    return connection.execute(sql).fetchall() if needed in tables else []
