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
from traceprof.formats import open_trace
from traceprof.formats.nsys.writer import write_nsys


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
    assert trace.kernels.equals(open_trace(path).kernels)
    assert trace.info.path.endswith("run.sqlite.gz")
    assert list(scratch.iterdir()) == []


def test_what_is_no_trace_or_cut_off_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE t (x TEXT)")
        connection.execute("INSERT INTO t VALUES (hex(randomblob(100000)))")
    with pytest.raises(TraceError, match="without the tables of a profiler"):
        open_trace(packed(path))
    cut = packed(path)
    cut.write_bytes(cut.read_bytes()[:-20000])
    with pytest.raises(TraceError, match="cut off"):
        open_trace(cut)


@pytest.mark.traces
def test_a_real_one() -> None:
    require("traces")
    trace = open_trace(TRACES / "nsys/2022.4-jacobi-p2p-2gpu.sqlite.gz")
    assert trace.devices["used"].sum() == 2
    assert "p2p" in set(trace.copies["direction"])
