"""Facts about this machine: processor, memory, network. Reads files; runs nothing."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Final

__all__ = ["has_rdma", "machine_facts", "network_facts"]

_INTERFACES: Final = Path("/sys/class/net")
_INFINIBAND: Final = Path("/sys/class/infiniband")
_CONTAINER_MARKS: Final = (Path("/.dockerenv"), Path("/run/.containerenv"))
_INTERFACE_FILES: Final = ("speed", "mtu", "operstate")


def machine_facts() -> dict[str, str]:
    """Return what is known of the operating system, the processor and the memory."""
    cpu = _cpu_info()
    return {
        "os": _os_name(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "libc": "-".join(filter(None, platform.libc_ver())),
        "cpu": cpu.get("model name", platform.processor()),
        "cpu.count": str(os.cpu_count() or ""),
        "cpu.allowed": str(len(os.sched_getaffinity(0))),
        "cpu.limit": _text(Path("/sys/fs/cgroup/cpu.max")),
        "ram_bytes": str(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
        "ram_limit_bytes": _text(Path("/sys/fs/cgroup/memory.max")),
        "container": "yes" if any(mark.exists() for mark in _CONTAINER_MARKS) else "",
    }


def network_facts(
    interfaces: Path = _INTERFACES, infiniband: Path = _INFINIBAND
) -> Iterator[tuple[str, str]]:
    """Yield (name, value) about network interfaces and RDMA ports."""
    for interface in sorted(interfaces.glob("*")):
        for name in _INTERFACE_FILES:
            value = _text(interface / name)
            if value and value != "-1":
                yield f"nic.{interface.name}.{_INTERFACE_UNITS.get(name, name)}", value
    for port in sorted(infiniband.glob("*/ports/*")):
        for name in ("rate", "link_layer", "state"):
            yield f"rdma.{port.parent.parent.name}.{port.name}.{name}", _text(port / name)


def has_rdma() -> bool:
    """Return whether there are adapters for InfiniBand or RoCE."""
    return any(_INFINIBAND.glob("*"))


_INTERFACE_UNITS: Final = {"speed": "speed_mbit_per_s", "mtu": "mtu_bytes", "operstate": "state"}


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return platform.platform()


def _cpu_info() -> dict[str, str]:
    """Return what /proc/cpuinfo says of the first processor."""
    first = _text(Path("/proc/cpuinfo")).partition("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}
