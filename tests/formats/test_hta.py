"""The sums of HTA, which scripts/oracles/hta_reference.py made: equal where HTA is right.

HTA adds up floating-point microseconds, so that a sum may be off by a few ns.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.requirements import TRACES, require
from traceprof.formats import open_trace
from traceprof.formats.kineto.events import read_kineto_events
from traceprof.measures.device.times import device_time
from traceprof.measures.steps.find import find_steps
from traceprof.model.intervals import Intervals
from traceprof.model.trace import Trace

REFERENCE = json.loads((Path(__file__).parent / "hta_reference.json").read_text("utf-8"))["files"]
TRITON_ON_THE_HOST = ("kineto/2025-b200-rank0of8.json.gz",)
LAUNCHED_EARLIER = ("kineto/2025-mi300x-rccl.json.gz",)
FLOAT_SUMS_NS = 50

pytestmark = pytest.mark.traces


@cache
def read(name: str) -> Trace:
    return open_trace(TRACES / name)


@pytest.mark.parametrize("name", [n for n in REFERENCE if n not in TRITON_ON_THE_HOST])
def test_temporal_breakdown_and_overlap(name: str) -> None:
    require("traces")
    trace = read(name)
    if len(find_steps(trace)) > 1:
        trace = only_with_launches(trace)
    assert_equal(measure(trace), REFERENCE[name])


def test_hta_leaves_out_work_that_was_launched_before_the_trace() -> None:
    """With steps in the trace, HTA keeps only device work whose launch is in it."""
    require("traces")
    (name,) = LAUNCHED_EARLIER
    trace = read(name)
    n_left_out = len(trace.kernels.to_frame()) - len(only_with_launches(trace).kernels.to_frame())
    assert n_left_out == 757
    assert measure(trace)["kernel_ns"] > REFERENCE[name]["kernel_ns"] + 20_000_000


def test_hta_counts_triton_rows_of_the_host_and_takes_custom_all_reduce_for_compute() -> None:
    """Two faults of HTA, put into our numbers, give its own.

    Every row with a stream is device work to it, that of the operator that launches, too; and
    communication is what is called nccl.
    """
    require("traces")
    (name,) = TRITON_ON_THE_HOST
    trace = read(name)
    assert REFERENCE[name]["idle_ns"] < measure(trace)["idle_ns"]

    events = read_kineto_events(TRACES / name)
    on_host = (events.arguments["stream"] >= 0) & (events.category == "cpu_op")
    assert [event.partition("_")[0] for event in events.name[on_host]] == ["triton"]
    zero_ns = (trace.info.utc_epoch_ns or 0) - events.base_time_ns
    triton = Intervals.union_of(
        events.start_ns[on_host] - zero_ns, events.end_ns[on_host] - zero_ns
    )

    names = trace.kernels.to_frame()["name"].astype(str)
    custom = trace.kernels.to_frame()[names.str.contains("multimem_all_reduce")]
    assert set(custom["activity"].astype(str)) == {"communication"}
    all_reduce = Intervals.union_of(custom["start_ns"], custom["end_ns"])
    assert_times_equal(measure(trace, triton | all_reduce), REFERENCE[name])


def only_with_launches(trace: Trace) -> Trace:
    launched = trace.api_calls.to_frame()["correlation"]
    kept: dict[str, Any] = {
        name: trace.table(name).take(np.isin(trace.table(name)["correlation"], list(launched)))
        for name in ("kernels", "copies")
    }
    return replace(trace, **kept)


def measure(trace: Trace, more_compute: Intervals | None = None) -> dict[str, float | None]:
    """Return HTA's quantities: from the first to the last device work, copies of any kind alike."""
    (device,) = np.unique(trace.kernels["device"])
    times = device_time(trace, int(device))
    compute = times.compute | (more_compute or Intervals.empty())
    busy = compute | times.busy
    whole_ns = int(busy.ends[-1] - busy.starts[0])
    communication_ns = times.communication.total_ns
    hidden_ns = (times.communication & compute).total_ns
    return {
        "idle_ns": whole_ns - busy.total_ns,
        "compute_ns": compute.total_ns,
        "non_compute_ns": busy.total_ns - compute.total_ns,
        "kernel_ns": whole_ns,
        "overlap_percent": (
            round(100 * hidden_ns / communication_ns, 2) if communication_ns else None
        ),
    }


def assert_equal(ours: dict[str, float | None], theirs: dict[str, float | None]) -> None:
    assert_times_equal(ours, theirs)
    assert ours["overlap_percent"] == pytest.approx(theirs["overlap_percent"], abs=0.011)


def assert_times_equal(ours: dict[str, float | None], theirs: dict[str, float | None]) -> None:
    for name in ("idle_ns", "compute_ns", "non_compute_ns", "kernel_ns"):
        assert ours[name] == pytest.approx(theirs[name], rel=0, abs=FLOAT_SUMS_NS), name
