"""Each process is moved by its own correction, whatever else is corrected in the run."""

from __future__ import annotations

from tests.builders import TraceBuilder, plain
from traceprof.model.placement import retime
from traceprof.model.timing import ClockCorrection


def test_a_process_is_moved_by_its_own_correction_only() -> None:
    trace = (
        TraceBuilder()
        .kernel("gemm", 100, 200, process=1)
        .kernel("gemm", 300, 400, process=2)
        .kernel("gemm", 500, 600, process=3)
        .build()
    )
    corrections = {
        1: ClockCorrection(offset_ns=10),
        2: ClockCorrection(offset_ns=-50, drift_ratio=0.5, at_ns=300),
        9: ClockCorrection(offset_ns=7),
    }
    moved = retime(trace, corrections)
    columns = ("process", "start_ns", "end_ns")
    assert plain(moved.kernels.to_frame(), *columns) == [(1, 90, 190), (2, 350, 400), (3, 500, 600)]
