"""Peaks of a trace's devices: from the user, from the trace, or from the hardware catalog."""

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

HardwareSource: TypeAlias = Trace | Ranks
"""A source of hardware facts."""

_FROM_TRACE: Final = "the trace"
_PCIE_NAMES: Final = ("gpu.{}.pcie", "pcie device {}")
_PCIE: Final = re.compile(r"gen(?:eration)?\s*(\d+)\D+(\d+)")
_NVLINK_NAME: Final = re.compile(r"nvlink device (\d+) - device (\d+)")
_RDMA_PORT: Final = re.compile(r"(rdma\..+\.\d+)\.rate")
_RDMA_RATE: Final = re.compile(r"([\d.]+) Gb/sec")
_GPU_NAME: Final = re.compile(r"gpu\.\d+\.name")
_NVLINK: Final = re.compile(r"(\d+) links, ([\d.]+) GB/s")
_DRIVER_NVLINKS: Final = re.compile(r"(\d+) links of ([\d.]+) GB/s")


def matrix_speedups(of: HardwareSource, device: int) -> Mapping[str, float]:
    """Return the matrix speed of ``device`` relative to FP32, by precision.

    The values are from the peaks of the GPU model, which the user specified or the device name
    identifies, otherwise from its family. Return {} if neither is known.
    """
    name, _ = _device(of, device)
    model = _hardware(of).model_of(name)
    if model is None or "fp32" not in model.flops_per_s:
        return speedups_of(name)
    rates = model.flops_per_s
    return {precision: rate / rates["fp32"] for precision, rate in rates.items()}


_PRODUCTS: Final = {"3xtf32": ("tf32", 3)}
"""Emulated precisions: the precision of the products, and their number per emulated product."""


def flop_peak_of(of: HardwareSource, device: int, precision: str) -> float | None:
    """Return the dense peak of ``device`` at ``precision`` in FLOP/s; None if unknown.

    Without tensor cores, precisions of 32 bits and fewer run at the FP32 rate.
    """
    model = _hardware(of).model_of(_device(of, device)[0])
    if model is None:
        return None
    name, _, is_plain = precision.partition(" ")
    wanted, n = _PRODUCTS.get(name, ("fp32" if is_plain else name, 1))
    rate = model.flops_per_s.get(wanted)
    return None if rate is None else rate / n


def peak_of(of: HardwareSource, device: int, link: Link) -> Peak | None:
    """Return the peak of a ``link`` of ``device`` in one direction; None if unknown.

    The order of precedence is: the user, the trace, the hardware catalog. The NVLink rate of the
    driver is the last resort, since it includes protocol overhead.
    """
    hardware = _hardware(of)
    if link in hardware.links:
        return hardware.links[link]
    name, measured = _device(of, device)
    if link is Link.MEMORY and measured not in (ABSENT, 0):
        return Peak(float(measured), "memory", _FROM_TRACE)
    read_recorded = _RECORDED.get(link)
    recorded_peak = read_recorded(of, device) if read_recorded else None
    known_peak = recorded_peak or hardware.peak(link, name)
    return known_peak or (_driver_nvlink(of, device) if link is Link.NVLINK else None)


def peak_between(of: HardwareSource, device: int, peer: int) -> Peak | None:
    """Return the peak of the NVLinks between two devices, or of all NVLinks of ``device``.

    All NVLinks count if the trace does not show the links between the two devices, or if the user
    specified the NVLink speed. Return None if unknown.
    """
    if Link.NVLINK not in _hardware(of).links:
        for pair, (n_links, bytes_per_s) in _nvlinks(of).items():
            if pair == {device, peer}:
                return Peak(bytes_per_s, f"{n_links} NVLinks between the two GPUs", _FROM_TRACE)
    return peak_of(of, device, Link.NVLINK)


def peak_of_interface(of: HardwareSource, source: str) -> Peak | None:
    """Return the speed of a sample's network interface ("nic:eth0", "rdma:mlx5_0:1").

    A NIC speed from the user takes precedence over the recorded speed. Return None if unknown.
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


def _recorded_nic(of: HardwareSource, _device: int) -> Peak | None:
    """Return one GPU's share of the active RDMA ports of its machine."""
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


def _device(of: HardwareSource, device: int) -> tuple[str, int]:
    """Return the name ("" if unknown) and the recorded memory bandwidth in bytes/s of a device."""
    return _devices(of).get(device) or (_facts(of).get(f"gpu.{device}.name", ""), ABSENT)


@fact
def _devices(of: HardwareSource) -> dict[int, tuple[str, int]]:
    # If several ranks list the same device, the first one counts.
    """Return name and memory bandwidth in bytes/s of each device, by number."""
    rows = reversed(of.table("devices").rows())
    return {row["device"]: (row["name"], row["memory_bytes_per_s"]) for row in rows}


def _hardware(of: HardwareSource) -> Hardware:
    return of.hardware or built_in_hardware()


def _recorded_pcie(of: HardwareSource, device: int) -> Peak | None:
    """Return the recorded PCI Express peak of a device."""
    facts = _facts(of)
    for name in _PCIE_NAMES:
        found = _PCIE.search(facts.get(name.format(device), ""))
        if found is None:
            continue
        try:
            peak = pcie_peak(int(found[1]), int(found[2]))
        except UsageError:  # a driver that does not know the link reports zeros
            continue
        return Peak(peak.bytes_per_s, peak.what, _FROM_TRACE)
    return None


def _recorded_nvlink(of: HardwareSource, device: int) -> Peak | None:
    """Return the peak of all recorded NVLinks of a device."""
    device_links = [links for pair, links in _nvlinks(of).items() if device in pair]
    if not device_links:
        return None
    n_links, bytes_per_s = (sum(values) for values in zip(*device_links, strict=True))
    return Peak(float(bytes_per_s), f"NVLink, {n_links} links", _FROM_TRACE)


def _driver_nvlink(of: HardwareSource, device: int) -> Peak | None:
    """Return the NVLink peak that the driver reported; it includes protocol overhead."""
    found = _DRIVER_NVLINKS.fullmatch(_facts(of).get(f"gpu.{device}.nvlink", ""))
    if found is None:
        return None
    bytes_per_s = int(found[1]) * float(found[2]) * 1e9
    return Peak(bytes_per_s, f"NVLink, {found[1]} links", _FROM_TRACE)


@fact
def _nvlinks(of: HardwareSource) -> dict[frozenset[int], tuple[int, float]]:
    """Return the number of NVLinks between each pair of devices, and their rate in one direction.

    Profilers record the sum of both directions.
    """
    found = {}
    for name, value in _facts(of).items():
        pair, links = _NVLINK_NAME.fullmatch(name), _NVLINK.fullmatch(value)
        if pair and links:
            devices = frozenset((int(pair[1]), int(pair[2])))
            found[devices] = (int(links[1]), float(links[2]) * 1e9 / 2)
    return found


_RECORDED: Final[Mapping[Link, Callable[[HardwareSource, int], Peak | None]]] = {
    Link.PCIE: _recorded_pcie,
    Link.NVLINK: _recorded_nvlink,
    Link.NIC: _recorded_nic,
}


@fact
def _facts(of: HardwareSource) -> dict[str, str]:
    """Return the environment by name.

    It is cached, since it grows with the hosts of a run and is read once per device.
    """
    environment = of.table("environment")
    return dict(zip(environment["name"], environment["value"], strict=True))
