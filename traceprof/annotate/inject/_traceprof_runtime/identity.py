"""The identity of this process, as file names contain it: "PID.NAMESPACE-START".

A PID alone does not identify a process. PID namespaces (containers) reuse PIDs, and the system
reuses a PID after its process has ended. NAMESPACE is the inode of the PID namespace. START is the
start time of the process in clock ticks since boot. Both are hexadecimal. A process that replaces
its program (``exec``) keeps its identity. The recorder's C library builds the same names.
"""

import os
import time

_START_TIME_FIELD = 19  # index in /proc/PID/stat, counted from the field after the process name


def stat(process, field):
    """Return the number in ``field`` of /proc/PID/stat, counted from the field after the name."""
    with open("/proc/%s/stat" % process) as file:
        return int(file.read().rpartition(")")[2].split()[field])


def start_ticks():
    """Return the start time of this process, in clock ticks since boot."""
    return stat("self", _START_TIME_FIELD)


def _read_identity():
    """Return the identity of this process; without /proc: namespace 0 and the current time."""
    try:
        namespace = os.readlink("/proc/self/ns/pid").partition("[")[2].rstrip("]")
        return "%d.%x-%x" % (os.getpid(), int(namespace), start_ticks())
    except (OSError, ValueError, IndexError):  # not Linux, or no /proc
        return "%d.0-%x" % (os.getpid(), time.time_ns())


_identity, _parent = _read_identity(), ""


def identity():
    """Return the identity of this process."""
    return _identity


def parent():
    """Return the identity of the process that forked this one; "" if unknown."""
    return _parent


def _after_fork():
    """Read the new identity in a forked process, and keep the old one as the parent's."""
    global _identity, _parent
    _identity, _parent = _read_identity(), _identity


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
