"""What a part of a trace still knows of the whole one, whatever its window holds.

What was recorded stays recorded where none of it lies in the window, and a device that rests
there is still one that worked.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from traceprof.model.tables import TABLES
from traceprof.model.window import TimeWindow
from traceprof.values import dataclass

__all__ = ["WHOLE", "CutNote", "noted_names", "noted_numbers"]

_MOST: Final = 1 << 20
"""Devices are numbered from 0; no machine has so many."""


@dataclass(frozen=True, slots=True)
class CutNote:
    """What a file says of how it was cut.

    ``window`` is None for a file that was not cut. ``recorded`` names the tables that the whole
    had, ``devices`` those that worked in it, ``tables`` what alone was kept, None for everything.
    """

    window: TimeWindow | None = None
    recorded: frozenset[str] = frozenset()
    devices: frozenset[int] = frozenset()
    tables: frozenset[str] | None = None

    def recorded_of(self, has_rows: Collection[str], recorded: Collection[str]) -> frozenset[str]:
        """Return what was recorded: what ``recorded`` says, but for what was not kept.

        ``has_rows`` names the tables that have rows.
        """
        found = frozenset(recorded) | self.recorded
        if self.tables is None:
            return found
        kept = {name for name in found if not TABLES[name].has_times} | set(has_rows)
        return found & (kept | self.tables)


WHOLE: Final = CutNote()


def noted_names(value: Any) -> frozenset[str]:
    """Return the names of tables in a list, as a file has it; none of what is no list."""
    names = value if isinstance(value, list) else []
    return frozenset(name for name in names if isinstance(name, str) and name in TABLES)


def noted_numbers(value: Any) -> frozenset[int]:
    """Return the numbers of devices in a list, as a file has it."""
    numbers = value if isinstance(value, list) else []
    return frozenset(one for one in numbers if type(one) is int and 0 <= one < _MOST)
