"""Copies between host and devices and between devices: how fast, against what the link can do.

For each device, direction and kind of memory: all copies, then by size, with the GB/s that each
size reaches, and how much of their time neither compute nor communication hides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.measures.analyses import Analysis
from traceprof.measures.collectives.rates import columns_of_peak
from traceprof.measures.device.times import device_time
from traceprof.measures.host.launches import launches_of
from traceprof.measures.rows import are_named, lengths_of
from traceprof.measures.traffic.copies import known_sizes, peak_of_route, route_of
from traceprof.model.grouping import rows_by_value
from traceprof.model.intervals import Intervals, sorted_distinct
from traceprof.model.results import Note, Result, ResultSpec
from traceprof.model.trace import Trace
from traceprof.names.messages import ALL_SIZES, classify_sizes, order_of_size

_DIRECTIONS: Final = ("h2d", "d2h", "p2p")
_GROUP: Final = ["device", "route", "memory"]
_KEYS: Final = [*_GROUP, "sizes"]
_LARGE_BYTES: Final = 1 << 20

_COPIES: Final = re.compile("^cudaMemcpy")
_ASYNCHRONOUS: Final = re.compile("Async")
_TO_HOST_OR_BACK: Final = ("h2d", "d2h")
_NOTABLE_RATIO: Final = 0.1
_NOTABLE_BYTES: Final = 1 << 20

_Lane: TypeAlias = tuple[int, str]
"""A device and a route."""

SPEC: Final = ResultSpec.of("""
    table transfers: one row per device, route, kind of memory and class of sizes ("all" first), the
        longest first
    key device: the device
    key route: h2d, d2h, or from which device to which (p2p 0→3)
    key memory: the kind of memory at the host's end, or of a peer copy's source
    key sizes: the class of sizes (K and M are binary)
    total count: how many copies
    total size_bytes: their bytes
    total total_ns: their times added up
    total busy_ns: when at least one ran
    total exposed_ns: of that, what no kernel of the device hides
    derived overhead_ns: beyond what the bytes take at the rate of the fastest class of the route
    derived rate_bytes_per_s: bytes over total time: of one copy
    same peak_bytes_per_s: the peak of the link in this direction
    derived peak_ratio: the rate's share of it; not cut off at 1
    table memory: one row per direction and kind of memory, over all devices
    key direction: h2d, d2h or p2p
    key memory: the kind of memory at the host's end, or of a peer copy's source
    total count: how many copies
    total size_bytes: their bytes
    total total_ns: their times added up
    total large_bytes: the bytes of those of 1 MiB and more
    total large_ns: the times of those of 1 MiB and more
    derived rate_bytes_per_s: bytes over total time
    derived large_rate_bytes_per_s: that of large ones
    table links: one row per device and route: the link that rates are held against
    key device: the device
    key route: h2d, d2h, or from which device to which
    same peak_bytes_per_s: the peak of the link in this direction
    same link: which link that is
    same source: who says so
    scalars:
    total synchronous_count: h2d copies that the host waited for
    total synchronous_ns: the time that the host spent in them
    """)
_TRANSFERS, _MEMORY, _LINKS = SPEC.tables


def measure_transfers(trace: Trace) -> Result:
    """Return the copies that leave or enter a device, by route, memory and size."""
    is_kept = trace.copies.to_frame()["direction"].isin(_DIRECTIONS).to_numpy()
    if not is_kept.any():
        empty = {table.name: table.frame() for table in SPEC.tables}
        return Result("transfers", SPEC, empty, {"synchronous_count": 0, "synchronous_ns": 0})
    copies = _described(trace.copies.to_frame()[is_kept])
    lanes = copies[["device", "route"]].drop_duplicates().itertuples(index=False, name=None)
    peaks = {lane: columns_of_peak(peak_of_route(trace, *lane)) for lane in lanes}
    links = _LINKS.frame([{"device": d, "route": r, **own} for (d, r), own in peaks.items()])
    tables = {
        "transfers": _TRANSFERS.frame(_by_size(trace, copies, links)),
        "memory": _MEMORY.frame(_by_memory(copies)),
        "links": links,
    }
    return Result("transfers", SPEC, tables, _synchronous(trace))


def _described(copies: pd.DataFrame) -> pd.DataFrame:
    duration = copies["end_ns"] - copies["start_ns"]
    is_large = copies["n_bytes"] >= _LARGE_BYTES
    return pd.DataFrame(
        {
            **{name: copies[name] for name in ("start_ns", "end_ns", "device")},
            "direction": copies["direction"].astype(object),
            "route": route_of(copies),
            "memory": _memory_of(copies),
            "sizes": classify_sizes(copies["n_bytes"].to_numpy()),
            "size_bytes": copies["n_bytes"].clip(lower=0),
            "is_unsized": copies["n_bytes"] < 0,
            "total_ns": duration,
            "large_bytes": copies["n_bytes"].where(is_large, 0),
            "large_ns": duration.where(is_large, 0),
        }
    )


def _memory_of(copies: pd.DataFrame) -> npt.NDArray[np.object_]:
    """Return the kind of memory at the host's end, or of the source of a peer copy."""
    source, target = copies["src_kind"].astype(object), copies["dst_kind"].astype(object)
    kinds = np.where((copies["direction"] == "d2h").to_numpy(), target, source)
    return np.asarray(np.where(kinds == "", "not known", kinds), object)


def _by_size(trace: Trace, copies: pd.DataFrame, links: pd.DataFrame) -> pd.DataFrame:
    """Return the classes, and all sizes of each route and memory as one class more."""
    both = pd.concat([copies.assign(sizes=ALL_SIZES), copies], ignore_index=True)
    groups = both.groupby(_KEYS, sort=False)
    table = groups.agg(
        count=("size_bytes", "size"),
        size_bytes=("size_bytes", "sum"),
        is_unsized=("is_unsized", "any"),
        total_ns=("total_ns", "sum"),
    ).reset_index()
    table["size_bytes"] = known_sizes(table["size_bytes"], table["is_unsized"])
    starts, ends = both["start_ns"].to_numpy(), both["end_ns"].to_numpy()
    rows_of = rows_by_value(groups.ngroup())
    busy = [Intervals.union_of(starts[rows], ends[rows]) for rows in rows_of.values()]
    devices = table["device"].tolist()
    hiding = {device: device_time(trace, device).kernel for device in set(devices)}
    hidden = [
        int(hiding[device].covered_ns(own.starts, own.ends).sum())
        for device, own in zip(devices, busy, strict=True)
    ]
    busy_ns = np.array([own.total_ns for own in busy], np.int64)
    table = table.assign(busy_ns=busy_ns, exposed_ns=busy_ns - np.array(hidden, np.int64))
    return table.merge(links[["device", "route", "peak_bytes_per_s"]], on=["device", "route"])


def _by_memory(copies: pd.DataFrame) -> pd.DataFrame:
    groups = copies.groupby(["direction", "memory"], sort=False)
    sums = groups[["size_bytes", "total_ns", "large_bytes", "large_ns"]].sum()
    sums["size_bytes"] = known_sizes(sums["size_bytes"], groups["is_unsized"].any())
    return sums.assign(count=groups.size()).reset_index()


def _synchronous(trace: Trace) -> dict[str, int]:
    """Return how often the host waited for a copy to the device, for lack of an ``Async``."""
    feeding = np.flatnonzero(trace.copies.to_frame()["direction"] == "h2d")
    launches = launches_of(trace, "copies").of_rows(feeding)
    calls = trace.whole.api_calls.to_frame()
    rows = sorted_distinct(launches.call[launches.is_known])
    waiting = calls.take(rows)
    names = waiting["name"]
    waiting = waiting[are_named(names, _COPIES) & ~are_named(names, _ASYNCHRONOUS)]
    total_ns = int(lengths_of(waiting).sum())
    return {"synchronous_count": len(waiting), "synchronous_ns": total_ns}


def _finish(result: Result) -> Result:
    table, memory = result.to_frame(), result.to_frame("memory")
    if table.empty:
        nothing = Note("nothing was copied between host and devices or between devices")
        return result.with_notes(nothing)
    rate = _rate(table)
    by_group = [table[name] for name in _GROUP]
    best = rate.where(table["sizes"] != ALL_SIZES).groupby(by_group).transform("max")
    beyond = table["total_ns"] - (table["size_bytes"] / best * 1e9).round()
    table = table.assign(
        rate_bytes_per_s=rate,
        overhead_ns=beyond.clip(lower=0),
        peak_ratio=rate / table["peak_bytes_per_s"],
        longest=-table.groupby(_GROUP, sort=False)["total_ns"].transform("max"),
        place=table["sizes"].map(order_of_size),
    ).sort_values(["longest", *_GROUP, "place"], ignore_index=True)
    large_rate = _rate(memory, "large_bytes", "large_ns")
    memory = memory.assign(rate_bytes_per_s=_rate(memory), large_rate_bytes_per_s=large_rate)
    return (
        result.with_table(table)
        .with_table(memory, "memory")
        .with_notes(
            *_on_pageable(memory),
            *_on_waiting(result.scalars, memory),
            *_on_peaks(result.to_frame("links")),
        )
    )


def _rate(table: pd.DataFrame, size: str = "size_bytes", time: str = "total_ns") -> pd.Series:
    return table[size] / table[time].where(table[time] > 0) * 1e9


def _on_pageable(memory: pd.DataFrame) -> Iterator[Note]:
    for direction in _TO_HOST_OR_BACK:
        own = memory[memory["direction"] == direction].set_index("memory")
        if "pageable" not in own.index or own["size_bytes"].isna().any():
            continue
        whole, n_bytes = int(own["size_bytes"].sum()), int(own["size_bytes"]["pageable"])
        if n_bytes < max(_NOTABLE_BYTES, _NOTABLE_RATIO * whole):
            continue
        text = (
            "{share:ratio} of the {direction} bytes are in pageable memory "
            "({size:bytes} at {rate:bytes/s}"
        )
        values = {
            "share": n_bytes / whole,
            "direction": direction,
            "size": n_bytes,
            "rate": own["rate_bytes_per_s"]["pageable"],
        }
        if "pinned" in own.index and own["large_bytes"]["pinned"]:
            text += "; large copies from pinned memory reach {large:bytes/s}"
            values["large"] = own["large_rate_bytes_per_s"]["pinned"]
        text += "): such copies go through a staging buffer and block the host"
        yield Note(text, values)


def _on_waiting(scalars: Mapping[str, Any], memory: pd.DataFrame) -> Iterator[Note]:
    if scalars["synchronous_count"]:
        yield Note.of(
            "{n:count} of {count:count} h2d copies were synchronous (cudaMemcpy): the host spent "
            "{waited:ns} in them",
            n=scalars["synchronous_count"],
            count=int(memory.loc[memory["direction"] == "h2d", "count"].sum()),
            waited=scalars["synchronous_ns"],
        )


def _on_peaks(links: pd.DataFrame) -> Iterator[Note]:
    """Yield which peaks the rates are judged by, and for what there is none."""
    by_peak: dict[tuple[float, str, str], list[_Lane]] = {}
    unknown: list[_Lane] = []
    for link in links.to_dict("records"):
        lane = (link["device"], link["route"])
        if pd.isna(link["peak_bytes_per_s"]):
            unknown.append(lane)
        else:
            peak = (link["peak_bytes_per_s"], link["link"], link["source"])
            by_peak.setdefault(peak, []).append(lane)
    for (rate, what, source), own in by_peak.items():
        text = "peak of {lanes}: {peak:bytes/s} ({link}; {source})"
        yield Note.of(text, lanes=_named(own), peak=rate, link=what, source=source)
    if unknown:
        text = "no peak is known for {lanes}: give it by --link pcie=gen4x16 or --gpu"
        yield Note.of(text, lanes=_named(unknown))
    between = links["route"].str.startswith("p2p") & links["link"].str.contains("links of")
    if between.any():
        yield Note(
            "the peak between GPUs is that of all links of a GPU; without a switch two GPUs are "
            "joined by only some of them (--link nvlink=RATE)"
        )


def _named(lanes: Sequence[_Lane]) -> str:
    routes = dict.fromkeys(route for _, route in lanes)
    return ", ".join(
        f"{route} (GPU {', '.join(str(device) for device, own in lanes if own == route)})"
        for route in routes
    )


TRANSFERS: Final = Analysis(
    "transfers",
    SPEC,
    needs=("copies",),
    uses=("kernels", "api_calls", "devices", "environment"),
    of_rank=measure_transfers,
    finish=_finish,
)
