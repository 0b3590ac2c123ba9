"""Copies between host and devices and between devices: rates compared with the link's peak.

For each device, route, and memory kind, the table has one row for all copies and one per size
class: the rate, and the time that neither compute nor communication hides.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from traceprof.measures.analyses import Analysis
from traceprof.measures.collectives.rates import columns_of_peak
from traceprof.measures.device.times import device_time
from traceprof.measures.host.launches import launches_of
from traceprof.measures.rows import (
    Array,
    Floats,
    Ints,
    are_named,
    bounds,
    lengths_of,
    ratio_of,
    sums_at,
    where_known,
)
from traceprof.measures.traffic.copies import peak_of_route, route_of
from traceprof.model.grouping import codes_of, groups_of, numbered, rows_by_value
from traceprof.model.intervals import Intervals, sorted_distinct
from traceprof.model.results import Note, Result, ResultSpec
from traceprof.model.table import Names, Table, is_known
from traceprof.model.trace import Trace
from traceprof.names.messages import ALL_SIZES, classify_sizes, order_of_size

_DIRECTIONS: Final = ("h2d", "d2h", "p2p")
_GROUP: Final = ("device", "route", "memory")
_KEYS: Final = (*_GROUP, "sizes")
_LARGE_BYTES: Final = 1 << 20

_COPY_CALL: Final = re.compile("^cudaMemcpy")
_ASYNCHRONOUS: Final = re.compile("Async")
_TO_HOST_OR_BACK: Final = ("h2d", "d2h")
_MIN_PAGEABLE_RATIO: Final = 0.1
_MIN_PAGEABLE_BYTES: Final = 1 << 20

_Lane: TypeAlias = tuple[int, str]
"""A device and a route."""

SPEC: Final = ResultSpec.of("""
    table transfers: one row per GPU, route, memory kind, and size class ("all" first), sorted by
        total time
    key device: GPU
    key route: h2d, d2h, or source and target GPU (p2p 0→3)
    key memory: kind of host memory; for a peer copy, the kind of source memory
    key sizes: size class (K and M are binary)
    total count: number of copies
    total size_bytes: bytes copied
    total total_ns: total duration
    total busy_ns: time with at least one running copy
    total exposed_ns: part of busy_ns not overlapped with kernels on the GPU
    derived overhead_ns: total_ns minus the time that the bytes need at the rate of the fastest size
        class of the route
    derived rate_bytes_per_s: bytes divided by total_ns: the rate of a single copy
    same peak_bytes_per_s: peak of the link in this direction
    derived peak_ratio: rate as a share of the peak; can exceed 1
    table memory: one row per direction and memory kind, over all GPUs
    key direction: h2d, d2h, or p2p
    key memory: kind of host memory; for a peer copy, the kind of source memory
    total count: number of copies
    total size_bytes: bytes copied
    total total_ns: total duration
    total large_bytes: bytes in copies of at least 1 MiB
    total large_ns: duration of copies of at least 1 MiB
    derived rate_bytes_per_s: bytes divided by total duration
    derived large_rate_bytes_per_s: rate of copies of at least 1 MiB
    table links: one row per GPU and route: the link whose peak the rates are compared with
    key device: GPU
    key route: h2d, d2h, or source and target GPU
    same peak_bytes_per_s: peak of the link in this direction
    same link: the link
    same source: source of the peak
    scalars:
    total synchronous_count: number of synchronous h2d copies, for which the host waited
    total synchronous_ns: time that the host spent in synchronous h2d copies
    """)
_TRANSFERS, _MEMORY, _LINKS = SPEC.tables


def measure_transfers(trace: Trace) -> Result:
    """Return the copies that leave or enter a device, by route, memory kind, and size class."""
    is_kept = trace.copies["direction"].isin(_DIRECTIONS)
    if not is_kept.any():
        empty = {table.name: table.of_rows() for table in SPEC.tables}
        return Result("transfers", SPEC, empty, {"synchronous_count": 0, "synchronous_ns": 0})
    copies = _described(trace.copies.take(is_kept))
    lanes = _distinct(copies, "device", "route")[0].rows()
    links = _LINKS.of_rows(
        [
            lane | columns_of_peak(peak_of_route(trace, lane["device"], lane["route"]))
            for lane in lanes
        ]
    )
    tables = {
        "transfers": _TRANSFERS.of_rows(_by_size(trace, copies, links)),
        "memory": _MEMORY.of_rows(_by_memory(copies)),
        "links": links,
    }
    return Result("transfers", SPEC, tables, _synchronous(trace))


def _described(copies: Table) -> Table:
    """Return the copies with their route, memory kind, size class, and the columns to sum."""
    n_bytes, duration = copies["n_bytes"], lengths_of(copies)
    is_large = n_bytes >= _LARGE_BYTES
    return copies.select("start_ns", "end_ns", "device", "direction").assign(
        route=route_of(copies),
        memory=_memory_of(copies),
        sizes=Names.of(classify_sizes(n_bytes)),
        size_bytes=np.maximum(n_bytes, 0),
        is_unsized=n_bytes < 0,
        total_ns=duration,
        large_bytes=np.where(is_large, n_bytes, 0),
        large_ns=np.where(is_large, duration, 0),
    )


def _memory_of(copies: Table) -> Names:
    """Return the kind of host memory of each copy; for a peer copy, the kind of source memory."""
    source, target = copies["src_kind"], copies["dst_kind"]
    groups = groups_of(codes_of(copies["direction"] == "d2h"), source, target)
    kinds = (target.texts[b] if is_back else source.texts[a] for is_back, a, b in groups.keys)
    return Names.coded((kind or "not known" for kind in kinds), groups.packed)


def _distinct(copies: Table, *keys: str) -> tuple[Table, Ints]:
    """Return the distinct rows of some columns, in order of appearance, and each row's index."""
    number, first = numbered(*(codes_of(copies[key]) for key in keys))
    rows = copies.select(*keys).take(first)
    return Table({key: np.asarray(rows[key]) for key in keys}), number.astype(np.int64)


def _sums(copies: Table, number: Ints, n: int, *columns: str) -> dict[str, Array]:
    """Return count and sums of each group; its size is known only if each of its sizes is known."""
    sums = {name: sums_at(number, copies[name], n) for name in ("size_bytes", "total_ns", *columns)}
    are_sized = sums_at(number, copies["is_unsized"], n) == 0
    sums["size_bytes"] = where_known(sums["size_bytes"], are_sized)
    return sums | {"count": sums_at(number, 1, n)}


def _by_size(trace: Trace, copies: Table, links: Table) -> Table:
    """Return one row per route, memory kind, and size class, including the class of all sizes."""
    all_sizes = copies.assign(sizes=Names.repeated(ALL_SIZES, len(copies)))
    stacked = Table.stacked([all_sizes, copies])
    table, number = _distinct(stacked, *_KEYS)
    table = table.assign(**_sums(stacked, number, len(table)))
    starts, ends = bounds(stacked)
    busy = [Intervals.union_of(starts[rows], ends[rows]) for rows in rows_by_value(number).values()]
    devices = table["device"].tolist()
    kernels = {device: device_time(trace, device).kernel for device in set(devices)}
    hidden = [
        int(kernels[device].covered_ns(spans.starts, spans.ends).sum())
        for device, spans in zip(devices, busy, strict=True)
    ]
    busy_ns = np.array([spans.total_ns for spans in busy], np.int64)
    link_of = {lane: n for n, lane in enumerate(zip(links["device"], links["route"], strict=True))}
    places = [link_of[lane] for lane in zip(devices, table["route"], strict=True)]
    return table.assign(
        busy_ns=busy_ns,
        exposed_ns=busy_ns - np.array(hidden, np.int64),
        peak_bytes_per_s=links["peak_bytes_per_s"][places],
    )


def _by_memory(copies: Table) -> Table:
    """Return one row per direction and memory kind."""
    table, number = _distinct(copies, "direction", "memory")
    return table.assign(**_sums(copies, number, len(table), "large_bytes", "large_ns"))


def _synchronous(trace: Trace) -> dict[str, int]:
    """Return number and host time of synchronous copies to devices (no ``Async`` in the call)."""
    launches = launches_of(trace, "copies").of_rows(trace.copies["direction"] == "h2d")
    waiting = launches.calls.take(sorted_distinct(launches.call[launches.is_known]))
    names = waiting["name"]
    waiting = waiting.take(are_named(names, _COPY_CALL) & ~are_named(names, _ASYNCHRONOUS))
    return {
        "synchronous_count": len(waiting),
        "synchronous_ns": int(lengths_of(waiting).sum()),
    }


def _finish(result: Result) -> Result:
    """Return the copies with rates, sorted by the time of their route, and with notes."""
    table, memory = result.table, result.tables["memory"]
    if table.empty:
        return result.with_notes(
            Note("No copies between host and GPUs, or between GPUs, in this window.")
        )
    rate, groups = _rate(table), groups_of(*(codes_of(table[name]) for name in _GROUP))
    class_rate = np.where(table["sizes"] != ALL_SIZES, rate, np.nan)
    best_rate = groups.reduced(np.fmax, class_rate)[groups.number]
    overhead = table["total_ns"] - np.round(table["size_bytes"] / best_rate * 1e9)
    table = table.assign(
        rate_bytes_per_s=rate,
        overhead_ns=np.maximum(overhead, 0),
        peak_ratio=rate / table["peak_bytes_per_s"],
        longest=groups.reduced(np.maximum, table["total_ns"])[groups.number],
        place=[order_of_size(sizes) for sizes in table["sizes"].tolist()],
    ).in_order("-longest", *_GROUP, "place")
    memory = memory.assign(
        rate_bytes_per_s=_rate(memory),
        large_rate_bytes_per_s=_rate(memory, "large_bytes", "large_ns"),
    )
    return (
        result.with_table(table)
        .with_table(memory, "memory")
        .with_notes(
            *_note_pageable(memory),
            *_note_synchronous(result.scalars, memory),
            *_note_peaks(result.tables["links"].rows()),
        )
    )


def _rate(table: Table, size: str = "size_bytes", time: str = "total_ns") -> Floats:
    """Return the rate of each row in bytes/s."""
    return ratio_of(table[size], table[time]) * 1e9


def _note_pageable(memory: Table) -> Iterator[Note]:
    """Yield the directions with a notable share of pageable memory."""
    for direction in _TO_HOST_OR_BACK:
        rows = memory.take(memory["direction"] == direction)
        kinds = {row["memory"]: row for row in rows.rows()}
        if "pageable" not in kinds or not is_known(rows["size_bytes"]).all():
            continue
        pageable, pinned = kinds["pageable"], kinds.get("pinned", {"large_bytes": 0})
        whole, n_bytes = int(rows["size_bytes"].sum()), int(pageable["size_bytes"])
        if n_bytes < max(_MIN_PAGEABLE_BYTES, _MIN_PAGEABLE_RATIO * whole):
            continue
        text = (
            "{share:ratio} of the {direction} bytes use pageable memory "
            "({size:bytes} at {rate:bytes/s}"
        )
        values = {
            "share": n_bytes / whole,
            "direction": direction,
            "size": n_bytes,
            "rate": pageable["rate_bytes_per_s"],
        }
        if pinned["large_bytes"]:
            text += "; large copies from pinned memory reach {large:bytes/s}"
            values["large"] = pinned["large_rate_bytes_per_s"]
        text += "). Pageable copies use a staging buffer and block the host."
        yield Note(text, values)


def _note_synchronous(scalars: Mapping[str, Any], memory: Table) -> Iterator[Note]:
    """Yield a note on synchronous copies to devices."""
    if scalars["synchronous_count"]:
        yield Note.of(
            "{n:count} of {count:count} h2d copies are synchronous (cudaMemcpy). The host spends "
            "{waited:ns} in these calls.",
            n=scalars["synchronous_count"],
            count=int(memory["count"][memory["direction"] == "h2d"].sum()),
            waited=scalars["synchronous_ns"],
        )


def _note_peaks(links: Sequence[Mapping[str, Any]]) -> Iterator[Note]:
    """Yield the peaks that the rates are compared with, and the routes without a known peak."""
    by_peak: dict[tuple[float, str, str], list[_Lane]] = {}
    unknown: list[_Lane] = []
    for link in links:
        lane = (link["device"], link["route"])
        if math.isnan(link["peak_bytes_per_s"]):
            unknown.append(lane)
        else:
            peak = (link["peak_bytes_per_s"], link["link"], link["source"])
            by_peak.setdefault(peak, []).append(lane)
    for (rate, what, source), lanes in by_peak.items():
        yield Note.of(
            "Peak of {lanes}: {peak:bytes/s} ({link}; {source})",
            lanes=_format_lanes(lanes),
            peak=rate,
            link=what,
            source=source,
        )
    if unknown:
        yield Note.of(
            "The peak of {lanes} is unknown. Use --link pcie=gen4x16 or --gpu to specify it.",
            lanes=_format_lanes(unknown),
        )
    if any(link["route"].startswith("p2p") and "links of" in link["link"] for link in links):
        yield Note(
            "The peak between GPUs assumes that a copy can use all links of a GPU. Without a "
            "switch, only some links connect two GPUs; use --link nvlink=RATE to specify the peak."
        )


def _format_lanes(lanes: Sequence[_Lane]) -> str:
    """Return the routes as text, each with its GPUs."""
    routes = dict.fromkeys(route for _, route in lanes)
    return ", ".join(
        f"{route} (GPU {', '.join(str(device) for device, other in lanes if other == route)})"
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
