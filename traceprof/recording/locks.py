"""Files that a process holds: the system lets them go when it dies, in whatever container it is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

if sys.platform != "win32":
    import fcntl

__all__ = ["held", "is_held"]


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold the file ``path``, which is made where it is not there, while the block runs."""
    with path.open("a") as file:
        if sys.platform != "win32":
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def is_held(path: Path) -> bool:
    """Return whether a process holds the file ``path``."""
    if sys.platform == "win32":
        return False
    try:
        with path.open("r") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
