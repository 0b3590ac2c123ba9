"""The five parts of a device's time, on events that one can add up in the head."""

from __future__ import annotations

from typing import Any

import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import TraceBuilder
from tests.running import run
from traceprof.model.activity import Activity
from traceprof.model.results import Result
from traceprof.model.timing import TimeWindow

PARTS = (
    "compute_ns",
    "exposed_communication_ns",
    "exposed_transfer_ns",
    "device_memory_ns",
    "idle_ns",
)


def parts_of(row: Any) -> dict[str, int]:
    return {part: getattr(row, part) for part in PARTS}


def devices_of(result: Result) -> list[Any]:
    return list(result.table.to_frame().itertuples())


def only(result: Result) -> Any:
    (device,) = devices_of(result)
    return device


def total_of(result: Result) -> Any:
    (total,) = result.to_frame("total").itertuples()
    return total


def test_each_part_takes_what_those_before_it_leave() -> None:
    trace = (
        TraceBuilder()
        .kernel("gemm", 0, 10)
        .kernel("nccl", 5, 20, stream=8)
        .copy("h2d", 15, 30, n_bytes=1, stream=9)
        .copy("d2d", 28, 35, n_bytes=1, stream=10)
        .build()
        .within(TimeWindow(0, 50))
    )
    device = only(run("breakdown", trace))
    assert parts_of(device) == {
        "compute_ns": 10,
        "exposed_communication_ns": 10,
        "exposed_transfer_ns": 10,
        "device_memory_ns": 5,
        "idle_ns": 15,
    }
    assert device.communication_ns == 15
    assert device.communication_overlap_ratio == 5 / 15
    assert device.transfer_overlap_ratio == 5 / 15
    assert device.utilization_ratio == 20 / 50


def test_kernels_side_by_side_count_once() -> None:
    trace = TraceBuilder().kernel("gemm", 0, 10).kernel("gemm", 5, 15, stream=8).build()
    assert only(run("breakdown", trace)).compute_ns == 15


def test_a_copy_between_host_buffers_does_not_occupy_the_device() -> None:
    trace = TraceBuilder().kernel("gemm", 0, 10).copy("h2h", 10, 20, n_bytes=1).build()
    assert only(run("breakdown", trace)).idle_ns == 10


def test_peer_copies_are_transfers_and_memsets_device_memory() -> None:
    trace = TraceBuilder().copy("p2p", 0, 4, n_bytes=1).copy("memset", 4, 10, n_bytes=1).build()
    device = only(run("breakdown", trace))
    assert (device.exposed_transfer_ns, device.device_memory_ns) == (4, 6)


def test_without_communication_there_is_no_overlap_to_speak_of() -> None:
    device = only(run("breakdown", TraceBuilder().kernel("gemm", 0, 10).build()))
    assert pd.isna(device.communication_overlap_ratio)


def test_devices_are_measured_apart_and_added_up() -> None:
    trace = TraceBuilder().kernel("gemm", 0, 10).kernel("gemm", 0, 4, device=1).build()
    result = run("breakdown", trace)
    assert [device.compute_ns for device in devices_of(result)] == [10, 4]
    total = total_of(result)
    assert (total.duration_ns, total.compute_ns, total.idle_ns) == (20, 14, 6)
    assert result.table["device"].tolist() == [0, 1]


def test_a_device_that_idles_through_the_window_is_shown_idle() -> None:
    trace = TraceBuilder().kernel("gemm", 0, 10).kernel("gemm", 20, 30, device=1).build()
    result = run("breakdown", trace.within(TimeWindow(0, 10)))
    assert parts_of(devices_of(result)[1]) == {**dict.fromkeys(PARTS, 0), "idle_ns": 10}


def test_graphs_traced_whole_count_as_compute_and_say_so() -> None:
    trace = TraceBuilder().kernel("graph", 0, 10, activity=Activity.CUDA_GRAPH).build()
    result = run("breakdown", trace)
    assert only(result).compute_ns == 10
    assert result.scalars["graphs_count"] == 1
    assert "CUDA graph launch(es) without kernels" in result.notes[0].text


events = st.lists(
    st.tuples(
        st.sampled_from(["gemm", "nccl", "h2d", "d2h", "p2p", "d2d", "memset", "h2h"]),
        st.integers(0, 50),
        st.integers(0, 20),
        st.integers(0, 1),
    ),
    min_size=1,
    max_size=15,
)


@given(events, st.integers(0, 30), st.integers(1, 40))
def test_the_parts_are_those_of_a_bitmap_and_add_up_to_the_window(
    raw: list[tuple[str, int, int, int]], start: int, length: int
) -> None:
    builder = TraceBuilder()
    for kind, begin, duration, device in raw:
        if kind in ("gemm", "nccl"):
            builder.kernel(kind, begin, begin + duration, device=device)
        else:
            builder.copy(kind, begin, begin + duration, n_bytes=1, device=device)
    window = TimeWindow(start, start + length)
    result = run("breakdown", builder.build().within(window))
    devices = devices_of(result)
    for device in devices:
        assert parts_of(device) == brute_force(raw, int(device.device), window)
        assert sum(parts_of(device).values()) == length
    total = total_of(result)
    assert sum(parts_of(total).values()) == length * len(devices)


def brute_force(
    raw: list[tuple[str, int, int, int]], device: int, window: TimeWindow
) -> dict[str, int]:
    parts = dict.fromkeys(PARTS, 0)
    for instant in range(window.start_ns, window.end_ns):
        running = {
            kind
            for kind, begin, duration, where in raw
            if where == device and begin <= instant < begin + duration
        }
        if "gemm" in running:
            parts["compute_ns"] += 1
        elif "nccl" in running:
            parts["exposed_communication_ns"] += 1
        elif running & {"h2d", "d2h", "p2p"}:
            parts["exposed_transfer_ns"] += 1
        elif running & {"d2d", "memset"}:
            parts["device_memory_ns"] += 1
        else:
            parts["idle_ns"] += 1
    return parts
