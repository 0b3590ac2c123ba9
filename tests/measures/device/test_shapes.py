"""Launch shapes: each once, with its occupancy, waves and the fill of the last wave."""

from __future__ import annotations

import math

import pytest

from tests.builders import TraceBuilder
from traceprof.hardware.catalogue import built_in_hardware
from traceprof.measures.device.occupancy import launch_shapes

SMALL = {
    "grid_x": 10,
    "grid_y": 1,
    "grid_z": 1,
    "block_x": 256,
    "block_y": 1,
    "block_z": 1,
    "registers": 64,
    "shared_bytes": 0,
}  # 4 blocks on a multiprocessor of 8.0, half of its warps
LARGE = SMALL | {"grid_x": 108 * 4, "grid_y": 2, "grid_z": 1}


def built(**device: object) -> TraceBuilder:
    return TraceBuilder().device(0, **device)  # type: ignore[arg-type]


def test_kernels_launched_alike_share_a_row() -> None:
    trace = (
        built(compute_capability=80, sm_count=108)
        .kernel("a", 0, 5, correlation=1, shape=SMALL)
        .kernel("b", 5, 9, correlation=2, shape=LARGE)
        .kernel("c", 9, 12, correlation=3, shape=SMALL | {"context": 5})
        .build()
    )
    found = launch_shapes(trace)
    assert found.of_kernel.tolist() == [0, 1, 0]
    assert found.contexts.tolist() == [-1, -1, 5]
    table = found.table.to_frame()
    assert table["sm_blocks"].tolist() == [4, 4]
    assert table["occupancy_ratio"].tolist() == [0.5, 0.5]
    assert table["limiter"].tolist() == ["registers", "registers"]
    assert table["grid_blocks"].tolist() == [10, 864]
    assert table["waves"].tolist() == [10 / 432, 2.0]
    assert table["tail_ratio"].tolist() == [10 / 432, 1.0]


def test_what_the_trace_does_not_say_the_model_of_the_gpu_tells() -> None:
    trace = built(name="Tesla V100-SXM2-16GB").kernel("a", 0, 5, shape=SMALL).build()
    table = launch_shapes(trace).table.to_frame()
    assert table["sm_count"].tolist() == [80]
    assert table["sm_blocks"].tolist() == [4]
    chosen = trace.with_hardware(built_in_hardware().with_gpu("t4"))
    table = launch_shapes(chosen).table.to_frame()
    assert (table["sm_count"].tolist(), table["occupancy_ratio"].tolist()) == ([40], [1.0])


@pytest.mark.parametrize("missing", ["registers", "shared_bytes", "block_x"])
def test_what_is_not_recorded_is_not_guessed(missing: str) -> None:
    trace = (
        built(compute_capability=90, sm_count=132)
        .kernel("a", 0, 5, shape=SMALL | {missing: -1})
        .build()
    )
    (row,) = launch_shapes(trace).table.rows()
    assert row["sm_blocks"] == -1
    assert row["limiter"] == ""
    assert all(math.isnan(row[name]) for name in ("occupancy_ratio", "waves", "tail_ratio"))


def test_of_an_unknown_gpu_nothing_is_known() -> None:
    trace = built(name="Future 9000").kernel("a", 0, 5, shape=SMALL).build()
    assert math.isnan(launch_shapes(trace).table.to_frame()["occupancy_ratio"].iloc[0])
