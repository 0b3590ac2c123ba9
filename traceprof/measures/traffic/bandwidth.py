"""Bandwidth over time: the bytes of each route in each slice of the window."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np

from traceprof.hardware.catalogue import Link
from traceprof.measures.analyses import Analysis
from traceprof.measures.device.peaks import peak_of
from traceprof.measures.rows import bounds
from traceprof.measures.traffic.copies import peak_of_route, route_of
from traceprof.model.grouping import rows_by_values
from traceprof.model.intervals import Int64Array, Intervals
from traceprof.model.results import Note, Result, ResultSpec
from traceprof.model.table import Table
from traceprof.model.trace import Trace

_SLICES: Final = 100
_ON_DEVICE: Final = "d2d"
_NO_ROUTE: Final = ("memset", "h2h")

SPEC: Final = ResultSpec.of("""
    table slices: one row per GPU, route, and hundredth of the window with copies, in time order
    key device: GPU
    key route: direction, or source and target GPU (p2p 0→3)
    key at_ns: start of the slice
    same duration_ns: duration of the slice
    total size_bytes: bytes copied in the slice; the slices add up to all bytes
    total busy_ns: time with at least one running copy
    derived rate_bytes_per_s: bytes divided by the duration of the slice
    same peak_bytes_per_s: peak of the link; for copies inside a GPU, half the peak memory
        bandwidth, since each byte is read and written
    derived peak_ratio: rate as a share of the peak
    """)
_TABLE: Final = SPEC.tables[0]


def measure_bandwidth(trace: Trace) -> Result:
    """Return the bytes copied in each hundredth of the window, by device and route."""
    copies = trace.copies
    moved = copies.take((copies["n_bytes"] > 0) & ~copies["direction"].isin(_NO_ROUTE))
    routes = route_of(moved)
    n_slices, span_ns = min(_SLICES, trace.span.duration_ns), trace.span.duration_ns
    edges = trace.span.start_ns + np.arange(n_slices + 1) * span_ns // max(n_slices, 1)
    lanes = rows_by_values(moved["device"], routes) if n_slices else {}
    parts = [
        _in_slices(trace, device, routes.texts[route], moved.take(rows), edges)
        for (device, route), rows in lanes.items()
    ]
    slices = Table.stacked(parts) if parts else _TABLE.of_rows()
    return Result("bandwidth", SPEC, {"slices": slices})


def _finish(result: Result) -> Result:
    table = result.table
    if table.empty:
        return result.with_notes(Note("The window contains no copies."))
    rate = table["size_bytes"] / table["duration_ns"] * 1e9
    table = table.assign(rate_bytes_per_s=rate, peak_ratio=rate / table["peak_bytes_per_s"])
    return result.with_table(table.in_order("at_ns", "device", "route"))


def _in_slices(trace: Trace, device: int, route: str, rows: Table, edges: Int64Array) -> Table:
    """Return the slices with copies of one route of a device."""
    starts, ends = bounds(rows)
    n_bytes = _bytes_per_slice(starts, ends, rows["n_bytes"], edges)
    busy = Intervals.union_of(starts, ends).covered_ns(edges[:-1], edges[1:])
    table = Table(
        {
            "device": device,
            "route": route,
            "at_ns": edges[:-1] - trace.whole.span.start_ns,
            "duration_ns": np.diff(edges),
            "size_bytes": n_bytes,
            "busy_ns": busy,
            "peak_bytes_per_s": _peak(trace, device, route),
        }
    )
    return table.take((n_bytes > 0) | (busy > 0))


def _peak(trace: Trace, device: int, route: str) -> float:
    """Return the peak of a route in bytes/s; NaN if unknown."""
    if route == _ON_DEVICE:
        memory = peak_of(trace, device, Link.MEMORY)
        return float("nan") if memory is None else memory.bytes_per_s / 2
    peak = peak_of_route(trace, device, route)
    return float("nan") if peak is None else peak.bytes_per_s


def _bytes_per_slice(
    starts: Int64Array, ends: Int64Array, n_bytes: Int64Array, edges: Int64Array
) -> Int64Array:
    """Return the bytes copied in each slice.

    A copy in several slices is divided in proportion to time; cumulative bytes are rounded down.
    """
    last_slice = len(edges) - 2
    first = np.clip(np.searchsorted(edges, starts, side="right") - 1, 0, last_slice)
    last = np.clip(np.searchsorted(edges, ends, side="left") - 1, first, last_slice)
    total = np.zeros(len(edges) - 1, np.int64)
    inside = first == last
    np.add.at(total, first[inside], n_bytes[inside])
    for i in np.flatnonzero(~inside):
        start, end, size = int(starts[i]), int(ends[i]), int(n_bytes[i])
        borders = [start, *edges[first[i] + 1 : last[i] + 1].tolist(), end]
        cumulative = [size * (bound - start) // (end - start) for bound in borders]
        parts = [after - before for before, after in pairwise(cumulative)]
        total[first[i] : last[i] + 1] += np.array(parts, np.int64)
    return total


BANDWIDTH: Final = Analysis(
    "bandwidth",
    SPEC,
    needs=("copies",),
    uses=("devices", "environment"),
    of_rank=measure_bandwidth,
    finish=_finish,
)
