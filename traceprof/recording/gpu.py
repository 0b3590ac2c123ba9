"""Whether this machine has a GPU that NVIDIA's tools can see, and whether they may look inside."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Final

__all__ = ["has_gpu", "why_no_counters"]

_PARAMETERS: Final = Path("/proc/driver/nvidia/params")


@cache
def has_gpu() -> bool:
    """Return whether the driver shows a GPU; device files exist without one, too."""
    return any(Path("/proc/driver/nvidia/gpus").glob("*"))


def why_no_counters() -> str | None:
    """Return why the counters inside the GPUs (GPU metrics) cannot be read, None if they can."""
    try:
        is_restricted = "RmProfilingAdminOnly: 1" in _PARAMETERS.read_text()
    except OSError:
        return "no driver is loaded"
    return "only root may read GPU metrics" if is_restricted and os.geteuid() else None
