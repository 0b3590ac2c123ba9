"""The profiler's own time in a launcher: no time counts from there."""

import sqlite3
from contextlib import closing

from traceprof.formats.nsys.split import remove_lone_overheads

LAUNCHER, RANK, SILENT_RANK = 1, 2, 3


def test_only_of_processes_without_anything_else_it_is_removed(tmp_path):
    path = tmp_path / "export.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE PROFILER_OVERHEAD (start INT, end INT, globalTid INT)")
        connection.execute("CREATE TABLE NVTX_EVENTS (start INT, end INT, globalTid INT)")
        connection.execute("CREATE TABLE TARGET_INFO_X (start INT, globalTid INT)")
        for process in (LAUNCHER, RANK, SILENT_RANK):
            thread = process << 24 | 7
            connection.execute("INSERT INTO PROFILER_OVERHEAD VALUES (?, 9, ?)", (process, thread))
        connection.execute("INSERT INTO NVTX_EVENTS VALUES (5, 6, ?)", (RANK << 24 | 8,))
        connection.execute("INSERT INTO TARGET_INFO_X VALUES (0, ?)", (LAUNCHER << 24,))
    remove_lone_overheads(path, [SILENT_RANK])
    with closing(sqlite3.connect(path)) as connection:
        left = connection.execute("SELECT start FROM PROFILER_OVERHEAD").fetchall()
    assert left == [(RANK,), (SILENT_RANK,)]
