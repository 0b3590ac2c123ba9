"""What the parts are made of: each ns belongs to one thing, and all of it is there."""

from __future__ import annotations

import numpy as np
import pytest

from tests.builders import TraceBuilder, plain
from tests.comparison.explaining.test_explain import random_trace
from traceprof.measures.composition import composition_of_devices
from traceprof.measures.device.times import device_parts
from traceprof.model.activity import PARTS
from traceprof.model.ranks import Ranks
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace


def made(trace: Trace, start: int, end: int) -> list[tuple[object, ...]]:
    found = composition_of_devices(Ranks.of(trace), {(0, 0): TimeWindow(start, end)}).to_frame()
    return plain(found, "part", "kind", "name", "ns", "count")


def test_of_kernels_at_once_the_first_has_the_time() -> None:
    trace = (
        TraceBuilder()
        .kernel("gemm", 0, 100)
        .kernel("relu", 50, 130, stream=8)
        .kernel("tanh", 60, 90, stream=9)
        .copy("h2d", 120, 150, stream=10, src_kind="pageable")
        .build()
    )
    assert made(trace, 0, 200) == [
        ("compute", "kernel", "gemm", 100, 1),
        ("compute", "kernel", "relu", 30, 1),
        ("compute", "kernel", "tanh", 0, 1),
        ("exposed_transfer", "copy", "h2d pageable", 20, 1),
        ("idle", "edge", "(nothing recorded)", 50, 1),
    ]


def test_what_began_before_the_window_has_time_but_no_count() -> None:
    trace = TraceBuilder().kernel("gemm", 0, 100).kernel("gemm", 110, 120).build()
    assert made(trace, 50, 120) == [
        ("compute", "kernel", "gemm", 60, 1),
        ("idle", "unknown", "(nothing recorded)", 10, 1),
    ]


def test_communication_that_compute_hides_has_no_time() -> None:
    trace = (
        TraceBuilder()
        .kernel("gemm", 0, 60)
        .kernel("ncclDevKernel_AllReduce", 20, 100, stream=8)
        .build()
    )
    assert ("exposed_communication", "collective", "all_reduce", 40, 1) in made(trace, 0, 100)


@pytest.mark.parametrize("seed", range(8))
def test_the_parts_are_those_of_the_breakdown(seed: int) -> None:
    trace = random_trace(seed)
    window = TimeWindow(700_000 + seed, 3_300_000)
    ranks = Ranks.of(trace)
    parts = device_parts(trace.within(window))
    spans = {(0, int(device)): window for device in parts["device"]}
    found = composition_of_devices(ranks, spans).to_frame().groupby("part")["ns"].sum()
    expected = [int(parts[f"{part}_ns"].sum()) for part in PARTS]
    assert found.reindex(list(PARTS), fill_value=0).tolist() == expected
    assert found.sum() == window.duration_ns * len(spans)


def test_sizes_that_nobody_recorded_are_not_zero() -> None:
    trace = TraceBuilder().kernel("gemm", 0, 100).copy("h2d", 100, 110, n_bytes=7).build()
    found = composition_of_devices(Ranks.of(trace), {(0, 0): TimeWindow(0, 110)}).to_frame()
    found = found.set_index("kind")
    assert found.loc["copy", "n_bytes"] == 7
    assert np.isnan(found["n_bytes"].to_dict()["kernel"])
