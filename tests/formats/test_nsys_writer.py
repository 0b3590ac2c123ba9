import json
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from tests.builders import TraceBuilder
from traceprof.errors import UsageError
from traceprof.formats import ReadOptions, open_trace
from traceprof.formats.nsys.writer import append_to_nsys, write_nsys
from traceprof.model.tables import make_table
from traceprof.model.trace import TraceInfo, make_trace

KERNELS = make_table(
    "kernels",
    {
        "start_ns": [100, 300],
        "end_ns": [150, 400],
        "device": [0, 0],
        "stream": [7, 7],
        "process": [42, 42],
        "correlation": [1, 2],
        "name": ["gemm", "gemm"],
    },
)
COPIES = make_table(
    "copies",
    {
        "start_ns": [10, 20],
        "end_ns": [15, 26],
        "device": [0, 0],
        "stream": [7, 7],
        "process": [42, 42],
        "direction": ["h2d", "memset"],
        "n_bytes": [1000, 64],
        "src_kind": ["pinned", ""],
        "dst_kind": ["device", "device"],
    },
)
RANGES = make_table(
    "ranges",
    {
        "start_ns": [5, 200],
        "end_ns": [90, 210],
        "process": [42, 42],
        "thread": [43, 43],
        "domain": ["traceprof", "traceprof"],
        "name": ["forward", "step"],
        "payload": [3.0, 0.5],
        "kind": ["push_pop", "start_end"],
    },
)
MARKS = make_table(
    "marks",
    {
        "start_ns": [6],
        "process": [42],
        "thread": [43],
        "domain": [""],
        "name": ["batch"],
        "payload": [np.nan],
    },
)
COLLECTIVES = make_table(
    "collectives",
    {
        "start_ns": [7],
        "end_ns": [8],
        "process": [42],
        "thread": [43],
        "op": ["allreduce"],
        "n_bytes": [4096],
        "dtype": ["float32"],
        "group": ["0"],
        "group_size": [2],
        "backend": ["gloo"],
        "group_rank": [1],
        "peer": [0],
        "peer_rank": [4],
        "tag": [3],
    },
)


def a_trace():
    tables = {
        "kernels": KERNELS,
        "copies": COPIES,
        "ranges": RANGES,
        "marks": MARKS,
        "collectives": COLLECTIVES,
        "processes": make_table("processes", {"process": [42], "name": ["python"], "rank": [1]}),
        "threads": make_table("threads", {"process": [42], "thread": [43], "name": ["main"]}),
        "environment": make_table("environment", {"name": ["os"], "value": ["Debian"]}),
    }
    info = TraceInfo(host="node1", utc_epoch_ns=1_700_000_000_000_000_000)
    return make_trace(info, tables, [*tables, "samples"])


def rows(path, sql):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "run.sqlite"
    write_nsys(a_trace(), path, {"tool": "torch"})
    return path


def test_events_keep_times_ids_and_names(written):
    globals_ = 1 << 48 | 42 << 24
    assert rows(
        written,
        'SELECT start, "end", streamId, correlationId, globalPid, value'
        " FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = demangledName ORDER BY start",
    ) == [(100, 150, 7, 1, globals_, "gemm"), (300, 400, 7, 2, globals_, "gemm")]
    assert rows(written, "SELECT bytes, copyKind, srcKind FROM CUPTI_ACTIVITY_KIND_MEMCPY") == [
        (1000, 1, 1)
    ]
    assert rows(written, "SELECT bytes, memKind FROM CUPTI_ACTIVITY_KIND_MEMSET") == [(64, 2)]


def test_annotations_have_domains_and_payloads(written):
    thread = 1 << 48 | 42 << 24 | 43
    assert rows(
        written,
        'SELECT eventType, start, "end", value, int64Value, doubleValue, domainId, globalTid'
        " FROM NVTX_EVENTS JOIN StringIds ON id = textId ORDER BY start",
    ) == [
        (59, 5, 90, "forward", 3, None, 1, thread),
        (34, 6, None, "batch", None, None, 0, thread),
        (60, 200, 210, "step", None, 0.5, 1, thread),
    ]
    assert rows(written, "SELECT text, domainId FROM NVTX_EVENTS WHERE eventType = 75") == [
        ("traceprof", 1)
    ]


def test_what_nsys_has_no_table_for_goes_into_our_own(written):
    assert rows(written, "SELECT op, bytes, dtype, groupSize, sequence FROM TRACEPROF_COLLECTIVES")[
        0
    ] == ("allreduce", 4096, "float32", 2, None)
    assert rows(written, "SELECT pid, rank, localRank FROM TRACEPROF_PROCESSES") == [(42, 1, None)]
    manifest = dict(rows(written, "SELECT * FROM TRACEPROF_MANIFEST"))
    assert manifest["tool"] == "torch"
    assert "samples" in json.loads(manifest["recorded"])
    assert rows(written, "SELECT count(*) FROM TRACEPROF_SAMPLES") == [(0,)]


def test_what_was_not_recorded_has_no_table(written):
    tables = {name for (name,) in rows(written, "SELECT name FROM sqlite_master")}
    assert "TRACEPROF_HOST_OPS" not in tables
    assert "CUPTI_ACTIVITY_KIND_RUNTIME" not in tables


def test_appending_keeps_what_nsys_wrote(written):
    append_to_nsys(make_trace(TraceInfo(), {"ranges": RANGES}, ["ranges"]), written)
    assert rows(written, "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL") == [(2,)]
    assert rows(written, "SELECT text, domainId FROM NVTX_EVENTS WHERE eventType = 75") == [
        ("traceprof", 1),
        ("traceprof", 2),
    ]
    assert rows(
        written,
        "SELECT value, count(*) FROM NVTX_EVENTS JOIN StringIds ON id = textId GROUP BY 1",
    ) == [("batch", 1), ("forward", 2), ("step", 2)]


def test_a_folder_that_is_missing_is_said_in_one_line(tmp_path):
    with pytest.raises(UsageError, match=r"missing: no such folder"):
        write_nsys(a_trace(), tmp_path / "missing" / "run.sqlite")


def test_no_temporary_file_is_left(written):
    assert [file.name for file in written.parent.iterdir()] == ["run.sqlite"]


def test_how_kernels_were_launched_is_kept(tmp_path: Path) -> None:
    whole = {"grid_x": 4, "grid_y": 1, "grid_z": 2, "block_x": 64, "block_y": 1, "block_z": 1}
    told = whole | {"static_shared_bytes": 8, "dynamic_shared_bytes": 16, "shared_bytes": 24}
    trace = (
        TraceBuilder()
        .device(0, "GPU", compute_capability=103)
        .kernel("a", 0, 5, correlation=1, shape=told | {"registers": 12})
        .kernel("b", 5, 9, correlation=2, shape=whole | {"shared_bytes": 40})
        .kernel("c", 9, 12, correlation=3)
        .build()
    )
    path = tmp_path / "trace.sqlite"
    write_nsys(trace, path)
    tables = frozenset({"kernels", "kernel_shapes", "devices"})
    read = open_trace(path, ReadOptions(tables=tables))
    assert read.devices.to_frame()["compute_capability"].tolist() == [103]
    columns = ["grid_z", "registers", "static_shared_bytes", "shared_bytes"]
    assert read.kernel_shapes.to_frame()[columns].values.tolist() == [
        [2, 12, 8, 24],
        [2, -1, -1, 40],
        [-1, -1, -1, -1],
    ]
