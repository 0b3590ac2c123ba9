"""Launch shapes by kernel; and what Kineto prints of them where it is right."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builders import TraceBuilder
from tests.measures.device.test_shapes import LARGE, SMALL
from tests.running import run
from traceprof.formats import ReadOptions, open_trace
from traceprof.hardware.occupancy import LIMITS
from traceprof.measures.device.occupancy import launch_shapes

TABLES = frozenset({"kernels", "kernel_shapes", "devices"})


def test_a_kernel_has_a_row_for_each_way_of_launching_it() -> None:
    trace = (
        TraceBuilder()
        .device(0, compute_capability=80, sm_count=108)
        .kernel("a", 0, 10, correlation=1, shape=SMALL)
        .kernel("a", 10, 40, correlation=2, shape=LARGE)
        .kernel("a", 40, 50, correlation=3, shape=SMALL)
        .kernel("b", 50, 55, correlation=4, shape=SMALL)
        .build()
    )
    result = run("occupancy", trace)
    table = result.to_frame()
    assert table[["name", "total_ns", "count", "grid", "block"]].values.tolist() == [
        ["a", 30, 1, "432×2×1", "256×1×1"],
        ["a", 20, 2, "10×1×1", "256×1×1"],
        ["b", 5, 1, "10×1×1", "256×1×1"],
    ]
    assert table["occupancy_ratio"].tolist() == [0.5] * 3
    assert table["limiter"].tolist() == ["registers"] * 3
    assert table["waves"].tolist() == [2.0, 10 / 432, 10 / 432]
    assert not result.notes


def test_how_much_is_not_known_is_said_with_the_reason() -> None:
    unknown = TraceBuilder().kernel("a", 0, 30, shape=SMALL).kernel("b", 30, 40, shape=SMALL)
    (note,) = run("occupancy", unknown.build()).notes
    assert note.values["share"] == 1.0
    assert "--gpu" in note.text
    trace = (
        TraceBuilder()
        .device(0, compute_capability=80, sm_count=108)
        .kernel("a", 0, 30, correlation=1, shape=SMALL)
        .kernel("b", 30, 40, correlation=2, shape=SMALL | {"registers": -1})
        .build()
    )
    (note,) = run("occupancy", trace).notes
    assert note.values["share"] == 0.25
    assert "does not contain the registers and shared memory" in note.text


@pytest.mark.traces
@pytest.mark.parametrize(
    "name",
    [
        "kineto/2023-2080ti-large.json.gz",
        "kineto/2024-a100-plain.json",
        "kineto/2025-b200-rank0of8.json.gz",
        "kineto/2025-h100-bert-small.json.gz",
    ],
)
def test_occupancy_is_that_which_kineto_prints_up_to_48_kib(
    name: str, real_trace: Callable[[str], Path]
) -> None:
    """Kineto prints the smaller of grid and what fits, in threads; and 0 above 48 KiB, wrongly."""
    path = real_trace(name)
    trace = open_trace(path, ReadOptions(tables=TABLES))
    found = launch_shapes(trace)
    capability = int(trace.devices.to_frame()["compute_capability"].iloc[0])
    threads = LIMITS[capability].warps * 32
    raw = json.loads(path.read_bytes())
    printed = {
        (int(event["args"]["correlation"]), int(event["args"].get("graph node id", 0))): event[
            "args"
        ]
        for event in raw["traceEvents"]
        if event.get("cat") == "kernel" and "est. achieved occupancy %" in event["args"]
    }
    rows = found.table.to_frame().iloc[found.of_kernel].reset_index(drop=True)
    n_compared = n_wrong = 0
    for row, correlation in zip(
        rows.itertuples(index=False), trace.kernels.to_frame()["correlation"], strict=True
    ):
        args = printed.get((correlation, 0))
        if args is None:
            continue
        if row.shared_bytes > 49152:
            n_wrong += args["est. achieved occupancy %"] == 0
            assert row.occupancy_ratio > 0
            continue
        blocks = min(row.grid_blocks / row.sm_count, row.sm_blocks)
        ours = 100 * blocks * row.block_threads / threads
        assert math.isclose(ours, args["est. achieved occupancy %"], abs_tol=1.0), args
        n_compared += 1
    assert n_compared > 10
    assert n_wrong == int((rows["shared_bytes"] > 49152).sum())
