"""Which events of a Kineto trace become rows: time 0 of a trace is the first of them."""

from __future__ import annotations

from typing import Final

from traceprof.formats.kineto.categories import (
    COPIES,
    FUNCTIONS,
    KERNELS,
    MEMORY,
    ON_HOST,
    OVERHEADS,
    SYNCS,
)
from traceprof.formats.kineto.host import MODULE_PREFIX
from traceprof.formats.kineto.parse import Event

__all__ = ["PHASES", "is_taken"]

PHASES: Final = ("X", "i")
_TAKEN: Final = frozenset((*KERNELS, *COPIES, *ON_HOST, *SYNCS, *OVERHEADS, *MEMORY))


def is_taken(event: Event) -> bool:
    """Return whether an event of `PHASES` becomes a row."""
    if event.ph == "i":
        return event.cat in MEMORY
    if event.cat in FUNCTIONS:  # by far the most events of a trace with stacks
        return str(event.name).startswith(MODULE_PREFIX)
    return event.cat in _TAKEN
