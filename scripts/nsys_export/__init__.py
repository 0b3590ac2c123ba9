"""Nsys exports of a generated training job: see `scripts/generate_nsys.py`."""

from __future__ import annotations

from typing import Final

__all__ = ["EVENTS_PER_KERNEL"]

EVENTS_PER_KERNEL: Final = 2.93
"""Rows of all event tables for each kernel, which hardly depends on the size."""
