"""Copies by direction, and the routes of copies with the peaks of their links."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.hardware.catalogue import Link, Peak
from traceprof.measures.analyses import Analysis
from traceprof.measures.device.peaks import HardwareSource, peak_between, peak_of
from traceprof.measures.device.times import used_devices
from traceprof.measures.durations import DURATIONS, finish_durations, summarize
from traceprof.measures.facts import fact, of_window
from traceprof.measures.host.launches import launches_of
from traceprof.measures.rows import lengths_of, ratio_of, sums_at, where_known
from traceprof.model.grouping import groups_of
from traceprof.model.intervals import union_lengths
from traceprof.model.ranks import Ranks
from traceprof.model.results import Result, ResultSpec
from traceprof.model.table import Names, Table
from traceprof.model.trace import Trace

_PEER: Final = "p2p"
_PAIR: Final = re.compile(r"p2p (\d+)→(\d+)")

_SPEED_QUANTILE: Final = 0.9
_LARGE_BYTES: Final = 1_000_000
_DIRECTIONS: Final = ("d2h", "h2d", "p2p")
_PCIE_DIRECTIONS: Final = ("h2d", "d2h")


SPEC: Final = ResultSpec.of(
    """
    table copies: one row per GPU, direction, and memory kind at both ends, sorted by total time
    key device: number of the GPU in the run
    key direction: direction of the copy, or memset
    key src_kind: kind of source memory
    key dst_kind: kind of destination memory
    """,
    *DURATIONS[:2],
    """
    total busy_ns: time with at least one running copy; copies may overlap
    total size_bytes: bytes copied
    derived rate_bytes_per_s: size_bytes divided by total_ns: the rate of a single copy
    """,
    *DURATIONS[2:],
)
_COPIES: Final = SPEC.tables[0]
_KEYS: Final = _COPIES.keys


def measure_copies(trace: Trace) -> Result:
    """Return the copies by direction; a copy that the window cuts counts with its part inside."""
    copies, sizes = trace.copies, trace.copies["n_bytes"]
    table, samples = summarize(copies, _KEYS)
    size_bytes = sums_at(samples.rows, np.maximum(sizes, 0), len(table))
    are_sized = sums_at(samples.rows, sizes < 0, len(table)) == 0
    busy_ns = union_lengths(samples.rows, copies["start_ns"], copies["end_ns"], len(table))
    table = table.assign(busy_ns=busy_ns, size_bytes=where_known(size_bytes, are_sized))
    return Result("copies", SPEC, {"copies": table}, samples={"copies": samples})


def _finish(result: Result) -> Result:
    finished = finish_durations(result)
    table = finished.table
    rate = ratio_of(table["size_bytes"], table["total_ns"] / 1e9)
    return finished.with_table(table.assign(rate_bytes_per_s=rate))


COPIES: Final = Analysis("copies", SPEC, needs=("copies",), of_rank=measure_copies, finish=_finish)


def route_of(copies: Table) -> Names:
    """Return the direction of each copy; a peer copy names its two devices ("p2p 0→3")."""
    directions = copies["direction"]
    is_peer = directions == _PEER
    ends = (np.where(is_peer, copies[name], -1) for name in ("src_device", "dst_device"))
    groups = groups_of(directions, *ends)
    routes = (
        f"p2p {a}→{b}" if min(a, b) >= 0 else directions.texts[code] for code, a, b in groups.keys
    )
    return Names.coded(routes, groups.packed, is_sorted=True)


def peak_of_route(of: HardwareSource, device: int, route: str) -> Peak | None:
    """Return the peak of the link that copies of this route use; None if unknown.

    Copies between devices use NVLinks if there are any, otherwise PCI Express.
    """
    pair = _PAIR.fullmatch(route)
    nvlink = peak_between(of, int(pair[1]), int(pair[2])) if pair else None
    return nvlink or peak_of(of, device, Link.PCIE)


@fact
def copy_speeds(ranks: Ranks) -> Mapping[str, float]:
    """Return the speed of each copy direction in bytes/s: the link's peak if known.

    Otherwise the speed is the 90th percentile of the rates of large copies in the run.
    """
    reached = {}
    for direction in _DIRECTIONS:
        rates = np.concatenate([_large_copy_rates(part).get(direction, ()) for part in ranks])
        if len(rates):
            reached[direction] = float(np.quantile(rates, _SPEED_QUANTILE))
    peaks = [peak_of(part, device, Link.PCIE) for part in ranks for device in used_devices(part)]
    known = [peak.bytes_per_s for peak in peaks if peak is not None]
    if not known or len(known) < len(peaks):
        return reached
    return reached | dict.fromkeys(_PCIE_DIRECTIONS, min(known))


@fact
def _large_copy_rates(trace: Trace) -> Mapping[str, npt.NDArray[np.float64]]:
    """Return the rate of each large copy in bytes/s, by direction."""
    n_bytes = trace.copies["n_bytes"]
    large = n_bytes >= _LARGE_BYTES
    rates = n_bytes / np.maximum(lengths_of(trace.copies), 1) * 1e9
    return {name: rates[large & (trace.copies["direction"] == name)] for name in _DIRECTIONS}


@of_window
def copies_with_calls(trace: Trace) -> Table:
    """Return the copies of a trace with the call that made each: ``api`` and its ``call_ns``."""
    launches, calls = launches_of(trace, "copies"), trace.whole.api_calls["name"]
    is_known = launches.is_known
    codes = np.full(len(is_known), len(calls.texts))
    codes[is_known] = calls.codes[launches.call[is_known]]
    api = Names.coded([*calls.texts, ""], codes)
    call_ns = np.where(is_known, launches.end_ns - launches.start_ns, 0)
    return trace.copies.assign(api=api, call_ns=call_ns)
