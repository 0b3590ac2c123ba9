"""The ranks side by side: where the time of each went, and who waited for whom."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.analysis.device.breakdown import DeviceBreakdown
from traceprof.analysis.ranks.parts import measure_parts
from traceprof.facts.collectives.matches import Matches, find_matches
from traceprof.facts.collectives.members import find_members
from traceprof.facts.collectives.parallelism import describe_parallelism
from traceprof.facts.steps.find import find_steps
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace

__all__ = ["ANALYSIS", "RankTime", "Ranks", "measure_ranks"]


@dataclass(frozen=True, slots=True)
class RankTime:
    """One rank: the parts of its device's time, its steps, and its share in the waiting.

    The parts are None where device work was not recorded. ``waited_ns`` is how long it waited in
    shared collectives for the last rank to come, ``last_ratio`` the share of them to which it
    came last itself; None where no collective is shared.
    """

    rank: int | None
    device: str
    step_ns: float | None
    compute_ns: int | None
    exposed_communication_ns: int | None
    idle_ns: int | None
    waited_ns: int | None
    last_ratio: float | None
    exposed_transfer_ns: int | None
    device_memory_ns: int | None
    collectives_count: int
    host: str
    process: int


@dataclass(frozen=True, slots=True)
class Ranks:
    """All ranks, in the order of their numbers."""

    ranks: tuple[RankTime, ...]
    notes: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return one row per rank."""
        columns = list(RankTime.__dataclass_fields__)
        return pd.DataFrame([asdict(rank) for rank in self.ranks], columns=columns)


def measure_ranks(trace: Trace) -> Ranks:
    """Return where the time of each rank went in the window."""
    members = find_members(trace)
    matches = find_matches(trace)
    steps = find_steps(trace).table
    step_ns = (steps["end_ns"] - steps["start_ns"]).groupby(steps["process"]).mean()
    parts = measure_parts(trace, members)
    rows = tuple(
        _measure(place, matches, parts.get(member), step_ns.get(member.process))
        for place, member in enumerate(members)
    )
    return Ranks(rows, (*_on_matches(matches), *describe_parallelism(trace)))


def _measure(
    place: int, matches: Matches, parts: DeviceBreakdown | None, step_ns: float | None
) -> RankTime:
    member = matches.members[place]
    own = matches.rows[(matches.rows["member"] == place) & (matches.rows["match"] >= 0)]
    shared = matches.table.loc[own["match"]]
    waited = shared["last_start_ns"].to_numpy(np.int64) - own["start_ns"].to_numpy(np.int64)
    is_last = shared["last_member"].to_numpy() == place
    return RankTime(
        rank=None if member.rank == ABSENT else member.rank,
        host=member.host,
        process=member.process,
        device="" if parts is None else parts.device,
        step_ns=None if step_ns is None else float(step_ns),
        compute_ns=None if parts is None else parts.compute_ns,
        exposed_communication_ns=None if parts is None else parts.exposed_communication_ns,
        exposed_transfer_ns=None if parts is None else parts.exposed_transfer_ns,
        device_memory_ns=None if parts is None else parts.device_memory_ns,
        idle_ns=None if parts is None else parts.idle_ns,
        waited_ns=int(waited.sum()) if len(own) else None,
        last_ratio=float(is_last.mean()) if len(own) else None,
        collectives_count=len(own),
    )


def _on_matches(matches: Matches) -> list[str]:
    if not matches.is_shared:
        return ["no collective is shared by several ranks: who waited for whom is not known"]
    alone = int((matches.rows["match"] < 0).sum())
    fewer = int((matches.table["members"] < len(matches.members)).sum())
    notes = [f"{len(matches.table)} collectives are shared"]
    if fewer:
        notes.append(f"{fewer} of them by some of the {len(matches.members)} ranks only")
    if alone:
        notes.append(f"{alone} collectives of single ranks have no partner in the trace")
    return [", ".join(notes)]


ANALYSIS = Analysis(
    name="ranks",
    needs=(),
    run=measure_ranks,
)
