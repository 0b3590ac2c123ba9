"""What a campaign counts."""

from __future__ import annotations

from collections import Counter
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


@dataclass(slots=True)
class Pairs:
    """Pairs of traces as runs of two ranks, and what became of what they were asked."""

    n_pairs: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    defects: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Costs:
    """What a command took of many files, and where that was beyond its bounds."""

    name: str
    n_files: int = 0
    most_cpu_s: float = 0.0
    most_bytes: int = 0
    share: float = 0.0
    """The most of the memory that its bound allows, as a share of that."""
    beyond: list[str] = field(default_factory=list)

    def count(self, cpu_s: float, peak_bytes: int, share: float) -> None:
        """Count a file."""
        self.n_files += 1
        self.most_cpu_s = max(self.most_cpu_s, cpu_s)
        self.most_bytes = max(self.most_bytes, peak_bytes)
        self.share = max(self.share, share)


@dataclass(slots=True)
class Patterns:
    """How the steps of the regular expressions of a room grew with the text."""

    name: str
    n_patterns: int = 0
    n_pumps: int = 0
    ratio: float = 0.0
    """The most that steps grew, as a share of what the text did."""
    beyond: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Growth:
    """How the CPU time of the commands grew with an execution of one shape."""

    name: str
    about: str
    n: int
    most_cpu_s: float = 0.0
    most_bytes: int = 0
    ratio: float = 0.0
    """The most that the CPU time grew."""
    command: str = ""
    """Which command's time grew most."""
    beyond: list[str] = field(default_factory=list)

    def count(self, command: str, cpu_s: float, ratio: float, peak_bytes: int) -> None:
        """Count a command."""
        self.most_cpu_s = max(self.most_cpu_s, cpu_s)
        self.most_bytes = max(self.most_bytes, peak_bytes)
        if ratio > self.ratio:
            self.ratio, self.command = ratio, command
