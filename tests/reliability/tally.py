"""What a campaign counts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Faults:
    """Faults of one kind: how often injected, how often survived, and what was lost."""

    name: str
    injected: int = 0
    failed: int = 0
    """Of how many the command could not do what was asked."""
    lost: list[str] = field(default_factory=list)
    n_lost: int = 0

    def count(self, what: str, harms: Iterable[str], code: int = 0) -> None:
        """Count one that was injected into ``what``; it is survived if nothing was harmed."""
        self.injected += 1
        self.failed += code != 0
        found = list(harms)
        if found:
            self.n_lost += 1
            self.lost.append(f"{what}: {'; '.join(found)}")

    @property
    def survived(self) -> int:
        """How many did no harm."""
        return self.injected - self.n_lost
