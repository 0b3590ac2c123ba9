"""Copies by direction; the routes that they take, and how fast these could be."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.hardware.catalogue import Link, Peak
from traceprof.measures.analyses import Analysis
from traceprof.measures.device.peaks import Described, peak_between, peak_of
from traceprof.measures.durations import DURATIONS, finish_durations, summarise
from traceprof.measures.facts import fact
from traceprof.measures.rows import sums_at
from traceprof.model.intervals import union_lengths
from traceprof.model.ranks import Ranks
from traceprof.model.results import Result, ResultSpec
from traceprof.model.trace import Trace

_PEER: Final = "p2p"
_PAIR: Final = re.compile(r"p2p (\d+)→(\d+)")

_BEST_SHARE: Final = 0.9
_LARGE_BYTES: Final = 1_000_000
_DIRECTIONS: Final = ("d2h", "h2d", "p2p")
_OVER_PCIE: Final = ("h2d", "d2h")


def known_sizes(size_bytes: Any, is_unsized: Any) -> Any:
    """Return sums of sizes, NaN where the size of a copy in them is not known."""
    unsized = np.asarray(is_unsized, np.bool_)
    return pd.Series(size_bytes).where(~unsized) if unsized.any() else size_bytes


SPEC: Final = ResultSpec.of(
    """
    table copies: one row per device, direction and kind of memory at both ends, by total time
    key device: the number of the device in the run
    key direction: from where to where; or memset
    key src_kind: the memory that was read
    key dst_kind: the memory that was written
    """,
    *DURATIONS[:2],
    """
    total busy_ns: when any of them ran: copies may run side by side
    total size_bytes: what they moved
    derived rate_bytes_per_s: size_bytes over total_ns, that is, of one copy at a time
    """,
    *DURATIONS[2:],
)
_COPIES: Final = SPEC.tables[0]
_KEYS: Final = _COPIES.keys


def measure_copies(trace: Trace) -> Result:
    """Return the copies by direction; one that the window cuts counts with its part inside."""
    copies = trace.copies.to_frame()
    table, samples = summarise(copies, _KEYS)
    sizes = copies["n_bytes"].to_numpy(np.int64)
    size_bytes = sums_at(samples.rows, np.maximum(sizes, 0), len(table))
    is_unsized = sums_at(samples.rows, sizes < 0, len(table)) > 0
    busy_ns = union_lengths(samples.rows, copies["start_ns"], copies["end_ns"], len(table))
    table = table.assign(busy_ns=busy_ns, size_bytes=known_sizes(size_bytes, is_unsized))
    return Result("copies", SPEC, {"copies": table}, samples={"copies": samples})


def _finish(result: Result) -> Result:
    finished = finish_durations(result)
    table = finished.to_frame()
    seconds = table["total_ns"].where(table["total_ns"] > 0) / 1e9
    return finished.with_table(table.assign(rate_bytes_per_s=table["size_bytes"] / seconds))


COPIES: Final = Analysis("copies", SPEC, needs=("copies",), of_rank=measure_copies, finish=_finish)


def route_of(copies: pd.DataFrame) -> npt.NDArray[np.object_]:
    """Return the direction of each copy; a peer copy names its two devices ("p2p 0→3")."""
    directions = copies["direction"].astype("category").cat
    names = np.array([*map(str, directions.categories), ""], object)
    routes = names[directions.codes.to_numpy()]
    peer = np.flatnonzero(routes == _PEER)
    if len(peer):
        ends = copies[["src_device", "dst_device"]].to_numpy(np.int64)[peer]
        pairs, place = np.unique(ends, axis=0, return_inverse=True)
        named = [f"p2p {a}→{b}" if min(a, b) >= 0 else _PEER for a, b in pairs.tolist()]
        routes[peer] = np.array(named, object)[place.ravel()]
    return np.asarray(routes, object)


def peak_of_route(of: Described, device: int, route: str) -> Peak | None:
    """Return the peak of the link that copies of this route use.

    Between devices: their NVLinks where they have any, else PCI Express, as to the host.
    """
    pair = _PAIR.fullmatch(route)
    nvlink = peak_between(of, int(pair[1]), int(pair[2])) if pair else None
    return nvlink or peak_of(of, device, Link.PCIE)


@fact
def copy_speeds(ranks: Ranks) -> Mapping[str, float]:
    """Return the speed of each direction of copies in bytes per s: the link's peak if known.

    Elsewhere what the best tenth of the large copies of the run reach.
    """
    reached = {}
    for direction in _DIRECTIONS:
        rates = np.concatenate([_rates_of_large(part).get(direction, ()) for part in ranks])
        if len(rates):
            reached[direction] = float(np.quantile(rates, _BEST_SHARE))
    peaks = [
        peak_of(part, int(device), Link.PCIE)
        for part in ranks
        for device in part.devices.to_frame().loc[part.devices.to_frame()["used"] == 1, "device"]
    ]
    known = [peak.bytes_per_s for peak in peaks if peak is not None]
    if not known or len(known) < len(peaks):
        return reached
    return reached | dict.fromkeys(_OVER_PCIE, min(known))


@fact
def _rates_of_large(trace: Trace) -> Mapping[str, npt.NDArray[np.float64]]:
    """Return the bytes per s of each large copy, by direction."""
    copies = trace.copies.to_frame()
    n_bytes = copies["n_bytes"].to_numpy(np.float64)
    lengths = (copies["end_ns"] - copies["start_ns"]).to_numpy(np.float64)
    large = n_bytes >= _LARGE_BYTES
    rates = n_bytes / np.maximum(lengths, 1) * 1e9
    return {name: rates[large & (copies["direction"] == name)] for name in _DIRECTIONS}
