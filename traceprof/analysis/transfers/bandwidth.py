"""Bandwidth over time: what moved over which route in each slice of the window."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.analysis.communication.transfers import peak_of_route, route_of
from traceprof.model.intervals import Int64Array, Intervals
from traceprof.model.links import Link
from traceprof.model.peaks import peak_of
from traceprof.model.trace import Trace
from traceprof.model.window import TimeWindow

__all__ = ["ANALYSIS", "Bandwidth", "measure_bandwidth"]

_SLICES: Final = 100
_ON_DEVICE: Final = "d2d"


@dataclass(frozen=True, slots=True, eq=False)
class Bandwidth:
    """One row per device, route and slice of time in which something moved.

    ``table``: device, route, at_ns (from the start of the trace), duration_ns, size_bytes (a copy
    over several slices counts in each with its share; the slices add up to all bytes exactly),
    busy_ns, rate_bytes_per_s (over the whole slice), peak_bytes_per_s and peak_ratio (NaN where
    the peak is not known). A copy inside a device reads and writes: its peak is half of the
    memory's.
    """

    table: pd.DataFrame
    notes: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return the table, in the order of time."""
        return self.table


def measure_bandwidth(trace: Trace) -> Bandwidth:
    """Return the bytes that moved in each hundredth of the window, by device and route."""
    moved = trace.copies[trace.copies["n_bytes"] > 0]
    moved = moved[~moved["direction"].isin(("memset", "h2h"))]
    edges = _edges(trace.span)
    parts = [
        _in_slices(trace, int(str(device)), str(route), rows, edges)
        for (device, route), rows in moved.assign(route=route_of(moved)).groupby(
            ["device", "route"]
        )
    ]
    if not parts or not len(edges):
        return Bandwidth(pd.DataFrame(columns=_COLUMNS), ("nothing was copied",))
    table = pd.concat(parts, ignore_index=True)
    return Bandwidth(table.sort_values(["at_ns", "device", "route"], ignore_index=True))


_COLUMNS: Final = [
    "device",
    "route",
    "at_ns",
    "duration_ns",
    "size_bytes",
    "busy_ns",
    "rate_bytes_per_s",
    "peak_bytes_per_s",
    "peak_ratio",
]


def _edges(span: TimeWindow) -> Int64Array:
    n_slices = min(_SLICES, span.duration_ns)
    return span.start_ns + np.arange(n_slices + 1) * span.duration_ns // max(n_slices, 1)


def _in_slices(
    trace: Trace, device: int, route: str, rows: pd.DataFrame, edges: Int64Array
) -> pd.DataFrame:
    starts, ends = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    n_bytes = _shared_out(starts, ends, rows["n_bytes"].to_numpy(), edges)
    busy = Intervals.union_of(starts, ends).covered_ns(edges[:-1], edges[1:])
    duration = np.diff(edges)
    peak = _peak(trace, device, route)
    rate = n_bytes / duration * 1e9
    table = pd.DataFrame(
        {
            "device": device,
            "route": route,
            "at_ns": edges[:-1] - trace.whole.span.start_ns,
            "duration_ns": duration,
            "size_bytes": n_bytes,
            "busy_ns": busy,
            "rate_bytes_per_s": rate,
            "peak_bytes_per_s": peak,
            "peak_ratio": rate / peak,
        }
    )
    return table[(n_bytes > 0) | (busy > 0)]


def _peak(trace: Trace, device: int, route: str) -> float:
    if route == _ON_DEVICE:
        memory = peak_of(trace, device, Link.MEMORY)
        return float("nan") if memory is None else memory.bytes_per_s / 2
    peak = peak_of_route(trace, device, route)
    return float("nan") if peak is None else peak.bytes_per_s


def _shared_out(
    starts: Int64Array, ends: Int64Array, n_bytes: Int64Array, edges: Int64Array
) -> npt.NDArray[np.int64]:
    """Return the bytes in each slice: of a row in several, the floor of its cumulated share."""
    last_slice = len(edges) - 2
    first = np.clip(np.searchsorted(edges, starts, side="right") - 1, 0, last_slice)
    last = np.clip(np.searchsorted(edges, ends, side="left") - 1, first, last_slice)
    total = np.zeros(len(edges) - 1, np.int64)
    inside = first == last
    np.add.at(total, first[inside], n_bytes[inside])
    for i in np.flatnonzero(~inside):
        start, end, size = int(starts[i]), int(ends[i]), int(n_bytes[i])
        bounds = [start, *edges[first[i] + 1 : last[i] + 1].tolist(), end]
        cumulated = [size * (bound - start) // (end - start) for bound in bounds]
        parts = [after - before for before, after in pairwise(cumulated)]
        total[first[i] : last[i] + 1] += np.array(parts, np.int64)
    return total


ANALYSIS = Analysis(
    name="bandwidth",
    needs=("copies",),
    run=measure_bandwidth,
)
