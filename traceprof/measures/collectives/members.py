"""Find the ranks that take part in collectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from traceprof.measures.facts import fact
from traceprof.model.grouping import groups_of
from traceprof.model.intervals import Int64Array
from traceprof.model.ranks import Ranks
from traceprof.model.table import Table
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace

_MAX_LISTED_RANKS: Final = 4


@dataclass(frozen=True, slots=True)
class Member:
    """One rank: a process, or one device of a process that drives several devices and has no rank.

    ``rank`` is `ABSENT` if unknown. ``device`` is `ABSENT` if the member is the whole process.
    ``host`` and ``rack`` are "" if unknown.
    """

    process: int
    device: int = ABSENT
    rank: int = ABSENT
    host: str = ""
    rack: str = ""

    @property
    def known_rank(self) -> int | None:
        """The rank; None if unknown."""
        return None if self.rank == ABSENT else self.rank

    @property
    def known_device(self) -> int | None:
        """The device; None if the member is the whole process."""
        return None if self.device == ABSENT else self.device

    @property
    def label(self) -> str:
        """The name for display: the rank if known, else the GPU or the process."""
        if self.rank != ABSENT:
            return f"rank {self.rank}"
        return f"GPU {self.device}" if self.device != ABSENT else f"process {self.process}"


@fact
def find_members(ranks: Ranks) -> tuple[Member, ...]:
    """Return the ranks of the recording, sorted by rank, process, and device.

    Members are processes with a rank, and processes with kernels or collectives.
    """
    members = [member for of_part in ranks.each(_members_of) for member in of_part]
    return tuple(sorted(members, key=lambda m: (m.rank, m.process, m.device)))


def _members_of(trace: Trace) -> list[Member]:
    # The first row of a process counts.
    """Return the members in one trace. A process without a rank is split by device."""
    known = {row["process"]: row for row in reversed(trace.processes.rows())}
    devices: dict[int, list[int]] = {}
    for process, device in find_device_users(trace):
        devices.setdefault(process, []).append(device)
    ranked = {process for process, row in known.items() if row["rank"] != ABSENT}
    found: list[Member] = []
    for process in ranked | set(devices) | set(np.unique(trace.collectives["process"]).tolist()):
        row = known.get(process, {})
        rank, used = row.get("rank", ABSENT), devices.get(process, [])
        split = used if rank == ABSENT and len(used) > 1 else [ABSENT]
        host, rack = row.get("host", ""), row.get("rack", "")
        found += (Member(process, device, rank, host, rack) for device in split)
    return found


def find_device_users(trace: Trace) -> list[tuple[int, ...]]:
    """Return the distinct (process, device) pairs of the kernels, sorted."""
    return groups_of(trace.kernels["process"], trace.kernels["device"]).keys


def member_of_rows(members: tuple[Member, ...], rows: Table) -> Int64Array:
    """Return the position in ``members`` of each row, by process and device; -1 for no member."""
    place = {(member.process, member.device): i for i, member in enumerate(members)}
    lanes = groups_of(rows["process"], rows["device"])
    found = [place.get((p, ABSENT), place.get((p, device), -1)) for p, device in lanes.keys]
    return np.asarray(np.array(found, np.int64)[lanes.number])


def list_members(members: Sequence[Member]) -> str:
    """Return the labels of the first members and the number of the others, for a sentence."""
    labels = [member.label for member in members[:_MAX_LISTED_RANKS]]
    more = len(members) - len(labels)
    return ", ".join(labels) + (f" and {more} more" if more else "")
