"""Folders of tables: what is written is what is read, and damage is told in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests import real_traces
from tests.builders import TraceBuilder
from tests.formats.folders import write_tables
from traceprof.errors import TraceError
from traceprof.formats import open_trace
from traceprof.formats.contract import ReadOptions
from traceprof.formats.tables.folder import FolderWriter, Storage
from traceprof.formats.tables.format import MANIFEST
from traceprof.model.table import Names
from traceprof.model.tables import TABLES, make_table
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace
from traceprof.names.classes import parse_rules


def made() -> Trace:
    return (
        TraceBuilder()
        .range("forward", 0, 100)
        .kernel("gemm", 120, 180, launched_ns=(10, 15))
        .kernel("gelu µ", 190, 200, device=1)
        .copy("h2d", 0, 50, n_bytes=1000)
        .build()
    )


def assert_equal(found: Trace, expected: Trace) -> None:
    for name in TABLES:
        pd.testing.assert_frame_equal(found.table(name).to_frame(), expected.table(name).to_frame())
    assert (found.span, found.recorded) == (expected.span, expected.recorded)


@pytest.fixture(params=list(Storage))
def storage(request: pytest.FixtureRequest) -> Storage:
    return Storage(request.param)


def test_what_is_written_is_read(storage: Storage, tmp_path: Path) -> None:
    trace = made()
    write_tables(trace, tmp_path, storage)
    found = open_trace(tmp_path)
    assert_equal(found, trace)
    assert found.info.path == str(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        MANIFEST,
        *(f"{name}.{storage}" for name in TABLES),
    }


def test_what_is_not_known_is_null_for_others_and_absent_for_us(tmp_path: Path) -> None:
    samples = make_table(
        "samples", {"start_ns": [1, 2], "source": ["gpu:0"] * 2, "metric": ["x"] * 2}
    )
    trace = made().with_tables({"samples": samples})
    write_tables(trace, tmp_path)
    kernels = pq.read_table(tmp_path / "kernels.parquet")
    assert kernels["graph_node"].null_count == kernels.num_rows == 2
    assert kernels["correlation"].to_pylist() == [1, None]
    found = open_trace(tmp_path)
    assert found.kernels.to_frame()["graph_node"].tolist() == [-1, -1]
    assert np.isnan(found.samples["value"]).all()


def test_others_find_types_and_units(storage: Storage, tmp_path: Path) -> None:
    write_tables(made(), tmp_path, storage)
    path = tmp_path / f"copies.{storage}"
    schema = pq.read_schema(path) if storage is Storage.PARQUET else pa.ipc.open_file(path).schema
    assert schema.field("start_ns").metadata[b"unit"] == b"ns"
    assert schema.field("n_bytes").metadata[b"unit"] == b"bytes"
    assert b"memset" in schema.metadata[b"about"]
    told = json.loads((tmp_path / MANIFEST).read_text("utf-8"))
    assert told["tables"]["copies"]["units"]["n_bytes"] == "bytes"
    assert told["tables"]["kernels"]["n_rows"] == 2


def test_parts_are_one_table(storage: Storage, tmp_path: Path) -> None:
    trace = made()  # its names are in another order than the rows
    with FolderWriter(tmp_path, storage) as writer:
        for row in range(2):  # the second brings a name that the first does not have
            part = trace.kernels.take([row])
            writer.add("kernels", part.assign(name=Names.of(list(part["name"]))))
        for name in TABLES.keys() - {"kernels"}:
            writer.add(name, trace.table(name))
        writer.finish(trace.info, trace.recorded, trace.span)
    kernels = open_trace(tmp_path).kernels.to_frame()
    assert kernels["name"].tolist() == ["gemm", "gelu µ"]
    assert kernels["start_ns"].tolist() == [120, 190]


def test_only_what_is_asked_for_is_read(tmp_path: Path) -> None:
    write_tables(made(), tmp_path)
    (tmp_path / "ranges.parquet").write_bytes(b"damaged")
    found = open_trace(tmp_path, ReadOptions(tables=frozenset({"kernels"})))
    assert (len(found.kernels.to_frame()), len(found.api_calls.to_frame())) == (2, 0)
    assert found.span == TimeWindow(0, 200)
    assert found.devices.to_frame().empty


def test_the_users_rules_hold(tmp_path: Path) -> None:
    write_tables(made(), tmp_path)
    rules = parse_rules('[[rule]]\npattern = "gemm"\nactivity = "optimizer"\n')
    found = open_trace(tmp_path, ReadOptions(rules))
    assert found.kernels.to_frame()["activity"].tolist()[0] == "optimizer"


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda f: (f / "kernels.parquet").unlink(), "kernels.parquet: cannot be read"),
        (lambda f: (f / "kernels.parquet").write_bytes(b"PAR1"), "cannot be read"),
        (lambda f: write_json(f, span_ns=[5, 1]), "ends before it starts"),
        (lambda f: write_json(f, traceprof_tables=2), "table version 2"),
        (lambda f: (f / MANIFEST).write_text("{"), "cannot be read"),
        (lambda f: write_json(f, tables={}), "does not list table"),
        (lambda f: rename(f, "../kernels.parquet"), "is not a file in this folder"),
        (lambda f: rename(f, "copies.parquet"), "contains 1 of 2 rows"),
    ],
)
def test_damage_is_told_in_one_line(
    damage: Callable[[Path], None], told: str, tmp_path: Path
) -> None:
    write_tables(made(), tmp_path)
    damage(tmp_path)
    with pytest.raises(TraceError, match=told) as error:
        open_trace(tmp_path)
    assert "\n" not in str(error.value)


def write_json(folder: Path, **changes: object) -> None:
    path = folder / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes), "utf-8")


def rename(folder: Path, name: str) -> None:
    tables = json.loads((folder / MANIFEST).read_text("utf-8"))["tables"]
    tables["kernels"]["file"] = name
    write_json(folder, tables=tables)


def test_a_folder_of_other_tables_is_no_trace(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "a.parquet")
    with pytest.raises(TraceError, match="the tables in this folder are not a trace"):
        open_trace(tmp_path)


@pytest.mark.traces
@pytest.mark.parametrize(
    "name", [*real_traces.NSYS[::4], *real_traces.NVPROF[:1], real_traces.KINETO[2]]
)
def test_real_traces_come_back_as_they_were(
    name: str, storage: Storage, real_trace: Callable[[str], Path], tmp_path: Path
) -> None:
    trace = open_trace(real_trace(name))
    write_tables(trace, tmp_path, storage)
    found = open_trace(tmp_path)
    assert_equal(found, trace)
    assert replace(found.info, path="") == replace(trace.info, path="")
