"""What a kernel may be doing, and which part of a device's time that counts towards."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

__all__ = ["Activity", "Part"]


class Part(StrEnum):
    """The part of a device's time that an activity belongs to."""

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
    NORMALISATION = "normalisation"
    SOFTMAX = "softmax"
    LOSS = "loss"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    POOLING = "pooling"
    EMBEDDING = "embedding"
    SORT_INDEX = "sort_index"
    FFT = "fft"
    QUANTISE = "quantise"
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
        """The part of the breakdown that it counts towards."""
        return _PARTS.get(self, Part.COMPUTE)


_PARTS: Final = {
    Activity.COMMUNICATION: Part.COMMUNICATION,
    Activity.TRANSFER: Part.TRANSFER,
    Activity.MEMORY: Part.DEVICE_MEMORY,
}
