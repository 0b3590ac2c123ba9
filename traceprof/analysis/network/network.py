"""Traffic over the network, NVLink and PCI Express by source and direction, as counters tell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pandas as pd

from traceprof.facts.network.counters import NO_COUNTERS
from traceprof.facts.network.traffic import peak_of_source, traffic_beside_collectives
from traceprof.measures.analyses import Analysis
from traceprof.model.ranks import Ranks
from traceprof.model.results import (
    Note,
    Result,
    ResultSpec,
    TableSpec,
    Unit,
    derived,
    key,
    largest,
    same,
    total,
)

__all__ = ["ANALYSIS"]

_WELL_COVERED: Final = 0.5
_OF_MACHINES: Final = ("nic:", "rdma:")
_LOOPBACK: Final = ("nic:lo", "nic:lo0")
_KEYS: Final = ["source", "link", "direction"]

SPEC: Final = ResultSpec(
    tables=(
        TableSpec(
            "sources",
            "one row per source that moved anything and direction, the most first",
            (
                key("source", "an interface, an RDMA port, the TCP sockets of a process, a GPU"),
                key("link", "network, tcp, nvlink or pcie"),
                key("direction", "sent or received, as the source sees it"),
                total("size_bytes", Unit.BYTES, "what moved"),
                total("duration_ns", Unit.NS, "the part of the window that the samples cover"),
                derived("rate_bytes_per_s", Unit.BYTES_PER_S, "the mean over it"),
                largest(
                    "top_rate_bytes_per_s", Unit.BYTES_PER_S, "the highest between two samples"
                ),
                derived("peak_ratio", Unit.RATIO, "the mean rate's share of the link's speed"),
                derived("top_ratio", Unit.RATIO, "the highest rate's share of the link's speed"),
                total(
                    "in_collectives_bytes",
                    Unit.BYTES,
                    "of size_bytes, between samples in which a collective was on its way",
                ),
                total("collective_bytes", Unit.BYTES, "what ranks handed in to them meanwhile"),
            ),
        ),
    ),
    scalars=(same("window_ns", Unit.NS, "the length of the window"),),
)


def measure_network(ranks: Ranks) -> Result:
    """Return the traffic of each source in the window."""
    traffic = traffic_beside_collectives(ranks)
    window_ns = ranks.span.duration_ns
    if traffic.empty:
        tables = {"sources": SPEC.tables[0].frame()}
        return Result("network", SPEC, tables, {"window_ns": window_ns}, (NO_COUNTERS,))
    table = _summed(traffic)
    ends = zip(table["source"], table["link"], strict=True)
    peaks = [peak_of_source(ranks, source, link) for source, link in ends]
    speed = np.array([np.nan if p is None else p.bytes_per_s for p in peaks], np.float64)
    table = table.assign(
        peak_ratio=table["rate_bytes_per_s"] / speed,
        top_ratio=table["top_rate_bytes_per_s"] / speed,
    )
    result = Result("network", SPEC, {"sources": SPEC.tables[0].frame(table)})
    result = result.with_scalars(window_ns=window_ns)
    return result.with_notes(*_notes(table), *_gaps(table, window_ns))


def _summed(traffic: pd.DataFrame) -> pd.DataFrame:
    """Return one row per source and direction that moved anything, the most first."""
    duration = traffic["end_ns"] - traffic["start_ns"]
    groups = traffic.assign(
        duration_ns=duration,
        top_rate=traffic["size_bytes"] / duration,
        inside=traffic["size_bytes"].where(traffic["collective_ns"] > 0, 0),
    ).groupby(_KEYS, sort=False)
    table = groups.agg(
        size_bytes=("size_bytes", "sum"),
        duration_ns=("duration_ns", "sum"),
        top_rate=("top_rate", "max"),
        in_collectives_bytes=("inside", "sum"),
        collective_bytes=("collective_bytes", "sum"),
    ).reset_index()
    table = table[table["size_bytes"] > 0]
    table = table.assign(
        rate_bytes_per_s=table["size_bytes"] / table["duration_ns"] * 1e9,
        top_rate_bytes_per_s=table["top_rate"] * 1e9,
        most=-table["size_bytes"],
    )
    return table.sort_values(["most", "source"], kind="stable", ignore_index=True)


def _notes(sources: pd.DataFrame) -> Iterator[Note]:
    if sources.empty:
        yield Note("nothing moved over the network")
        return
    unknown = sources.loc[sources["peak_ratio"].isna(), "source"].unique().tolist()
    named = [name for name in unknown if name.startswith(_OF_MACHINES) and name not in _LOOPBACK]
    if named:
        yield Note.of(
            "the speed of {sources} is not known: give it by --link nic=400Gb/s to see its "
            "utilisation",
            sources=", ".join(named),
        )


def _gaps(sources: pd.DataFrame, window_ns: int) -> Iterator[Note]:
    """Yield what was measured now and then only: its bytes are not all that moved."""
    measured = sources.drop_duplicates(["link", "source"], keep="last")
    for row in measured[measured["duration_ns"] < _WELL_COVERED * window_ns].to_dict("records"):
        yield Note.of(
            "{link} of {source} was measured for {share:ratio} of the time: bytes are of that",
            link=row["link"],
            source=row["source"],
            share=row["duration_ns"] / window_ns,
        )


ANALYSIS = Analysis(
    name="network",
    spec=SPEC,
    needs=("samples",),
    uses=("collectives", "kernels", "api_calls", "ranges", "devices", "environment"),
    whole=("samples", "collectives", "kernels"),
    of_ranks=measure_network,
)
