"""The peaks of the devices of a trace: what the user said, what the trace says, what is known."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from traceprof.errors import UsageError
from traceprof.hardware.catalogue import (
    Hardware,
    Link,
    Peak,
    built_in_hardware,
    pcie_peak,
    speedups_of,
)
from traceprof.measures.facts import fact
from traceprof.model.ranks import Ranks
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace

Described: TypeAlias = Trace | Ranks
"""What says what its hardware is."""

_FROM_TRACE: Final = "the trace"
_PCIE_NAMES: Final = ("gpu.{}.pcie", "pcie device {}")
_PCIE: Final = re.compile(r"gen(?:eration)?\s*(\d+)\D+(\d+)")
_NVLINK_NAME: Final = re.compile(r"nvlink device (\d+) - device (\d+)")
_RDMA_PORT: Final = re.compile(r"(rdma\..+\.\d+)\.rate")
_RDMA_RATE: Final = re.compile(r"([\d.]+) Gb/sec")
_GPU_NAME: Final = re.compile(r"gpu\.\d+\.name")
_NVLINK: Final = re.compile(r"(\d+) links, ([\d.]+) GB/s")
_OWN_NVLINKS: Final = re.compile(r"(\d+) links of ([\d.]+) GB/s")


def matrix_speedups(of: Described, device: int) -> Mapping[str, float]:
    """Return how many times as fast as FP32 ``device`` multiplies matrices, by precision.

    At the peaks of the model, that the user named or its name tells, else of its family; {} where
    neither is known.
    """
    name, _ = _device(of, device)
    model = _hardware(of).model_of(name)
    if model is None or "fp32" not in model.flops_per_s:
        return speedups_of(name)
    rates = model.flops_per_s
    return {precision: rate / rates["fp32"] for precision, rate in rates.items()}


_PRODUCTS: Final = {"3xtf32": ("tf32", 3)}
"""As how many products of which precision each is multiplied."""


def flop_peak_of(of: Described, device: int, precision: str) -> float | None:
    """Return the dense FLOP/s of ``device`` at ``precision``; None where nobody knows it.

    Without tensor cores, all of 32 bits and below are multiplied at the rate of FP32.
    """
    model = _hardware(of).model_of(_device(of, device)[0])
    if model is None:
        return None
    name, _, is_plain = precision.partition(" ")
    wanted, n = _PRODUCTS.get(name, ("fp32" if is_plain else name, 1))
    rate = model.flops_per_s.get(wanted)
    return None if rate is None else rate / n


def peak_of(of: Described, device: int, link: Link) -> Peak | None:
    """Return the peak of ``link`` of ``device`` in one direction; None where nobody knows it.

    A link that the user gave wins, then what the trace says, then the table of hardware. Only
    the rate that the driver tells for NVLinks comes last: it counts the protocol, too.
    """
    hardware = _hardware(of)
    if link in hardware.links:
        return hardware.links[link]
    name, measured = _device(of, device)
    if link is Link.MEMORY and measured not in (ABSENT, 0):
        return Peak(float(measured), "memory", _FROM_TRACE)
    recorded = _RECORDED.get(link)
    said = recorded(of, device) if recorded else None
    known = said or hardware.peak(link, name)
    return known or (_told_by_driver(of, device) if link is Link.NVLINK else None)


def peak_between(of: Described, device: int, peer: int) -> Peak | None:
    """Return the peak of the NVLinks from one device to another, all those of the device else."""
    if Link.NVLINK not in _hardware(of).links:
        for pair, (n_links, bytes_per_s) in _nvlinks(of).items():
            if pair == {device, peer}:
                return Peak(bytes_per_s, f"{n_links} NVLinks between the two GPUs", _FROM_TRACE)
    return peak_of(of, device, Link.NVLINK)


def peak_of_interface(of: Described, source: str) -> Peak | None:
    """Return the speed of the interface that a sample's source names ("nic:eth0", "rdma:mlx5_0:1").

    What the user gave wins, then what the recording noted of that interface.
    """
    hardware = _hardware(of)
    if Link.NIC in hardware.links:
        return hardware.links[Link.NIC]
    facts = _facts(of)
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


def _recorded_nic(of: Described, _device: int) -> Peak | None:
    """Return the share of a GPU in the RDMA ports of its machine that are up."""
    facts = _facts(of)
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
    what = f"{len(rates)} RDMA ports, {sum(rates):g} Gb/s in total, for {n_gpus} GPUs"
    return Peak(sum(rates) * 1e9 / 8 / n_gpus, what, _FROM_TRACE)


def _device(of: Described, device: int) -> tuple[str, int]:
    """Return the name of a device ("" unknown), and how fast its memory is as the trace says it."""
    return _devices(of).get(device) or (_facts(of).get(f"gpu.{device}.name", ""), ABSENT)


@fact
def _devices(of: Described) -> dict[int, tuple[str, int]]:
    # Of a device that several list the first counts.
    rows = reversed(of.table("devices").rows())
    return {row["device"]: (row["name"], row["memory_bytes_per_s"]) for row in rows}


def _hardware(of: Described) -> Hardware:
    return of.hardware or built_in_hardware()


def _recorded_pcie(of: Described, device: int) -> Peak | None:
    facts = _facts(of)
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


def _recorded_nvlink(of: Described, device: int) -> Peak | None:
    own = [links for pair, links in _nvlinks(of).items() if device in pair]
    if not own:
        return None
    n_links, bytes_per_s = (sum(values) for values in zip(*own, strict=True))
    return Peak(float(bytes_per_s), f"NVLink, {n_links} links", _FROM_TRACE)


def _told_by_driver(of: Described, device: int) -> Peak | None:
    found = _OWN_NVLINKS.fullmatch(_facts(of).get(f"gpu.{device}.nvlink", ""))
    if found is None:
        return None
    rate = int(found[1]) * float(found[2]) * 1e9
    return Peak(rate, f"NVLink, {found[1]} links", _FROM_TRACE)


@fact
def _nvlinks(of: Described) -> dict[frozenset[int], tuple[int, float]]:
    """Return how many links join each pair of devices, and their rate in one direction.

    Profilers tell the rate of both directions together.
    """
    found = {}
    for name, value in _facts(of).items():
        pair, links = _NVLINK_NAME.fullmatch(name), _NVLINK.fullmatch(value)
        if pair and links:
            ends = frozenset((int(pair[1]), int(pair[2])))
            found[ends] = (int(links[1]), float(links[2]) * 1e9 / 2)
    return found


_RECORDED: Final[Mapping[Link, Callable[[Described, int], Peak | None]]] = {
    Link.PCIE: _recorded_pcie,
    Link.NVLINK: _recorded_nvlink,
    Link.NIC: _recorded_nic,
}


@fact
def _facts(of: Described) -> dict[str, str]:
    """Return the environment by name. It grows with the hosts of a run, and is asked per device."""
    environment = of.table("environment")
    return dict(zip(environment["name"], environment["value"], strict=True))
