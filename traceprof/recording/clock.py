"""The clock of a recording: ns since 1970, unaffected by changes to the system time.

The recorder passes its clock to the processes of the same machine (see the clock module of the
runtime in the program). Everything that is recorded there then uses one clock, even processes that
start after a change of the system time.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

_OFFSET_NS: Final = time.time_ns() - time.monotonic_ns()
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE: Final = Path("/proc/self/ns/time")


def now_ns() -> int:
    """Return the current time of the recording clock in ns since 1970."""
    return time.monotonic_ns() + _OFFSET_NS


def clock_variables() -> dict[str, str]:
    """Return the environment variable that passes the clock to processes of this machine.

    Processes of other machines ignore it. The dictionary is empty where the machine cannot be
    identified.
    """
    try:
        machine = _BOOT.read_text().strip() + str(_NAMESPACE.readlink())
    except OSError:
        return {}
    return {"TRACEPROF_CLOCK": f"{machine} {_OFFSET_NS}"}
