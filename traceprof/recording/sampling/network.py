"""Bytes through the network interfaces, and through RDMA ports, which do not count there."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

__all__ = ["open_network", "read_rdma"]

_PERIOD_S: Final = 0.1
_INFINIBAND: Final = Path("/sys/class/infiniband")
_RDMA_COUNTERS: Final = {"port_xmit_data": "bytes_sent", "port_rcv_data": "bytes_received"}
_RDMA_UNIT_BYTES: Final = 4  # these counters are in words

Reading = Iterator[tuple[str, str, float]]


def open_network() -> tuple[float, Callable[[], Reading]] | None:
    """Return (period in seconds, read), None where psutil is not installed."""
    if importlib.util.find_spec("psutil") is None:
        return None
    psutil = importlib.import_module("psutil")

    def read() -> Reading:
        for name, counters in psutil.net_io_counters(pernic=True).items():
            yield f"nic:{name}", "bytes_sent", float(counters.bytes_sent)
            yield f"nic:{name}", "bytes_received", float(counters.bytes_recv)
        yield from read_rdma()

    return _PERIOD_S, read


def read_rdma(folder: Path = _INFINIBAND) -> Reading:
    """Yield the data counters of every RDMA port below ``folder``."""
    for port in sorted(folder.glob("*/ports/*")):
        for counter, metric in _RDMA_COUNTERS.items():
            path = port / "counters" / counter
            if path.exists():
                words = int(path.read_text())
                source = f"rdma:{port.parent.parent.name}:{port.name}"
                yield source, metric, float(words * _RDMA_UNIT_BYTES)
