"""Calls tied to the kernels that carried them out."""

from __future__ import annotations

from tests.builders import TraceBuilder, plain
from traceprof.measures.collectives.operations import find_collectives

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def test_kernels_launched_inside_a_call_on_its_thread_are_its_own() -> None:
    trace = (
        TraceBuilder()
        .collective("all_reduce", 0, 50, n_bytes=400)
        .kernel(NCCL, 100, 200, launched_ns=(10, 12))
        .kernel(NCCL, 200, 250, launched_ns=(20, 22))
        .kernel(NCCL, 300, 400, launched_ns=(30, 32), thread=2)
        .build()
    )
    work = find_collectives(trace)
    assert plain(work, "start_ns", "end_ns", "n_bytes", "kernels") == [
        (100, 250, 400, 2),
        (300, 400, -1, 1),
    ]


def test_calls_that_share_a_kernel_are_one_collective() -> None:
    builder = TraceBuilder().kernel("ncclDevKernel_SendRecv", 100, 200, correlation=1)
    for start, (op, n_bytes) in enumerate([("send", 300), ("recv", 200), ("send", 100)]):
        builder.collective(op, start, start + 1, n_bytes=n_bytes, correlation=1)
    builder.kernel(NCCL, 300, 400, correlation=2)
    for start in (10, 20):
        builder.collective("all_reduce", start, start + 1, n_bytes=500, correlation=2)
    work = find_collectives(builder.build())
    assert plain(work, "op", "n_bytes", "start_ns", "end_ns") == [
        ("send_recv", 400, 100, 200),
        ("all_reduce", 1000, 300, 400),
    ]


def test_kernels_of_calls_whose_thread_is_not_known() -> None:
    """Kineto copies what a call was to its kernel: of calls before the trace it is all there is."""
    trace = (
        TraceBuilder()
        .kernel(NCCL, 100, 200, launched_ns=(10, 12), correlation=7)
        .kernel(NCCL, 300, 400, launched_ns=(20, 22), correlation=8)
        .collective("all_reduce", 100, 200, n_bytes=400, correlation=7, thread=-1)
        .build()
    )
    work = find_collectives(trace)
    assert plain(work, "start_ns", "n_bytes", "kernels") == [(100, 400, 1), (300, -1, 1)]
