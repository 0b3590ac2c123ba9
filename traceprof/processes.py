"""Processes of our own: how many make sense, and how they are started."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Final

__all__ = ["alone", "n_processors"]

_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")


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
