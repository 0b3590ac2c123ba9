"""Ranks that several tests look at: two that one can check in the head, and real ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.builders import TraceBuilder
from traceprof.formats.runs.files import open_run
from traceprof.model.placement import place_run
from traceprof.model.ranks import Ranks
from traceprof.model.trace import Trace


def two_ranks(**second: int) -> Trace:
    """An all-reduce of 1000 bytes: rank 0 comes at 100, rank 1 at 160, both end at 200."""
    return (
        TraceBuilder()
        .process(1, rank=0)
        .process(2, rank=1)
        .collective("all_reduce", 50, 60, n_bytes=1000, correlation=1, process=1)
        .collective("all_reduce", 80, 90, n_bytes=1000, correlation=1, process=2)
        .kernel("ncclDevKernel_AllReduce", 100, 200, correlation=1, process=1, device=0)
        .kernel("ncclDevKernel_AllReduce", 160, 200, correlation=1, process=2, device=1)
        .build(span=(0, 1000))
    )


def real_run(real_trace: Callable[[str], Path], pattern: str, n_ranks: int) -> Ranks:
    return place_run(open_run([real_trace(pattern.format(rank)) for rank in range(n_ranks)]))
