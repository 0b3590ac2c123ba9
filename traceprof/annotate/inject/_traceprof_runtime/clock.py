"""The clock of all recorded events: ns since 1970, unaffected by changes of the system time.

If the recorder runs on the same machine, both use one clock (``TRACEPROF_CLOCK`` contains the
machine and the offset).
"""

import os
import time
from time import monotonic_ns


def boot():
    """Return the id of this boot of the machine: equal ids mean equal monotonic clocks."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip() + os.readlink("/proc/self/ns/time")
    except OSError:
        return ""


def _offset_ns():
    """Return the offset of the monotonic clock from 1970, in ns: the recorder's on its machine."""
    machine, _, offset_ns = os.environ.get("TRACEPROF_CLOCK", "").rpartition(" ")
    try:
        if machine == boot():
            return int(offset_ns)
    except ValueError:
        pass  # not Linux: each process determines its offset
    return time.time_ns() - monotonic_ns()


_OFFSET_NS = _offset_ns()


def time_ns():
    """Return the current time, in ns since 1970."""
    return monotonic_ns() + _OFFSET_NS
