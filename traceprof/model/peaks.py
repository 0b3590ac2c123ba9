"""The peaks of the devices of a trace: what the user said, what the trace says, what is known."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from traceprof.errors import UsageError
from traceprof.model.hardware import Hardware, built_in_hardware
from traceprof.model.links import Link, Peak, pcie_peak
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace

__all__ = ["peak_between", "peak_of", "peak_of_interface"]

_FROM_TRACE: Final = "the trace"
_PCIE_NAMES: Final = ("gpu.{}.pcie", "pcie device {}")
_PCIE: Final = re.compile(r"gen(?:eration)?\s*(\d+)\D+(\d+)")
_NVLINK_NAME: Final = re.compile(r"nvlink device (\d+) - device (\d+)")
_RDMA_PORT: Final = re.compile(r"(rdma\..+\.\d+)\.rate")
_RDMA_RATE: Final = re.compile(r"([\d.]+) Gb/sec")
_GPU_NAME: Final = re.compile(r"gpu\.\d+\.name")
_NVLINK: Final = re.compile(r"(\d+) links, ([\d.]+) GB/s")


def peak_of(trace: Trace, device: int, link: Link) -> Peak | None:
    """Return the peak of ``link`` of ``device`` in one direction; None where nobody knows it.

    A link that the user gave wins, then what the trace says, then the table of hardware.
    """
    hardware = _hardware(trace)
    if link in hardware.links:
        return hardware.links[link]
    rows = trace.devices[trace.devices["device"] == device]
    name = "" if rows.empty else str(rows["name"].iloc[0])
    if link is Link.MEMORY and not rows.empty:
        measured = int(rows["memory_bytes_per_s"].iloc[0])
        if measured not in (ABSENT, 0):
            return Peak(float(measured), "memory", _FROM_TRACE)
    recorded = _RECORDED.get(link)
    said = recorded(trace, device) if recorded else None
    return said or hardware.peak(link, name)


def peak_between(trace: Trace, device: int, peer: int) -> Peak | None:
    """Return the peak of the NVLinks from one device to another, all those of the device else."""
    if Link.NVLINK not in _hardware(trace).links:
        for pair, (n_links, bytes_per_s) in _nvlinks(trace).items():
            if pair == {device, peer}:
                return Peak(bytes_per_s, f"{n_links} NVLinks between the two", _FROM_TRACE)
    return peak_of(trace, device, Link.NVLINK)


def peak_of_interface(trace: Trace, source: str) -> Peak | None:
    """Return the speed of the interface that a sample's source names ("nic:eth0", "rdma:mlx5_0:1").

    What the user gave wins, then what the recording noted of that interface.
    """
    hardware = _hardware(trace)
    if Link.NIC in hardware.links:
        return hardware.links[Link.NIC]
    facts = _facts(trace)
    kind, _, name = source.partition(":")
    name = name.partition(" ")[0]  # nsys: the protocol follows
    mbit = facts.get(f"nic.{name}.speed_mbit_per_s", "") if kind == "nic" else ""
    if mbit.isdigit() and int(mbit):
        return Peak(int(mbit) * 1e6 / 8, f"{name}, {int(mbit) / 1000:g} Gb/s", _FROM_TRACE)
    name, at, host = name.partition("@")
    device, _, port = name.partition(":")
    rate = _RDMA_RATE.match(facts.get(f"rdma.{device}.{port or 1}{at}{host}.rate", ""))
    if rate is None:
        return None
    return Peak(float(rate[1]) * 1e9 / 8, f"{device}, {float(rate[1]):g} Gb/s", _FROM_TRACE)


def _recorded_nic(trace: Trace, _device: int) -> Peak | None:
    """Return the share of a GPU in the RDMA ports of its machine that are up."""
    facts = _facts(trace)
    rates = [
        float(rate[1])
        for name, value in facts.items()
        if (port := _RDMA_PORT.fullmatch(name))
        and (rate := _RDMA_RATE.match(value))
        and "ACTIVE" in facts.get(f"{port[1]}.state", "ACTIVE")
    ]
    n_gpus = sum(_GPU_NAME.fullmatch(name) is not None for name in facts)
    if not rates or not n_gpus:
        return None
    what = f"{len(rates)} RDMA ports of together {sum(rates):g} Gb/s for {n_gpus} GPUs"
    return Peak(sum(rates) * 1e9 / 8 / n_gpus, what, _FROM_TRACE)


def _hardware(trace: Trace) -> Hardware:
    return trace.hardware or built_in_hardware()


def _recorded_pcie(trace: Trace, device: int) -> Peak | None:
    facts = _facts(trace)
    for name in _PCIE_NAMES:
        found = _PCIE.search(facts.get(name.format(device), ""))
        if found is None:
            continue
        try:
            peak = pcie_peak(int(found[1]), int(found[2]))
        except UsageError:  # a driver that does not know answers with zeros
            continue
        return Peak(peak.bytes_per_s, peak.what, _FROM_TRACE)
    return None


def _recorded_nvlink(trace: Trace, device: int) -> Peak | None:
    own = [links for pair, links in _nvlinks(trace).items() if device in pair]
    if not own:
        return None
    n_links, bytes_per_s = (sum(values) for values in zip(*own, strict=True))
    return Peak(float(bytes_per_s), f"NVLink, {n_links} links", _FROM_TRACE)


def _nvlinks(trace: Trace) -> dict[frozenset[int], tuple[int, float]]:
    """Return how many links join each pair of devices, and their rate in one direction.

    Profilers tell the rate of both directions together.
    """
    found = {}
    for name, value in _facts(trace).items():
        pair, links = _NVLINK_NAME.fullmatch(name), _NVLINK.fullmatch(value)
        if pair and links:
            ends = frozenset((int(pair[1]), int(pair[2])))
            found[ends] = (int(links[1]), float(links[2]) * 1e9 / 2)
    return found


_RECORDED: Final[Mapping[Link, Callable[[Trace, int], Peak | None]]] = {
    Link.PCIE: _recorded_pcie,
    Link.NVLINK: _recorded_nvlink,
    Link.NIC: _recorded_nic,
}


def _facts(trace: Trace) -> dict[str, str]:
    names, values = trace.environment["name"], trace.environment["value"]
    return dict(zip(names.astype(str), values.astype(str), strict=True))
