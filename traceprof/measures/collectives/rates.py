"""Bandwidth of collectives, as defined by NVIDIA's nccl-tests.

``algbw = S / t`` with S the size of the operation. ``busbw = algbw · factor`` is the rate that
each link must carry. It does not depend on the number of ranks n, so it can be compared with the
peak of the link.

==============  ==============================  ===========
operation       S from the input of one rank    factor
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

There is no bandwidth with one rank, since nothing moves over a link, or without a known size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.hardware.catalogue import Link, Peak
from traceprof.hardware.link_tests import measured_peak
from traceprof.measures.collectives.members import find_device_users
from traceprof.measures.device.peaks import peak_of
from traceprof.measures.device.times import trace_of_device
from traceprof.measures.facts import fact
from traceprof.model.grouping import codes_of, numbered
from traceprof.model.ranks import Ranks
from traceprof.model.table import Table

_UNIT_FACTOR_OPS: Final = ("broadcast", "reduce", "send", "recv", "send_recv")
_SHARD_FACTOR_OPS: Final = ("reduce_scatter", "all_gather", "all_to_all", "gather", "scatter")
_SHARD_INPUT_OPS: Final = ("all_gather", "gather", "scatter")
_UNKNOWN: Final = (float("nan"), float("nan"))
_KIND_COLUMNS: Final = ["op", "n_bytes", "group_size"]


def operation_bytes(op: str, n_bytes: int, n_ranks: int) -> int | None:
    """Return S of an operation with an input of ``n_bytes`` per rank; None if unknown."""
    if n_bytes < 0 or op in ("barrier", "other"):
        return None
    if op not in _SHARD_INPUT_OPS:
        return n_bytes
    return n_bytes * n_ranks if n_ranks > 0 else None


def busbw_factor(op: str, n_ranks: int) -> float | None:
    """Return busbw / algbw; None if undefined (one rank, uneven all-to-all)."""
    if op in _UNIT_FACTOR_OPS and n_ranks != 1:
        return 1.0
    if n_ranks < 2:
        return None
    if op == "all_reduce":
        return 2 * (n_ranks - 1) / n_ranks
    return (n_ranks - 1) / n_ranks if op in _SHARD_FACTOR_OPS else None


def with_sizes(operations: Table) -> Table:
    """Return the operations with operation_bytes and bus_bytes (S · factor); NaN if unknown."""
    return operations.assign(**sizes_of(operations))


def sizes_of(operations: Table) -> dict[str, npt.NDArray[np.float64]]:
    """Return operation_bytes and bus_bytes of each operation; NaN if unknown."""
    number, first = numbered(*(codes_of(operations[name]) for name in _KIND_COLUMNS))
    distinct = (row.values() for row in operations.take(first).select(*_KIND_COLUMNS).rows())
    known: npt.NDArray[np.float64] = np.array([*(_sizes(*values) for values in distinct), _UNKNOWN])
    return {name: known[number, i] for i, name in enumerate(("operation_bytes", "bus_bytes"))}


def _sizes(op: str, n_bytes: int, n_ranks: int) -> tuple[float, float]:
    """Return operation_bytes and bus_bytes of one operation; NaN if unknown."""
    size, factor = operation_bytes(op, n_bytes, n_ranks), busbw_factor(op, n_ranks)
    if size is None or n_ranks == 1:
        return _UNKNOWN
    return float(size), float("nan") if factor is None else size * factor


def count_devices_of_machine(ranks: Ranks, device: int) -> int:
    """Return the number of devices in the machine of ``device``, including itself."""
    count_by_device = _devices_by_machine(ranks)
    if count_by_device is None:
        return len(_listed_devices(ranks))
    return count_by_device.get(device, 0)


@fact
def _listed_devices(ranks: Ranks) -> frozenset[int]:
    return frozenset(device for part in ranks for device in part.devices["device"].tolist())


@fact
def _devices_by_machine(ranks: Ranks) -> Mapping[int, int] | None:
    """Return, by device, how many devices its hosts have; None with fewer than two known hosts."""
    host_of: dict[int, str] = {}
    used = [lane for lanes in ranks.each(find_device_users) for lane in lanes]
    for part in ranks:
        processes = part.processes
        host_of.update(zip(processes["process"].tolist(), processes["host"], strict=True))
    if len({host for host in host_of.values() if host}) < 2:
        return None
    hosts_of: dict[int, set[str]] = {}
    devices_of: dict[str, set[int]] = {}
    for process, device in used:
        host = host_of.get(process, "")
        hosts_of.setdefault(device, set()).add(host)
        devices_of.setdefault(host, set()).add(device)
    return {
        device: len(set[int]().union(*(devices_of[host] for host in hosts)))
        for device, hosts in hosts_of.items()
    }


@fact
def peak_of_group(ranks: Ranks, device: int, group_size: int) -> Peak | None:
    """Return the peak of the link that a group uses; inside the machine if the group fits into it.

    None if the group size is unknown, or if the group spans machines and the user has not specified
    the network (``--link nic=400Gb/s``).
    """
    if group_size < 2 or device < 0:
        return None
    part = trace_of_device(ranks, device)
    if group_size > count_devices_of_machine(ranks, device):
        return peak_of(part, device, Link.NIC)
    return peak_of(part, device, Link.NVLINK) or peak_of(part, device, Link.PCIE)


def peak_of_class(
    ranks: Ranks, device: int, group_size: int, op: str, n_bytes: float
) -> Peak | None:
    """Return the bandwidth that nccl-tests measured for an operation at a size.

    Without the user's measurement, the peak of the link that the group uses; see `peak_of_group`.
    """
    if device >= 0:
        hardware = trace_of_device(ranks, device).hardware
        tests = () if hardware is None else hardware.tests
        found = measured_peak(tests, op, group_size, n_bytes)
        if found is not None:
            return found
    return peak_of_group(ranks, device, group_size)


def rates_of_peaks(peaks: Iterable[Peak | None]) -> npt.NDArray[np.float64]:
    """Return the bytes per second of each peak; NaN if unknown."""
    return np.array([np.nan if peak is None else peak.bytes_per_s for peak in peaks], np.float64)


def columns_of_peak(peak: Peak | None) -> dict[str, Any]:
    """Return peak_bytes_per_s, link, and source of a table row; NaN and "" if unknown."""
    if peak is None:
        return {"peak_bytes_per_s": np.nan, "link": "", "source": ""}
    return {"peak_bytes_per_s": peak.bytes_per_s, "link": peak.what, "source": peak.source}
