"""Files of single processes, taken from an export of several."""

import sqlite3
from contextlib import closing

import pytest

from tests import real_traces
from tests.builders import TraceBuilder
from traceprof.errors import UsageError
from traceprof.formats import open_trace
from traceprof.formats.nsys.schema import global_id
from traceprof.formats.nsys.split import copy_processes
from traceprof.formats.nsys.writer import write_nsys
from traceprof.model.tables import TABLES

MORE = """
CREATE TABLE OSRT_API (start INT, end INT, nameId INT, globalTid INT, callchainId INT);
CREATE TABLE OSRT_CALLCHAINS (id INT, symbol INT);
CREATE TABLE GPU_METRICS (timestamp INT, typeId INT, metricId INT, value INT);
CREATE TABLE DIAGNOSTIC_EVENT (timestamp INT, text TEXT, globalPid INT);
CREATE TABLE "from 2030" (start INT, globalPid INT, what TEXT);
CREATE TABLE COMPOSITE_EVENTS (id INT PRIMARY KEY, start INT, globalTid INT);
CREATE TABLE SAMPLING_CALLCHAINS (id INT, symbol INT);
"""


@pytest.fixture
def export(tmp_path):
    builder = TraceBuilder()
    for process in (5, 6, 7):
        builder.kernel("gemm", 10, 20, launched_ns=(1, 2), process=process)
        builder.range(f"work of {process}", 0, 30, process=process).process(process)
    builder.copy("h2d", 40, 50, n_bytes=8, process=5)
    path = tmp_path / "node.sqlite"
    write_nsys(builder.build(), path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(MORE)
        for i, process in enumerate((5, 6, 7)):
            connection.execute(
                "INSERT INTO OSRT_API VALUES (1, 2, 1, ?, ?)", (global_id(process, process), i)
            )
            connection.execute("INSERT INTO OSRT_CALLCHAINS VALUES (?, 1), (?, 2)", (i, i))
            connection.execute("INSERT INTO 'from 2030' VALUES (1, ?, 'x')", (global_id(process),))
            connection.execute(
                "INSERT INTO COMPOSITE_EVENTS VALUES (?, 1, ?)", (i, global_id(process))
            )
            connection.execute("INSERT INTO SAMPLING_CALLCHAINS VALUES (?, 1)", (i,))
        connection.execute("INSERT INTO GPU_METRICS VALUES (1, 2, 3, 4)")
        connection.execute("INSERT INTO DIAGNOSTIC_EVENT VALUES (1, 'lost', ?)", (global_id(99),))
        connection.execute("INSERT INTO 'from 2030' VALUES (2, NULL, 'nobody knows')")
    return path


def rows(path, sql):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def test_each_file_has_what_its_processes_did_and_what_belongs_to_none(export, tmp_path):
    one, rest = tmp_path / "one.sqlite", tmp_path / "rest.sqlite"
    # of 5: a kernel, its launch, a range, a copy and four rows of the tables above
    assert copy_processes(export, one, [5], others=False) == 4 + 3
    assert copy_processes(export, rest, [5, 6], others=True) == 3 + 3 + 1
    assert rows(one, "SELECT id FROM OSRT_CALLCHAINS") == [(0,), (0,)]
    assert rows(one, "SELECT id FROM SAMPLING_CALLCHAINS") == [(0,)]
    assert rows(rest, "SELECT id FROM OSRT_CALLCHAINS") == [(2,), (2,)]
    assert rows(one, "SELECT what FROM 'from 2030'") == [("x",)]
    assert rows(rest, "SELECT what FROM 'from 2030'") == [("x",), ("nobody knows",)]
    assert rows(one, "SELECT pid FROM PROCESSES") == [(5,)]
    for path in (one, rest):
        assert rows(path, "SELECT value FROM GPU_METRICS") == [(4,)]
        assert rows(path, "SELECT text FROM DIAGNOSTIC_EVENT") == [("lost",)]
        assert rows(path, "SELECT * FROM StringIds") == rows(export, "SELECT * FROM StringIds")
    trace = open_trace(one)
    assert trace.ranges.to_frame()["name"].tolist() == ["work of 5"]
    assert trace.copies.to_frame()["n_bytes"].tolist() == [8]


def test_the_parts_together_are_the_whole(export, tmp_path):
    whole = open_trace(export)
    paths = [tmp_path / f"{process}.sqlite" for process in (5, 6, 7)]
    for process, path in zip((5, 6, 7), paths, strict=True):
        copy_processes(export, path, [process], others=False)
    parts = [open_trace(path) for path in paths]
    for name, table in TABLES.items():
        if "process" in table.columns:
            assert sum(len(part.table(name).to_frame()) for part in parts) == len(
                whole.table(name).to_frame()
            ), name


@pytest.mark.traces
@pytest.mark.parametrize("name", real_traces.NSYS)
def test_no_row_of_a_real_export_is_lost_or_doubled(name, real_trace, tmp_path):
    path = real_trace(name)
    whole = open_trace(path)
    processes = whole.processes.to_frame()["process"].tolist()
    parts = []
    for process in processes:
        part = tmp_path / f"{process}.sqlite"
        copy_processes(path, part, [process], others=False)
        parts.append(open_trace(part))
    rest = tmp_path / "rest.sqlite"
    copy_processes(path, rest, processes, others=True)
    parts.append(open_trace(rest))
    for table_name, table in TABLES.items():
        if "process" in table.columns:
            n_rows = sum(len(part.table(table_name).to_frame()) for part in parts)
            assert n_rows == len(whole.table(table_name).to_frame()), table_name


def test_a_file_that_cannot_be_written_is_not_left_behind(export, tmp_path):
    with pytest.raises(UsageError, match="cannot be written"):
        copy_processes(export, tmp_path / "none" / "x.sqlite", [5], others=False)
    damaged = tmp_path / "damaged.sqlite"
    damaged.write_bytes(export.read_bytes()[:5000])
    with pytest.raises(UsageError, match="cannot be written"):
        copy_processes(damaged, tmp_path / "x.sqlite", [5], others=False)
    assert not (tmp_path / "x.sqlite").exists()
