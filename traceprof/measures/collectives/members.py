"""Who takes part in collectives: the ranks of a trace."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceprof.measures.facts import fact
from traceprof.model.compact import CompactTable
from traceprof.model.grouping import groups_of
from traceprof.model.intervals import Int64Array
from traceprof.model.ranks import Ranks
from traceprof.model.table import Table
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace


@dataclass(frozen=True, slots=True)
class Member:
    """One rank: a process, or one device of a process that drives several and has no rank.

    ``rank`` is `ABSENT` where nothing tells it, ``device`` where the member is the whole process;
    ``host`` and ``rack`` are "" where nothing tells them.
    """

    process: int
    device: int = ABSENT
    rank: int = ABSENT
    host: str = ""
    rack: str = ""

    @property
    def known_rank(self) -> int | None:
        """Its rank, None where nothing tells it."""
        return None if self.rank == ABSENT else self.rank

    @property
    def known_device(self) -> int | None:
        """Its device, None where it is the whole process."""
        return None if self.device == ABSENT else self.device

    @property
    def label(self) -> str:
        """What it is called: its rank where that is known."""
        if self.rank != ABSENT:
            return f"rank {self.rank}"
        return f"GPU {self.device}" if self.device != ABSENT else f"process {self.process}"


@fact
def find_members(ranks: Ranks) -> tuple[Member, ...]:
    """Return the ranks of the recording, in the order of their numbers.

    Processes that have a rank, and those with kernels or collectives.
    """
    members = [member for own in ranks.each(_members_of) for member in own]
    return tuple(sorted(members, key=lambda m: (m.rank, m.process, m.device)))


def _members_of(trace: Trace) -> list[Member]:
    processes = trace.processes.to_frame().drop_duplicates("process").set_index("process")
    ranks, hosts = processes["rank"].to_dict(), processes["host"].to_dict()
    racks = processes["rack"].to_dict()
    used = trace.kernels.to_frame()[["process", "device"]].drop_duplicates()
    devices = used.groupby("process")["device"].apply(lambda own: sorted(own.tolist())).to_dict()
    ranked = {int(str(process)) for process, rank in ranks.items() if rank != ABSENT}
    owners = np.concatenate([used["process"], trace.collectives.to_frame()["process"]])
    found: list[Member] = []
    for process in ranked | set(np.unique(owners).tolist()):
        rank, host = int(ranks.get(process, ABSENT)), str(hosts.get(process, ""))
        rack = str(racks.get(process, ""))
        own = devices.get(process, [])
        split = own if rank == ABSENT and len(own) > 1 else [ABSENT]
        found += (Member(process, int(device), rank, host, rack) for device in split)
    return found


def member_of_rows(members: tuple[Member, ...], rows: Table | CompactTable) -> Int64Array:
    """Return the place in ``members`` of each row with a process and a device, -1 for none."""
    place = {(member.process, member.device): i for i, member in enumerate(members)}
    lanes = groups_of(*(np.asarray(rows[name]) for name in ("process", "device")))
    found = [place.get((p, ABSENT), place.get((p, device), -1)) for p, device in lanes.keys]
    return np.asarray(np.array(found, np.int64)[lanes.number])
