"""Counters of links as bytes per interval, whichever way they were sampled."""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

from traceprof.measures.facts import fact, of_window
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note
from traceprof.model.tables import stack
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import HOW_TO_RECORD, Trace

__all__ = ["NO_COUNTERS", "find_traffic"]

NO_COUNTERS: Final = Note(f"no counter of a network was sampled: {HOW_TO_RECORD['samples']}")

_CUMULATED: Final = {
    "bytes_sent": "sent",
    "bytes_received": "received",
    "tcp_bytes_sent": "sent",
    "tcp_bytes_received": "received",
    "nvlink_bytes_sent": "sent",
    "nvlink_bytes_received": "received",
    "pcie_bytes_sent": "sent",
    "pcie_bytes_received": "received",
}
# NVML measures these over the 20 ms that follow the sample; what lies between is not known.
_MEASURED: Final = {"pcie_sent_bytes_per_s": "sent", "pcie_received_bytes_per_s": "received"}
_MEASURED_NS: Final = 20_000_000
_DIRECTIONS: Final = _CUMULATED | _MEASURED


@of_window
def find_traffic(ranks: Ranks) -> pd.DataFrame:
    """Return the bytes of each source between two samples, of the part in the window.

    Columns: source ("nic:eth0", "rdma:…", "process:123", "gpu:0"), link ("network", "tcp" of a
    process, "nvlink", "pcie"), direction (sent, received; as the source sees it), start_ns,
    end_ns, size_bytes. A counter that fell (it was reset) or is NaN (it was not read, or may have
    wrapped) gives nothing for that interval. An interval that the window cuts counts with its
    share of the bytes.
    """
    return _within(_traffic_of_whole(ranks), ranks.span)


@fact
def _traffic_of_whole(ranks: Ranks) -> pd.DataFrame:
    # Several ranks of a host may each have sampled a part of one series.
    samples = stack("samples", ranks.each(_counters))
    parts = [
        _intervals(str(source), str(metric), rows)
        for (source, metric), rows in samples.groupby(["source", "metric"], observed=True)
    ]
    columns = ["source", "link", "direction", "start_ns", "end_ns", "size_bytes"]
    if not parts:
        return pd.DataFrame(columns=columns)
    return pd.concat(parts, ignore_index=True)[columns]


def _counters(trace: Trace) -> pd.DataFrame:
    """Return the samples that tell traffic."""
    samples = trace.samples
    metrics = samples["metric"].cat
    told = np.array([*(str(name) in _DIRECTIONS for name in metrics.categories), False], np.bool_)
    return samples[told[metrics.codes.to_numpy()]]


def _intervals(source: str, metric: str, rows: pd.DataFrame) -> pd.DataFrame:
    instants, values = rows["start_ns"].to_numpy(np.int64), rows["value"].to_numpy(np.float64)
    if metric in _MEASURED:
        starts, ends = instants, instants + _MEASURED_NS
        moved = values * (_MEASURED_NS / 1e9)
    else:
        starts, ends = instants[:-1], instants[1:]
        moved = np.diff(values)
    kept = (moved >= 0) & (ends > starts)
    return pd.DataFrame(
        {
            "source": source,
            "link": _link(source, metric),
            "direction": _DIRECTIONS[metric],
            "start_ns": starts[kept],
            "end_ns": ends[kept],
            "size_bytes": np.rint(moved[kept]).astype(np.int64),
        }
    )


def _link(source: str, metric: str) -> str:
    for link in ("nvlink", "pcie"):
        if metric.startswith(link):
            return link
    return "tcp" if source.startswith("process:") else "network"


def _within(traffic: pd.DataFrame, span: TimeWindow) -> pd.DataFrame:
    starts = traffic["start_ns"].to_numpy(np.int64)
    ends = traffic["end_ns"].to_numpy(np.int64)
    inside = span.overlaps(starts, ends)
    traffic, starts, ends = traffic[inside], starts[inside], ends[inside]
    new_starts, new_ends = np.maximum(starts, span.start_ns), np.minimum(ends, span.end_ns)
    share = (new_ends - new_starts) / (ends - starts)
    n_bytes = np.floor(traffic["size_bytes"].to_numpy(np.int64) * share).astype(np.int64)
    cut = traffic.assign(start_ns=new_starts, end_ns=new_ends, size_bytes=n_bytes)
    return cut.reset_index(drop=True)
