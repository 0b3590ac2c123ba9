"""How much of a measurement is done, for whoever shows it; nothing is measured by it."""

from __future__ import annotations

from typing import Final

from traceprof.values import dataclass

__all__ = ["PROGRESS", "Progress"]


@dataclass
class Progress:
    """So many parts of so many: analyses, and the rules of the findings.

    ``is_told``: others tell how far they are, on a line of their own.
    """

    done: int = 0
    total: int = 0
    is_told: bool = False

    def begin(self, total: int) -> None:
        """Say that ``total`` parts are to come."""
        self.done, self.total = 0, total

    def advance(self) -> None:
        """Say that one more is done."""
        self.done = min(self.done + 1, self.total)


PROGRESS: Final = Progress()
"""That of this process."""
