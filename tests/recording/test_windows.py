"""Windows of torch's profiler as tables: a GPU's, written by hand as Kineto writes them."""

import json

import pytest

from tests.builders import plain
from traceprof.formats.kineto.events import read_kineto_events
from traceprof.model.tables import ABSENT
from traceprof.recording.captured_trace import window_tables
from traceprof.recording.identities import FIRST_NUMBER

BASE = 1_700_000_000_000_000_000
PID = 42


def event(category, name, ts, dur, pid=PID, tid=43, **arguments):
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "ts": ts,
        "dur": dur,
        "pid": pid,
        "tid": tid,
        "args": arguments,
    }


EVENTS = [
    {"ph": "M", "name": "thread_name", "pid": PID, "tid": 43, "args": {"name": "trainer"}},
    {"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "args": {"name": "stream 7"}},
    event("cpu_op", "aten::mm", 1.5, 10, **{"External id": 9}),
    event("user_annotation", "gloo:all_reduce", 2, 3),
    event("cuda_runtime", "cudaLaunchKernel", 3, 1, correlation=5),
    event("kernel", "sgemm", 5, 4.25, 0, 7, device=0, stream=7, correlation=5),
    event(
        "gpu_memcpy",
        "Memcpy HtoD (Pinned -> Device)",
        1,
        2,
        *(0, 7),
        device=0,
        stream=7,
        correlation=4,
        bytes=1000,
    ),
    event("gpu_memset", "Memset (Device)", 4, 1, 0, 7, device=0, stream=7, bytes=64),
    event("cuda_sync", "Stream Sync", 6, 2, 0, 7, device=0, stream=7, correlation=6),
    event("overhead", "Activity Buffer Request", 0, 1),
    event("Trace", "PyTorch Profiler (0)", 0, 100, "Spans", "x"),
]


def tables(tmp_path, **header):
    document = {"baseTimeNanoseconds": BASE, **header, "traceEvents": EVENTS}
    path = tmp_path / "window.json"
    path.write_text(json.dumps(document))
    return window_tables([(PID, read_kineto_events(path))], lambda times: times - BASE)


@pytest.fixture
def gpu(tmp_path):
    device = {"id": 0, "name": "NVIDIA H100", "totalGlobalMem": 85_000_000_000, "numSms": 132}
    return tables(tmp_path, deviceProperties=[device])[0]


def test_operators_keep_their_threads_and_say_what_is_asynchronous(gpu):
    ops = gpu["host_ops"]
    assert ops["name"].tolist() == ["aten::mm", "gloo:all_reduce"]
    assert ops["source"].tolist() == ["cpu_op", "async"]
    assert plain(ops, "start_ns", "end_ns") == [(1500, 11500), (2000, 5000)]
    assert ops["process"].tolist() == [PID, PID]
    assert ops["correlation"].tolist() == [9, ABSENT]
    assert gpu["threads"]["name"].tolist() == ["trainer"]


def test_kernels_and_launches_share_their_correlation_and_process(gpu):
    (kernel,) = gpu["kernels"].rows()
    (call,) = gpu["api_calls"].rows()
    assert (kernel["start_ns"], kernel["end_ns"]) == (5000, 9250)
    assert (kernel["device"], kernel["stream"], kernel["process"]) == (0, 7, PID)
    assert kernel["correlation"] == call["correlation"] == 5
    assert call["process"] == PID


def test_copies_have_direction_bytes_and_kinds_of_memory(gpu):
    copies = gpu["copies"]
    assert copies["direction"].tolist() == ["h2d", "memset"]
    assert copies["n_bytes"].tolist() == [1000, 64]
    assert copies["src_kind"].tolist() == ["pinned", ""]
    assert copies["dst_kind"].tolist() == ["device", "device"]


def test_waits_and_the_profilers_own_work_are_there(gpu):
    (sync,) = gpu["syncs"].rows()
    assert (sync["kind"], sync["stream"], sync["process"]) == ("stream", 7, PID)
    (overhead,) = gpu["overheads"].rows()
    assert (overhead["end_ns"], overhead["process"]) == (1000, PID)


def test_devices_are_described(gpu):
    (device,) = gpu["devices"].rows()
    assert (device["name"], device["sm_count"]) == ("NVIDIA H100", 132)


def test_device_tables_are_not_recorded_where_there_was_no_device(tmp_path):
    found, recorded = tables(tmp_path, deviceProperties=[])
    assert recorded == {"host_ops", "threads"}
    assert set(found) == recorded


def test_no_window_at_all():
    found, recorded = window_tables([], lambda times: times)
    assert recorded == {"host_ops", "threads"}
    assert len(found["host_ops"]) == 0


def test_two_processes_of_one_process_id_keep_their_own_operators(tmp_path):
    """Each container has its own process ids, and the program of each can be number 1."""
    path = tmp_path / "window.json"
    path.write_text(json.dumps({"baseTimeNanoseconds": BASE, "traceEvents": EVENTS}))
    events = read_kineto_events(path)
    numbers = [PID, FIRST_NUMBER]
    found, _ = window_tables([(number, events) for number in numbers], lambda times: times - BASE)
    assert sorted(found["host_ops"]["process"].tolist()) == [PID] * 2 + [FIRST_NUMBER] * 2
