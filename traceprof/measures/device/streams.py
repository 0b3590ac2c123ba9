"""Busy time and idle causes of each stream, with the categories of Holistic Trace Analysis (HTA).

A stream can be idle while another one works, so the times of several streams do not add up. See
``idle`` for the idle time of the whole device.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from traceprof.measures.analyses import Analysis
from traceprof.measures.host.launches import launches_of
from traceprof.measures.rows import Ints, ints, sums_at
from traceprof.model.grouping import numbered
from traceprof.model.intervals import union_lengths
from traceprof.model.results import Result, ResultSpec
from traceprof.model.table import Table
from traceprof.model.trace import DEVICE_TABLES, Trace

_KERNEL_WAIT_NS: Final = 30_000
"""A shorter gap before launched work is the usual pause between two kernels."""
SPEC: Final = ResultSpec.of("""
    table streams: one row per GPU and stream, by busy time
    key device: GPU index in the run
    key stream: stream ID
    total count: number of kernels and copies in the stream
    total busy_ns: time in which any of them ran
    total host_wait_ns: gaps before work that the CPU launched after the gap had started
    total kernel_wait_ns: other gaps shorter than 30 µs
    total other_ns: remaining gaps, in which the stream waited for something else or the launch was
        not recorded
    total gap_count: number of gaps between the kernels and copies of the stream
    """)


def measure_streams(trace: Trace) -> Result:
    """Return the streams of each device with HTA's split of their idle time."""
    work = _work(trace)
    lane, first = numbered(work["device"], work["stream"])
    lanes = work.select("device", "stream").take(first)
    starts, ends, launch = ints(work, "start_ns", "end_ns", "launch_ns")
    gap = np.maximum(starts[1:] - ends[:-1], 0)
    gap[lane[1:] != lane[:-1]] = 0
    by_host = (launch[1:] >= 0) & (launch[1:] > ends[:-1])
    is_short = ~by_host & (gap < _KERNEL_WAIT_NS)

    def sums(values: Ints) -> Ints:
        return sums_at(lane[len(lane) - len(values) :], values, len(lanes))

    table = lanes.assign(
        count=sums(np.ones(len(lane), np.int64)),
        busy_ns=union_lengths(lane, starts, ends, len(lanes)),
        host_wait_ns=sums(gap * by_host),
        kernel_wait_ns=sums(gap * is_short),
        other_ns=sums(gap * ~(by_host | is_short)),
        gap_count=sums((gap > 0).astype(np.int64)),
    )
    return Result("streams", SPEC, {"streams": table})


def _work(trace: Trace) -> Table:
    """Return all kernels and copies by device, stream, and start; launch_ns is -1 if unknown."""
    parts = []
    for name in DEVICE_TABLES:
        launches = launches_of(trace, name)
        launch_ns = np.where(launches.is_known, launches.start_ns, -1)
        columns = trace.table(name).select("start_ns", "end_ns", "device", "stream")
        parts.append(columns.assign(launch_ns=launch_ns))
    return Table.stacked(parts).in_order("device", "stream", "start_ns")


def _finish(result: Result) -> Result:
    return result.with_table(result.table.in_order("-busy_ns", "device", "stream"))


STREAMS = Analysis(
    "streams",
    SPEC,
    needs=("kernels", "api_calls"),
    uses=("copies",),
    of_rank=measure_streams,
    finish=_finish,
)
