"""Databases of rocprofv3: what each row becomes, sums as SQL has them, several processes."""

from __future__ import annotations

import json
import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.formats.rocpd_database import GUID, RocpdDatabase, sums
from tests.reading import records
from tests.running import run
from traceprof.cli import app
from traceprof.errors import TraceError
from traceprof.formats import cut, open_trace
from traceprof.formats.contract import ReadOptions
from traceprof.model.cutting import CutRequest, no_progress
from traceprof.model.tables import ABSENT, TABLES
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace

NCCL = "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"
HIP = "HIP_RUNTIME_API"


def example(path: Path, **process: Any) -> Path:
    """Write a step: a copy, a GEMM, an all-reduce by RCCL, with ranges and a mark."""
    with RocpdDatabase(path, **process) as file:
        file.thread(7, "main")
        file.region(HIP, "hipMemcpyAsync", (1_000, 1_100), 7, 1)
        file.copy("HOST_TO_DEVICE", (1_200, 1_700), 1, 4096, (0, 4))
        file.region(HIP, "hipLaunchKernel", (1_150, 1_180), 7, 2)
        file.kernel("Cijk_Ailk_Bljk_SB_MT64x64", (1_700, 2_900), 2)
        event = file.region("RCCL_API", "ncclAllReduce", (2_000, 2_200), 7, 3)
        for name, value in (("count", "1000"), ("datatype", "7"), ("comm", "0x55"), ("op", "0")):
            file.add("arg", event_id=event, position=0, type="int", name=name, value=value)
        file.region(HIP, "hipExtLaunchKernel", (2_050, 2_100), 7, 4)
        file.kernel(NCCL, (3_000, 3_500), 4, agent=6, stream=2)
        file.copy("DEVICE_TO_DEVICE", (3_500, 3_600), 1, 64, (4, 4))
        file.region("MARKER_CORE_RANGE_API", "roctxThreadRangeA", (900, 3_400), 7, 5, "step 1")
        file.region("MARKER_CORE_RANGE_API", "roctxProcessRangeA", (950, 3_000), 7, 6, "epoch")
        file.region("HSA_CORE_API", "hsa_signal_create", (1_010, 1_020), 7, 8)
        track = file.add("track", pid=file.pid, tid=file.thread(7))
        mark = file.event("MARKER_CORE_RANGE_API", 9, "checkpoint")
        file.add("sample", track_id=track, timestamp=1_500, event_id=mark)
    return path


def test_rows_become_tables(tmp_path: Path) -> None:
    trace = open_trace(example(tmp_path / "a.db"))
    assert trace.info.format == "rocpd"
    assert (trace.info.host, trace.info.schema_version) == ("alpha", "3")
    # Time 0 is the first event, the range at 900.
    kernels = records(trace.kernels.to_frame())
    assert [(row.start_ns, row.end_ns, row.device, row.stream) for row in kernels] == [
        (800, 2_000, 0, 1),
        (2_100, 2_600, 1, 2),
    ]
    assert [row.activity for row in kernels] == ["gemm", "communication"]
    copies = records(trace.copies.to_frame())
    assert [(row.direction, row.n_bytes, row.device) for row in copies] == [
        ("h2d", 4096, 0),
        ("d2d", 64, 0),
    ]
    calls = records(trace.api_calls.to_frame())
    assert [row.name for row in calls] == [
        "hipMemcpyAsync",
        "hipLaunchKernel",
        "hipExtLaunchKernel",
    ]
    assert [row.correlation for row in calls] == [1, 2, 4]
    assert [row.correlation for row in kernels] == [2, 4]
    ranges = records(trace.ranges.to_frame())
    assert [(row.name, row.kind) for row in ranges] == [
        ("step 1", "push_pop"),
        ("epoch", "start_end"),
    ]
    assert trace.marks.to_frame()[["start_ns", "name"]].to_numpy().tolist() == [[600, "checkpoint"]]
    operators = records(trace.host_ops.to_frame())
    assert [(row.source, row.name) for row in operators] == [
        ("hsa_core", "hsa_signal_create"),
        ("rccl", "ncclAllReduce"),
    ]
    (collective,) = records(trace.collectives.to_frame())
    assert (collective.op, collective.n_bytes, collective.dtype) == ("all_reduce", 4000, "float32")
    # It is tied to the kernel that was launched inside it.
    assert (collective.correlation, collective.group, collective.peer) == (4, "0x55", ABSENT)
    devices = records(trace.devices.to_frame())
    assert [(row.device, row.name, row.sm_count) for row in devices] == [
        (0, "AMD Instinct MI300X", 304),
        (1, "AMD Instinct MI300X", 304),
    ]
    assert trace.threads.to_frame()["name"].tolist() == ["main"]
    assert trace.info.warnings == ()


def test_rocprof_sys_calls_the_same_otherwise(tmp_path: Path) -> None:
    with RocpdDatabase(tmp_path / "a.db") as file:
        file.region("rocm_hip_api", "hipLaunchKernel", (10, 20), 7, 1)
        file.kernel("gemm", (30, 40), 1)
        file.region("rocm_marker_api", "step 1", (5, 50), 7, 2)
        file.region("user", "epoch", (4, 60), 7, 3)
        file.region("rocm_rccl_api", "ncclAllGather", (21, 25), 7, 4)
        file.region("python", "train.py:7", (6, 8), 7, 5)
        file.region("rocm_hip_stream", "Stream 1", (6, 7), 7, 6)
    trace = open_trace(tmp_path / "a.db")
    assert list(trace.api_calls["name"]) == ["hipLaunchKernel"]
    assert list(trace.ranges["name"]) == ["epoch", "step 1"]
    assert list(trace.collectives["op"]) == ["all_gather"]
    found = zip(trace.host_ops["source"], trace.host_ops["name"], strict=True)
    assert sorted(found) == [
        ("hip_stream", "Stream 1"),
        ("python", "train.py:7"),
        ("rccl", "ncclAllGather"),
    ]


def test_a_grid_is_of_groups(tmp_path: Path) -> None:
    path = example(tmp_path / "a.db")
    asked = ReadOptions(tables=frozenset({"kernel_shapes"}))
    row = records(open_trace(path, asked).kernel_shapes.to_frame())[0]
    assert (row.grid_x, row.grid_y, row.grid_z) == (10, 2, 1)
    assert (row.block_x, row.block_y, row.registers, row.shared_bytes) == (64, 2, 48, 1024)
    # Two waves of 48 registers: 16 groups, all 32 waves of a compute unit.
    occupancy = run("occupancy", open_trace(path, ReadOptions(tables=frozenset(TABLES)))).table
    assert occupancy["occupancy_ratio"].tolist() == [1.0, 1.0]


def test_sums_are_those_of_sql(tmp_path: Path) -> None:
    path, rng = tmp_path / "a.db", random.Random(3)
    with RocpdDatabase(path) as file:
        for number in range(500):
            at, tid = rng.randrange(10**6), rng.randrange(1, 4)
            span = (at, at + rng.randrange(1, 900))
            match number % 5:
                case 0 | 1:
                    file.kernel(f"k{rng.randrange(9)}", span, number, rng.choice((4, 6)))
                case 2:
                    agents = rng.choice(((0, 4), (6, 0)))
                    way = "HOST_TO_DEVICE" if agents[0] == 0 else "DEVICE_TO_HOST"
                    file.copy(way, span, number, rng.randrange(10**6), agents)
                case 3:
                    file.region(HIP, "hipLaunchKernel", span, tid, number)
                case _:
                    file.region(
                        "MARKER_CORE_RANGE_API", "roctxThreadRangeA", span, tid, number, "x"
                    )
    trace = open_trace(path)
    for table, stored in (("kernels", "kernel_dispatch"), ("copies", "memory_copy")):
        assert total(trace, table) == sums(path, stored)
    assert tuple(map(sum, zip(total(trace, "api_calls"), total(trace, "ranges"), strict=True))) == (
        sums(path, "region")
    )
    by_name = run("kernels", trace).table
    with closing(sqlite3.connect(path)) as database:
        told = database.execute(
            f'SELECT s.display_name, sum(k."end" - k.start) FROM "rocpd_kernel_dispatch_{GUID}" k '
            f'JOIN "rocpd_info_kernel_symbol_{GUID}" s ON s.id = k.kernel_id GROUP BY 1'
        ).fetchall()
    assert dict(zip(by_name["name"], by_name["total_ns"].tolist(), strict=True)) == dict(told)


def total(trace: Trace, name: str) -> tuple[int, int]:
    table = trace.table(name)
    return len(table), int((table["end_ns"] - table["start_ns"]).sum())


def test_several_processes_in_one_file(tmp_path: Path) -> None:
    path = tmp_path / "both.db"
    for number, guid in enumerate(("aaaa_1", "bbbb_2")):
        environment = json.dumps(
            {"RANK": str(number), "WORLD_SIZE": "2", "API_TOKEN": "hunter2hunter2"}
        )
        with RocpdDatabase(path, 100 + number, guid, environment=environment) as file:
            file.region(HIP, "hipLaunchKernel", (10, 20), 7, 1)
            # The ids of a process say nothing in another.
            file.kernel("other", (1, 2), 9)
            file.kernel(f"mine {number}", (30, 40 + number), 1, (4, 6)[number])
    trace = open_trace(path)
    rows = records(trace.kernels.to_frame())
    mine = [(row.process, row.name, row.device) for row in rows if "mine" in row.name]
    assert mine == [(101, "mine 1", 1), (100, "mine 0", 0)]
    processes = records(trace.processes.to_frame())
    assert [(row.process, row.rank, row.world_size, row.host) for row in processes] == [
        (100, 0, 2, "alpha"),
        (101, 1, 2, "alpha"),
    ]
    assert processes[0].name == "python train.py"
    assert "hunter2" not in str(trace.environment.rows())


def test_secrets_of_the_environment_are_masked_in_names(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    environment = json.dumps({"WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567"})
    with RocpdDatabase(path, environment=environment) as file:
        file.kernel("k 0123456789abcdef0123456789abcdef01234567", (1, 2), 1)
    assert "0123456789abcdef" not in open_trace(path).kernels["name"][0]


def test_tables_may_lack_columns_and_be_missing(tmp_path: Path) -> None:
    path = tmp_path / "lean.db"
    with closing(sqlite3.connect(path)) as file, file:
        file.execute(f'CREATE TABLE "rocpd_info_process_{GUID}" (id INTEGER, pid INTEGER)')
        file.execute(
            f'CREATE TABLE "rocpd_kernel_dispatch_{GUID}" '
            "(id INT, pid INT, agent_id INT, kernel_id INT, start INT, [end] INT)"
        )
        file.execute(f'INSERT INTO "rocpd_info_process_{GUID}" VALUES (5, 77)')
        file.execute(f'INSERT INTO "rocpd_kernel_dispatch_{GUID}" VALUES (1, 5, 4, 9, 100, 250)')
        file.execute(f'INSERT INTO "rocpd_kernel_dispatch_{GUID}" VALUES (2, 5, 4, 9, 400, 250)')
    trace = open_trace(path)
    (row,) = records(trace.kernels.to_frame())
    assert (row.name, row.start_ns, row.end_ns, row.process) == ("kernel 9", 0, 150, 77)
    assert (row.device, row.stream, row.correlation) == (ABSENT, ABSENT, ABSENT)
    (warning,) = trace.info.warnings
    assert warning.startswith("traceprof ignored 1 rows")
    assert "api_calls" not in trace.recorded


def test_ids_that_are_none_tell_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with closing(sqlite3.connect(path)) as file, file:
        file.execute(f'CREATE TABLE "rocpd_info_process_{GUID}" (id, pid)')
        file.execute(f'CREATE TABLE "rocpd_info_kernel_symbol_{GUID}" (id, display_name)')
        columns = "id, pid, agent_id, kernel_id, start, [end], grid_size_x, workgroup_size_x"
        file.execute(f'CREATE TABLE "rocpd_kernel_dispatch_{GUID}" ({columns})')
        file.execute(f'CREATE TABLE "rocpd_string_{GUID}" (id, string)')
        for table in ("info_process", "info_kernel_symbol", "string"):
            for own in (None, "text", 1.5, b"x"):
                row = own, 77 if table == "info_process" else "MARKER_CORE_API"
                file.execute(f'INSERT INTO "rocpd_{table}_{GUID}" VALUES (?, ?)', row)
        file.execute(f'CREATE TABLE "rocpd_event_{GUID}" (id, category_id, stack_id, extdata)')
        row = 1, 5, 4, 9, 100, 250, 64, 64
        file.execute(
            f'INSERT INTO "rocpd_kernel_dispatch_{GUID}" VALUES ({", ".join("?" * 8)})', row
        )
    (kernel,) = records(open_trace(path).kernels.to_frame())
    assert (kernel.name, kernel.process) == ("kernel 9", ABSENT)


def test_without_events_it_says_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "empty.db"
    with RocpdDatabase(path):
        pass
    with pytest.raises(TraceError, match="the rocprofv3 database contains no events"):
        open_trace(path)


def test_it_is_not_cut_and_says_what_is(tmp_path: Path) -> None:
    path, part = example(tmp_path / "a.db"), tmp_path / "part"
    part.touch()
    with pytest.raises(TraceError, match=r"cannot cut .*--to parquet"):
        cut(path, part, CutRequest(TimeWindow(0, 10)), no_progress)


@pytest.mark.parametrize("kind", ["", "0", "ncclFloat16", "ncclBfloat16", "nonsense"])
def test_types_are_told_by_number_or_name(kind: str, tmp_path: Path) -> None:
    with RocpdDatabase(tmp_path / "a.db") as file:
        event = file.region("RCCL_API", "ncclReduceScatter", (0, 9), 7, 1)
        other = file.region("RCCL_API", "ncclSend", (10, 19), 7, 2)
        for own in (event, other):
            for name, value in (
                ("recvcount", "8"),
                ("count", "8"),
                ("datatype", kind),
                ("peer", "3"),
            ):
                file.add("arg", event_id=own, position=0, type="", name=name, value=value)
    scattered, sent = records(open_trace(tmp_path / "a.db").collectives.to_frame())
    size = {"0": 8, "ncclFloat16": 16, "ncclBfloat16": 16}.get(kind, ABSENT)
    # How many ranks share what is scattered the call does not tell.
    assert (scattered.op, scattered.n_bytes) == ("reduce_scatter", ABSENT)
    assert (sent.op, sent.n_bytes, sent.peer) == ("send", size, 3)


def test_kernels_alone_have_a_breakdown_and_a_page(tmp_path: Path) -> None:
    """Without --memory-copy-trace, times of copies are unknown, and idle time may contain them."""
    path = tmp_path / "kernels_results.db"
    with RocpdDatabase(path) as file:
        file.kernel("Cijk_Ailk_Bljk_SB_MT64x64", (1_000, 7_000), 1)
        file.kernel(NCCL, (8_000, 9_000), 2)
        file.kernel("Cijk_Ailk_Bljk_SB_MT64x64", (10_000, 11_000), 3)
    found = run("breakdown", open_trace(path))
    (row,) = records(found.to_frame())
    assert (row.duration_ns, row.compute_ns, row.idle_ns) == (10_000, 7_000, 2_000)
    assert (row.exposed_communication_ns, row.idle_ratio) == (1_000, pytest.approx(0.2))
    unknown = "exposed_transfer_ns transfer_ns transfer_overlap_ns device_memory_ns"
    assert [getattr(row, name) for name in unknown.split()] == [None] * 4
    assert row.exposed_transfer_ratio is None
    assert "Copies were not recorded. Idle time includes" in found.notes[-1].text
    page = CliRunner().invoke(app, ["analyze", str(path), "--no-cache"])
    assert page.exit_code == 0
    shown = " ".join(page.stdout.split())  # lines are as long as the terminal is wide
    assert "compute 70.0%, idle 20.0%, exposed communication 10.0%" in shown
    report = tmp_path / "report.html"
    assert CliRunner().invoke(app, ["report", str(path), "-o", str(report)]).exit_code == 0
    assert "Exposed transfer –" in report.read_text()
