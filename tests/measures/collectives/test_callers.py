"""Collectives by whose code called them."""

from __future__ import annotations

from tests.builders import TraceBuilder, plain
from tests.reading import records
from tests.running import run

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def test_callers_share_out_exposed_and_hidden_time() -> None:
    trace = (
        TraceBuilder()
        .phase("backward", 0, 100)
        .range("layer 2", 10, 50)
        .range("layer 1", 50, 90)
        .kernel(NCCL, 100, 200, launched_ns=(20, 21), stream=20)
        .kernel("gemm", 150, 300)
        .kernel(NCCL, 200, 240, launched_ns=(60, 61), stream=20)
        .build()
    )
    table = run("callers", trace).to_frame()
    columns = ("phase", "caller", "op", "count", "total_ns", "exposed_ns", "hidden_ns")
    assert plain(table, *columns) == [
        ("backward", "layer 2", "all_reduce", 1, 100, 50, 50),
        ("backward", "layer 1", "all_reduce", 1, 40, 0, 40),
    ]
    assert table["exposed_ratio"].tolist() == [0.5, 0.0]
    gloo = TraceBuilder().collective("all_reduce", 0, 9, n_bytes=4, backend="gloo").build()
    (row,) = records(run("callers", gloo).to_frame())
    assert (row.size_bytes, row.total_ns, row.exposed_ns, row.hidden_ns) == (4, 9, None, None)
