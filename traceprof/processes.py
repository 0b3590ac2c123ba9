"""Processes of our own: how many make sense, how they are started, what memory they keep."""

from __future__ import annotations

import ctypes
import math
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Final

__all__ = ["OWN", "alone", "is_own", "keep_freed_memory", "n_processors"]

OWN: Final = "TRACEPROF_OWN_PROCESS"
"""The variable of processes that are commands of ours, or work for one, and do nothing else."""

_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_MAX: Final = -4
_M_ARENA_MAX: Final = -8
_KEPT_BYTES: Final = 1 << 30
"""More than so much free memory goes back to the system."""


def is_own() -> bool:
    """Return whether this process does nothing but our work, so that libraries can be set for it.

    It does not where somebody else's program imports us.
    """
    return bool(os.environ.get(OWN))


def n_processors() -> int:
    """Return how many processors this process may use."""
    allowed = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        allowed = len(os.sched_getaffinity(0))
    return int(max(1, min(allowed, _quota())))


def _quota() -> float:
    """Return of how many processors a container may use the time."""
    try:
        quota, period = map(float, _QUOTA.read_text().split())
        return quota / period
    except (OSError, ValueError, ZeroDivisionError):  # "max", or no such group
        return math.inf


@contextmanager
def alone() -> Iterator[None]:
    """Keep a new process from running the program that we are part of, and from Ctrl-C."""
    main = sys.modules["__main__"]
    is_main_thread = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN) if is_main_thread else None
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        if is_main_thread:
            signal.signal(signal.SIGINT, before or signal.default_int_handler)


def keep_freed_memory() -> None:
    """Let the C library keep freed memory for what comes next, where it is glibc.

    By default it maps every large array anew and gives it back when it is freed, so that the kernel
    fills each page with zeros again: for one file of 24 M events that took 35 of 89 s of processor
    time (13 of 68 with it), at 5 % more memory.
    """
    with suppress(AttributeError, OSError, TypeError):
        set_option = ctypes.CDLL(None).mallopt
        set_option(_M_MMAP_MAX, 0)
        set_option(_M_ARENA_MAX, 1)  # what one thread frees is there for the others
        set_option(_M_TRIM_THRESHOLD, _KEPT_BYTES)
