"""Traffic over the network, NVLink and PCI Express by source and direction, as counters tell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Final

import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.analysis.communication.network_time import NO_COUNTERS, peak_of_source, traffic_of
from traceprof.model.trace import Trace

__all__ = ["ANALYSIS", "Network", "SourceTraffic", "measure_network"]

_WELL_COVERED: Final = 0.5


@dataclass(frozen=True, slots=True)
class SourceTraffic:
    """What one source moved in one direction.

    ``source`` is an interface ("nic:eth0"), an RDMA port, the TCP sockets of a process, or a GPU;
    ``link`` is network, tcp, nvlink or pcie. ``duration_ns`` is the part of the window that the
    samples cover, ``rate_bytes_per_s`` the mean over it, ``top_rate_bytes_per_s`` the highest
    between two samples; ``peak_ratio`` and ``top_ratio`` are their shares of the speed of the
    link in one direction (None where that is not known). ``in_collectives_bytes`` moved between
    samples in which a collective was on its way, and ``collective_bytes`` is what the ranks
    handed in to collectives meanwhile.
    """

    source: str
    link: str
    direction: str
    size_bytes: int
    duration_ns: int
    rate_bytes_per_s: float | None
    top_rate_bytes_per_s: float
    peak_ratio: float | None
    top_ratio: float | None
    in_collectives_bytes: int
    collective_bytes: int


@dataclass(frozen=True, slots=True)
class Network:
    """The traffic of every source that moved anything, the most first."""

    sources: tuple[SourceTraffic, ...]
    notes: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return one row per source and direction."""
        columns = list(SourceTraffic.__dataclass_fields__)
        return pd.DataFrame([asdict(source) for source in self.sources], columns=columns)


def measure_network(trace: Trace) -> Network:
    """Return the traffic of each source in the window."""
    traffic = traffic_of(trace)
    if traffic.empty:
        return Network((), (NO_COUNTERS,))
    sources = [
        _measure(trace, (str(source), str(link), str(direction)), rows)
        for (source, link, direction), rows in traffic.groupby(
            ["source", "link", "direction"], sort=False
        )
    ]
    moved = sorted(
        (row for row in sources if row.size_bytes), key=lambda row: (-row.size_bytes, row.source)
    )
    return Network(tuple(moved), (*_notes(moved), *_gaps(moved, trace.span.duration_ns)))


def _measure(trace: Trace, key: tuple[str, str, str], rows: pd.DataFrame) -> SourceTraffic:
    source, link, direction = key
    duration = rows["end_ns"] - rows["start_ns"]
    n_bytes, total_ns = int(rows["size_bytes"].sum()), int(duration.sum())
    rate = n_bytes / total_ns * 1e9 if total_ns else None
    top_rate = float((rows["size_bytes"] / duration).max() * 1e9)
    peak = peak_of_source(trace, source, link)
    return SourceTraffic(
        source=source,
        link=link,
        direction=direction,
        size_bytes=n_bytes,
        duration_ns=total_ns,
        rate_bytes_per_s=rate,
        top_rate_bytes_per_s=top_rate,
        peak_ratio=None if peak is None or rate is None else rate / peak.bytes_per_s,
        top_ratio=None if peak is None else top_rate / peak.bytes_per_s,
        in_collectives_bytes=int(rows.loc[rows["collective_ns"] > 0, "size_bytes"].sum()),
        collective_bytes=int(rows["collective_bytes"].sum()),
    )


def _notes(sources: list[SourceTraffic]) -> tuple[str, ...]:
    if not sources:
        return ("nothing moved over the network",)
    unknown = [
        row.source
        for row in sources
        if row.peak_ratio is None and row.source.startswith(("nic:", "rdma:"))
    ]
    unknown = [name for name in dict.fromkeys(unknown) if name not in ("nic:lo", "nic:lo0")]
    if not unknown:
        return ()
    return (
        f"the speed of {', '.join(unknown)} is not known: give it by --link nic=400Gb/s "
        "to see its utilisation",
    )


def _gaps(sources: list[SourceTraffic], window_ns: int) -> Iterator[str]:
    """Yield what was measured now and then only: its bytes are not all that moved."""
    measured = {(row.link, row.source): row.duration_ns / window_ns for row in sources}
    for (link, source), ratio in measured.items():
        if ratio < _WELL_COVERED:
            yield f"{link} of {source} was measured for {ratio:.1%} of the time: bytes are of that"


ANALYSIS = Analysis(
    name="network",
    needs=("samples",),
    run=measure_network,
)
