"""One small execution, written in every format, must read as the same tables."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.builders import TraceBuilder
from tests.formats import kineto_file
from tests.formats.folders import write_tables
from tests.formats.kineto_file import complete, on_device
from tests.formats.nvprof_database import NvprofDatabase, object_id
from tests.formats.rocpd_database import RocpdDatabase
from tests.formats.rocprofv3_json import write_json
from tests.formats.xplane_file import (
    Event,
    WrittenLine,
    WrittenPlane,
    write_chrome,
    write_xplane,
)
from traceprof.formats import FORMATS, cut, open_trace
from traceprof.formats.nsys.writer import write_nsys
from traceprof.formats.shared.cupti import api_names
from traceprof.model.cutting import CutRequest, no_progress
from traceprof.model.tables import ABSENT
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace
from traceprof.names.ranges import phase_of

PID, MAIN, AUTOGRAD = 4242, 4243, 4250
EPOCH = 1_700_000_000_000_000_000
ON_MAIN = {"process": PID, "thread": MAIN}
ON_AUTOGRAD = {"process": PID, "thread": AUTOGRAD}
TO_PEER = {"src_device": 0, "dst_device": 1}
PAGEABLE = {"dst_kind": "pageable"}
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"

EXECUTION = (
    TraceBuilder()
    .range("step 1", 0, 9_000, **ON_MAIN)
    .range("forward", 100, 2_000, **ON_MAIN)
    .range("backward", 3_000, 8_000, **ON_AUTOGRAD)
    .copy("h2d", 500, 1_501, n_bytes=4096, launched_ns=(200, 300), **ON_MAIN)
    .memset(1_600, 1_700, n_bytes=64, launched_ns=(350, 360), **ON_MAIN)
    .kernel("ampere_sgemm_64x64_tn", 1_800, 4_003, launched_ns=(400, 420), **ON_MAIN)
    .kernel(NCCL, 4_100, 7_000, stream=20, device=1, launched_ns=(3_100, 3_200), **ON_AUTOGRAD)
    .copy("p2p", 7_100, 7_200, n_bytes=1, launched_ns=(3_300, 3_333), **TO_PEER, **ON_AUTOGRAD)
    .copy("d2h", 8_000, 8_500, n_bytes=4, launched_ns=(5_000, 8_500), **PAGEABLE, **ON_MAIN)
    .api_call("cudaDeviceSynchronize", 8_600, 8_900, **ON_MAIN)
    .build()
)
COLUMNS = {
    "kernels": [
        "start_ns",
        "end_ns",
        "device",
        "stream",
        "process",
        "correlation",
        "name",
        "activity",
        "graph_node",
    ],
    "copies": [
        "start_ns",
        "end_ns",
        "device",
        "stream",
        "process",
        "correlation",
        "direction",
        "n_bytes",
        "src_kind",
        "dst_kind",
        "src_device",
        "dst_device",
        "graph_node",
    ],
    "api_calls": ["start_ns", "end_ns", "process", "thread", "correlation", "name"],
    "ranges": [
        "start_ns",
        "end_ns",
        "process",
        "thread",
        "domain",
        "category",
        "name",
        "depth",
        "payload",
        "kind",
    ],
}


def write_as_nvprof(trace: Trace, path: Path) -> None:
    kinds = {"": 0, "pageable": 1, "pinned": 2, "device": 3}
    codes = {"h2d": 1, "d2h": 2, "d2d": 8, "p2p": 10}
    with NvprofDatabase(path) as file:
        for row in _rows(trace.kernels.to_frame()):
            file.add("CONCURRENT_KERNEL", name=file.string(row["name"]), **_nvprof_place(row))
        for row in _rows(trace.copies.to_frame()):
            place = {**_nvprof_place(row), "bytes": row["n_bytes"]}
            if row["direction"] == "memset":
                file.add("MEMSET", memoryKind=kinds[row["dst_kind"]], **place)
                continue
            ends = {"srcDeviceId": row["src_device"], "dstDeviceId": row["dst_device"]}
            is_peer = row["direction"] == "p2p"
            file.add(
                "MEMCPY2" if is_peer else "MEMCPY",
                copyKind=codes[row["direction"]],
                srcKind=kinds[row["src_kind"]],
                dstKind=kinds[row["dst_kind"]],
                **(ends if is_peer else {}),
                **place,
            )
        for row in _rows(trace.api_calls.to_frame()):
            file.add(
                "RUNTIME",
                cbid=list(api_names("runtime").values()).index(row["name"]) + 1,
                start=EPOCH + row["start_ns"],
                end=EPOCH + row["end_ns"],
                processId=row["process"],
                threadId=row["thread"],
                correlationId=row["correlation"],
            )
        for number, row in enumerate(_rows(trace.ranges.to_frame())):
            marker = {"id": number, "objectKind": 2, "objectId": object_id(PID, row["thread"])}
            name = file.string(row["name"])
            file.add("MARKER", flags=2, timestamp=EPOCH + row["start_ns"], name=name, **marker)
            file.add("MARKER", flags=4, timestamp=EPOCH + row["end_ns"], **marker)


def _nvprof_place(row: dict) -> dict:
    return {
        "start": EPOCH + row["start_ns"],
        "end": EPOCH + row["end_ns"],
        "deviceId": row["device"],
        "streamId": row["stream"],
        "correlationId": row["correlation"],
    }


def write_as_kineto(trace: Trace, path: Path) -> None:
    kinds = {"h2d": "HtoD", "d2h": "DtoH", "d2d": "DtoD", "p2p": "PtoP"}
    events = [
        on_device("kernel", row["name"], *_span(row), **_kineto_place(row))
        for row in _rows(trace.kernels.to_frame())
    ]
    for row in _rows(trace.copies.to_frame()):
        arguments = {**_kineto_place(row), "bytes": row["n_bytes"]}
        if row["direction"] == "memset":
            events.append(on_device("gpu_memset", "Memset (Device)", *_span(row), **arguments))
            continue
        if row["direction"] == "p2p":
            arguments |= {"fromDevice": row["src_device"], "toDevice": row["dst_device"]}
        ends = f"{row['src_kind'].title()} -> {row['dst_kind'].title()}"
        name = f"Memcpy {kinds[row['direction']]} ({ends})"
        events.append(on_device("gpu_memcpy", name, *_span(row), **arguments))
    for row in _rows(trace.api_calls.to_frame()):
        where = {"pid": row["process"], "tid": row["thread"]}
        arguments = {"correlation": row["correlation"]}
        events.append(complete("cuda_runtime", row["name"], *_span(row), args=arguments, **where))
    for row in _rows(trace.ranges.to_frame()):
        where = {"pid": row["process"], "tid": row["thread"]}
        events.append(complete("user_annotation", row["name"], *_span(row), **where))
    kineto_file.write(path, events, baseTimeNanoseconds=EPOCH)


def _kineto_place(row: dict) -> dict:
    return {name: row[name] for name in ("device", "stream", "correlation")}


def _span(row: dict) -> tuple[int, int]:
    return row["start_ns"], row["end_ns"]


def _rows(frame: pd.DataFrame) -> list[dict]:
    return _plain(frame).to_dict("records")


def _plain(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.astype(dict.fromkeys(frame.select_dtypes("category"), object))


def write_as_tables(trace: Trace, path: Path) -> None:
    # What is stored is what a reader made: with its processes, and saying where it is from.
    export = path.with_suffix(".sqlite")
    write_nsys(trace, export)
    read = open_trace(export)
    path.mkdir()
    write_tables(replace(read, info=replace(read.info, format="")), path)


def planes_of(trace: Trace) -> list[WrittenPlane]:
    """Return a trace as a profiler of XLA has it: steps are named, other ranges are not told."""
    devices: dict[int, dict[int, list[Event]]] = {}
    for row in _rows(trace.kernels.to_frame()):
        told = {"correlation_id": row["correlation"]}
        work = devices.setdefault(row["device"], {}).setdefault(row["stream"], [])
        work.append((row["name"], *_span(row), told))
    names = {"h2d": "MemcpyH2D", "d2h": "MemcpyD2H", "p2p": "MemcpyP2P", "memset": "Memset"}
    for row in _rows(trace.copies.to_frame()):
        kinds = f"kind_src:{row['src_kind']} kind_dst:{row['dst_kind']}"
        details = f"{kinds} size:{row['n_bytes']}"
        if row["direction"] == "memset":
            details = f"kind:{row['dst_kind']} size:{row['n_bytes']}"
        told = {"correlation_id": row["correlation"], "memcpy_details": details}
        work = devices.setdefault(row["device"], {}).setdefault(row["stream"], [])
        work.append((names[row["direction"]], *_span(row), told))
    threads: dict[int, list[Event]] = {}
    for row in _rows(trace.api_calls.to_frame()):
        told = {"correlation_id": row["correlation"]} if row["correlation"] != ABSENT else {}
        threads.setdefault(row["thread"], []).append((row["name"], *_span(row), told))
    for row in _rows(trace.ranges.to_frame()):
        told = {"step_num": 1} if "step" in row["name"] else {}
        event = (row["name"].removesuffix(" 1"), *_span(row), told)
        threads.setdefault(row["thread"], []).append(event)
    on_host = [WrittenLine(thread, "python3", events) for thread, events in threads.items()]
    return [
        WrittenPlane("/host:CPU", on_host, {"process_id": PID}, PID),
        *(
            WrittenPlane(
                f"/device:GPU:{device}",
                [
                    WrittenLine(stream, f"Stream #{stream}(Compute)", events)
                    for stream, events in streams.items()
                ],
                number=device,
            )
            for device, streams in devices.items()
        ),
    ]


def write_as_rocpd(trace: Trace, path: Path) -> None:
    ways = {"h2d": ("HOST_TO_DEVICE", 0, 4), "d2h": ("DEVICE_TO_HOST", 4, 0)}
    ways["p2p"] = ("DEVICE_TO_DEVICE", 4, 6)
    with RocpdDatabase(path, PID) as file:
        for row in _rows(trace.kernels.to_frame()):
            agent = (4, 6)[row["device"]]
            file.kernel(row["name"], _span(row), row["correlation"], agent, row["stream"])
        for row in _rows(trace.copies.to_frame()):
            if row["direction"] != "memset":
                way, *agents = ways[row["direction"]]
                sized = row["correlation"], row["n_bytes"], (agents[0], agents[1]), row["stream"]
                file.copy(way, _span(row), *sized)
        for row in _rows(trace.api_calls.to_frame()):
            place = _span(row), row["thread"], row["correlation"]
            file.region("HIP_RUNTIME_API", row["name"], *place)
        for number, row in enumerate(_rows(trace.ranges.to_frame())):
            place = _span(row), row["thread"], 1000 + number
            file.region("MARKER_CORE_RANGE_API", "roctxThreadRangeA", *place, row["name"])


def write_as_rocprofv3_json(trace: Trace, path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder, "a.db")
        write_as_rocpd(trace, database)
        write_json(database, path)


WRITERS: dict[str, Callable[[Trace, Path], object]] = {
    "nsys": write_nsys,
    "nvprof": write_as_nvprof,
    "kineto": write_as_kineto,
    "tables": write_as_tables,
    "rocpd": write_as_rocpd,
    "rocprofv3-json": write_as_rocprofv3_json,
    "xplane": lambda trace, path: write_xplane(path, planes_of(trace)),
    "xplane-json": lambda trace, path: write_chrome(path, planes_of(trace)),
}
_OF_ROCPROF = ("rocpd", "rocprofv3-json")
_OF_XLA = ("xplane", "xplane-json")
"""These tell no ranges but steps and phases, and not between which devices a copy went."""


def test_every_format_has_a_writer() -> None:
    # Reports and folders of nsys are read as nsys exports them.
    assert {known.name for known in FORMATS} == {*WRITERS, "nsys-report", "nsys-folder"}


@pytest.mark.parametrize("table", COLUMNS)
@pytest.mark.parametrize("known", WRITERS)
def test_every_format_gives_the_same_tables(known: str, table: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    WRITERS[known](EXECUTION, path)
    trace = open_trace(path)
    assert trace.info.format == known
    assert trace.info.warnings == ()
    expected = EXECUTION.table(table).to_frame()[COLUMNS[table]]
    if known in _OF_XLA:
        expected = expected.drop(columns=["src_device", "dst_device"], errors="ignore")
        if table == "ranges":
            is_told = [name == "step 1" or phase_of(name, "") for name in expected["name"]]
            expected = expected[np.array(is_told, np.bool_)]
    if known in _OF_ROCPROF and table == "copies":  # what sets memory there is a kernel
        expected = expected[expected["direction"] != "memset"]
        expected = expected.drop(columns=["src_kind", "dst_kind"])
    pd.testing.assert_frame_equal(
        _comparable(trace.table(table).to_frame()[list(expected)]), _comparable(expected)
    )
    assert trace.recorded >= set(COLUMNS)
    assert trace.span == EXECUTION.span


def _comparable(frame: pd.DataFrame) -> pd.DataFrame:
    return _plain(frame).sort_values(["start_ns", "end_ns"], ignore_index=True)


@pytest.mark.parametrize("known", WRITERS)
def test_every_format_names_the_process_and_the_devices_at_work(known: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    WRITERS[known](EXECUTION, path)
    trace = open_trace(path)
    assert trace.processes.to_frame()["process"].tolist() == [PID]
    assert trace.devices.to_frame().query("used == 1")["device"].tolist() == [0, 1]
    assert (trace.kernels.to_frame()["correlation"] != ABSENT).all()


@pytest.mark.parametrize("known", ["nsys", "nvprof", "kineto"])
def test_a_part_without_any_says_that_there_were_no_collectives(known: str, tmp_path: Path) -> None:
    said = (
        TraceBuilder()
        .range("nccl:all_reduce", 100, 200, **ON_MAIN)
        .kernel(NCCL, 300, 400, launched_ns=(110, 120), **ON_MAIN)
        .kernel("gemm", 5_000, 5_100, launched_ns=(4_000, 4_010), **ON_MAIN)
    )
    recorded = []
    for number, trace in enumerate((said.build(), EXECUTION)):
        path, part = tmp_path / f"whole{number}", tmp_path / f"part{number}"
        WRITERS[known](trace, path)
        part.touch()
        cut(path, part, CutRequest(TimeWindow(4_900, 5_200)), no_progress)
        again = part.with_name(f"again{number}")
        again.touch()
        cut(part, again, CutRequest(TimeWindow(0, 10)), no_progress)
        found = [open_trace(one) for one in (part, again)]
        assert not any(len(one.collectives.to_frame()) for one in found)
        recorded.append(["collectives" in one.recorded for one in found])
    assert recorded == [[True, True], [False, False]]
