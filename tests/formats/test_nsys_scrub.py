import sqlite3
from contextlib import closing

import pytest

from traceprof.errors import TraceError
from traceprof.formats.nsys.secrets import remove_environments, replace_system_texts

TABLES = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT);
CREATE TABLE META_DATA_CAPTURE (name TEXT, value TEXT);
"""


def test_environments_are_removed_and_overwritten(tmp_path):
    path = tmp_path / "export.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(TABLES)
        connection.executemany(
            "INSERT INTO StringIds VALUES (?, ?)",
            [(1, "HOME=/root\0TOKEN=sesame1\0"), (2, "a = b"), (3, "gemm"), (4, "odd\0text")],
        )
        connection.executemany(
            "INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (?, ?)",
            [("DeviceEnvironment", "TOKEN=sesame2"), ("Hostname", "node1")],
        )
        connection.executemany(
            "INSERT INTO META_DATA_CAPTURE VALUES (?, ?)",
            [("PROCESS_0:ENVIRONMENT_VARIABLE", "TOKEN=sesame3"), ("CAPTURE_OS", "Linux")],
        )
    assert remove_environments(path) == 3
    assert b"sesame" not in path.read_bytes()
    with closing(sqlite3.connect(path)) as connection:
        assert dict(connection.execute("SELECT id, value FROM StringIds WHERE id > 1")) == {
            2: "a = b",
            3: "gemm",
            4: "odd\0text",
        }
        assert ("Hostname", "node1") in connection.execute(
            "SELECT * FROM TARGET_INFO_SYSTEM_ENV"
        ).fetchall()
    assert remove_environments(path) == 2  # rows are marked again, nothing else is touched


def test_tables_that_are_missing_are_no_trouble(tmp_path):
    path = tmp_path / "export.sqlite"
    sqlite3.connect(path).executescript("CREATE TABLE x (y)").connection.close()
    assert remove_environments(path) == 0


def test_a_damaged_export_is_said(tmp_path):
    path = tmp_path / "export.sqlite"
    path.write_bytes(b"x" * 5000)
    with pytest.raises(TraceError, match="secrets cannot be removed"):
        remove_environments(path)


def test_texts_are_replaced_only_where_machine_and_processes_are_described(tmp_path):
    path = tmp_path / "export.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(
            TABLES + 'CREATE TABLE NVTX_EVENTS (text TEXT); CREATE TABLE ANALYSIS_X ("a ""b" TEXT);'
        )
        connection.execute("INSERT INTO META_DATA_CAPTURE VALUES ('secret', 'a secret here')")
        connection.execute("INSERT INTO ANALYSIS_X VALUES ('secret')")
        connection.execute("INSERT INTO NVTX_EVENTS VALUES ('secret')")
    replace_system_texts(path, [("secret", "whole")], [("here", "***")])
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT * FROM META_DATA_CAPTURE").fetchall()
        assert rows == [("whole", "a secret ***")]
        assert connection.execute("SELECT * FROM ANALYSIS_X").fetchall() == [("whole",)]
        assert connection.execute("SELECT * FROM NVTX_EVENTS").fetchall() == [("secret",)]
