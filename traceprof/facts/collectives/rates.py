"""Bandwidth of collectives, as NVIDIA's nccl-tests define it.

``algbw = S / t`` with S the size of the operation, ``busbw = algbw · factor``: what each link
must carry, whatever the number of ranks n, so that it can be held against the link's peak.

==============  ==============================  ===========
operation       S from what one rank hands in   factor
==============  ==============================  ===========
all_reduce      n_bytes                         2(n-1)/n
reduce_scatter  n_bytes (the whole input)       (n-1)/n
all_gather      n_bytes · n                     (n-1)/n
all_to_all      n_bytes (the whole input)       (n-1)/n
gather          n_bytes · n                     (n-1)/n
scatter         n_bytes · n                     (n-1)/n
broadcast       n_bytes                         1
reduce          n_bytes                         1
send, recv      n_bytes                         1
==============  ==============================  ===========

With one rank nothing moves over a link: there is no bandwidth. Without bytes there is none either.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.model.links import Link, Peak
from traceprof.model.peaks import peak_of
from traceprof.model.trace import Trace

__all__ = [
    "busbw_factor",
    "devices_beside",
    "operation_bytes",
    "peak_of_group",
    "with_sizes",
]

_ONE: Final = ("broadcast", "reduce", "send", "recv", "send_recv")
_SHARED: Final = ("reduce_scatter", "all_gather", "all_to_all", "gather", "scatter")
_FROM_SHARD: Final = ("all_gather", "gather", "scatter")


def operation_bytes(op: str, n_bytes: int, n_ranks: int) -> int | None:
    """Return S of one operation in which each rank hands in ``n_bytes``; None if not known."""
    if n_bytes < 0 or op in ("barrier", "other"):
        return None
    if op not in _FROM_SHARD:
        return n_bytes
    return n_bytes * n_ranks if n_ranks > 0 else None


def busbw_factor(op: str, n_ranks: int) -> float | None:
    """Return busbw / algbw; None where it is not defined (one rank, uneven all-to-all)."""
    if op in _ONE and n_ranks != 1:
        return 1.0
    if n_ranks < 2:
        return None
    if op == "all_reduce":
        return 2 * (n_ranks - 1) / n_ranks
    return (n_ranks - 1) / n_ranks if op in _SHARED else None


def with_sizes(operations: pd.DataFrame) -> pd.DataFrame:
    """Return the operations with operation_bytes and bus_bytes (S · factor); NaN: not known."""
    triples = list(
        zip(operations["op"], operations["n_bytes"], operations["group_size"], strict=True)
    )
    known = {triple: _sizes(*triple) for triple in set(triples)}
    pairs: npt.NDArray[np.float64] = np.array(
        [known[triple] for triple in triples], np.float64
    ).reshape(-1, 2)
    return operations.assign(operation_bytes=pairs[:, 0], bus_bytes=pairs[:, 1])


def _sizes(op: str, n_bytes: int, n_ranks: int) -> tuple[float, float]:
    size, factor = operation_bytes(op, n_bytes, n_ranks), busbw_factor(op, n_ranks)
    if size is None or n_ranks == 1:
        return float("nan"), float("nan")
    return float(size), float("nan") if factor is None else size * factor


def devices_beside(trace: Trace, device: int) -> int:
    """Return how many devices the machine of ``device`` has, itself included."""
    processes = trace.whole.processes
    host_of = dict(zip(processes["process"], processes["host"], strict=True))
    if len({host for host in host_of.values() if host}) < 2:
        return len(trace.devices)
    used = trace.whole.kernels[["process", "device"]].drop_duplicates()
    hosts = used["process"].map(host_of)
    own = hosts[used["device"] == device]
    return int(used.loc[hosts.isin(own), "device"].nunique())


def peak_of_group(trace: Trace, device: int, group_size: int) -> Peak | None:
    """Return the peak of the link that a group uses: within the machine as far as it fits there.

    None where the size of the group is not known, or where it spans machines whose network the
    user has not described (``--link nic=400Gb/s``).
    """
    if group_size < 2 or device < 0:
        return None
    if group_size > devices_beside(trace, device):
        return peak_of(trace, device, Link.NIC)
    return peak_of(trace, device, Link.NVLINK) or peak_of(trace, device, Link.PCIE)
