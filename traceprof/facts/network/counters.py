"""Counters of links as bytes per interval, whichever way they were sampled."""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

from traceprof.model.trace import Trace

__all__ = ["find_traffic"]

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


def find_traffic(trace: Trace) -> pd.DataFrame:
    """Return the bytes of each source between two samples, of the part in the window.

    Columns: source ("nic:eth0", "rdma:…", "process:123", "gpu:0"), link ("network", "tcp" of a
    process, "nvlink", "pcie"), direction (sent, received; as the source sees it), start_ns,
    end_ns, size_bytes. A counter that fell (it was reset) or is NaN (it was not read, or may have
    wrapped) gives nothing for that interval. An interval that the window cuts counts with its
    share of the bytes.
    """
    samples = trace.whole.samples
    parts = [
        _intervals(str(source), str(metric), rows)
        for (source, metric), rows in samples.groupby(["source", "metric"], observed=True)
        if str(metric) in _DIRECTIONS
    ]
    columns = ["source", "link", "direction", "start_ns", "end_ns", "size_bytes"]
    if not parts:
        return pd.DataFrame(columns=columns)
    return _within(pd.concat(parts, ignore_index=True)[columns], trace)


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


def _within(traffic: pd.DataFrame, trace: Trace) -> pd.DataFrame:
    starts, ends = traffic["start_ns"].to_numpy(), traffic["end_ns"].to_numpy()
    inside = trace.span.overlaps(starts, ends)
    traffic, starts, ends = traffic[inside], starts[inside], ends[inside]
    new_starts = np.maximum(starts, trace.span.start_ns)
    new_ends = np.minimum(ends, trace.span.end_ns)
    share = (new_ends - new_starts) / (ends - starts)
    n_bytes = np.floor(traffic["size_bytes"].to_numpy() * share).astype(np.int64)
    cut = traffic.assign(start_ns=new_starts, end_ns=new_ends, size_bytes=n_bytes)
    return cut.reset_index(drop=True)
