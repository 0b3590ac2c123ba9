"""Files of nvprof become tables: small ones by hand, real ones against the real nvprof."""

from __future__ import annotations

import csv
import io
import shutil
import sqlite3
import struct
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pydemumble
import pytest

from tests import real_traces
from tests.builders import plain
from tests.formats.nvprof_database import NvprofDatabase, object_id
from tests.requirements import TRACES, require
from traceprof.errors import TraceError
from traceprof.formats import ReadOptions, open_trace, outline
from traceprof.formats.shared.cupti import api_names
from traceprof.formats.sqlite.database import Database
from traceprof.model.tables import ABSENT
from traceprof.model.timing import TimeWindow

DAY = 1_583_975_499_000_000_000
PID = 29051
TID = 0xF0000001  # a pthread id cut to 32 bits: with a sign it is negative


def test_a_run(tmp_path: Path) -> None:
    path = tmp_path / "run.nvprof"
    signed = TID - (1 << 32)
    with NvprofDatabase(path) as file:
        call = {"processId": PID, "threadId": signed}
        work = {"deviceId": 1, "contextId": 3, "streamId": 7}
        file.add("RUNTIME", cbid=211, start=DAY, end=DAY + 50, correlationId=5, **call)
        file.add("DRIVER", cbid=9999, start=DAY + 60, end=DAY + 70, correlationId=6, **call)
        name = file.string("_Z6matmulPfS_i")
        file.add(
            "CONCURRENT_KERNEL", start=DAY + 100, end=DAY + 200, correlationId=5, name=name, **work
        )
        plain_name = file.string("volta_sgemm_32x128_nn")
        file.add("KERNEL", start=DAY + 300, end=DAY + 400, correlationId=7, name=plain_name, **work)
        file.add(
            "MEMCPY",
            start=DAY + 20,
            end=DAY + 40,
            copyKind=1,
            srcKind=2,
            dstKind=3,
            bytes=4096,
            correlationId=8,
            **work,
        )
        file.add(
            "MEMCPY2",
            start=DAY + 50,
            end=DAY + 60,
            copyKind=10,
            srcKind=3,
            dstKind=3,
            bytes=64,
            srcDeviceId=1,
            dstDeviceId=2,
            **work,
        )
        file.add("MEMSET", start=DAY + 70, end=DAY + 80, bytes=16, memoryKind=3, **work)
        file.add("CONTEXT", contextId=3, deviceId=1)
        file.add("SYNCHRONIZATION", type=3, start=DAY + 90, end=DAY + 95, contextId=3, streamId=7)
        file.add(
            "NAME", objectKind=1, objectId=object_id(PID), name=file.string("python t.py -k s")
        )
        file.add(
            "OVERHEAD",
            overheadKind=1 << 16,
            objectKind=1,
            objectId=object_id(PID),
            start=DAY + 500,
            end=DAY + 600,
        )
    trace = open_trace(path)

    assert trace.info.format == "nvprof"
    assert trace.info.utc_epoch_ns == DAY
    assert trace.info.warnings == ()
    assert plain(trace.kernels.to_frame(), "start_ns", "end_ns", "device", "stream", "process") == [
        (100, 200, 1, 7, PID),
        (300, 400, 1, 7, PID),
    ]
    assert plain(trace.kernels.to_frame(), "name", "activity", "correlation", "graph_node") == [
        ("matmul(float*, float*, int)", "gemm", 5, ABSENT),
        ("volta_sgemm_32x128_nn", "gemm", 7, ABSENT),
    ]
    columns = ("start_ns", "direction", "n_bytes", "src_kind", "dst_kind", "src_device")
    assert plain(trace.copies.to_frame(), *columns) == [
        (20, "h2d", 4096, "pinned", "device", ABSENT),
        (50, "p2p", 64, "device", "device", 1),
        (70, "memset", 16, "", "device", ABSENT),
    ]
    assert plain(
        trace.api_calls.to_frame(), "start_ns", "end_ns", "thread", "correlation", "name"
    ) == [
        (0, 50, TID, 5, "cudaLaunchKernel"),
        (60, 70, TID, 6, "driver cbid 9999"),
    ]
    assert plain(trace.syncs.to_frame(), "device", "stream", "kind") == [(1, 7, "stream")]
    assert plain(trace.overheads.to_frame(), "start_ns", "end_ns", "name", "thread") == [
        (500, 600, "buffer flush", ABSENT)
    ]
    # The command line may hold a secret.
    assert plain(trace.processes.to_frame(), "process", "name") == [(PID, "python t.py")]


def test_markers(tmp_path: Path) -> None:
    path = tmp_path / "run.nvprof"
    thread = {"objectKind": 2, "objectId": object_id(PID, TID - (1 << 32))}
    process = {"objectKind": 1, "objectId": object_id(PID)}
    with NvprofDatabase(path) as file:
        step, inner, open_range = map(file.string, ("step", "inner", "never closed"))
        domain = file.string("train")
        # Ends come without a name, and in any order.
        file.add("MARKER", flags=4, timestamp=DAY + 90, id=1, **thread)
        file.add("MARKER", flags=2, timestamp=DAY, id=1, name=step, domain=domain, **thread)
        file.add("MARKER", flags=2, timestamp=DAY + 10, id=2, name=inner, **thread)
        file.add("MARKER", flags=4, timestamp=DAY + 20, id=2, **thread)
        file.add("MARKER", flags=2, timestamp=DAY + 30, id=3, name=open_range, **process)
        file.add("MARKER", flags=1, timestamp=DAY + 40, id=4, name=inner, **thread)
        file.add("MARKER", flags=4, timestamp=DAY + 50, id=99, **thread)
        payload = struct.pack("<q", 32)
        file.add("MARKER_DATA", id=1, flags=2, payloadKind=4, payload=payload, category=7)
        file.add("MARKER_DATA", id=2, flags=2, payloadKind=0, payload=bytes(8))
        file.add("RUNTIME", cbid=211, start=DAY + 60, end=DAY + 100, processId=PID, threadId=1)
    trace = open_trace(path)
    columns = ("start_ns", "end_ns", "name", "domain", "thread", "depth", "kind")
    assert plain(trace.ranges.to_frame(), *columns) == [
        (0, 90, "step", "train", TID, 0, "push_pop"),
        (10, 20, "inner", "", TID, 1, "push_pop"),
        (30, 100, "never closed", "", ABSENT, 0, "start_end"),
    ]
    assert trace.ranges.to_frame()["category"].tolist() == [7, ABSENT, ABSENT]
    np.testing.assert_equal(trace.ranges.to_frame()["payload"].to_numpy(), [32.0, np.nan, np.nan])
    assert plain(trace.marks.to_frame(), "start_ns", "name", "thread") == [(40, "inner", TID)]
    assert trace.info.warnings == (
        "1 NVTX ranges were never closed; traceprof ends them with the capture",
    )


def test_lost_records_are_counted_and_left_out(tmp_path: Path) -> None:
    path = tmp_path / "run.nvprof"
    with NvprofDatabase(path) as file:
        name = file.string("k")
        file.add("CONCURRENT_KERNEL", start=DAY, end=DAY + 5, name=name)
        file.add("CONCURRENT_KERNEL", start=0, end=0, name=name)
        file.add("CONCURRENT_KERNEL", start=None, end=DAY + 5, name=name)
        file.add("MEMSET", start=0, end=0)
        file.add("MEMCPY", start=None, end=None)
    trace = open_trace(path)
    assert plain(trace.kernels.to_frame(), "start_ns", "end_ns") == [(0, 5)]
    assert trace.copies.to_frame().empty
    lost = "the profiler lost 4 records (their times are 0 or missing)"
    assert trace.info.warnings[0].startswith(lost)
    assert outline(path).trace.info.warnings[0].startswith(lost)


def test_a_window_spares_rows_outside_it(tmp_path: Path) -> None:
    path = tmp_path / "run.nvprof"
    with NvprofDatabase(path) as file:
        name = file.string("k")
        for start in (0, 100, 200):
            times = {"start": DAY + start, "end": DAY + start + 50}
            file.add("CONCURRENT_KERNEL", name=name, **times)
    trace = open_trace(path, ReadOptions(window=TimeWindow(120, 200)))
    assert plain(trace.kernels.to_frame(), "start_ns", "end_ns") == [(100, 150)]


def test_the_oldest_schema(tmp_path: Path) -> None:
    path = tmp_path / "run.nvprof"
    with NvprofDatabase(path, version=8) as file:
        file.add("MEMSET", start=DAY, end=DAY + 5, bytes=8)
        file.add("MARKER", flags=1, timestamp=DAY + 1, id=1, objectId=object_id(1, 2))
        file.drop_column("MEMSET", "memoryKind")
        file.drop_column("MARKER", "domain")
    trace = open_trace(path)
    assert plain(trace.copies.to_frame(), "direction", "n_bytes", "dst_kind") == [
        ("memset", 8, "unknown")
    ]
    assert plain(trace.marks.to_frame(), "start_ns", "domain") == [(1, "")]


def test_unified_memory_and_whole_graphs(tmp_path: Path) -> None:
    path = tmp_path / "run.nvprof"
    with NvprofDatabase(path, version=17) as file:
        move = {"start": DAY, "end": DAY + 5, "value": 4096}
        file.add("UNIFIED_MEMORY_COUNTER", counterKind=1, srcId=9, dstId=2, **move)
        file.add("UNIFIED_MEMORY_COUNTER", counterKind=4, srcId=9, dstId=2, **move)  # faults
        file.add("GRAPH_TRACE", start=DAY, end=DAY + 9, graphId=12, deviceId=2, streamId=7)
    trace = open_trace(path)
    assert plain(trace.copies.to_frame(), "direction", "n_bytes", "device", "src_kind") == [
        ("h2d", 4096, 2, "managed")
    ]
    assert plain(trace.kernels.to_frame(), "name", "activity", "device") == [
        ("CUDA graph 12", "cuda_graph", 2)
    ]


def test_links_between_devices(tmp_path: Path) -> None:
    path = tmp_path / "run.nvprof"
    first, second = bytes(range(16)), bytes(range(1, 17))
    with NvprofDatabase(path) as file:
        for device, uuid in enumerate((first, second)):
            file.add(
                "DEVICE",
                id=device,
                name=file.string("V100"),
                uuid=uuid,
                globalMemorySize=32,
                globalMemoryBandwidth=898_048_000,
                numMultiprocessors=80,
            )
        link = {"physicalNvLinkCount": 2, "bandwidth": 100_000_000}
        file.add("NVLINK", typeDev0=1, typeDev1=1, idDev0=first, idDev1=second, **link)
        file.add("NVLINK", typeDev0=1, typeDev1=2, idDev0=first, idDev1=bytes(16), **link)
        file.add("PCIE", id=bytes([1, 0, 0, 0]), pcieGeneration=3, linkRate=8000, linkWidth=16)
    trace = open_trace(path)
    assert plain(trace.devices.to_frame(), "device", "name", "uuid", "memory_bytes_per_s")[0] == (
        0,
        "V100",
        "00010203-0405-0607-0809-0a0b0c0d0e0f",
        898_048_000_000,
    )
    assert dict(plain(trace.environment.to_frame(), "name", "value")) == {
        "nvlink device 0 - device 1": "2 links, 100 GB/s",
        "nvlink device 0 - processor": "2 links, 100 GB/s",
        "pcie device 1": "generation 3, 16 lanes, 8 GT/s each",
    }


def test_values_of_another_kind_are_one_clear_error_or_none(tmp_path: Path) -> None:
    path = tmp_path / "run.nvprof"
    with NvprofDatabase(path) as file:
        file.add("DEVICE", id="text", name=b"x", uuid="text", globalMemoryBandwidth=None)
        file.add("OVERHEAD", overheadKind="x", objectId="x", start=DAY, end=DAY + 5)
        file.add("MARKER", flags=2, timestamp="text", id=None, objectId=None, name="text")
        file.add("PCIE", id="x", linkRate="fast")
    trace = open_trace(path)
    assert plain(trace.overheads.to_frame(), "name", "start_ns", "end_ns") == [("overhead", 0, 5)]
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("ALTER TABLE StringTable RENAME TO Strings")
        database.execute("CREATE TABLE StringTable AS SELECT * FROM Strings")
        database.execute("INSERT INTO StringTable VALUES (NULL, 'a'), ('b', 'c')")
    assert len(open_trace(path).overheads.to_frame()) == 1
    with NvprofDatabase(tmp_path / "bad.nvprof") as file:
        file.add("RUNTIME", cbid="text", start=DAY, end=DAY)
    with pytest.raises(TraceError, match="cbid contains non-integer values"):
        open_trace(tmp_path / "bad.nvprof")


def test_names_of_calls() -> None:
    runtime, driver = api_names("runtime"), api_names("driver")
    assert [runtime[number] for number in (13, 31, 41, 51, 211)] == [
        "cudaLaunch",
        "cudaMemcpy",
        "cudaMemcpyAsync",
        "cudaMemsetAsync",
        "cudaLaunchKernel",
    ]
    assert driver[307] == "cuLaunchKernel"
    assert driver[652] == "cuLaunchKernelEx"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<?xml version='1.0'?><session/>", "Visual Profiler"),
        (b"PK\x03\x04rest", "zip archive"),
    ],
)
def test_sessions_of_the_visual_profiler_are_explained(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "run.nvvp"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=message):
        open_trace(path)


@pytest.mark.nvprof
@pytest.mark.traces
@pytest.mark.parametrize("name", real_traces.NVPROF)
def test_sums_by_name_are_those_of_nvprof(
    name: str, real_trace: Callable[[str], Path], tmp_path: Path
) -> None:
    nvprof = require("nvprof")
    path = real_trace(name)
    copy = Path(shutil.copy(path, tmp_path / "copy.nvprof"))
    trace = open_trace(path)

    directions = {"h2d": "HtoD", "d2h": "DtoH", "d2d": "DtoD"}
    ours: dict[str, tuple[int, int, int, int]] = {}
    for kernel, rows in trace.kernels.to_frame().groupby("name", observed=True):
        ours[_mangled(path)[str(kernel)]] = _sums(rows["end_ns"] - rows["start_ns"])
    for direction, rows in trace.copies.to_frame().groupby("direction", observed=True):
        short = directions.get(str(direction))
        label = f"[CUDA memcpy {short}]" if short else "[CUDA memset]"
        ours[label] = _sums(rows["end_ns"] - rows["start_ns"])
    assert ours == _summary(nvprof, copy, "--print-gpu-summary", "GPU activities")

    calls = {
        str(call): _sums(rows["end_ns"] - rows["start_ns"])
        for call, rows in trace.api_calls.to_frame().groupby("name", observed=True)
    }
    assert calls == _summary(nvprof, copy, "--print-api-summary", "API calls")


Sums = tuple[int, int, int, int]


def _sums(durations: object) -> Sums:
    values = np.asarray(durations, np.int64)
    return int(values.sum()), len(values), int(values.min()), int(values.max())


def _mangled(path: Path) -> dict[str, str]:
    """Return plain name → the name in the file, to compare with nvprof --demangling off."""
    with Database(path) as database:
        strings = [text for (text,) in database.rows("SELECT value FROM StringTable")]
    return {pydemumble.demangle(text) or text: text for text in strings}


def _summary(nvprof: str, path: Path, report: str, kind: str) -> dict[str, Sums]:
    whole = _report(nvprof, path, report).partition("======== NVTX result")[0]
    return dict(_rows(whole, kind))


def _report(nvprof: str, path: Path, report: str) -> str:
    command = [nvprof, "-i", str(path), report, "--csv", "-u", "ns", "--demangling", "off"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return done.stderr + done.stdout


def _rows(text: str, kind: str) -> list[tuple[str, Sums]]:
    columns = ("Type", "Time(%)", "Time", "Calls", "Avg", "Min", "Max", "Name")
    lines = [line for line in text.splitlines() if line.startswith('"')]
    return [
        (
            row["Name"],
            (
                round(float(row["Time"])),
                int(row["Calls"]),
                round(float(row["Min"])),
                round(float(row["Max"])),
            ),
        )
        for row in csv.DictReader(io.StringIO("\n".join(lines)), columns)
        if row["Type"] == kind
    ]


@pytest.mark.nvprof
@pytest.mark.traces
def test_ranges_are_those_of_nvprof(real_trace: Callable[[str], Path], tmp_path: Path) -> None:
    nvprof = require("nvprof")
    path = real_trace("nvprof/v11or12-pytorch-lm-markers.sql")
    copy = Path(shutil.copy(path, tmp_path / "copy.nvprof"))
    ranges = open_trace(path).ranges.to_frame()
    durations = ranges["end_ns"] - ranges["start_ns"]
    # nvprof tells names apart by their first 255 characters.
    names = ranges["name"].astype(str).str[:255]
    ours = {place: _sums(rows) for place, rows in durations.groupby([ranges["thread"], names])}
    theirs = {}
    for section in _report(nvprof, copy, "--print-gpu-summary").split("(id = ")[1:]:
        thread = int(section.partition(")")[0])
        theirs |= {(thread, name[:255]): sums for name, sums in _rows(section, "Range:")}
    assert ours == theirs


@pytest.mark.traces
def test_markers_of_a_real_file() -> None:
    require("traces")
    trace = open_trace(TRACES / "nvprof/v11or12-pytorch-lm-markers.sql")
    assert len(trace.ranges.to_frame()) == 1195
    assert trace.info.warnings == ()
    # Every kernel was launched, on a thread of the markers.
    launches = (
        trace.api_calls.to_frame()
        .set_index("correlation")
        .loc[trace.kernels.to_frame()["correlation"]]
    )
    assert set(launches["thread"]) <= set(trace.ranges.to_frame()["thread"])
