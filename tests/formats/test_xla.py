"""Traces of jax.profiler: what each event becomes, sums as the file has them, TPUs, damage."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.formats.xplane_file import WrittenLine, WrittenPlane, write_chrome, write_xplane
from tests.reading import records
from tests.requirements import require
from tests.running import run
from traceprof.errors import TraceError
from traceprof.formats import cut, open_trace
from traceprof.formats.contract import ReadOptions
from traceprof.formats.runs.files import open_run
from traceprof.model.cutting import CutRequest, no_progress
from traceprof.model.timing import TimeWindow
from traceprof.session.run import open_run as open_session

DETAILS = "regs:154 static_shared:16 dynamic_shared:100 grid:256,2,1 block:128,1,1 occ_pct:12.5"
GRAPH = {"correlation_id": 3, "cuda_graph_node_id": 1 << 33}
HOST = WrittenPlane(
    "/host:CPU",
    [
        WrittenLine(
            10878540253210426514,
            "python3",
            [
                ("train", 1_000, 3_000, {"step_num": 0}),
                ("$loop.py:7 step", 1_100, 2_900, {}),
                ("PjitFunction(step)", 1_200, 2_000, {}),
                ("cuGraphLaunch (CudaGraph:2)", 1_300, 1_400, {"correlation_id": 3}),
                ("cuMemcpyHtoDAsync_v2", 1_500, 1_600, {"correlation_id": 4}),
                ("eval_step", 4_000, 4_500, {"step_num": 7}),
            ],
        )
    ],
    {"process_id": 1111},
    number=701,
)
DEVICE = WrittenPlane(
    "/device:GPU:1",
    [
        WrittenLine(
            14,
            "Stream #14(Compute)",
            [
                ("gemm_fusion_dot", 2_000, 2_500.5, {**GRAPH, "kernel_details": DETAILS}),
                ("loop_add_fusion", 2_500.5, 2_600, GRAPH),
            ],
            base_ns=1_900,
        ),
        WrittenLine(
            15,
            "Stream #15(MemcpyH2D)",
            [
                (
                    "MemcpyH2D",
                    1_700,
                    1_800,
                    {
                        "correlation_id": 4,
                        "memcpy_details": "kind_src:pinned kind_dst:device size:4096 dest:0",
                    },
                ),
                ("Memset", 1_850, 1_860, {"memset_details": "kind:device size:64 async:1"}),
            ],
        ),
        WrittenLine(30, "XLA Modules", [("jit_step(1)", 2_000, 2_600, {})]),
    ],
    {
        "gpu_device_name": "NVIDIA H100",
        "device_vendor": "Nvidia",
        "core_count": 132,
        "memory_size": 85 << 30,
        "compute_cap_major": 9,
        "compute_cap_minor": 0,
    },
    number=2,
)
TASK = WrittenPlane("Task Environment", (), {"profile_start_time": 1_795_658_865_437_025_951})


@pytest.mark.parametrize("name", ["a.xplane.pb", "a.pb.gz", "a.trace.json.gz", "a.json"])
def test_events_become_rows(name: str, tmp_path: Path) -> None:
    is_json = "json" in name
    write = write_chrome if is_json else write_xplane
    trace = open_trace(write(tmp_path / name, [DEVICE, HOST, TASK]))
    assert trace.info.format == ("xplane-json" if is_json else "xplane")
    kernels = records(trace.kernels.to_frame())
    # Time 0 is the first event, 1 µs after the profiler began; ps are cut off.
    assert [(row.name, row.start_ns, row.end_ns) for row in kernels] == [
        ("gemm_fusion_dot", 1_000, 1_500),
        ("loop_add_fusion", 1_500, 1_600),
    ]
    assert {(row.device, row.stream, row.correlation, row.graph_node) for row in kernels} == {
        (1, 14, 3, 1 << 33)
    }
    assert [row.activity for row in kernels] == ["gemm", "elementwise"]
    asked = ReadOptions(tables=frozenset({"kernel_shapes"}))
    shape = records(open_trace(trace.info.path, asked).kernel_shapes.to_frame())[0]
    assert (shape.grid_x, shape.grid_y, shape.block_x, shape.registers) == (256, 2, 128, 154)
    assert (shape.static_shared_bytes, shape.shared_bytes) == (16, 116)
    copies = records(trace.copies.to_frame())
    assert [(row.direction, row.n_bytes, row.src_kind, row.dst_kind) for row in copies] == [
        ("h2d", 4096, "pinned", "device"),
        ("memset", 64, "", "device"),
    ]
    calls = records(trace.api_calls.to_frame())
    assert [(row.name, row.correlation) for row in calls] == [
        ("cuGraphLaunch", 3),
        ("cuMemcpyHtoDAsync", 4),
    ]
    assert [row.name for row in records(trace.ranges.to_frame())] == ["train step 0", "eval_step 7"]
    operators = records(trace.host_ops.to_frame())
    assert [(row.source, row.name) for row in operators] == [
        ("python", "$loop.py:7 step"),
        ("xla", "PjitFunction(step)"),
    ]
    # Of the address of a thread its low half, as viewers have it.
    assert {row.thread for row in operators} == {10878540253210426514 & 0xFFFFFFFF}
    assert trace.info.warnings == ()
    (process,) = {row.process for row in kernels}
    assert process == (701 if is_json else 1111)


def test_what_names_a_phase_is_a_range(tmp_path: Path) -> None:
    events: list[Any] = [
        ("data", 1_000, 2_000, {}),
        ("load batch", 2_000, 3_000, {}),
        ("Wait for usage holds", 3_000, 3_500, {}),
        ("my part", 4_000, 5_000, {}),
    ]
    plane = WrittenPlane("/host:CPU", [WrittenLine(1, "python3", events)])
    trace = open_trace(write_xplane(tmp_path / "a.xplane.pb", [plane]))
    assert trace.ranges["name"].tolist() == ["data", "load batch"]
    assert trace.host_ops["name"].tolist() == ["Wait for usage holds", "my part"]


def test_steps_are_from_the_step_annotations(tmp_path: Path) -> None:
    annotated: list[Any] = [("train", 1_000, 3_000, {"step_num": 4}), ("serve", 3_000, 5_000, {})]
    plane = WrittenPlane("/host:CPU", [WrittenLine(1, "python3", annotated)])
    steps = run("steps", open_trace(write_xplane(tmp_path / "a.xplane.pb", [plane])))
    assert steps.table["step"].tolist() == [4]
    assert steps.scalars["source"] == "profiler step annotations"


@pytest.mark.parametrize(
    ("name", "profiler"),
    [("PjitFunction(step)", "jax.profiler"), ("MatMul", "jax.profiler or TensorFlow")],
)
def test_a_file_of_jax_is_told_by_its_functions(name: str, profiler: str, tmp_path: Path) -> None:
    line = WrittenLine(1, "python3", [(name, 1_000, 2_000, {})])
    path = write_chrome(tmp_path / "a.trace.json", [WrittenPlane("/host:CPU", [line])])
    assert open_trace(path).info.profiler == profiler


def test_a_file_says_what_it_was_recorded_on(tmp_path: Path) -> None:
    trace = open_trace(write_xplane(tmp_path / "a.pb", [DEVICE, HOST, TASK]))
    (device,) = (row for row in trace.devices.rows() if row["device"] == 1)
    assert (device["name"], device["sm_count"]) == ("NVIDIA H100", 132)
    assert (device["memory_bytes"], device["compute_capability"]) == (85 << 30, 90)
    assert trace.info.utc_epoch_ns == 1_795_658_865_437_025_951 + 1_000
    assert trace.info.host == "vm"


def test_older_files_have_times_of_day(tmp_path: Path) -> None:
    epoch = 1_700_000_000_000_000_000
    line = WrittenLine(1, "Stream #1(Compute)", [("k", epoch + 5, epoch + 9, {})], base_ns=epoch)
    trace = open_trace(write_xplane(tmp_path / "a.pb", [WrittenPlane("/device:GPU:0", [line])]))
    assert trace.info.utc_epoch_ns == epoch + 5
    assert trace.kernels["end_ns"].tolist() == [4]
    assert "api_calls" not in trace.recorded
    assert "copies" in trace.recorded


def test_operations_of_a_tpu_are_its_kernels(tmp_path: Path) -> None:
    reduced = {"hlo_category": "all-reduce"}
    operations = [
        ("while.3", 0, 1_000, {"hlo_category": "while"}),
        ("fusion.1", 0, 400, {"hlo_category": "convolution fusion"}),
        ("all-reduce.2", 500, 900, reduced),
        ("fusion.1", 1_000, 1_400, {"hlo_category": "convolution fusion"}),
    ]
    plane = WrittenPlane(
        "/device:TPU:0",
        [
            WrittenLine(1, "Steps", [("0", 0, 1_000, {}), ("1", 1_000, 2_000, {})]),
            WrittenLine(2, "XLA Modules", [("jit_step", 0, 1_000, {})]),
            WrittenLine(3, "XLA Ops", operations),
        ],
        {"device_type_string": "TPU v5 lite"},
        long_names={"fusion.1": "%fusion.1 = bf16[8]{0} fusion(bf16[8]{0} %p), kind=kOutput"},
    )
    trace = open_trace(write_xplane(tmp_path / "a.pb", [plane]))
    rows = records(trace.kernels.to_frame())
    # The loop is the sum of what it encloses.
    assert [(row.name, row.end_ns - row.start_ns) for row in rows] == [
        ("fusion.1", 400),
        ("all-reduce.2", 400),
        ("fusion.1", 400),
    ]
    assert [row.activity == "communication" for row in rows] == [False, True, False]
    assert [row.name for row in records(trace.ranges.to_frame())] == ["step 0", "step 1"]
    assert trace.devices["name"].tolist() == ["TPU v5 lite"]


def test_a_folder_of_the_profiler_is_one_trace(tmp_path: Path) -> None:
    folder = tmp_path / "plugins" / "profile" / "2026_11_26"
    folder.mkdir(parents=True)
    write_xplane(folder / "vm.xplane.pb", [DEVICE, HOST, TASK])
    write_chrome(folder / "vm.trace.json.gz", [DEVICE, HOST])
    write_chrome(folder / "perfetto_trace.json.gz", [DEVICE, HOST])
    members = open_run([tmp_path]).members
    assert [Path(one.trace.info.path).name for one in members] == ["vm.xplane.pb"]
    (folder / "vm.xplane.pb").unlink()
    (folder / "perfetto_trace.json.gz").unlink()
    assert [one.trace.info.format for one in open_run([tmp_path]).members] == ["xplane-json"]


def test_it_is_not_cut_and_says_what_is(tmp_path: Path) -> None:
    path = write_xplane(tmp_path / "a.pb", [DEVICE])
    part = tmp_path / "part"
    part.touch()
    with pytest.raises(TraceError, match=r"export .*--window"):
        cut(path, part, CutRequest(TimeWindow(0, 10)), no_progress)


def test_without_events_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="contains no events"):
        open_trace(write_xplane(tmp_path / "a.pb", [TASK]))


def test_of_damage_there_is_one_clear_error(tmp_path: Path) -> None:
    whole = write_xplane(tmp_path / "a.pb", [DEVICE, HOST, TASK]).read_bytes()
    rng = random.Random(7)
    path = tmp_path / "b.pb"
    refused = 0
    for _ in range(400):
        data = bytearray(whole)
        for _ in range(rng.choice((1, 1, 3, 20))):
            data[rng.randrange(40, len(data))] = rng.randrange(256)
        path.write_bytes(data[: rng.choice((len(data), rng.randrange(60, len(data))))])
        try:
            open_trace(path)
        except TraceError as error:
            assert "\n" not in str(error)
            refused += 1
    assert 0 < refused < 400


@pytest.mark.parametrize("name", ["/device:GPU:99999999999999999999", "/device:GPU:1"])
def test_numbers_of_devices_and_streams_are_numbers(name: str, tmp_path: Path) -> None:
    stream = "Stream #9" if "999" in name else f"Stream #{'9' * 5000}"
    plane = WrittenPlane(name, [WrittenLine(1, stream, [("gemm", 0, 10, {})])])
    with pytest.raises(TraceError, match=r"b\.pb: damaged trace \(impossible device or stream"):
        open_trace(write_xplane(tmp_path / "b.pb", [plane, HOST]))


def test_values_that_are_too_large_are_not_known(tmp_path: Path) -> None:
    shared = f"static_shared:{2**62} dynamic_shared:{2**62} regs:{2**64}"
    line = WrittenLine(1, "Stream #1", [("gemm", 0, 10, {"kernel_details": shared})])
    host = replace(HOST, stats={"process_id": 2**63 + 7}, number=2**63 + 7)
    trace = open_trace(write_xplane(tmp_path / "b.pb", [replace(DEVICE, lines=[line]), host]))
    assert trace.processes.row(0)["process"] == 0
    asked = ReadOptions(tables=frozenset({"kernel_shapes"}))
    (row,) = open_trace(tmp_path / "b.pb", asked).table("kernel_shapes").rows()
    assert (row["static_shared_bytes"], row["shared_bytes"], row["registers"]) == (2**62, -1, -1)


def test_events_at_no_time_are_left_out(tmp_path: Path) -> None:
    late = 1 << 62
    lines = [
        WrittenLine(1, "Stream #1(Compute)", [("k", 5, 9, {})]),
        WrittenLine(2, "Stream #2(Compute)", [("never", late, late + 1, {})], base_ns=late),
    ]
    trace = open_trace(write_xplane(tmp_path / "a.pb", [WrittenPlane("/device:GPU:0", lines)]))
    assert len(trace.kernels) == 1
    assert trace.info.warnings == ("traceprof ignored 1 events without a valid time",)


def plain_fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the fields of a message: a decoder that shares nothing with the one under test."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value += (byte % 128) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = number()
        if key % 8 == 0:
            yield key // 8, number()
        else:
            size = number() if key % 8 == 2 else 8 if key % 8 == 1 else 4
            yield key // 8, data[at : at + size]
            at += size


@pytest.mark.traces
def test_the_sums_of_a_real_file_are_those_of_its_protobuf() -> None:
    path = Path(require("traces")) / "h100" / "jax-0.11-mlp.xplane.pb"
    total_ps: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for number, plane in plain_fields(path.read_bytes()):
        own = list(plain_fields(plane)) if number == 1 else []
        if dict(own).get(2) != b"/device:GPU:0":
            continue
        entries = [dict(plain_fields(value)) for field, value in own if field == 4]
        names = {entry[1]: dict(plain_fields(entry[2]))[2].decode() for entry in entries}
        for line in (value for field, value in own if field == 3):
            for event in (value for field, value in plain_fields(line) if field == 4):
                told = dict(plain_fields(event))
                total_ps[names[told[1]]] += told[3]
                counts[names[told[1]]] += 1
    kernels = open_trace(path).kernels
    lengths = kernels["end_ns"] - kernels["start_ns"]
    found = Counter[str]()
    for name, length in zip(kernels["name"], lengths.tolist(), strict=True):
        found[name] += length * 1000
    assert sum(counts.values()) == len(kernels) == 280
    assert found == total_ps


@pytest.mark.traces
@pytest.mark.parametrize("ending", ["xplane.pb", "trace.json.gz"])
def test_a_real_trace_has_the_steps_that_the_program_took(ending: str) -> None:
    path = Path(require("traces")) / "h100" / f"jax-0.11-mlp.{ending}"
    steps = run("steps", open_trace(path)).table
    measured = [row["duration_ns"] for row in steps.rows()][1:]
    assert len(measured) == 9
    assert 0.98e6 < np.median(measured) < 1.04e6  # the program itself took 1.02 ms without it
    answer = open_session([path]).within(None).result("breakdown")
    assert answer is not None
    (device,) = answer.table.rows()
    assert device["compute_ns"] / device["duration_ns"] > 0.99


@pytest.mark.traces
def test_the_json_of_a_real_file_tells_the_same_kernels() -> None:
    folder = Path(require("traces")) / "h100"
    both = [open_trace(folder / f"jax-0.11-mlp.{end}") for end in ("xplane.pb", "trace.json.gz")]
    columns = ["start_ns", "end_ns", "name", "stream", "correlation", "graph_node", "activity"]
    first, second = (one.kernels.to_frame()[columns].astype(str) for one in both)
    assert first.equals(second)
    text = gzip.decompress((folder / "jax-0.11-mlp.trace.json.gz").read_bytes())
    events = [e for e in json.loads(text)["traceEvents"] if e.get("ph") == "X" and e["pid"] == 1]
    total = sum(round(event["dur"] * 1000) for event in events)
    assert int((both[1].kernels["end_ns"] - both[1].kernels["start_ns"]).sum()) == total
