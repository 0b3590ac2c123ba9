"""Which process this is, as the names of its files have it: "PID.NAMESPACE-START".

An id alone does not identify a process: PID namespaces (containers) share ids, and the system gives
an id again after its process has ended. NAMESPACE is the inode of the PID namespace, and START is
when the process was started, in clock ticks since boot; both are hexadecimal. A process that
replaces its program (``exec``) remains the same process. The recorder's library in C makes the same
names.
"""

import os
import time

_START = 19  # its place in /proc/PID/stat, counted from behind the name of the process


def stat(process, place):
    """Return a number from /proc/PID/stat, counted from behind the name of the process."""
    with open("/proc/%s/stat" % process) as file:
        return int(file.read().rpartition(")")[2].split()[place])


def start_ticks():
    """Return when this process was started, in clock ticks since boot."""
    return stat("self", _START)


def _find():
    try:
        namespace = os.readlink("/proc/self/ns/pid").partition("[")[2].rstrip("]")
        return "%d.%x-%x" % (os.getpid(), int(namespace), start_ticks())
    except (OSError, ValueError, IndexError):  # no Linux, or no /proc
        return "%d.0-%x" % (os.getpid(), time.time_ns())


_own, _parent = _find(), ""


def identity():
    """Return the identity of this process."""
    return _own


def parent():
    """Return the identity of the process that this one was forked from, "" where none is known."""
    return _parent


def _after_fork():
    global _own, _parent
    _own, _parent = _find(), _own


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
