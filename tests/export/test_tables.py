"""Exports as tables: the answers of a folder are those of the trace, byte for byte."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.builders import TraceBuilder
from traceprof.errors import UsageError
from traceprof.export import exporter_called
from traceprof.export.request import Request
from traceprof.formats import ReadOptions, open_trace
from traceprof.formats.nsys.writer import write_nsys
from traceprof.model.table import Table
from traceprof.model.tables import TABLES
from traceprof.render.registry import Options, render
from traceprof.session.answer import page
from traceprof.session.material import Material
from traceprof.session.run import open_run

MS = 1_000_000

EVERYTHING = ReadOptions(tables=frozenset(TABLES))


def write_rank(path: Path, rank: int = 0) -> Path:
    """Write a trace of six steps of 10 ms each."""
    builder = TraceBuilder()
    process = 10 + rank
    for step in range(6):
        start = (step * 10 + rank) * MS
        builder.range(f"step {step}", start, start + 9 * MS, process=process)
        builder.kernel(
            "gemm", start + MS, start + 8 * MS, launched_ns=(start, start + 10), process=process
        )
    builder.process(process, rank=rank, world_size=2)
    write_nsys(builder.build(), path)
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_rank(tmp_path / "whole.sqlite")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    for rank in range(2):
        write_rank(folder / f"rank{rank}.sqlite", rank)
    return folder


def export(path: Path, output: Path, to: str = "parquet", window: str | None = None, **more):  # type: ignore[no-untyped-def]
    return exporter_called(to).load()(open_run([path]).within(window), Request(output, **more))


def answers(path: Path, window: str | None = None) -> str:
    text = render("json", page(open_run([path]).within(window)), Options())
    return text.replace(json.dumps(str(path))[1:-1], "PATH")


@pytest.mark.parametrize("to", ["parquet", "arrow"])
def test_answers_of_the_folder_are_those_of_the_trace(trace: Path, tmp_path: Path, to: str) -> None:
    export(trace, tmp_path / "out", to)
    assert answers(tmp_path / "out") == answers(trace)
    assert answers(tmp_path / "out", "step:2") == answers(trace, "step:2")


def test_a_run_becomes_a_run(run: Path, tmp_path: Path) -> None:
    done = export(run, tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"run.json", "rank0", "rank1"}
    assert done.n_rows == sum(
        len(open_trace(p, EVERYTHING).table(n).to_frame()) for p in run.iterdir() for n in TABLES
    )
    assert answers(tmp_path / "out") == answers(run).replace(".sqlite", "")


def test_a_window_has_its_rows_whole_and_their_launches(trace: Path, tmp_path: Path) -> None:
    export(trace, tmp_path / "out", window="22ms..24ms")
    found = open_trace(tmp_path / "out")
    assert found.kernels.to_frame()["start_ns"].tolist() == [21 * MS]
    assert found.kernels.to_frame()["end_ns"].tolist() == [28 * MS]
    assert found.api_calls.to_frame()["start_ns"].tolist() == [20 * MS]
    assert found.ranges.to_frame()["name"].tolist() == ["step 2"]
    window = f"@{22 * MS}..@{24 * MS}"
    results = [
        open_run([p]).within(window).breakdown().to_frame() for p in (tmp_path / "out", trace)
    ]
    pd.testing.assert_frame_equal(*results)


def test_ranks_and_tables_are_chosen(run: Path, tmp_path: Path) -> None:
    export(run, tmp_path / "out", ranks=[1], tables=["kernels", "processes"])
    found = open_trace(tmp_path / "out" / "rank1")
    assert not (tmp_path / "out" / "rank0").exists()
    assert (len(found.kernels.to_frame()), len(found.ranges.to_frame())) == (6, 0)
    assert "ranges" not in found.recorded, "what was left out is not known, rather than none"
    with pytest.raises(UsageError, match="no rank 7 in the trace; ranks: 0, 1"):
        export(run, tmp_path / "other", ranks=[7])
    with pytest.raises(UsageError, match="no rank 7 in the trace; ranks: 0"):
        export(run / "rank0.sqlite", tmp_path / "other", ranks=[7])
    assert not (tmp_path / "other").exists()


def test_spans_of_time_hold_every_row_once(trace: Path) -> None:
    whole = open_trace(trace, EVERYTHING)
    parts = list(Material(open_run([trace]), rows_of_part=2).parts())
    assert len(parts) > 5
    for name in ("kernels", "api_calls", "ranges"):
        joined = Table.stacked([part.tables[name] for part in parts if name in part.tables])
        assert str(joined.rows()) == str(whole.table(name).rows())


@pytest.mark.traces
@pytest.mark.parametrize(
    "name",
    ["nsys/2025.1-many-copies.sqlite", "nvprof/v8-tensorflow.nvvp", "nsys/2022.4-nvtx-only.sqlite"],
)
def test_spans_of_real_traces_hold_every_row_once(
    name: str, real_trace: Callable[[str], Path]
) -> None:
    path = real_trace(name)
    whole = open_trace(path, EVERYTHING)
    parts = list(Material(open_run([path]), rows_of_part=1000).parts())
    for table in (name for name in TABLES if TABLES[name].has_times):
        joined = Table.stacked([part.tables[table] for part in parts if table in part.tables])
        assert str(joined.rows()) == str(whole.table(table).rows())


@pytest.mark.parametrize("to", ["parquet", "arrow", "csv"])
def test_results_are_tables_with_units(trace: Path, tmp_path: Path, to: str) -> None:
    export(trace, tmp_path / "out", to, results=("kernels", "network"))
    path = tmp_path / "out" / f"kernels.kernels.{to}"
    if to == "csv":
        assert pd.read_csv(path)["name"].tolist() == ["gemm"]
        return
    table = pq.read_table(path) if to == "parquet" else pa.ipc.open_file(path).read_all()
    expected = open_run([trace]).kernels().to_frame()
    assert table["total_ns"].to_pylist() == expected["total_ns"].tolist()
    assert table.schema.field("total_ns").metadata[b"unit"] == b"ns"
