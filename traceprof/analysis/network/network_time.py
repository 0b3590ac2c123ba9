"""What moved over each network interface over time, beside the collectives that caused it."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.facts.network.counters import NO_COUNTERS
from traceprof.facts.network.traffic import peak_of_source, traffic_beside_collectives
from traceprof.measures.analyses import Analysis
from traceprof.model.ranks import Ranks
from traceprof.model.results import Result, ResultSpec, TableSpec, Unit, derived, key, total

__all__ = ["ANALYSIS"]

SPEC: Final = ResultSpec(
    tables=(
        TableSpec(
            "intervals",
            "one row per source, direction and time between two samples, in the order of time",
            (
                key("source", "an interface, an RDMA port, the TCP sockets of a process, a GPU"),
                key("link", "network, tcp, nvlink or pcie"),
                key("direction", "sent or received, as the source sees it"),
                key("at_ns", "where the interval begins", Unit.AT_NS),
                key("duration_ns", "how long it is", Unit.NS),
                total("size_bytes", Unit.BYTES, "what moved"),
                derived("rate_bytes_per_s", Unit.BYTES_PER_S, "bytes over the interval"),
                derived("peak_ratio", Unit.RATIO, "the rate's share of the link's speed"),
                derived("collective_ratio", Unit.RATIO, "of the time, when a collective ran"),
                total("collective_bytes", Unit.BYTES, "what ranks handed in to them meanwhile"),
            ),
        ),
    )
)


def measure_network_time(ranks: Ranks) -> Result:
    """Return the network traffic between each two samples of the window."""
    traffic = traffic_beside_collectives(ranks)
    if traffic.empty:
        empty = SPEC.tables[0].frame()
        return Result("network-time", SPEC, {"intervals": empty}, notes=(NO_COUNTERS,))
    duration = traffic["end_ns"] - traffic["start_ns"]
    rate = traffic["size_bytes"] / (duration / 1e9)
    table = traffic.assign(
        at_ns=traffic["start_ns"] - ranks.whole.span.start_ns,
        duration_ns=duration,
        rate_bytes_per_s=rate,
        peak_ratio=rate / _peaks(ranks, traffic[["source", "link"]]),
        collective_ratio=traffic["collective_ns"] / duration,
    )
    keys = ["at_ns", "source", "link", "direction"]
    ordered = SPEC.tables[0].frame(table.sort_values(keys, ignore_index=True))
    return Result("network-time", SPEC, {"intervals": ordered})


def _peaks(ranks: Ranks, ends: pd.DataFrame) -> npt.NDArray[np.float64]:
    """Return the speed of the link of each row; NaN where it is not known."""
    distinct = ends.drop_duplicates().itertuples(index=False, name=None)
    peaks = [peak_of_source(ranks, source, link) for source, link in distinct]
    speeds = np.array([np.nan if p is None else p.bytes_per_s for p in peaks], np.float64)
    return speeds[ends.groupby(["source", "link"], sort=False).ngroup().to_numpy()]


ANALYSIS = Analysis(
    name="network-time",
    spec=SPEC,
    needs=("samples",),
    uses=("collectives", "kernels", "api_calls", "ranges", "devices", "environment"),
    whole=("samples", "collectives", "kernels"),
    of_steps=True,
    of_ranks=measure_network_time,
)
