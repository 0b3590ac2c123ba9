"""The clock of a recording: ns since 1970, which nobody moves who sets the time of day meanwhile.

Processes of one machine are told it (the module clock of what runs in the program), so that all
that is recorded there has one, also of what starts after the time of day was set.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

_OFFSET_NS: Final = time.time_ns() - time.monotonic_ns()
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE: Final = Path("/proc/self/ns/time")


def now_ns() -> int:
    """Return the time, in ns since 1970."""
    return time.monotonic_ns() + _OFFSET_NS


def clock_variables() -> dict[str, str]:
    """Return the variable that tells processes of this machine the clock; others ignore it."""
    try:
        machine = _BOOT.read_text().strip() + str(_NAMESPACE.readlink())
    except OSError:
        return {}
    return {"TRACEPROF_CLOCK": f"{machine} {_OFFSET_NS}"}
