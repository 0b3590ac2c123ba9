import sqlite3
from contextlib import closing

import pytest

from traceprof.errors import TraceError
from traceprof.formats.nsys.schema import NSYS_TABLES
from traceprof.formats.nsys.split import read_traceprof_events, remove_traceprof_events

EPOCH = 1_700_000_000_000_000_000


@pytest.fixture
def export(tmp_path):
    path = tmp_path / "export.sqlite"
    thread = {pid: 1 << 48 | pid << 24 | pid for pid in (5, 6)}
    events = [
        # start, eventType, text, textId, globalTid, domainId, int64Value
        (0, 75, "traceprof", None, thread[5], 1, None),
        (0, 75, "NCCL", None, thread[6], 1, None),
        (0, 75, "traceprof", None, thread[6], 2, None),
        (1010, 34, None, 9, thread[5], 1, EPOCH + 1000),
        (10, 59, "forward", None, thread[5], 1, 0),
        (20, 60, "step", None, thread[5], 1, 0),
        (30, 59, "ncclSend", None, thread[6], 1, 0),
        (40, 59, "forward", None, thread[6], 2, 0),
        (50, 59, "theirs", None, thread[6], 0, 0),
    ]
    with closing(sqlite3.connect(path)) as connection, connection:
        for table in ("StringIds", "NVTX_EVENTS", "TARGET_INFO_SESSION_START_TIME"):
            connection.execute(f"CREATE TABLE {table} ({NSYS_TABLES[table]})")
        connection.execute("INSERT INTO StringIds VALUES (9, 'clock')")
        connection.execute(
            "INSERT INTO TARGET_INFO_SESSION_START_TIME (utcEpochNs) VALUES (?)", (EPOCH,)
        )
        connection.executemany(
            "INSERT INTO NVTX_EVENTS (start, eventType, text, textId, globalTid, domainId,"
            " int64Value) VALUES (?, ?, ?, ?, ?, ?, ?)",
            events,
        )
    return path


def test_clock_and_counts_of_our_own_ranges_come_from_the_export(export):
    own = read_traceprof_events(export)
    assert own.epoch_ns == EPOCH
    assert own.clock_marks == [(1010, EPOCH + 1000)]
    assert own.n_ranges == {5: 2, 6: 1}
    assert own.n_ranges[7] == 0
    assert own.last_ns == {5: 20, 6: 40}


def test_only_our_own_events_are_removed(export):
    remove_traceprof_events(export, [6])
    with closing(sqlite3.connect(export)) as connection:
        left = connection.execute(
            "SELECT text FROM NVTX_EVENTS WHERE eventType = 59 ORDER BY start"
        ).fetchall()
    assert left == [("forward",), ("ncclSend",), ("theirs",)]
    assert read_traceprof_events(export).n_ranges == {5: 2}


def test_what_is_no_export_is_said(tmp_path):
    (tmp_path / "x.sqlite").write_text("no database at all, but long enough to be looked at")
    with pytest.raises(TraceError, match="not a readable nsys export"):
        read_traceprof_events(tmp_path / "x.sqlite")
