"""What `traceprof record` samples of a machine and its processes while a job runs.

Every rank of a host has the series of the whole machine, and of processes its own; all were taken
at the same instants. Counters grow at one pace from 0, so that their rates are known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from scripts.nsys_export.rows import Columns, Rank

__all__ = ["BYTES_PER_S", "GPU_MEMORY_BYTES", "Recorder"]

BYTES_PER_S: Final[Mapping[str, int]] = {
    "nic": 40_000_000,
    "rdma": 20_000_000_000,
    "nvlink": 150_000_000_000,
    "pcie": 4_000_000_000,
    "tcp": 1_000_000,
}
"""What each counter of traffic counts a second, in either direction."""

GPU_MEMORY_BYTES: Final = 60 << 30
_PROCESS_BYTES: Final = 8 << 30
_DIRECTIONS: Final = ("sent", "received")
_ENVIRONMENT: Final = {"nic.eth0.speed_mbit_per_s": "100000", "nic.eth0.state": "up"}
_RDMA_PORT: Final = {"rate": "400 Gb/sec (4X NDR)", "state": "4: ACTIVE"}


class _Series(NamedTuple):
    """A counter: its value at first, and by how much it grows a second."""

    source: str
    metric: str
    first: int = 0
    per_s: int = 0


@dataclass(frozen=True, slots=True)
class Recorder:
    """Samples a host that has ``devices``, every counter so many times a second."""

    devices: Sequence[int]
    samples_per_s: float

    def samples_of(self, ranks: Sequence[Rank], until_ns: int) -> Columns:
        """Return the samples in the export of ``ranks``.

        They stand on its clock, from when the job began until ``until_ns``.
        """
        begin_ns = ranks[0].shift_ns
        elapsed = np.arange(0, until_ns - begin_ns + 1, round(1e9 / self.samples_per_s))
        series = list(_series(ranks, self.devices))
        first = np.array([one.first for one in series], np.float64)
        growth = np.array([one.per_s for one in series], np.float64)
        return {
            "start": begin_ns + np.repeat(elapsed, len(series)),
            "source": np.tile([one.source for one in series], len(elapsed)),
            "metric": np.tile([one.metric for one in series], len(elapsed)),
            "value": np.rint(first + np.outer(elapsed / 1e9, growth)).ravel(),
        }

    def environment(self) -> Mapping[str, str]:
        """Return what is noted of the interfaces of the host."""
        ports = {
            f"rdma.mlx5_{device}.1.{fact}": value
            for device in self.devices
            for fact, value in _RDMA_PORT.items()
        }
        return {**_ENVIRONMENT, **ports}


def _series(ranks: Sequence[Rank], devices: Sequence[int]) -> Iterator[_Series]:
    yield from _traffic("nic:eth0", "nic", "bytes_{}")
    for device in devices:
        yield from _traffic(f"rdma:mlx5_{device}:1", "rdma", "bytes_{}")
        gpu = f"gpu:{device}"
        yield from _traffic(gpu, "nvlink", "nvlink_bytes_{}")
        yield from _traffic(gpu, "pcie", "pcie_bytes_{}")
        yield _Series(gpu, "memory_used_bytes", GPU_MEMORY_BYTES)
        yield _Series(gpu, "utilization_percent", 97)
    for rank in ranks:
        process = f"process:{rank.process}"
        yield from _traffic(process, "tcp", "tcp_bytes_{}")
        yield _Series(process, "memory_bytes", _PROCESS_BYTES)


def _traffic(source: str, kind: str, metric: str) -> Iterator[_Series]:
    for direction in _DIRECTIONS:
        yield _Series(source, metric.format(direction), per_s=BYTES_PER_S[kind])
