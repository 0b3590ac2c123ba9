"""How much memory there is for Traces."""

from __future__ import annotations

import os
from typing import Final

__all__ = ["usable_bytes"]

_WHERE_UNKNOWN: Final = 8_000_000_000
_SHARE: Final = 0.5
"""The other half is for what one question takes meanwhile, and for others."""


def usable_bytes(n_processes: int) -> int:
    """Return how much one of so many processes may keep."""
    return int(_SHARE * _physical_bytes() / max(1, n_processes))


def _physical_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return _WHERE_UNKNOWN
