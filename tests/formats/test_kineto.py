"""Kineto traces become tables: small files by hand, then the real ones."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import real_traces
from tests.builders import plain
from tests.formats.kineto_file import HOST, THREAD, as_json, complete, kernel, on_device, write
from tests.requirements import TRACES, require
from traceprof.errors import TraceError
from traceprof.formats import open_trace
from traceprof.formats.kineto.parse import ATTRIBUTES
from traceprof.measures.collectives.operations import find_collectives
from traceprof.model.tables import ABSENT, TABLES

BASE = 1_700_000_000_000_000_000
CATEGORIES = (
    *("cpu_op", "Operator", "cuda_runtime", "kernel", "gpu_memcpy", "gpu_memset", "overhead"),
    *("python_function", "user_annotation", "gpu_user_annotation", "cpu_instant_event", "fwdbwd"),
)
EPOCH = 1_712_195_495_519_689_047  # its microseconds do not fit a double


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_a_training_step(tmp_path: Path, suffix: str) -> None:
    events = [
        complete("user_annotation", "ProfilerStep#3", 1000, 9000, args={"External id": 1}),
        complete("cpu_op", "aten::mm", 2000, 4000, args={"External id": 2}),
        complete("cuda_runtime", "cudaLaunchKernel", 2500, 3001, args={"correlation": 9}),
        kernel("ampere_sgemm_64x64", 3500, 8250),
        on_device(
            "gpu_memcpy",
            "Memcpy HtoD (Pageable -> Device)",
            1500,
            2500,
            correlation=8,
            bytes=4096,
        ),
        on_device("gpu_memset", "Memset (Device)", 2600, 2700, correlation=7, bytes=16),
        on_device("gpu_user_annotation", "ProfilerStep#3", 1499, 8252),
    ]
    path = write(tmp_path / f"t{suffix}", events, baseTimeNanoseconds=BASE)
    trace = open_trace(path)

    assert trace.info.utc_epoch_ns == BASE + 1000
    assert plain(trace.kernels.to_frame(), "start_ns", "end_ns", "device", "stream", "process") == [
        (2500, 7250, 0, 7, HOST)
    ]
    assert plain(trace.kernels.to_frame(), "name", "activity", "correlation", "graph_node") == [
        ("ampere_sgemm_64x64", "gemm", 9, ABSENT)
    ]
    assert plain(
        trace.copies.to_frame(), "start_ns", "direction", "n_bytes", "src_kind", "dst_kind"
    ) == [
        (500, "h2d", 4096, "pageable", "device"),
        (1600, "memset", 16, "", "device"),
    ]
    assert plain(
        trace.api_calls.to_frame(), "start_ns", "end_ns", "thread", "correlation", "name"
    ) == [(1500, 2001, THREAD, 9, "cudaLaunchKernel")]
    assert plain(trace.host_ops.to_frame(), "start_ns", "end_ns", "source", "name") == [
        (1000, 3000, "cpu_op", "aten::mm")
    ]
    # The step is on the host once; Kineto's copy of it on the device is not one more.
    assert plain(
        trace.ranges.to_frame(), "start_ns", "end_ns", "process", "thread", "name", "depth"
    ) == [(0, 8000, HOST, THREAD, "ProfilerStep#3", 0)]
    assert "syncs" not in trace.recorded
    assert trace.recorded >= {"kernels", "copies", "api_calls", "ranges", "host_ops"}


def test_streams_of_hip_are_pointers(tmp_path: Path) -> None:
    streams = (140234567890432, 140234567894528, 7, 2**31)
    events = [
        kernel("k", 1000 * i, 1000 * i + 500, stream=stream) for i, stream in enumerate(streams, 1)
    ]
    events.append(on_device("cuda_sync", "Context Sync", 9000, 9100, stream=2**32 - 1))
    trace = open_trace(write(tmp_path / "t.json", events))
    assert trace.kernels["stream"].tolist() == [*streams]
    assert trace.syncs["stream"].tolist() == [ABSENT]


@given(st.integers(EPOCH, EPOCH + 10**12), st.integers(0, 10**12))
@settings(max_examples=10, deadline=None)
def test_times_of_day_keep_every_digit(
    tmp_path_factory: pytest.TempPathFactory, start_ns: int, lasts_ns: int
) -> None:
    events = [
        complete("cpu_op", "first", EPOCH - 1, EPOCH),
        *[kernel("k", start_ns, start_ns + lasts_ns)] * 2,
    ]
    path = write(tmp_path_factory.mktemp("times") / "t.json", events)
    trace = open_trace(path)
    assert trace.info.utc_epoch_ns == EPOCH - 1
    assert set(plain(trace.kernels.to_frame(), "start_ns", "end_ns")) == {
        (start_ns - EPOCH + 1, start_ns + lasts_ns - EPOCH + 1)
    }


def test_the_first_generation(tmp_path: Path) -> None:
    """2021: capital categories, texts for threads, steps among the operators."""
    step = complete("Operator", "ProfilerStep#1", 1000, 9000, tid="4243")
    events = [
        step,
        step,
        complete("Operator", "aten::add", 2000, 3000, tid="4243"),
        complete("Runtime", "cudaLaunchKernel", 2100, 2200, tid="4243", args={"correlation": 5}),
        complete(
            "Kernel",
            "add_kernel",
            4000,
            5000,
            pid=1,
            tid="stream 7",
            args={"device": 1, "stream": 7, "correlation": 5, "external id": 2},
        ),
        complete("Memcpy", "Memcpy DtoH (Device -> Pinned)", 6000, 7000, pid=1, tid="stream 7"),
    ]
    trace = open_trace(write(tmp_path / "t.json", events))
    assert plain(trace.ranges.to_frame(), "name", "thread") == [("ProfilerStep#1", THREAD)]
    assert plain(trace.host_ops.to_frame(), "name") == [("aten::add",)]
    assert plain(trace.kernels.to_frame(), "device", "stream", "process") == [(1, 7, HOST)]
    assert plain(trace.copies.to_frame(), "device", "direction", "n_bytes") == [(1, "d2h", ABSENT)]
    assert trace.info.utc_epoch_ns is None  # a clock since boot


def test_rows_of_triton_on_the_host_are_not_device_work(tmp_path: Path) -> None:
    events = [
        complete("cpu_op", "triton_poi_fused_0", 1000, 96800, args={"stream": 7, "device": 0}),
        kernel("triton_poi_fused_0", 50000, 51760),
    ]
    trace = open_trace(write(tmp_path / "t.json", events))
    assert (trace.kernels.to_frame()["end_ns"] - trace.kernels.to_frame()["start_ns"]).tolist() == [
        1760
    ]


def test_collectives_have_sizes_and_their_kernels(tmp_path: Path) -> None:
    described = {
        "Collective name": "_allgather_base",
        "In msg nelems": 100,
        "Out msg nelems": 800,
        "Group size": 8,
        "dtype": "BFloat16",
        "Process Group Name": "3",
        "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]",
        "Seq": 12,
    }
    sent = {**described, "Collective name": "send", "Out msg nelems": 100, "dtype": "Strange"}
    waits = {"Collective name": "wait", "In msg nelems": 0, "dtype": "Byte"}
    events = [
        complete("cpu_op", "record_param_comms", 0, 900, args={"External id": 5, **described}),
        complete("user_annotation", "nccl:_all_gather_base", 100, 800),
        complete("cpu_op", "record_param_comms", 1000, 1100, args={"External id": 6, **waits}),
        kernel("ncclDevKernel_AllGather", 5000, 9000, **{"External id": 5}, **described),
        # Launched before the trace began: only the kernel is there.
        kernel("ncclDevKernel_SendRecv", 200, 300, correlation=4, **sent),
    ]
    trace = open_trace(write(tmp_path / "t.json", events))
    assert plain(
        trace.collectives.to_frame(), "start_ns", "end_ns", "op", "n_bytes", "correlation"
    ) == [
        (0, 900, "all_gather", 200, 9),
        (200, 300, "send", ABSENT, 4),
    ]
    columns = ("dtype", "group", "group_size", "backend", "sequence", "thread")
    assert plain(trace.collectives.to_frame(), *columns) == [
        ("bfloat16", "3", 8, "nccl", 12, THREAD),
        ("Strange", "3", 8, "nccl", 12, ABSENT),
    ]


def test_a_collective_that_only_its_kernel_describes_is_at_its_launch(tmp_path: Path) -> None:
    described = {"Collective name": "allreduce", "In msg nelems": 9, "dtype": "Float"}
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    events = [
        complete("cpu_op", "aten::mm", 0, 10),
        complete("cuda_runtime", "cudaLaunchKernel", 100, 105, args={"correlation": 1}),
        kernel(name, 5000, 9000, correlation=1, **described),
        kernel(name, 200, 300, correlation=2, **described),  # launched before the trace began
    ]
    trace = open_trace(write(tmp_path / "t.json", events))
    columns = ("start_ns", "end_ns", "thread", "correlation")
    assert plain(trace.collectives.to_frame(), *columns) == [
        (100, 105, THREAD, 1),
        (200, 300, ABSENT, 2),
    ]
    columns = ("start_ns", "end_ns", "call_ns", "call_end_ns")
    assert plain(find_collectives(trace), *columns) == [
        (200, 300, ABSENT, ABSENT),
        (5000, 9000, 100, 105),
    ]


def test_sends_and_receives_tell_their_other_end(tmp_path: Path) -> None:
    described = {
        "In msg nelems": 100,
        "Out msg nelems": 100,
        "Group size": 4,
        "dtype": "Float",
        "Process Group Name": "pp",
        "Process Group Ranks": "[1, 3, 5, 7]",
        "Rank": 2,
    }
    sent = {**described, "Collective name": "send", "Dst Rank": 5}
    received = {**described, "Collective name": "recv"}
    abridged = {**received, "Process Group Ranks": "[1, 3, ..., 7]", "Src Rank": 5}
    reduced = {**described, "Collective name": "allreduce"}
    events = [
        complete("cpu_op", "record_param_comms", 100 * i, 100 * i + 50, args=args)
        for i, args in enumerate((sent, received, abridged, reduced))
    ]
    header = {"distributedInfo": {"rank": 3, "world_size": 8}}
    trace = open_trace(write(tmp_path / "t.json", events, **header))
    assert plain(trace.collectives.to_frame(), "op", "group_rank", "peer", "peer_rank") == [
        ("send", 1, 2, 5),
        ("recv", 1, 2, 5),  # from the list of ranks
        ("recv", ABSENT, 2, 5),
        ("all_reduce", 1, ABSENT, ABSENT),
    ]


def test_a_batch_of_sends_and_receives_has_the_kernel_that_its_end_launches(tmp_path: Path) -> None:
    described = {"In msg nelems": 9, "Out msg nelems": 9, "Group size": 4, "dtype": "Float"}
    send, recv = ({**described, "Collective name": op} for op in ("send", "recv"))
    reduced = {**described, "Collective name": "allreduce"}
    launch = ("cuda_runtime", "cudaLaunchKernelExC")
    name = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    events = [
        complete("cpu_op", "record_param_comms", 0, 10, args=send),
        complete("cpu_op", "record_param_comms", 20, 30, args=recv),
        complete(*launch, 40, 45, args={"correlation": 1}),
        # One by itself, which launches inside; then a call whose kernel is not in the trace.
        complete("cpu_op", "record_param_comms", 100, 130, args=send),
        complete(*launch, 110, 115, args={"correlation": 2}),
        complete("cpu_op", "record_param_comms", 200, 210, args=send),
        complete("cpu_op", "record_param_comms", 300, 330, args=reduced),
        complete(*launch, 310, 315, args={"correlation": 3}),
        complete("cpu_op", "record_param_comms", 400, 410, args=recv),
        complete(*launch, 420, 425, args={"correlation": 4}),
        *(kernel(name, 1000 * i, 1000 * i + 500, correlation=i) for i in (1, 2, 4)),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 3000, 3500, correlation=3),
    ]
    trace = open_trace(write(tmp_path / "t.json", events))
    assert plain(trace.collectives.to_frame(), "start_ns", "op", "correlation") == [
        (0, "send", 1),
        (20, "recv", 1),
        (100, "send", 2),
        (200, "send", ABSENT),
        (300, "all_reduce", 3),
        (400, "recv", 4),
    ]
    assert find_collectives(trace)["op"].tolist() == [
        "send",
        "send_recv",
        "send",
        "all_reduce",
        "recv",
    ]


def test_annotations_stand_in_for_collectives_of_old_versions(tmp_path: Path) -> None:
    events = [
        complete("user_annotation", "nccl:all_reduce", 0, 900),
        complete("cuda_runtime", "cudaLaunchKernel", 300, 400, args={"correlation": 3}),
        complete("cuda_runtime", "cudaLaunchKernel", 500, 600, args={"correlation": 4}),
        kernel("gemm", 1000, 2000, correlation=3),
        kernel("ncclKernel_AllReduce_RING_LL_Sum_float", 2000, 3000, correlation=4),
    ]
    trace = open_trace(write(tmp_path / "t.json", events))
    assert plain(
        trace.collectives.to_frame(), "op", "n_bytes", "group_size", "backend", "correlation"
    ) == [("all_reduce", ABSENT, ABSENT, "nccl", 4)]


def test_what_else_kineto_may_record(tmp_path: Path) -> None:
    wait = {"cuda_sync_kind": "Stream Wait Event", "correlation": 24}
    memory = {"Total Allocated": 2048, "Total Reserved": 4096, "Device Id": 1, "Device Type": 1}
    events = [
        complete("python_function", "train.py(3): <module>", 0, 9000),
        complete("python_function", "nn.Module: Linear_0", 100, 900),
        on_device("cuda_sync", "Stream Wait Event", 200, 300, **wait),
        on_device("cuda_sync", "Event Sync", 300, 400, stream=-1),
        complete("overhead", "Activity Buffer Request", 500, 700, pid=-1, tid=0),
        {**complete("cpu_instant_event", "[memory]", 600, 600, args=memory), "ph": "i"},
        {"ph": "i", "name": "Iteration Start", "pid": "Traces", "tid": "Trace", "ts": 0},
        {"ph": "s", "id": 9, "pid": HOST, "tid": THREAD, "ts": 0, "cat": "ac2g", "name": "ac2g"},
        complete("Trace", "PyTorch Profiler (0)", 0, 9000, pid="Spans", tid="PyTorch Profiler"),
    ]
    trace = open_trace(write(tmp_path / "t.json", events))
    assert plain(trace.ranges.to_frame(), "domain", "name") == [("nn.Module", "Linear_0")]
    assert plain(trace.syncs.to_frame(), "kind", "stream", "correlation") == [
        ("stream_wait", 7, 24),
        ("event", ABSENT, 9),
    ]
    assert plain(trace.overheads.to_frame(), "name", "process") == [
        ("Activity Buffer Request", HOST)
    ]
    assert plain(trace.samples.to_frame(), "source", "metric", "value") == [
        ("gpu:1", "torch_allocated_bytes", 2048.0),
        ("gpu:1", "torch_reserved_bytes", 4096.0),
    ]
    assert trace.host_ops.to_frame().empty


def test_the_machine_and_the_rank(tmp_path: Path) -> None:
    header = {
        "deviceProperties": [{"id": 0, "name": "H100", "totalGlobalMem": 80, "numSms": 132}],
        "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8, "nccl_version": "2.27"},
        "cuda_runtime_version": 12090,
        "roctracer_version": 4.1,
    }
    named = {"ph": "M", "name": "process_name", "pid": HOST, "args": {"name": "python3"}}
    thread = {"ph": "M", "name": "thread_name", "pid": HOST, "tid": 1, "args": {"name": "main"}}
    events = [named, thread, complete("cpu_op", "op", 0, 1), kernel("k", 0, 1)]
    trace = open_trace(write(tmp_path / "t.json", events, **header))
    assert plain(
        trace.devices.to_frame(), "device", "name", "memory_bytes", "sm_count", "used"
    ) == [(0, "H100", 80, 132, 1)]
    assert plain(trace.processes.to_frame(), "process", "name", "rank", "world_size") == [
        (HOST, "python3", 3, 8)
    ]
    assert plain(trace.threads.to_frame(), "process", "thread", "name") == [(HOST, 1, "main")]
    assert dict(plain(trace.environment.to_frame(), "name", "value")) == {
        "cuda_runtime": "12.9",
        "roctracer": "4.1",
        "nccl": "2.27",
        "backend": "nccl",
    }


@pytest.mark.parametrize(
    ("name", "direction"),
    [
        ("Memcpy DtoD (Device -> Device)", "d2d"),
        ("Memcpy PtoP (Device -> Device)", "p2p"),
        ("Memcpy HtoH (Pageable -> Pinned)", "h2h"),
        ("Memcpy HtoA (Pinned -> Array)", "h2d"),
        ("CopyDeviceToHost", "d2h"),
        ("hipMemset", "memset"),
        ("Memcpy", "unknown"),
    ],
)
def test_directions_of_copies(tmp_path: Path, name: str, direction: str) -> None:
    category = "gpu_memset" if direction == "memset" else "gpu_memcpy"
    trace = open_trace(write(tmp_path / "t.json", [on_device(category, name, 0, 1)]))
    assert trace.copies.to_frame()["direction"].tolist() == [direction]


@pytest.mark.parametrize("packed", [False, True])
def test_a_trace_that_is_cut_off_is_read_up_to_the_cut(tmp_path: Path, packed: bool) -> None:
    events = [kernel(f"kernel_{number}", number * 10, number * 10 + 5) for number in range(9999)]
    text = as_json({"traceEvents": events}, indent=1).encode()
    data = gzip.compress(text) if packed else text
    path = tmp_path / "t.json"
    path.write_bytes(data[: len(data) // 2])
    trace = open_trace(path)
    assert 4000 < len(trace.kernels.to_frame()) < 6000
    assert trace.kernels.to_frame()["name"].tolist() == [
        f"kernel_{n}" for n in range(len(trace.kernels.to_frame()))
    ]
    assert "truncated" in trace.info.warnings[0]


@pytest.mark.parametrize("packed", [False, True])
def test_what_follows_on_the_document_is_counted_and_said(tmp_path: Path, packed: bool) -> None:
    one, other = (as_json({"traceEvents": [kernel(name, 0, 5)]}).encode() for name in "ab")
    path = tmp_path / "t.json"
    pieces = [gzip.compress(one), gzip.compress(other)] if packed else [one, b"\n", other]
    path.write_bytes(b"".join(pieces))
    trace = open_trace(path)
    assert trace.kernels.to_frame()["name"].tolist() == ["a"]
    assert trace.info.warnings[0].startswith(f"traceprof ignored {len(other)} bytes after")


@pytest.mark.parametrize(
    ("listed", "name_of_unlisted"),
    [(["MI300X", "MI300X"], ["MI300X"]), (["MI300X", "MI250X"], []), ([], [])],
)
def test_devices_that_the_list_lacks_are_of_its_only_model(
    tmp_path: Path, listed: list[str], name_of_unlisted: list[str]
) -> None:
    header = {
        "deviceProperties": [
            {"id": number, "name": name, "uuid": f"GPU-{number}", "numSms": 304}
            for number, name in enumerate(listed)
        ]
    }
    events = [kernel("k", 0, 5, device=0), kernel("k", 10, 15, device=9)]
    devices = open_trace(write(tmp_path / "t.json", events, **header)).devices.to_frame()
    unlisted = devices[devices["device"] == 9]
    assert unlisted["name"].tolist() in (name_of_unlisted, [""] * (not name_of_unlisted))
    assert set(devices["name"]) - {""} == set(listed)
    if name_of_unlisted:
        assert plain(unlisted, "uuid", "sm_count", "used") == [("", 304, 1)]


@pytest.mark.parametrize(
    ("units", "memory_gib", "warp", "recorded", "name"),
    [
        (304, 192, 64, "", "AMD Instinct MI300X"),
        (304, 256, 64, "", "AMD Instinct MI325X"),
        (304, 192, 64, "AMD Radeon Graphics", "AMD Radeon Graphics"),
        (104, 64, 64, "", ""),  # of several models
        (304, 192, 32, "", ""),
    ],
)
def test_an_amd_gpu_without_a_name_is_named_by_its_properties(
    tmp_path: Path, units: int, memory_gib: int, warp: int, recorded: str, name: str
) -> None:
    device = {"id": 0, "name": recorded, "numSms": units, "totalGlobalMem": memory_gib << 30}
    device |= {"computeMajor": 9, "computeMinor": 4, "warpSize": warp}
    path = write(tmp_path / "t.json", [kernel("k", 0, 5)], deviceProperties=[device])
    assert open_trace(path).devices.to_frame()["name"].tolist() == [name]


@pytest.mark.parametrize("written", ["\\ud800", "\xff"])
def test_texts_beside_the_events_are_unicode(tmp_path: Path, written: str) -> None:
    text = as_json(
        {
            "deviceProperties": [{"id": 0, "name": "odd NAME"}],
            "distributedInfo": {"backend": "odd NAME", "rank": 0, "world_size": 1},
            "traceEvents": [kernel("k", 0, 5)],
        }
    )
    path = tmp_path / "t.json"
    path.write_bytes(text.replace("odd NAME", f"odd {written}").encode("latin-1"))
    trace = open_trace(path)
    assert trace.devices.to_frame()["name"].tolist() == ["odd \N{REPLACEMENT CHARACTER}"]
    for table in (trace.devices, trace.processes, trace.environment):
        table.to_frame().to_json()


@pytest.mark.parametrize("written", ["\\ud800", "\\udcff", "\xff", "\\ud83d", "\xed\xa0\x80"])
def test_texts_of_events_that_are_read_one_by_one_are_unicode(tmp_path: Path, written: str) -> None:
    arguments = dict.fromkeys(ATTRIBUTES, "odd NAME") | {"Concrete Inputs": ["odd NAME"]}
    arguments |= {"Input Dims": [["odd NAME"]], "Input type": ["odd NAME", {"odd NAME": 1}]}
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "n", "ts": 1, "dur": 1, "args": [1]},
        *(complete(one, "odd NAME", 5, 9, tid="odd NAME", args=arguments) for one in CATEGORIES),
        complete("odd NAME", "odd NAME", 5, 9, args=arguments),
        {"ph": "M", "name": "process_name", "pid": "[odd NAME] 40", "args": {"name": "odd NAME"}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 7, "args": {"name": "odd NAME"}},
        {"ph": "odd NAME", "name": "odd NAME", "pid": "[odd NAME] 41", "ts": 5},
        kernel("k", 0, 5),
    ]
    path = tmp_path / "t.json"
    text = as_json({"traceEvents": events}).replace("odd NAME", f"odd {written}")
    path.write_bytes(text.encode("latin-1"))
    trace = open_trace(path)
    assert "k" in trace.kernels.to_frame()["name"].tolist()
    for name in TABLES:
        trace.table(name).to_frame().to_json()
    "".join(trace.info.warnings).encode()


@pytest.mark.parametrize("place", ["header", "item", "arguments"])
def test_lists_in_lists_that_have_no_end_are_refused(tmp_path: Path, place: str) -> None:
    deep = "[" * 100_000 + "]" * 100_000  # Python 3.13 reads some 10,000
    events = '{"ph": "X", "cat": "cpu_op", "name": "n", "ts": 1, "dur": 1, "args": %s, "deep": %s}'
    item = events % (
        {"item": ("[1]", deep), "arguments": (f'{{"Input Dims": {deep}}}', "[1]")}
    ).get(place, ("[1]", "1"))
    header = deep if place == "header" else "1"
    path = tmp_path / "t.json"
    path.write_text(f'{{"traceEvents": [{item}, null], "other": {header}}}')
    with pytest.raises(TraceError, match="nested too deeply"):
        open_trace(path)


def test_a_byte_order_mark_and_metadata_in_front(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", [kernel("k", 0, 5)], metadata={"text": "x" * 10_000})
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert open_trace(path).kernels.to_frame()["name"].tolist() == ["k"]


def test_strange_values_do_no_harm(tmp_path: Path) -> None:
    events = [
        kernel("k", 0, 1000),
        {**kernel("texts", 2000, 3000), "pid": "0", "tid": "7", "cat": "kernel"},
        {**kernel("negative", 4000, 4000), "dur": -3},
        {**kernel("texts for times", 0, 0), "ts": "5.250", "dur": "1"},
        {**kernel("no arguments", 6000, 7000), "args": None},
        {**kernel("huge", 7000, 8000), "args": {"correlation": 2**64 - 1, "stream": [1]}},
        {**kernel("at no time", 0, 0), "ts": 1e300},
        {**kernel("for ever", 0, 0), "dur": 2**70},
        None,
        [1, 2],
        {"ph": "X", "cat": None, "name": None},
    ]
    path = write(tmp_path / "t.json", events)
    path.write_bytes(path.read_bytes().replace(b"huge", b"hu\xffge"))
    trace = open_trace(path)
    assert plain(trace.kernels.to_frame(), "name", "start_ns", "end_ns", "device", "stream") == [
        ("k", 0, 1000, 0, 7),
        ("texts", 2000, 3000, 0, 7),
        ("texts for times", 5250, 6250, 0, 7),
        ("no arguments", 6000, 7000, 0, 7),
        ("hu\N{REPLACEMENT CHARACTER}ge", 7000, 8000, 0, 7),
    ]
    assert trace.kernels.to_frame()["correlation"].tolist() == [9, 9, 9, ABSENT, ABSENT]
    assert trace.info.warnings == (
        "traceprof ignored 3 events whose time or duration is missing or invalid",
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "JSON without torch.profiler events"),
        ('{"hello": [1, 2]}', "JSON without torch.profiler events"),
        ('{"hello": "traceEvents", "traceEvents": 3}', "the JSON contains no traceEvents"),
        ('{"traceEvents": []}', "the Chrome trace is empty"),
        ('{"traceEvents": [{"ph": "X", "cat": "ker', "truncated before its first event"),
    ],
)
def test_json_without_events_says_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(TraceError, match=message):
        open_trace(path)


@pytest.mark.traces
@pytest.mark.parametrize("name", real_traces.KINETO)
def test_real_traces_read(name: str) -> None:
    require("traces")
    trace = open_trace(TRACES / name)
    assert len(trace.kernels.to_frame()) > 50
    cost = trace.info.recording
    assert trace.info.warnings == (() if cost is None else (cost.warning,))
    assert (trace.kernels.to_frame()["end_ns"] >= trace.kernels.to_frame()["start_ns"]).all()
    assert trace.devices.to_frame()["used"].sum() >= 1
    # Every copy and launch finds its place: the launches of most kernels are in the trace.
    assert (
        trace.kernels.to_frame()["correlation"]
        .isin(trace.api_calls.to_frame()["correlation"])
        .mean()
        > 0.7
    )
    assert (trace.copies.to_frame()["direction"] != "unknown").all()


@pytest.mark.traces
def test_bytes_of_a_real_all_gather() -> None:
    require("traces")
    trace = open_trace(TRACES / "kineto/2025-b200-rank0of8.json.gz")
    # kineto.md quotes the row: In 25136 elements of BFloat16, 8 ranks, correlation 15270.
    assert plain(trace.collectives.to_frame(), "op", "n_bytes", "group_size", "correlation") == [
        ("all_gather", 2 * 25_136, 8, 15270)
    ]


@pytest.mark.parametrize(
    ("header", "name", "rank"),
    [
        ({"distributedInfo": {"rank": 3, "world_size": 8}}, "python RANK 5", 3),
        ({"RANK": "3"}, "python", 3),  # added with `add_metadata`
        ({"rank": 3}, "python", 3),
        ({}, "python RANK 3", 3),
        ({}, "train.py [rank=3]", 3),
        ({}, "trank 3", ABSENT),
        ({}, "rank 12345678901", ABSENT),
        ({}, "python", ABSENT),
    ],
)
def test_the_rank_in_the_header_or_in_the_name_of_the_process(
    tmp_path: Path, header: dict[str, Any], name: str, rank: int
) -> None:
    named = {"ph": "M", "name": "process_name", "pid": HOST, "tid": 0, "args": {"name": name}}
    events = [named, complete("cpu_op", "aten::mm", 0, 10_000)]
    path = write(tmp_path / "trace.json", events, **header)
    assert open_trace(path).processes["rank"].tolist() == [rank]
