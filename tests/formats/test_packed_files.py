"""A gzipped SQLite trace reads like the trace itself."""

from __future__ import annotations

import gzip
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

from tests.builders import TraceBuilder
from tests.requirements import TRACES, require
from traceprof.errors import TraceError
from traceprof.formats import FORMATS, Candidate, ReadOptions, TraceFormat, open_trace, outline
from traceprof.formats.nsys.writer import write_nsys
from traceprof.formats.sqlite.database import Database
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace


def packed(path: Path) -> Path:
    target = path.with_name(path.name + ".gz")
    target.write_bytes(gzip.compress(path.read_bytes()))
    return target


def test_it_reads_like_the_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.sqlite"
    write_nsys(TraceBuilder().kernel("gemm", 5, 9).build(), path)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    trace = open_trace(packed(path))
    assert trace.kernels.to_frame().equals(open_trace(path).kernels.to_frame())
    assert trace.info.path.endswith("run.sqlite.gz")
    assert list(scratch.iterdir()) == []


def test_a_format_that_nobody_knew_of_is_read_and_unpacked(tmp_path: Path) -> None:
    def read(path: Path, options: ReadOptions) -> Trace:
        with Database(path) as database:
            ((name,),) = database.rows("SELECT name FROM FAKE_KERNELS")
        return TraceBuilder().kernel(name, 0, 10).kernel("late", 90, 99).range("r", 0, 99).build()

    def recognizes(candidate: Candidate) -> bool:
        return "FAKE_KERNELS" in candidate.tables

    path = tmp_path / "run.fake"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE FAKE_KERNELS AS SELECT 'gemm' AS name")
    formats = (*FORMATS, TraceFormat("fake", "for this test", recognizes, read))
    # It takes no notice of what is asked for: its trace is trimmed, its outline made of it.
    options = ReadOptions(tables=frozenset({"kernels"}), window=TimeWindow(5, 20))
    for file in (path, packed(path)):
        trace = open_trace(file, options, formats)
        assert trace.kernels.to_frame()["name"].tolist() == ["gemm"]
        assert trace.ranges.to_frame().empty
        assert trace.span == TimeWindow(0, 99)
        assert trace.info.path == str(file)
        assert outline(file, formats).n_rows["ranges"] == 1


def test_what_is_no_trace_or_cut_off_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE t (x TEXT)")
        connection.execute("INSERT INTO t VALUES (hex(randomblob(100000)))")
    with pytest.raises(TraceError, match="without profiler tables"):
        open_trace(packed(path))
    cut = packed(path)
    cut.write_bytes(cut.read_bytes()[:-20000])
    with pytest.raises(TraceError, match="truncated"):
        open_trace(cut)


@pytest.mark.traces
def test_a_real_one() -> None:
    require("traces")
    trace = open_trace(TRACES / "nsys/2022.4-jacobi-p2p-2gpu.sqlite.gz")
    assert trace.devices.to_frame()["used"].sum() == 2
    assert "p2p" in set(trace.copies.to_frame()["direction"])


def test_what_is_damaged_inside_is_called_as_the_file_that_was_given(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    write_nsys(TraceBuilder().kernel("gemm", 5, 9).build(), path)
    path.write_bytes(path.read_bytes()[:-4096])
    given = packed(path)
    with pytest.raises(TraceError) as error:
        open_trace(given)
    assert str(error.value).startswith(f"{given}: truncated")
    assert "tmp/traceprof-" not in str(error.value)
