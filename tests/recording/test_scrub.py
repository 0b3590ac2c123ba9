import sqlite3
from contextlib import closing

import pytest

from traceprof.errors import RecordingError
from traceprof.recording.environment import secrets_of
from traceprof.recording.scrub import mask_secrets, scrub_environments

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
    assert scrub_environments(path) == 3
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
    assert scrub_environments(path) == 2  # rows are marked again, nothing else is touched


def test_tables_that_are_missing_are_no_trouble(tmp_path):
    path = tmp_path / "export.sqlite"
    sqlite3.connect(path).executescript("CREATE TABLE x (y)").connection.close()
    assert scrub_environments(path) == 0


def test_a_damaged_export_is_said(tmp_path):
    path = tmp_path / "export.sqlite"
    path.write_bytes(b"x" * 5000)
    with pytest.raises(RecordingError, match="cannot be cleaned"):
        scrub_environments(path)


def test_secrets_of_a_command_line_are_masked_wherever_the_system_tells_it(tmp_path):
    path = tmp_path / "export.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(TABLES + "CREATE TABLE NVTX_EVENTS (text TEXT);")
        connection.executemany(
            "INSERT INTO META_DATA_CAPTURE VALUES (?, ?)",
            [
                ("PROCESS_0:ARGUMENT_1", "--lr=0.007"),
                ("PROCESS_0:ARGUMENT_2", "--token=sesame77"),
                ("PROCESS_0:ARGUMENT_3", "007"),
                ("PROCESS_0:ARGUMENT_4", "--auth=lr"),
            ],
        )
        connection.execute("INSERT INTO StringIds VALUES (1, 'train --token=sesame77 x')")
        connection.execute("INSERT INTO NVTX_EVENTS VALUES ('007')")
    mask_secrets(path, secrets_of(["--token=sesame77", "--pass", "007", "--key=", "--auth=lr"]))
    assert b"sesame77" not in path.read_bytes()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT value FROM META_DATA_CAPTURE").fetchall() == [
            ("--lr=0.007",),
            ("--token=***",),
            ("***",),
            ("--auth=***",),
        ]
        assert (
            connection.execute("SELECT value FROM StringIds").fetchone()[0] == "train --token=*** x"
        )
        assert connection.execute("SELECT text FROM NVTX_EVENTS").fetchone() == ("007",)
