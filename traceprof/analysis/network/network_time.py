"""What moved over each network interface over time, beside the collectives that caused it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.facts.collectives.work import find_collectives
from traceprof.facts.network.counters import find_traffic
from traceprof.model.intervals import Intervals
from traceprof.model.links import Link, Peak
from traceprof.model.peaks import peak_of, peak_of_interface
from traceprof.model.trace import HOW_TO_RECORD, Trace

__all__ = [
    "ANALYSIS",
    "NO_COUNTERS",
    "NetworkTime",
    "measure_network_time",
    "peak_of_source",
    "traffic_of",
]

NO_COUNTERS: Final = f"no counter of a network was sampled: {HOW_TO_RECORD['samples']}"

_LOOPBACK: Final = ("nic:lo", "nic:lo0")


@dataclass(frozen=True, slots=True, eq=False)
class NetworkTime:
    """One row per source, direction and time between two samples.

    ``table``: source (an interface, an RDMA port, the TCP sockets of a process, a GPU), link
    (network, tcp, nvlink, pcie), direction, at_ns (from the start of the trace), duration_ns,
    size_bytes, rate_bytes_per_s, peak_ratio (of the link's speed, NaN where it is not known),
    collective_ratio (the share of the time in which a collective was on its way) and
    collective_bytes (what ranks handed in to collectives, shared out over their time).
    """

    table: pd.DataFrame
    notes: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return the table, in the order of time."""
        return self.table


def measure_network_time(trace: Trace) -> NetworkTime:
    """Return the network traffic between each two samples of the window."""
    traffic = traffic_of(trace)
    if traffic.empty:
        return NetworkTime(pd.DataFrame(), (NO_COUNTERS,))
    seconds = (traffic["end_ns"] - traffic["start_ns"]) / 1e9
    rate = traffic["size_bytes"] / seconds
    ends = list(zip(traffic["source"], traffic["link"], strict=True))
    peaks = {end: peak_of_source(trace, *end) for end in set(ends)}
    peak = [getattr(peaks[end], "bytes_per_s", np.nan) for end in ends]
    table = pd.DataFrame(
        {
            "source": traffic["source"],
            "link": traffic["link"],
            "direction": traffic["direction"],
            "at_ns": traffic["start_ns"] - trace.whole.span.start_ns,
            "duration_ns": traffic["end_ns"] - traffic["start_ns"],
            "size_bytes": traffic["size_bytes"],
            "rate_bytes_per_s": rate,
            "peak_ratio": rate / np.array(peak, np.float64),
            "collective_ratio": traffic["collective_ns"] / (seconds * 1e9),
            "collective_bytes": traffic["collective_bytes"],
        }
    )
    return NetworkTime(
        table.sort_values(["at_ns", "source", "link", "direction"], ignore_index=True)
    )


def traffic_of(trace: Trace) -> pd.DataFrame:
    """Return the traffic with collective_ns and collective_bytes of each interval."""
    traffic = find_traffic(trace)
    if traffic.empty:
        return traffic
    work = find_collectives(trace.whole)
    work = work[work["is_timed"]]
    parts = [
        _with_collectives(rows, _caused_by(str(source), work))
        for source, rows in traffic.groupby("source", sort=False)
    ]
    return pd.concat(parts).sort_index()


def peak_of_source(trace: Trace, source: str, link: str) -> Peak | None:
    """Return the speed of a link (as `find_traffic` calls it) of a source; no loopback has one."""
    if source in _LOOPBACK or source.startswith("process:"):
        return None
    if source.startswith("gpu:"):
        number = source.removeprefix("gpu:")
        return peak_of(trace, int(number), Link(link)) if number.isdigit() else None
    return peak_of_interface(trace, source)


def _caused_by(source: str, work: pd.DataFrame) -> pd.DataFrame:
    """Return the collectives that may have caused the traffic of a source."""
    owner, _, number = source.partition(":")
    if owner == "process" and number.isdigit():
        return work[work["process"] == int(number)]
    if owner == "gpu" and number.isdigit():
        return work[work["device"] == int(number)]
    return work


def _with_collectives(rows: pd.DataFrame, work: pd.DataFrame) -> pd.DataFrame:
    starts, ends = rows["start_ns"].to_numpy(np.int64), rows["end_ns"].to_numpy(np.int64)
    busy = Intervals.union_of(work["start_ns"], work["end_ns"])
    cumulated = _handed_in_until(work, np.concatenate((starts, ends)))
    until_start, until_end = np.split(cumulated, 2)
    return rows.assign(
        collective_ns=busy.covered_ns(starts, ends),
        collective_bytes=np.rint(until_end - until_start).astype(np.int64),
    )


def _handed_in_until(
    work: pd.DataFrame, instants: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Return the bytes that were handed in until each instant, evenly over each collective."""
    sized = work[(work["n_bytes"] > 0) & (work["end_ns"] > work["start_ns"])]
    starts, ends = sized["start_ns"].to_numpy(np.int64), sized["end_ns"].to_numpy(np.int64)
    rates = sized["n_bytes"].to_numpy(np.float64) / (ends - starts)
    return _ramps(starts, rates, instants) - _ramps(ends, rates, instants)


def _ramps(
    begins: npt.NDArray[np.int64],
    rates: npt.NDArray[np.float64],
    instants: npt.NDArray[np.int64],
) -> npt.NDArray[np.float64]:
    """Return the sum of ``rate · (instant - begin)`` over all that have begun."""
    order = np.argsort(begins, kind="stable")
    origin = int(begins.min(initial=0)) if len(begins) else 0
    rate = np.concatenate(([0.0], np.cumsum(rates[order])))
    moment = np.concatenate(([0.0], np.cumsum(rates[order] * (begins[order] - origin))))
    begun = np.searchsorted(begins[order], instants, side="right")
    return np.asarray(rate[begun] * (instants - origin) - moment[begun], np.float64)


ANALYSIS = Analysis(
    name="network-time",
    needs=("samples",),
    run=measure_network_time,
)
