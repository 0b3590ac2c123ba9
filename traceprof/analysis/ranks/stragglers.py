"""Stragglers: the ranks that the others wait for, in which phase they lose the time, since when.

In a shared collective everybody waits for the last rank to come, so that the wall times of all
ranks are equal and the slow one is the one that waits the least.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Final

import numpy as np
import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.facts.collectives.matches import Matches, find_matches
from traceprof.facts.ranks.ends import describe_clocks, is_beyond_clocks, spread_of_ends_ns
from traceprof.facts.ranks.groups import describe_lateness, find_late_whole
from traceprof.facts.ranks.run_ups import excess_of_phases, find_run_ups
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace
from traceprof.units import format_duration, format_ratio

__all__ = ["ANALYSIS", "RankLateness", "Stragglers", "measure_stragglers"]

_LEAST_COST_RATIO: Final = 0.01
_LEAST_SHARE_RATIO: Final = 0.5


@dataclass(frozen=True, slots=True)
class RankLateness:
    """How late a rank comes to shared collectives, against the median of the other ranks.

    ``cost_ns`` adds up how long it held up the median other where it came last, ``cost_ratio`` is
    its share of the window. ``phase`` is where its run-ups are the longest beyond the median of
    the others, by ``excess_ns`` in all. ``since_ns`` is when it first held the others up by half
    of its usual lateness, from the start of the trace. Ranks whose whole host or rack is late are
    no stragglers themselves: ``notes`` name the host.
    """

    rank: int | None
    is_straggler: bool
    cost_ns: int
    cost_ratio: float
    last_ratio: float
    phase: str
    excess_ns: int
    since_ns: int | None
    last_count: int
    median_late_ns: float
    host: str
    process: int


@dataclass(frozen=True, slots=True)
class Stragglers:
    """The ranks by what they cost the others, the most first."""

    ranks: tuple[RankLateness, ...]
    notes: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return one row per rank."""
        columns = list(RankLateness.__dataclass_fields__)
        return pd.DataFrame([asdict(rank) for rank in self.ranks], columns=columns)


def measure_stragglers(trace: Trace) -> Stragglers:
    """Return which ranks the others wait for in the window, and where these lose the time."""
    matches = find_matches(trace).collectives
    if not matches.is_shared:
        return Stragglers((), ("no collective is shared by several ranks",))
    run_ups = find_run_ups(trace)
    excess = excess_of_phases(trace).drop(columns="match")
    excess = excess.groupby("member").sum()
    ranks = [
        _measure(trace, matches, place, run_ups, excess) for place in range(len(matches.members))
    ]
    whole = sum(rank.cost_ns for rank in ranks)
    late_whole = find_late_whole(trace)
    excused = () if late_whole is None else late_whole[1].late_members
    judged = [_judged(rank, whole, place in excused) for place, rank in enumerate(ranks)]
    on_groups = [] if late_whole is None else [describe_lateness(*late_whole)]
    for place, rank in enumerate(judged):
        ends_ns = spread_of_ends_ns(_where_late(run_ups, matches, place))
        if rank.is_straggler and not is_beyond_clocks(rank.cost_ns, ends_ns):
            judged[place] = replace(rank, is_straggler=False)
            on_groups.append(describe_clocks(_name(rank), rank.cost_ns, ends_ns))
    judged.sort(key=lambda rank: -rank.cost_ns)
    return Stragglers(tuple(judged), _notes(trace, judged, matches, on_groups))


def _where_late(run_ups: pd.DataFrame, matches: Matches, place: int) -> pd.DataFrame:
    """Return the collectives to which a rank comes last, and late."""
    late = run_ups.loc[(run_ups["member"] == place) & (run_ups["late_ns"] > 0), "match"]
    table = matches.table[matches.table["last_member"] == place]
    return table[table.index.isin(late)]


def _name(rank: RankLateness) -> str:
    return f"process {rank.process}" if rank.rank is None else f"rank {rank.rank}"


def _measure(
    trace: Trace, matches: Matches, place: int, run_ups: pd.DataFrame, excess: pd.DataFrame
) -> RankLateness:
    member = matches.members[place]
    own = run_ups[run_ups["member"] == place]
    last = own[own["match"].map(matches.table["last_member"]).to_numpy() == place]
    late = last[last["late_ns"] > 0]
    cost_ns = int(late["late_ns"].sum())
    phases = excess.loc[place] if place in excess.index else pd.Series(dtype=float)
    most = 0 if phases.empty else int(np.rint(phases.max()))
    phase = str(phases.idxmax()) if most > 0 else ""
    usual = float(last["late_ns"].median()) if len(last) else 0.0
    held_up = late[late["late_ns"] >= usual / 2] if usual > 0 else late
    since = int(held_up["end_ns"].min()) if len(held_up) else None
    return RankLateness(
        rank=None if member.rank == ABSENT else member.rank,
        process=member.process,
        host=member.host,
        is_straggler=False,
        last_count=len(last),
        last_ratio=len(last) / len(own) if len(own) else 0.0,
        cost_ns=cost_ns,
        cost_ratio=cost_ns / (trace.span.duration_ns or 1),
        median_late_ns=float(own["late_ns"].median()) if len(own) else 0.0,
        phase=phase,
        excess_ns=most if phase else 0,
        since_ns=None if since is None else since - trace.whole.span.start_ns,
    )


def _judged(rank: RankLateness, whole_cost_ns: int, is_excused: bool) -> RankLateness:
    """Return the rank with the verdict; one whose host is late as a whole is no straggler."""
    is_straggler = (
        not is_excused
        and rank.cost_ratio >= _LEAST_COST_RATIO
        and rank.cost_ns >= _LEAST_SHARE_RATIO * whole_cost_ns
        and rank.last_count > 1
    )
    return RankLateness(**{**asdict(rank), "is_straggler": is_straggler})


def _notes(
    trace: Trace, ranks: list[RankLateness], matches: Matches, on_groups: list[str]
) -> tuple[str, ...]:
    waited_ns = int(matches.table["waited_ns"].sum())
    mean_ns = waited_ns / len(matches.members)
    duration = trace.span.duration_ns or 1
    notes = [
        f"a rank waits {format_duration(mean_ns)} for others on average, "
        f"{format_ratio(mean_ns / duration)} of the window, in {len(matches.table)} collectives"
    ]
    for rank in ranks:
        if rank.is_straggler:
            where = f", mostly in {rank.phase}" if rank.phase else ""
            since = "" if rank.since_ns is None else f", since {format_duration(rank.since_ns)}"
            notes.insert(
                0,
                f"{_name(rank)} is a straggler: last to {format_ratio(rank.last_ratio)} of the "
                f"collectives; it costs the others {format_duration(rank.cost_ns)} "
                f"({format_ratio(rank.cost_ratio)} of the window){where}{since}",
            )
    if len(notes) == 1 and not on_groups:
        notes.append("no single rank is to blame for more than half of it")
    return (*on_groups, *notes)


ANALYSIS = Analysis(
    name="stragglers",
    needs=(),
    run=measure_stragglers,
)
