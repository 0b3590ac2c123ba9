"""The files of a run, one for each rank, as they were read: not yet on one clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from traceprof.errors import UsageError
from traceprof.model.tables import ABSENT, TABLES, make_table
from traceprof.model.trace import Trace
from traceprof.values import dataclass

__all__ = ["Life", "RankTrace", "RunFiles", "of_process"]


@dataclass(frozen=True, slots=True, eq=False)
class RankTrace:
    """The trace of one rank, and how it is known that it is this rank's.

    ``rank`` and ``local_rank`` are `ABSENT` where nothing tells them, ``host`` and ``rack`` "".
    """

    trace: Trace
    rank: int = ABSENT
    local_rank: int = ABSENT
    host: str = ""
    known_from: str = ""
    rack: str = ""


@dataclass(frozen=True, slots=True)
class Life:
    """One start of one rank until it ended; times in ns since 1970.

    ``life`` numbers the starts of the program, 0 the first. ``ended`` is finished, failed or
    killed, "" where it is not known. ``launcher`` names what started it, of which a host may have
    several, and ``world_size`` is how many ranks there were, `ABSENT` where nothing tells.
    """

    life: int
    rank: int
    path: str
    host: str
    start_ns: int
    end_ns: int
    ended: str = ""
    world_size: int = ABSENT
    launcher: str = ""

    def numbered(self, life: int) -> Life:
        """Return the same as a part of another life."""
        return replace(self, life=life)


@dataclass(frozen=True, slots=True, eq=False)
class RunFiles:
    """One execution.

    ``members`` are sorted by rank. ``world_size`` is how many ranks the program had, `ABSENT`
    where nothing tells. ``warnings`` are one-line sentences about what is missing or guessed.
    ``lives`` are all starts of its ranks where they are known; ``members`` are those of ``life``.
    """

    label: str
    members: tuple[RankTrace, ...]
    world_size: int = ABSENT
    warnings: tuple[str, ...] = ()
    lives: tuple[Life, ...] = ()
    life: int = 0

    def __len__(self) -> int:
        return len(self.members)

    def __iter__(self) -> Iterator[RankTrace]:
        return iter(self.members)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that have a trace."""
        return tuple(member.rank for member in self.members)

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """The ranks that the program had and the run has no trace of."""
        expected = max(self.world_size, max(self.ranks, default=ABSENT) + 1)
        return tuple(rank for rank in range(expected) if rank not in self.ranks)

    def of_rank(self, rank: int) -> Trace:
        """Return the trace of a rank.

        Raises:
            UsageError: the run has none.
        """
        for member in self.members:
            if member.rank == rank:
                return member.trace
        known = ", ".join(map(str, self.ranks))
        raise UsageError(f"no trace of rank {rank}: this run has ranks {known}")

    def to_frame(self) -> pd.DataFrame:
        """Return one row for each member: who it is, how that is known, and its file."""
        return pd.DataFrame(
            {
                "rank": [_known(member.rank) for member in self.members],
                "local_rank": [_known(member.local_rank) for member in self.members],
                "host": [member.host for member in self.members],
                "rack": [member.rack for member in self.members],
                "known_from": [member.known_from for member in self.members],
                "format": [member.trace.info.format for member in self.members],
                "path": [member.trace.info.path for member in self.members],
            }
        )


def _known(number: int) -> int | None:
    return None if number == ABSENT else number


def of_process(trace: Trace, process: int) -> Trace:
    """Return what one process did, on the clock and over the time of the whole trace.

    What belongs to no process (samples, devices, environment) stays.
    """
    tables = {name: trace.table(name) for name in TABLES}
    mine: dict[str, Any] = {
        name: frame[frame["process"] == process].reset_index(drop=True)
        for name, frame in tables.items()
        if "process" in frame
    }
    worked = np.unique(np.concatenate([mine["kernels"]["device"], mine["copies"]["device"]]))
    devices = trace.devices.assign(used=trace.devices["device"].isin(worked).astype("int64"))
    columns = {str(name): devices[name] for name in devices}
    return replace(trace, **mine, devices=make_table("devices", columns))
