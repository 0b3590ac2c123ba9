"""How much memory there is for Traces, how much a process has taken, and how it gives it back."""

from __future__ import annotations

import ctypes
import gc
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

__all__ = ["give_back", "share_of", "taken_bytes", "trim", "usable_bytes"]

_WHERE_UNKNOWN: Final = 8_000_000_000
_SHARE: Final = 0.5
"""The other half is for what one question takes meanwhile, and for others."""
_LIMITS: Final = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_STATM: Final = Path("/proc/self/statm")


def usable_bytes(n_processes: int) -> int:
    """Return how much one of so many processes on this machine may keep."""
    return share_of(_limit_bytes() // max(1, n_processes))


def share_of(n_bytes: int) -> int:
    """Return how much a process may keep that may take ``n_bytes``."""
    return int(_SHARE * n_bytes)


def taken_bytes() -> int | None:
    """Return how much memory this process has that no file holds; None where no one tells."""
    try:
        _, resident, of_files, *_ = map(int, _STATM.read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return None
    return (resident - of_files) * os.sysconf("SC_PAGE_SIZE")


def give_back() -> None:
    """Free what nobody refers to, and let the C library return it, where it can be asked to.

    A trace and its facts refer to each other; glibc keeps freed pieces of some megabytes.
    """
    gc.collect()
    trim()


def trim() -> None:
    """Let the C library return what is free, where it can be asked to."""
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def _physical_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return _WHERE_UNKNOWN


def _limit_bytes() -> int:
    """Return what all processes may take: a container less than there is."""
    known = [_physical_bytes()]
    for path in _LIMITS:
        with suppress(OSError, ValueError):  # "max" where there is none
            known.append(int(Path(path).read_text(encoding="ascii")))
    return min(known)
