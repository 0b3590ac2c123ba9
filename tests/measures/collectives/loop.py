"""A small training loop whose collectives several tests look at."""

from __future__ import annotations

from tests.builders import TraceBuilder
from traceprof.model.trace import Trace

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def loop() -> Trace:
    """Two steps of 1000 ns; two buckets are reduced behind backward, which its own thread runs."""
    builder = TraceBuilder()
    for number, start in enumerate((0, 1000)):
        builder.step(start, start + 1000, number)
        builder.phase("forward", start + 100, start + 300)
        builder.phase("backward", start + 300, start + 800)
        builder.phase("comm:allreduce", start + 395, start + 405, thread=2)
        builder.range("layer2", start + 390, start + 500, thread=2)
        for place, n_bytes in enumerate((4000, 8000)):
            at = start + 400 + 200 * place
            correlation = 10 * number + place + 1
            builder.collective(
                "all_reduce", at, at + 10, n_bytes=n_bytes, correlation=correlation, thread=2
            )
            builder.kernel(NCCL, at + 50, at + 150, correlation=correlation, stream=9)
        builder.kernel("gemm", start + 600, start + 700)
    return builder.build()
