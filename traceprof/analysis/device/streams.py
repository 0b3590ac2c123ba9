"""Streams one by one: how busy each is, and what it waited for, as HTA splits it.

A stream that is idle may do so while another one works, so that the times of several streams do
not add up to anything: see `traceprof idle` for the device as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.facts.launches import find_launches
from traceprof.model.intervals import Intervals
from traceprof.model.trace import DEVICE_TABLES, Trace

__all__ = ["ANALYSIS", "KERNEL_WAIT_NS", "Streams", "measure_streams"]

_Int64Array = npt.NDArray[np.int64]

KERNEL_WAIT_NS: Final = 30_000
"""A shorter gap before work that had been launched is the usual pause between two kernels."""


@dataclass(frozen=True, slots=True, eq=False)
class Streams:
    """One row per device and stream, by busy time.

    ``table``: device, stream, count (kernels and copies), busy_ns (their union), host_wait_ns
    (gaps before work that was launched after the gap had opened), kernel_wait_ns (other gaps
    below 30 µs), other_ns (the remaining ones: the stream waited for something else, or the
    launch was not recorded), gap_count. Gaps are those between consecutive work of a stream.
    """

    table: pd.DataFrame
    notes: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return the table."""
        return self.table


def measure_streams(trace: Trace) -> Streams:
    """Return the streams of every device with HTA's split of their idle time."""
    work = _work(trace)
    rows = [
        {"device": device, "stream": stream, **_measure(own)}
        for (device, stream), own in work.groupby(["device", "stream"])
    ]
    columns = ["device", "stream", "count", "busy_ns", "host_wait_ns", "kernel_wait_ns"]
    table = pd.DataFrame(rows, columns=[*columns, "other_ns", "gap_count"])
    table = table.sort_values("busy_ns", ascending=False, kind="stable", ignore_index=True)
    return Streams(table)


def _work(trace: Trace) -> pd.DataFrame:
    parts = []
    for name in DEVICE_TABLES:
        frame = trace.table(name)
        launches = find_launches(trace, frame)
        launch_ns = np.where(launches.is_known, launches.start_ns, -1)
        columns = frame[["start_ns", "end_ns", "device", "stream"]]
        parts.append(columns.assign(launch_ns=launch_ns))
    return pd.concat(parts, ignore_index=True).sort_values(
        "start_ns", kind="stable", ignore_index=True
    )


def _measure(own: pd.DataFrame) -> dict[str, int]:
    starts, ends = own["start_ns"].to_numpy(np.int64), own["end_ns"].to_numpy(np.int64)
    gap = starts[1:] - ends[:-1]
    launch: _Int64Array = own["launch_ns"].to_numpy(np.int64)[1:]
    by_host = (launch >= 0) & (launch > ends[:-1])
    short = ~by_host & (gap < KERNEL_WAIT_NS)
    length = np.maximum(gap, 0)
    return {
        "count": len(own),
        "busy_ns": Intervals.union_of(starts, ends).total_ns,
        "host_wait_ns": int(length[by_host].sum()),
        "kernel_wait_ns": int(length[short].sum()),
        "other_ns": int(length[~by_host & ~short].sum()),
        "gap_count": int((gap > 0).sum()),
    }


ANALYSIS = Analysis(
    name="streams",
    needs=("kernels", "api_calls"),
    run=measure_streams,
)
