"""The classes of kernels, and the five parts of GPU time.

With unions over all streams of a device, C = compute kernels, N = communication kernels,
X = copies between host and device or between devices, M = copies and memsets inside a device,
and T the length of the window:

=====================  =====================
compute                ``|C|``
exposed communication  ``|N - C|``
exposed transfer       ``|X - C - N|``
device memory          ``|M - C - N - X|``
idle                   ``T - |C ∪ N ∪ X ∪ M|``
=====================  =====================

The five add up to T exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.model.intervals import Intervals

BUSY_PARTS: Final = ("compute", "exposed_communication", "exposed_transfer", "device_memory")
IDLE: Final = "idle"
PARTS: Final = (*BUSY_PARTS, IDLE)
"""The five parts. A part excludes the time of the parts before it."""


class Part(StrEnum):
    """The part of GPU time that an activity belongs to."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    TRANSFER = "transfer"
    DEVICE_MEMORY = "device_memory"


class Activity(StrEnum):
    """The kind of work that a kernel does: its class."""

    GEMM = "gemm"
    CONVOLUTION = "convolution"
    ATTENTION = "attention"
    RECURRENT = "recurrent"
    MOE = "moe"
    NORMALIZATION = "normalization"
    SOFTMAX = "softmax"
    LOSS = "loss"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    POOLING = "pooling"
    EMBEDDING = "embedding"
    SORT_INDEX = "sort_index"
    FFT = "fft"
    QUANTIZE = "quantize"
    LAYOUT = "layout"
    OPTIMIZER = "optimizer"
    RNG_DROPOUT = "rng_dropout"
    CUDA_GRAPH = "cuda_graph"
    OTHER = "other"
    COMMUNICATION = "communication"
    TRANSFER = "transfer"
    MEMORY = "memory"

    @property
    def part(self) -> Part:
        """The part of the time breakdown that the activity counts toward."""
        return _PARTS.get(self, Part.COMPUTE)

    @property
    def label(self) -> str:
        """The name of the kernel class in sentences."""
        return _LABELS.get(self, self.value)


_LABELS: Final = {
    Activity.GEMM: "GEMM",
    Activity.MOE: "MoE",
    Activity.SORT_INDEX: "sorting and indexing",
    Activity.FFT: "FFT",
    Activity.QUANTIZE: "quantization",
    Activity.LAYOUT: "layout conversion",
    Activity.RNG_DROPOUT: "random numbers",
    Activity.CUDA_GRAPH: "CUDA graphs",
    Activity.OTHER: "other kernels",
}
_PARTS: Final = {
    Activity.COMMUNICATION: Part.COMMUNICATION,
    Activity.TRANSFER: Part.TRANSFER,
    Activity.MEMORY: Part.DEVICE_MEMORY,
}


@dataclass(frozen=True, eq=False)
class DeviceTime:
    """The busy times of a device: the unions C, N, X, and M.

    Derived sets are cached, but not pickled: an answer contains the same sets no matter which
    process computes it, and no matter what was computed before.
    """

    compute: Intervals
    communication: Intervals
    transfer: Intervals
    device_memory: Intervals

    def __reduce__(self) -> tuple[type[DeviceTime], tuple[Intervals, ...]]:
        return DeviceTime, (self.compute, self.communication, self.transfer, self.device_memory)

    @classmethod
    def nothing(cls) -> DeviceTime:
        """Return the times of an idle device."""
        none = Intervals.empty()
        return cls(none, none, none, none)

    @cached_property
    def kernel(self) -> Intervals:
        """When a compute or communication kernel ran."""
        return self.compute | self.communication

    @cached_property
    def busy(self) -> Intervals:
        """When the device did anything."""
        return self.kernel | self.transfer | self.device_memory

    def clip(self, start_ns: int, end_ns: int) -> DeviceTime:
        """Return the times inside ``[start_ns, end_ns)``."""
        return DeviceTime(
            self.compute.clip(start_ns, end_ns),
            self.communication.clip(start_ns, end_ns),
            self.transfer.clip(start_ns, end_ns),
            self.device_memory.clip(start_ns, end_ns),
        )

    def within(self, time: Intervals) -> DeviceTime:
        """Return the times inside the set ``time``."""
        parts = [self.compute, self.communication, self.transfer, self.device_memory]
        inside = [part & time for part in parts]
        return self if inside == parts else DeviceTime(*inside)  # `self` knows derived sets

    def parts(self) -> dict[str, Intervals]:
        """Return the times of each of `BUSY_PARTS`. They do not overlap."""
        kernel = self.kernel
        return {
            "compute": self.compute,
            "exposed_communication": self.communication - self.compute,
            "exposed_transfer": self.transfer - kernel,
            "device_memory": self.device_memory - (kernel | self.transfer),
        }

    def parts_within(
        self, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
    ) -> dict[str, npt.NDArray[np.int64]]:
        """Return the ns of each of `PARTS` in each span; per span, they add up to its length."""
        covered = {name: time.covered_ns(starts, ends) for name, time in self.parts().items()}
        idle = ends - starts - np.sum(list(covered.values()), axis=0)
        return covered | {IDLE: np.asarray(idle, np.int64)}

    def states(self, start_ns: int, end_ns: int) -> Mapping[str, Intervals]:
        """Return the parts of ``[start_ns, end_ns)``, with overlapped communication separate.

        ``overlap`` is communication during compute; ``compute`` excludes it. The states add up to
        the span.
        """
        inside = self.clip(start_ns, end_ns)
        hidden = inside.compute & inside.communication
        return {
            "compute": inside.compute - inside.communication,
            "overlap": hidden,
            **{name: time for name, time in inside.parts().items() if name != "compute"},
            IDLE: inside.busy.gaps(start_ns, end_ns),
        }

    def busy_without_ns(self, name: str) -> int:
        """Return the busy time in ns without the union called ``name`` ("": with all four)."""
        busy = Intervals.empty()
        for part in ("compute", "communication", "transfer", "device_memory"):
            busy = busy if part == name else busy | getattr(self, part)
        return busy.total_ns
