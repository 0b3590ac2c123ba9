"""Tables of nsys that only some recordings have: NCCL payloads, MPI, metrics, diagnostics."""

from __future__ import annotations

import json
import sqlite3
import struct
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.builders import TraceBuilder, plain
from tests.reading import records
from tests.requirements import TRACES, require
from tests.running import run
from traceprof.formats import open_trace
from traceprof.formats.nsys.writer import write_nsys
from traceprof.measures.collectives.operations import find_collectives
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace

PID, TID = 11, 12
GLOBAL = (1 << 48) | (PID << 24)
PLACE = GLOBAL | TID
COMMUNICATOR = 0xABC
CUSTOM = 1 << 24
INT32, UINT64, SIZE = 5, 18, 22
JOINED = ("NCCL communicator ID", UINT64, None)
SCHEMAS = {
    CUSTOM + 2: [
        JOINED,
        ("No. of ranks", INT32, 8),
        ("Rank", INT32, 12),
        ("CUDA device", INT32, 16),
    ],
    CUSTOM + 5: [
        JOINED,
        ("Message size [bytes]", SIZE, 8),
        ("Reduction operation", CUSTOM + 16, 16),
    ],
    CUSTOM + 9: [JOINED, ("Message size [bytes]", SIZE, 8), ("Peer rank", INT32, 16)],
}


def read(
    tmp_path: Path,
    tables: dict[str, tuple[str, Iterable[tuple[Any, ...]]]],
    builder: TraceBuilder | None = None,
) -> Trace:
    """Return the trace of an export with these tables added: name → (columns, rows)."""
    path = tmp_path / "export.sqlite"
    write_nsys((builder or TraceBuilder().kernel("k", 0, 5, process=PID)).build(), path)
    with closing(sqlite3.connect(path)) as connection, connection:
        for table, (columns, rows) in tables.items():
            quoted = ", ".join(f'"{name.strip()}"' for name in columns.split(","))
            connection.execute(f"CREATE TABLE IF NOT EXISTS {table} ({quoted})")
            marks = ",".join("?" * len(columns.split(",")))
            connection.executemany(f"INSERT INTO {table} ({quoted}) VALUES ({marks})", list(rows))
    return open_trace(path)


def schema_table() -> tuple[str, list[tuple[Any, ...]]]:
    rows = [
        (1, schema, index, kind, name, offset)
        for schema, fields in SCHEMAS.items()
        for index, (name, kind, offset) in enumerate(fields)
    ]
    # Another domain numbers schemas of its own.
    other = [(2, schema, 0, SIZE, "Message size [bytes]", 0) for schema in SCHEMAS]
    return "domainId, schemaId, idx, type, name, offset", rows + other


def blob(schema: int, payload: bytes) -> bytes:
    """Return a payload as nsys exports it: a header of 32 bytes that names the schema."""
    header = struct.pack("<4I2Q", 1, 0, schema, 0, len(payload), 32 + len(payload))
    return header + payload


def nvtx(builder: TraceBuilder, rows: list[tuple[Any, ...]], tmp_path: Path) -> Trace:
    """Return the trace with NVTX rows (start, end, text, jsonText, binaryData) put in."""
    columns = "start, end, eventType, text, textId, globalTid, domainId, jsonText, binaryData"
    path = tmp_path / "export.sqlite"
    write_nsys(builder.build(), path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DROP TABLE IF EXISTS NVTX_EVENTS")
        connection.execute(
            'CREATE TABLE NVTX_EVENTS (start INT, "end" INT, eventType INT, text TEXT, '
            "textId INT, globalTid INT, domainId INT, jsonText TEXT, binaryData TEXT)"
        )
        names, entries = schema_table()
        connection.execute(f"CREATE TABLE NVTX_PAYLOAD_SCHEMA_ENTRIES ({names})")
        marks = ",".join("?" * 6)
        connection.executemany(f"INSERT INTO NVTX_PAYLOAD_SCHEMA_ENTRIES VALUES ({marks})", entries)
        quoted = columns.replace("end", '"end"', 1)
        connection.executemany(
            f"INSERT INTO NVTX_EVENTS ({quoted}) VALUES (?, ?, 59, ?, NULL, ?, 1, ?, ?)",
            [(start, end, text, PLACE, *payload) for start, end, text, *payload in rows],
        )
    return open_trace(path)


def test_sizes_of_nccl_messages(tmp_path: Path) -> None:
    builder = (
        TraceBuilder()
        .kernel("gemm", 0, 10, process=PID, thread=TID, launched_ns=(101, 102))
        .kernel(
            "ncclDevKernel_AllReduce", 150, 200, process=PID, thread=TID, launched_ns=(110, 115)
        )
        .kernel("ncclDevKernel_SendRecv", 500, 600, process=PID, thread=TID, launched_ns=(405, 410))
    )
    init = struct.pack("<Qiii4x", COMMUNICATOR, 8, 3, 0)
    all_reduce = struct.pack("<QQI4x", COMMUNICATOR, 4096, 0)
    scatter = {"payload": {"Message size [bytes]": 100, "NCCL communicator ID": COMMUNICATOR}}
    unknown = {"Message size [bytes]": "64", "NCCL communicator ID": "0x1"}
    trace = nvtx(
        builder,
        [
            (10, 20, "ncclCommInitRank", None, blob(CUSTOM + 2, init)),
            (100, 120, "ncclAllReduce", None, blob(CUSTOM + 5, all_reduce)),
            (200, 210, "ncclReduceScatter", json.dumps(scatter), None),
            (220, 230, "ncclAlltoAll", json.dumps(unknown), None),
            (300, 301, "ncclGroupStart", None, None),
            (302, 303, "ncclSend", "not JSON", None),
            (400, 420, "ncclGroupEnd", None, None),
            (430, 440, "ncclRecv", None, b"too short"),
        ],
        tmp_path,
    )
    sent, launched = trace.api_calls.to_frame()["correlation"].tolist()[1:]
    assert plain(
        trace.collectives.to_frame(), "start_ns", "op", "n_bytes", "group_size", "correlation"
    ) == [
        (100, "all_reduce", 4096, 8, sent),
        (200, "reduce_scatter", 800, 8, ABSENT),  # NCCL tells the part of one rank
        (220, "all_to_all", ABSENT, ABSENT, ABSENT),  # of how many is not known
        (302, "send", ABSENT, ABSENT, launched),  # a group launches when it ends
        (430, "recv", ABSENT, ABSENT, ABSENT),
    ]
    assert set(trace.collectives.to_frame()["backend"]) == {"nccl"}
    assert trace.collectives.to_frame()["group"].tolist()[:2] == ["0xabc", "0xabc"]
    assert plain(trace.processes.to_frame(), "process", "rank", "world_size") == [(PID, 3, 8)]


def test_payloads_tell_whom_a_send_goes_to(tmp_path: Path) -> None:
    init = struct.pack("<Qiii4x", COMMUNICATOR, 8, 3, 0)
    send = struct.pack("<QQi4x", COMMUNICATOR, 4096, 5)
    trace = nvtx(
        TraceBuilder().kernel("k", 0, 5, process=PID),
        [
            (10, 20, "ncclCommInitRank", None, blob(CUSTOM + 2, init)),
            (100, 120, "ncclSend", None, blob(CUSTOM + 9, send)),
            (130, 140, "ncclRecv", json.dumps({"Peer rank": 2}), None),
        ],
        tmp_path,
    )
    assert plain(
        trace.collectives.to_frame(), "op", "n_bytes", "group_rank", "peer", "peer_rank"
    ) == [
        ("send", 4096, 3, 5, ABSENT),
        ("recv", ABSENT, ABSENT, 2, ABSENT),
    ]


def test_a_batch_that_our_recorder_saw_has_the_kernel_of_its_end(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for start, op in ((0, "send"), (10, "recv"), (100, "send")):
        builder.collective(op, start, start + 5, n_bytes=8, process=PID, thread=TID)
    own = {"process": PID, "thread": TID}
    builder.kernel("ncclDevKernel_SendRecv", 50, 60, launched_ns=(20, 21), **own)
    builder.kernel("ncclDevKernel_SendRecv", 150, 160, launched_ns=(102, 103), **own)
    path = tmp_path / "run.sqlite"
    write_nsys(builder.build(), path)
    trace = open_trace(path)
    assert plain(trace.collectives.to_frame(), "op", "correlation") == [
        ("send", 1),
        ("recv", 1),
        ("send", ABSENT),
    ]
    work = find_collectives(trace)
    assert plain(work, "op", "start_ns", "kernels") == [("send_recv", 50, 1), ("send", 150, 1)]


def test_recordings_that_did_not_note_the_other_end_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "old.sqlite"
    builder = TraceBuilder().collective("send", 0, 5, n_bytes=8, process=PID, peer=1, tag=2)
    write_nsys(builder.build(), path)
    with closing(sqlite3.connect(path)) as connection, connection:
        for column in ("groupRank", "peer", "peerRank", "tag"):
            connection.execute(f"ALTER TABLE TRACEPROF_COLLECTIVES DROP COLUMN {column}")
    assert plain(open_trace(path).collectives.to_frame(), "op", "n_bytes", "peer", "tag") == [
        ("send", 8, ABSENT, ABSENT)
    ]


def test_calls_of_our_recorder_count_once(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel("k", 0, 5, process=PID)
    builder.collective("_allgather_base", 100, 120, n_bytes=64, process=PID, thread=TID)
    trace = nvtx(builder, [(101, 119, "ncclAllGather", None, None)], tmp_path)
    assert plain(trace.collectives.to_frame(), "start_ns", "op", "n_bytes") == [
        (100, "all_gather", 64)
    ]


def test_annotations_of_pytorch_where_nccl_tells_nothing(tmp_path: Path) -> None:
    builder = (
        TraceBuilder()
        .range("nccl:all_reduce, seq = 4, op_id = 9", 100, 120, process=PID, thread=TID)
        .range("nccl:coalesced", 130, 140, process=PID, thread=TID)
        .kernel(
            "ncclDevKernel_AllReduce", 150, 200, process=PID, thread=TID, launched_ns=(110, 115)
        )
    )
    trace = read(tmp_path, {}, builder)
    assert plain(
        trace.collectives.to_frame(), "start_ns", "op", "n_bytes", "backend", "correlation"
    ) == [(100, "all_reduce", ABSENT, "nccl", 1)]


def test_calls_of_mpi(tmp_path: Path) -> None:
    names = ["MPI_Allreduce", "MPI_Isend", "MPI_Wait", "MPI_Comm_rank", "MPI_Recv"]
    strings = [(900 + index, name) for index, name in enumerate(names)]
    trace = read(
        tmp_path,
        {
            "StringIds": ("id, value", strings),
            "MPI_COLLECTIVES_EVENTS": (
                "start, end, globalTid, textId, commHandle, rootRank, size, recvSize",
                [(10, 20, PLACE, 900, 0x44, None, 4096, 4096)],
            ),
            "MPI_P2P_EVENTS": (
                "start, end, globalTid, textId, commHandle, tag, remoteRank, size",
                [(30, None, PLACE, 901, 0x44, 7, 1, 128), (33, 35, PLACE, 904, 0x45, -1, -2, 8)],
            ),
            "MPI_START_WAIT_EVENTS": (
                "start, end, globalTid, textId, requestHandle",
                [(40, 50, PLACE, 902, 1)],
            ),
            "MPI_OTHER_EVENTS": ("start, end, globalTid, textId", [(60, 61, PLACE, 903)]),
            "MPI_COMMUNICATORS": (
                "rank, commHandle, size, localRank, groupRoot, groupRootUid",
                [(2, 0x44, 4, 2, 0, 9), (3, 0x44, 4, 3, 1, 8)],
            ),
            "MPI_RANKS": ("globalTid, rank", [(PLACE, 2)]),
        },
    )
    columns = ("start_ns", "end_ns", "op", "n_bytes", "group", "group_size", "backend")
    assert plain(trace.collectives.to_frame(), *columns) == [
        (10, 20, "all_reduce", 4096, "0:9", 4, "mpi"),
        (30, 30, "send", 128, "0:9", 4, "mpi, non-blocking"),
        (33, 35, "recv", 8, "0x45", ABSENT, "mpi"),
    ]
    assert plain(trace.collectives.to_frame(), "group_rank", "peer", "tag") == [
        (2, ABSENT, ABSENT),
        (2, 1, 7),
        (ABSENT, ABSENT, ABSENT),  # from any source, of any tag
    ]
    assert plain(trace.host_ops.to_frame(), "start_ns", "source", "name", "process", "thread") == [
        (10, "mpi", "MPI_Allreduce", PID, TID),
        (30, "mpi", "MPI_Isend", PID, TID),
        (33, "mpi", "MPI_Recv", PID, TID),
        (40, "mpi", "MPI_Wait", PID, TID),
        (60, "mpi", "MPI_Comm_rank", PID, TID),
    ]
    assert plain(trace.processes.to_frame(), "process", "rank") == [(PID, 2)]


MS = 1_000_000


def network(rows: list[tuple[int, ...]], **more: tuple[str, list[tuple[Any, ...]]]) -> dict:
    """The tables of ``--nic-metrics``, as nsys-schema.md has them, with these intervals."""
    return {
        "NET_NIC_METRIC": ("start, end, globalId, portId, metricsListId, metricsIdx, value", rows),
        "TARGET_INFO_NETWORK_METRICS": (
            "metricsListId, metricsIdx, name, description, unit",
            [
                (0, 5, "IB: Bytes received", "", "bytes/ms"),
                (0, 6, "IB: Bytes sent", "", "bytes/ms"),
                (0, 10, "IB: Send waits", "", "ticks/ms"),
                (0, 11, "Eth: Bytes sent", "", "furlongs"),
            ],
        ),
        "NIC_ID_MAP": ("nicId, globalId", [(1, 77)]),
        "TARGET_INFO_NIC_INFO": (
            "GUID, stateName, nicId, name, deviceId, vendorId, linkLayer",
            [(9, "Local (CLI)", 1, "mlx5_0", 4129, 5555, 2)],
        ),
        **more,
    }


def test_rates_of_nics_become_counters(tmp_path: Path) -> None:
    rows = [
        (MS, 2 * MS, 77, 0, 0, 6, 1000),  # for 1 ms
        (2 * MS, 4 * MS, 77, 0, 0, 6, 4000),  # for 2 ms: twice as many bytes
        (9 * MS, 10 * MS, 77, 0, 0, 6, 500),  # nothing was recorded in between
        (MS, 2 * MS, 77, 0, 0, 10, 3),
        (MS, 2 * MS, 78, 0, 0, 99, 8),
        (MS, 2 * MS, 77, 0, 0, 11, 8),
    ]
    trace = read(tmp_path, network(rows))
    sent = trace.samples.to_frame()[trace.samples.to_frame()["metric"] == "bytes_sent"]
    assert set(sent["source"]) == {"nic:mlx5_0 IB"}
    assert sent["start_ns"].tolist() == [time * MS for time in (1, 2, 4, 4, 9, 10)]
    values = [0.0, 1000.0, 9000.0, float("nan"), 9000.0, 9500.0]
    assert sent["value"].tolist() == pytest.approx(values, nan_ok=True)
    others = trace.samples.to_frame()[trace.samples.to_frame()["metric"] != "bytes_sent"]
    assert plain(others, "source", "metric", "value") == [
        ("nic:mlx5_0", "IB: Send waits (ticks/ms)", 3.0),
        ("nic:mlx5_0", "Eth: Bytes sent (furlongs)", 8.0),
        ("nic:78", "metric 99", 8.0),
    ]


def test_nic_metrics_are_traffic_beside_the_collectives_that_cause_it(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel("gemm", 0, 20 * MS, process=PID)
    builder.collective("all_reduce", MS, 3 * MS, n_bytes=8_000_000, process=PID, backend="gloo")
    builder.setting("rdma.mlx5_0.1.rate", "400 Gb/sec (4X NDR)")
    rows = [
        (start, start + MS, 77, 1, 0, metric, rate)
        for start, rate in ((0, 0), (MS, 25_000_000), (2 * MS, 50_000_000), (3 * MS, 0))
        for metric in (5, 6)
    ]
    trace = read(tmp_path, network(rows), builder)
    table = run("network-time", trace).to_frame()
    sent = table[table["direction"] == "sent"]
    assert sent["size_bytes"].tolist() == [0, 25_000_000, 50_000_000, 0]
    assert sent["peak_ratio"].tolist() == pytest.approx([0, 0.5, 1, 0])  # of 50 GB/s
    assert sent["collective_ratio"].tolist() == [0, 1, 1, 0]
    (row,) = [
        own for own in records(run("network", trace).to_frame()) if own.direction == "received"
    ]
    assert (row.source, row.size_bytes, row.duration_ns) == ("nic:mlx5_0 IB", 75_000_000, 4 * MS)
    assert row.in_collectives_bytes == 75_000_000


def test_ports_of_one_nic_are_told_apart(tmp_path: Path) -> None:
    rows = [(0, MS, 77, port, 0, 6, 10 * port) for port in (1, 2)]
    trace = read(tmp_path, network(rows))
    assert [(row.source, row.size_bytes) for row in records(run("network", trace).to_frame())] == [
        ("nic:mlx5_0:2 IB", 20),
        ("nic:mlx5_0:1 IB", 10),
    ]


def test_counters_of_devices(tmp_path: Path) -> None:
    kind = (7 << 8) | 1
    trace = read(
        tmp_path,
        {
            "GPU_METRICS": (
                "timestamp, typeId, metricId, value",
                [(10, kind, 3, 55), (20, kind, 9, 2)],
            ),
            "TARGET_INFO_GPU_METRICS": (
                "typeId, sourceId, typeName, metricId, metricName",
                [(kind, 1, "x", 3, "SMs Active [Throughput %]")],
            ),
        },
    )
    assert plain(trace.samples.to_frame(), "start_ns", "source", "metric", "value") == [
        (10, "gpu:1", "SMs Active [Throughput %]", 55.0),
        (20, "gpu:1", "metric 9", 2.0),
    ]
    assert "samples" in trace.recorded


def test_device_memory_and_page_faults(tmp_path: Path) -> None:
    usage = "start, globalPid, deviceId, bytes, memKind, memoryOperationType"
    trace = read(
        tmp_path,
        {
            "CUDA_GPU_MEMORY_USAGE_EVENTS": (
                usage,
                [
                    (30, GLOBAL, 0, 100, 2, 1),  # rows come in any order
                    (10, GLOBAL, 0, 100, 2, 0),
                    (20, GLOBAL, 0, 50, 4, 0),
                    (25, GLOBAL, 1, 7, 2, 0),
                    (26, GLOBAL, 0, 999, 1, 0),  # pinned memory of the host
                ],
            ),
            "CUDA_UM_GPU_PAGE_FAULT_EVENTS": (
                "start, end, globalPid, deviceId, numberOfPageFaults",
                [(40, 41, GLOBAL, 0, 12)],
            ),
            "CUDA_UM_CPU_PAGE_FAULT_EVENTS": ("start, globalPid", [(50, GLOBAL)]),
        },
    )
    assert plain(trace.samples.to_frame(), "start_ns", "source", "metric", "value") == [
        (10, f"process:{PID} gpu:0", "cuda_allocated_bytes", 100.0),
        (20, f"process:{PID} gpu:0", "cuda_allocated_bytes", 150.0),
        (25, f"process:{PID} gpu:1", "cuda_allocated_bytes", 7.0),
        (30, f"process:{PID} gpu:0", "cuda_allocated_bytes", 50.0),
        (40, "gpu:0", "page_faults", 12.0),
        (50, f"process:{PID}", "page_faults", 1.0),
    ]


def test_what_nsys_says_went_wrong(tmp_path: Path) -> None:
    noise = [
        (2, "No CUDA events collected. Does the process use CUDA?"),
        (1, "Number of CUDA events collected: 9"),
        (3, "Unable to configure the collection of CPU IP/backtrace samples"),
    ]
    said = [
        (2, "Not all CUDA events might have been collected."),
        (2, "Not all CUDA events might have been collected."),
        (3, "The device was lost\nsecond line"),
    ]
    trace = read(tmp_path, {"DIAGNOSTIC_EVENT": ("severity, text", noise + said)})
    assert trace.info.warnings == (
        "nsys: Not all CUDA events might have been collected. (2 times)",
        "nsys: The device was lost",
    )


def test_a_driver_that_nsys_does_not_support_is_said_if_no_kernel_was_recorded(
    tmp_path: Path,
) -> None:
    text = "Installed CUDA driver version (13.1) is not supported by this build of Nsight Systems."
    table = {"DIAGNOSTIC_EVENT": ("severity, text", [(2, text)])}
    assert read(tmp_path, table).info.warnings == ()
    (tmp_path / "export.sqlite").unlink()
    only_ranges = TraceBuilder().range("r", 0, 5, process=PID)
    assert read(tmp_path, table, only_ranges).info.warnings == (f"nsys: {text}",)


def test_many_diagnostics_are_summed_up(tmp_path: Path) -> None:
    rows = [(3, f"error {number}") for number in range(8)]
    trace = read(tmp_path, {"DIAGNOSTIC_EVENT": ("severity, text", rows)})
    assert len(trace.info.warnings) == 6
    assert trace.info.warnings[-1] == "nsys: 3 more errors and warnings in the trace"


def test_work_beyond_the_capture(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel("k", 0, 5).kernel("late", 10, 5000)
    path = tmp_path / "export.sqlite"
    write_nsys(builder.build(), path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE ANALYSIS_DETAILS SET duration = 1000")
    (warning,) = open_trace(path).info.warnings
    assert warning.startswith("1 kernels and copies end after the end of the capture")


@pytest.mark.traces
def test_calls_of_nccl_in_a_real_file() -> None:
    require("traces")
    trace = open_trace(TRACES / "nsys/2026.2-2gpu-nccl-before.sqlite")
    # nsys.md 1.9: 132 ncclSend and 132 ncclRecv ranges; this file has names, but no payloads.
    assert trace.collectives.to_frame()["op"].value_counts().to_dict() == {"send": 132, "recv": 132}
    assert set(trace.collectives.to_frame()["n_bytes"]) == {ABSENT}
    # A group of four calls is one kernel; 66 kernels, of which the file lost two launches.
    tied = trace.collectives.to_frame()[trace.collectives.to_frame()["correlation"] != ABSENT]
    kernels = trace.kernels.to_frame()[trace.kernels.to_frame()["activity"] == "communication"]
    assert set(tied["correlation"]) <= set(kernels["correlation"])
    assert len(tied) == 256


@pytest.mark.parametrize(
    ("launched", "n_recorded", "said"),
    [
        (3, 3, None),
        (3, 2, "the GPU activity of 1 of 3 launched CUDA graphs is not"),
        (2, 0, "the GPU activity of 2 launched CUDA graphs is not"),
    ],
)
def test_graphs_are_without_work_only_where_no_work_has_their_correlation(
    tmp_path: Path, launched: int, n_recorded: int, said: str | None
) -> None:
    builder = TraceBuilder()
    for i in range(launched):
        call = (100 * i, 100 * i + 10)
        if i < n_recorded:
            api = "cudaGraphLaunch_v10000"
            builder.kernel("gemm", 100 * i + 20, 100 * i + 60, launched_ns=call, api=api)
        else:
            builder.api_call("cudaGraphLaunch_v10000", *call, correlation=1000 + i)
    path = tmp_path / "graphs.sqlite"
    write_nsys(builder.build(), path)
    warnings = [text for text in open_trace(path).info.warnings if "CUDA graphs" in text]
    assert len(warnings) == (said is not None)
    assert all(text.startswith(str(said)) for text in warnings)
