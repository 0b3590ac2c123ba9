"""Whether this machine has a GPU that NVIDIA's tools can see."""

from __future__ import annotations

from functools import cache
from pathlib import Path

__all__ = ["has_gpu"]


@cache
def has_gpu() -> bool:
    """Return whether the driver shows a GPU; device files exist without one, too."""
    return any(Path("/proc/driver/nvidia/gpus").glob("*"))
