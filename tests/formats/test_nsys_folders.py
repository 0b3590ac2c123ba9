"""Folders that nsys exports, against the SQLite that it exports of the same report."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.builders import TraceBuilder
from tests.requirements import require
from traceprof.errors import TraceError
from traceprof.formats import cut, open_trace, outline
from traceprof.formats.nsys.reports import find_importer
from traceprof.formats.nsys.writer import write_nsys
from traceprof.model.cutting import CutRequest, no_progress
from traceprof.model.tables import TABLES
from traceprof.model.timing import TimeWindow
from traceprof.recording.orphans import end_processes_with


@pytest.fixture
def export(tmp_path: Path) -> Path:
    path = tmp_path / "export.sqlite"
    trace = (
        TraceBuilder()
        .range("forward", 0, 100)
        .kernel("gemm", 120, 180, launched_ns=(10, 15))
        .copy("h2d", 0, 50, n_bytes=1000)
        .build()
    )
    write_nsys(trace, path)
    return path


def as_folder(export: Path, suffix: str) -> Path:
    """Write the tables of a SQLite export as nsys writes them: a file each, ids without a sign."""
    folder = export.with_name(f"folder-{suffix}")
    folder.mkdir()
    with closing(sqlite3.connect(export)) as connection:
        names = [n for (n,) in connection.execute("SELECT name FROM sqlite_master WHERE sql <> ''")]
        for name in names:
            frame = pd.read_sql_query(f'SELECT * FROM "{name}"', connection)
            table = pa.Table.from_pandas(frame, preserve_index=False)
            for place, one in enumerate(table.schema):
                if one.name == "globalPid" and pa.types.is_int64(one.type):
                    table = table.set_column(place, one.name, table[one.name].cast(pa.uint64()))
            if suffix == "parquet":
                pq.write_table(table, folder / f"{name}.parquet")
            else:
                with pa.ipc.new_stream(folder / f"{name}.arrow", table.schema) as stream:
                    stream.write_table(table)
    return folder


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_a_folder_reads_as_the_export(export: Path, suffix: str) -> None:
    folder = as_folder(export, suffix)
    found, expected = open_trace(folder), open_trace(export)
    for name in TABLES:
        pd.testing.assert_frame_equal(found.table(name).to_frame(), expected.table(name).to_frame())
    assert (found.span, found.recorded) == (expected.span, expected.recorded)
    assert found.info.path == str(folder)
    assert outline(folder).n_rows == outline(export).n_rows


def test_a_folder_is_cut_to_an_export(export: Path, tmp_path: Path) -> None:
    part = tmp_path / "part.sqlite"
    part.touch()
    cut(as_folder(export, "parquet"), part, CutRequest(TimeWindow(0, 60)), no_progress)
    assert (len(open_trace(part).copies.to_frame()), len(open_trace(part).kernels.to_frame())) == (
        1,
        0,
    )


def test_a_damaged_table_is_told(export: Path) -> None:
    folder = as_folder(export, "parquet")
    (folder / "StringIds.parquet").write_bytes(b"PAR1")
    with pytest.raises(TraceError, match=r"StringIds\.parquet: cannot be read.*nsys"):
        open_trace(folder)


@pytest.mark.newer_nsys
def test_folders_of_the_real_nsys_read_as_its_export(tmp_path: Path) -> None:
    folder = require("newer_nsys")
    nsys = shutil.which("nsys", path=folder) or folder
    session = f"traceprof-test-folders-{os.getpid()}"
    command = [nsys, "profile", f"--session-new={session}", "-t", "osrt", "-s", "none"]
    command += ["--cpuctxsw=none", "-o", "r", "sleep", "0.1"]
    subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=120, check=False)
    end_processes_with(session)
    report = tmp_path / "r.nsys-rep"
    if not report.exists():
        importer = find_importer(nsys)
        assert importer is not None
        stream = tmp_path / "r.qdstrm"
        subprocess.run([importer, "-i", stream, "-o", report], capture_output=True, check=True)
    for kind in ("sqlite", "parquetdir", "arrowdir"):
        command = [nsys, "export", f"--type={kind}", "--quiet=true", "-o", f"as-{kind}", report]
        subprocess.run(command, cwd=tmp_path, capture_output=True, check=True, timeout=120)
    expected = open_trace(tmp_path / "as-sqlite")
    assert len(expected.host_ops.to_frame()) > 0
    for kind in ("parquetdir", "arrowdir"):
        found = open_trace(tmp_path / f"as-{kind}")
        for name in TABLES.keys() - {"environment"}:  # nsys leaves META_DATA_CAPTURE out of folders
            pd.testing.assert_frame_equal(
                found.table(name).to_frame(), expected.table(name).to_frame()
            )
        assert found.span == expected.span
        assert found.recorded <= expected.recorded
