"""Copies between host and devices and between devices: how fast, against what the link can do.

For each device, direction and kind of memory: all copies, then by size, with the GB/s that each
size reaches, and how much of their time neither compute nor communication hides.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.analysis.communication.size_classes import ALL_SIZES, classify_sizes, order_of_size
from traceprof.analysis.communication.transfer_remarks import Lane, remark_on_transfers
from traceprof.facts.devices import device_time
from traceprof.model.intervals import Intervals
from traceprof.model.links import Link, Peak
from traceprof.model.peaks import peak_between, peak_of
from traceprof.model.trace import Trace

__all__ = ["ANALYSIS", "Traffic", "Transfers", "measure_transfers", "peak_of_route", "route_of"]

_DIRECTIONS = ("h2d", "d2h", "p2p")
_PAIR = re.compile(r"p2p (\d+)→(\d+)")
_KEYS = ["device", "route", "memory"]


@dataclass(frozen=True, slots=True)
class Traffic:
    """The copies of one device, route ("h2d", "d2h", "p2p 0→3"), kind of memory and size class.

    ``total_ns`` adds the copies up, ``busy_ns`` is their union, and ``exposed_ns`` what of it
    neither compute nor communication of the device hides. ``rate_bytes_per_s`` is bytes over
    total time, that is, of one copy at a time, and ``peak_ratio`` its share of the link's peak in
    this direction, never cut off at 100 %. ``overhead_ns`` is the time beyond what the bytes
    would take at the rate of the fastest size class of the same route and memory.
    """

    device: int
    route: str
    memory: str
    sizes: str
    count: int
    size_bytes: int
    total_ns: int
    busy_ns: int
    exposed_ns: int
    overhead_ns: int | None
    rate_bytes_per_s: float | None
    peak_bytes_per_s: float | None
    peak_ratio: float | None


@dataclass(frozen=True, slots=True)
class Transfers:
    """The traffic by route and memory, each followed by its size classes; the longest first."""

    traffic: tuple[Traffic, ...]
    notes: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return one row per device, route, memory and size class ("all" first)."""
        columns = list(Traffic.__dataclass_fields__)
        return pd.DataFrame([asdict(row) for row in self.traffic], columns=columns)


def measure_transfers(trace: Trace) -> Transfers:
    """Return the copies that leave or enter a device, by route, memory and size."""
    kept = trace.copies[trace.copies["direction"].isin(_DIRECTIONS)]
    if kept.empty:
        return Transfers((), ("nothing was copied between host and devices or between devices",))
    copies = kept.assign(
        route=route_of(kept),
        memory=_memory_of(kept),
        sizes=classify_sizes(kept["n_bytes"].to_numpy()),
    )
    hidden = {device: _hiding(trace, device) for device in copies["device"].unique().tolist()}
    groups = []
    peaks: dict[Lane, Peak] = {}
    for (ordinal, route, memory), rows in copies.groupby(_KEYS, sort=False):
        device = int(str(ordinal))
        peak = peak_of_route(trace, device, str(route))
        if peak is not None:
            peaks[device, str(route)] = peak
        key = (device, str(route), str(memory))
        groups.append(_measure_route(key, rows, hidden[device], peak))
    groups.sort(key=lambda group: -group[0].total_ns)
    traffic = tuple(row for group in groups for row in group)
    return Transfers(traffic, remark_on_transfers(trace, copies, peaks))


def route_of(copies: pd.DataFrame) -> np.ndarray:
    """Return the direction of each copy; a peer copy names its two devices."""
    routes = copies["direction"].astype(object).to_numpy(copy=True)
    peer = routes == "p2p"
    ends = zip(
        copies["src_device"].to_numpy()[peer], copies["dst_device"].to_numpy()[peer], strict=True
    )
    routes[peer] = [
        f"p2p {source}→{target}" if source >= 0 and target >= 0 else "p2p"
        for source, target in ends
    ]
    return np.asarray(routes, object)


def peak_of_route(trace: Trace, device: int, route: str) -> Peak | None:
    """Return the peak of the link that copies of this route use.

    Between devices: their NVLinks where they have any, else PCI Express, as to the host.
    """
    pair = _PAIR.fullmatch(route)
    nvlink = peak_between(trace, int(pair[1]), int(pair[2])) if pair else None
    return nvlink or peak_of(trace, device, Link.PCIE)


def _memory_of(copies: pd.DataFrame) -> np.ndarray:
    """Return the kind of memory at the host's end, or of the source of a peer copy."""
    to_host = (copies["direction"] == "d2h").to_numpy()
    source, target = copies["src_kind"].astype(object), copies["dst_kind"].astype(object)
    kinds = np.where(to_host, target, source)
    return np.asarray(np.where(kinds == "", "not known", kinds), object)


def _hiding(trace: Trace, device: int) -> Intervals:
    time = device_time(trace, device)
    return time.compute | time.communication


def _measure_route(
    key: tuple[int, str, str], rows: pd.DataFrame, hiding: Intervals, peak: Peak | None
) -> list[Traffic]:
    by_size = sorted(rows.groupby("sizes"), key=lambda item: order_of_size(str(item[0])))
    rates = [rate for _, own in by_size if (rate := _rate(own)) is not None]
    best = max(rates, default=None)
    return [
        _measure(key, str(sizes), own, (hiding, best, peak))
        for sizes, own in ((ALL_SIZES, rows), *by_size)
    ]


def _measure(
    key: tuple[int, str, str],
    sizes: str,
    rows: pd.DataFrame,
    context: tuple[Intervals, float | None, Peak | None],
) -> Traffic:
    hiding, best, peak = context
    busy = Intervals.union_of(rows["start_ns"], rows["end_ns"])
    total_ns, n_bytes, rate = _total_ns(rows), int(rows["n_bytes"].sum()), _rate(rows)
    device, route, memory = key
    return Traffic(
        device=device,
        route=route,
        memory=memory,
        sizes=sizes,
        count=len(rows),
        size_bytes=n_bytes,
        total_ns=total_ns,
        busy_ns=busy.total_ns,
        exposed_ns=(busy - hiding).total_ns,
        overhead_ns=None if best is None else max(0, total_ns - round(n_bytes / best * 1e9)),
        rate_bytes_per_s=rate,
        peak_bytes_per_s=None if peak is None else peak.bytes_per_s,
        peak_ratio=None if peak is None or rate is None else rate / peak.bytes_per_s,
    )


def _total_ns(rows: pd.DataFrame) -> int:
    return int((rows["end_ns"] - rows["start_ns"]).sum())


def _rate(rows: pd.DataFrame) -> float | None:
    total_ns = _total_ns(rows)
    return int(rows["n_bytes"].sum()) / total_ns * 1e9 if total_ns else None


ANALYSIS = Analysis(
    name="transfers",
    needs=("copies",),
    run=measure_transfers,
)
