"""What stands out in the copies of a trace, in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np
import pandas as pd

from traceprof.facts.launches import find_launches
from traceprof.model.links import Peak
from traceprof.model.trace import Trace
from traceprof.units import format_bytes, format_count, format_duration, format_rate, format_ratio

__all__ = ["Lane", "remark_on_transfers"]

_TO_HOST_OR_BACK: Final = ("h2d", "d2h")
_NOTABLE_RATIO: Final = 0.1
_NOTABLE_BYTES: Final = 1 << 20

Lane: TypeAlias = tuple[int, str]
"""A device and a route."""


def remark_on_transfers(
    trace: Trace, copies: pd.DataFrame, peaks: Mapping[Lane, Peak]
) -> tuple[str, ...]:
    """Return remarks on ``copies`` (with route and memory) and the peaks they are judged by."""
    return (
        *_on_pageable(copies),
        *_on_waiting(trace, copies),
        *_on_peaks(copies, peaks),
    )


def _on_pageable(copies: pd.DataFrame) -> list[str]:
    remarks = []
    for direction in _TO_HOST_OR_BACK:
        own = copies[copies["direction"] == direction]
        pageable, pinned = own[own["memory"] == "pageable"], own[own["memory"] == "pinned"]
        large = pinned[pinned["n_bytes"] >= _NOTABLE_BYTES]
        whole = int(own["n_bytes"].sum())
        n_bytes = int(pageable["n_bytes"].sum())
        if n_bytes < max(_NOTABLE_BYTES, _NOTABLE_RATIO * whole):
            continue
        remark = (
            f"{format_ratio(n_bytes / whole)} of the {direction} bytes are in pageable memory "
            f"({format_bytes(n_bytes)} at {format_rate(_rate(pageable))}"
        )
        if len(large):
            remark += f"; large copies from pinned memory reach {format_rate(_rate(large))}"
        remarks.append(f"{remark}): such copies go through a staging buffer and block the host")
    return remarks


def _on_waiting(trace: Trace, copies: pd.DataFrame) -> list[str]:
    """Return how often the host waited for a copy to the device, for lack of an ``Async``."""
    feeding = copies[copies["direction"] == "h2d"]
    if "api_calls" not in trace.recorded or feeding.empty:
        return []
    launches = find_launches(trace, feeding)
    calls = trace.whole.api_calls
    rows = np.unique(launches.call[launches.is_known])
    names = calls["name"].cat.categories
    is_waiting = np.array(
        [str(name).startswith("cudaMemcpy") and "Async" not in str(name) for name in names], bool
    )
    waiting = rows[is_waiting[calls["name"].cat.codes.to_numpy()[rows]]] if len(rows) else rows
    if not len(waiting):
        return []
    waited_ns = int((calls["end_ns"] - calls["start_ns"]).to_numpy()[waiting].sum())
    return [
        f"{format_count(len(waiting))} of {format_count(len(feeding))} h2d copies were synchronous "
        f"(cudaMemcpy): the host spent {format_duration(waited_ns)} in them"
    ]


def _on_peaks(copies: pd.DataFrame, peaks: Mapping[Lane, Peak]) -> list[str]:
    """Return which peaks the rates are judged by, and for what there is none."""
    by_peak: dict[str, list[Lane]] = {}
    lanes = copies[["device", "route"]].drop_duplicates().itertuples(index=False, name=None)
    for device, route in lanes:
        peak = peaks.get((device, route))
        by_peak.setdefault("" if peak is None else str(peak), []).append((device, route))
    remarks = [
        f"peak of {_named(own)}: {peak}"
        if peak
        else f"no peak is known for {_named(own)}: give it by --link pcie=gen4x16 or --gpu"
        for peak, own in by_peak.items()
    ]
    if any(
        route.startswith("p2p") and "links of" in peak.what for (_, route), peak in peaks.items()
    ):
        remarks.append(
            "the peak between GPUs is that of all links of a GPU; without a switch two GPUs are "
            "joined by only some of them (--link nvlink=RATE)"
        )
    return remarks


def _named(lanes: Sequence[Lane]) -> str:
    routes = dict.fromkeys(route for _, route in lanes)
    return ", ".join(
        f"{route} (GPU {', '.join(str(device) for device, own in lanes if own == route)})"
        for route in routes
    )


def _rate(rows: pd.DataFrame) -> float | None:
    total_ns = int((rows["end_ns"] - rows["start_ns"]).sum())
    return int(rows["n_bytes"].sum()) / total_ns * 1e9 if total_ns else None
