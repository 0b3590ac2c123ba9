import os
import sqlite3
from contextlib import closing

import pytest

from tests.requirements import require
from traceprof.errors import RecordingError, TraceError
from traceprof.formats.nsys import reports
from traceprof.formats.nsys.reports import convert_stream, find_importer
from traceprof.recording.recorders.nsys.report import find_report, remove_secrets


def test_a_report_left_in_the_temporary_folder_is_found(tmp_path):
    folder, temporary = tmp_path / "work", tmp_path / "tmp"
    folder.mkdir()
    temporary.mkdir()
    assert find_report(folder, "Generated:\n") is None
    left = temporary / "nsys-report-55c3.qdstrm"
    left.write_bytes(b"x")
    log = f"Generating '{left}'\nFailed to create report: File exists\n"
    assert find_report(folder, log) == left
    whole = folder / "report.nsys-rep"
    whole.write_bytes(b"x")
    assert find_report(folder, log) == whole
    (folder / "started").touch()
    os.utime(whole, (100, 100))  # from an earlier run
    assert find_report(folder, log) == left


def test_without_an_importer_the_message_says_what_to_install(tmp_path, monkeypatch):
    stream = tmp_path / "x.qdstrm"
    stream.write_bytes(b"x")
    monkeypatch.setattr(reports, "find_importer", lambda _: None)
    with pytest.raises(TraceError, match="complete Nsight Systems package"):
        convert_stream(tmp_path / "bin" / "nsys", stream, tmp_path / "x.nsys-rep")


def test_the_importer_of_the_same_package_comes_first(tmp_path, monkeypatch):
    """Debian cuts the package in two, and nsys is a link into one of them."""
    debian, other = tmp_path / "usr/lib", tmp_path / "bin"
    target = debian / "x86_64-linux-gnu/nsight-systems/target-linux-x64/nsys"
    own = debian / "nsight-systems/host-linux-x64/QdstrmImporter"
    for tool in (target, own, other / "QdstrmImporter"):
        tool.parent.mkdir(parents=True)
        tool.touch(0o755)
    (other / "nsys").symlink_to(target)
    monkeypatch.setenv("PATH", str(other))
    assert find_importer(other / "nsys") == own
    own.unlink()
    assert find_importer(other / "nsys") == other / "QdstrmImporter"
    monkeypatch.setenv("PATH", "")
    assert find_importer(other / "nsys", packages=()) is None


def test_an_importer_that_lacks_a_library_is_not_taken_for_a_damaged_file(tmp_path, monkeypatch):
    importer = tmp_path / "QdstrmImporter"
    importer.write_text("#!/bin/sh\necho libssh.so: cannot open shared object file >&2; exit 127\n")
    importer.chmod(0o755)
    monkeypatch.setattr(reports, "find_importer", lambda _: importer)
    stream = tmp_path / "x.qdstrm"
    stream.write_bytes(b"x")
    with pytest.raises(TraceError, match=r"cannot start .*libssh"):
        convert_stream("nsys", stream, tmp_path / "x.nsys-rep")


@pytest.mark.nsys
def test_a_damaged_stream_is_said(tmp_path):
    stream = tmp_path / "x.qdstrm"
    stream.write_bytes(b"x" * 1000)
    with pytest.raises(TraceError, match="damaged or truncated"):
        convert_stream(require("nsys"), stream, tmp_path / "x.nsys-rep")


TABLES = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
CREATE TABLE META_DATA_CAPTURE (name TEXT, value TEXT);
"""


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
        connection.executemany(
            "INSERT INTO NVTX_EVENTS VALUES (?)",
            [("007",), ("pull with sesame77",), ("fetch https://me:hunter22@host/x",), (None,)],
        )
    remove_secrets(path, ["--token=sesame77", "--pass", "007", "--key=", "--auth=lr"])
    assert b"sesame77" not in path.read_bytes()
    assert b"hunter22" not in path.read_bytes()
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
        assert connection.execute("SELECT text FROM NVTX_EVENTS").fetchall() == [
            ("007",),
            ("pull with ***",),
            ("fetch https://***@host/x",),
            (None,),
        ]


def test_an_export_that_is_damaged_is_said(tmp_path):
    path = tmp_path / "export.sqlite"
    path.write_bytes(b"x" * 5000)
    with pytest.raises(RecordingError, match="secrets cannot be removed"):
        remove_secrets(path, ["train"])
