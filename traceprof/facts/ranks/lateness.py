"""How late each rank comes to shared collectives, and which one the others wait for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pandas as pd

from traceprof.facts.cache import of_window
from traceprof.facts.collectives.matches import Matches, find_matches
from traceprof.facts.ranks.arrivals import excess_of_phases, find_arrivals
from traceprof.facts.ranks.ends import ENDS_TOGETHER, is_beyond_clocks
from traceprof.facts.ranks.groups import find_late_whole
from traceprof.model.ranks import Ranks
from traceprof.model.tables import ABSENT

__all__ = ["RankLateness", "lateness_of_ranks"]

_LEAST_COST_RATIO: Final = 0.01
_LEAST_SHARE_RATIO: Final = 0.5


@dataclass(frozen=True, slots=True)
class RankLateness:
    """How late a rank comes to shared collectives, against the median of the other ranks.

    ``cost_ns`` adds up how long it held up the median other where it came last, ``cost_ratio`` is
    its share of the window. ``phase`` is where its time before them is the longest beyond the
    median of the others, by ``excess_ns`` in all. ``since_ns`` is when it first held the others up
    by half of its usual lateness, from the start of the trace. ``ends_ns`` is how much the clocks
    differ where it came last: `is_unclear`, where they may account for it. Ranks whose whole host
    or rack is late are no stragglers themselves.
    """

    member: int
    rank: int | None
    device: int | None
    is_straggler: bool
    is_unclear: bool
    cost_ns: int
    cost_ratio: float
    last_ratio: float
    phase: str
    excess_ns: int
    since_ns: int | None
    last_count: int
    median_late_ns: float
    ends_ns: int
    host: str
    process: int

    @property
    def label(self) -> str:
        """What it is called."""
        return f"process {self.process}" if self.rank is None else f"rank {self.rank}"


@of_window
def lateness_of_ranks(ranks: Ranks) -> tuple[RankLateness, ...]:
    """Return the lateness of each rank, in the order of `find_members`.

    Nothing where no collective is shared.
    """
    matches = find_matches(ranks).collectives
    if not matches.is_shared:
        return ()
    found = _measured(ranks, matches)
    whole = sum(rank.cost_ns for rank in found)
    late_whole = find_late_whole(ranks)
    excused = () if late_whole is None else late_whole[1].late_members
    return tuple(_judged(rank, whole, rank.member in excused) for rank in found)


def _measured(ranks: Ranks, matches: Matches) -> list[RankLateness]:
    """Return the lateness of each rank, not judged yet."""
    arrivals = find_arrivals(ranks)
    together = matches.table["spread_ns"].where(matches.table["op"].isin(ENDS_TOGETHER), 0)
    arrivals = arrivals[["match", "member", "end_ns", "late_ns"]].assign(
        last_member=arrivals["match"].map(matches.table["last_member"]),
        spread_ns=arrivals["match"].map(together),
    )
    rows_of = arrivals.groupby("member").indices
    by_member = excess_of_phases(ranks).drop(columns="match").groupby("member")
    excess = by_member.sum().reindex(range(len(matches.members)), fill_value=0)
    phases, sums = excess.columns.to_numpy(object), excess.to_numpy(np.float64)
    most = sums.argmax(axis=1)
    nothing = np.empty(0, np.intp)
    return [
        _of_rank(
            ranks,
            matches,
            place,
            arrivals.iloc[rows_of.get(place, nothing)],
            (str(phases[most[place]]), int(np.rint(sums[place, most[place]]))),
        )
        for place in range(len(matches.members))
    ]


def _of_rank(
    ranks: Ranks, matches: Matches, place: int, own: pd.DataFrame, most: tuple[str, int]
) -> RankLateness:
    member = matches.members[place]
    last = own[own["last_member"].to_numpy() == place]
    late = last[last["late_ns"] > 0]
    cost_ns = int(late["late_ns"].sum())
    phase, excess_ns = most
    usual = float(last["late_ns"].median()) if len(last) else 0.0
    held_up = late[late["late_ns"] >= usual / 2] if usual > 0 else late
    since = int(held_up["end_ns"].min()) if len(held_up) else None
    return RankLateness(
        member=place,
        rank=None if member.rank == ABSENT else member.rank,
        device=None if member.device == ABSENT else member.device,
        process=member.process,
        host=member.host,
        is_straggler=False,
        is_unclear=False,
        last_count=len(last),
        last_ratio=len(last) / len(own) if len(own) else 0.0,
        cost_ns=cost_ns,
        cost_ratio=cost_ns / (ranks.span.duration_ns or 1),
        median_late_ns=float(own["late_ns"].median()) if len(own) else 0.0,
        phase=phase if excess_ns > 0 else "",
        excess_ns=max(excess_ns, 0),
        since_ns=None if since is None else since - ranks.whole.span.start_ns,
        ends_ns=int(late["spread_ns"].sum()),
    )


def _judged(rank: RankLateness, whole_cost_ns: int, is_excused: bool) -> RankLateness:
    """Return the rank with the verdict; one whose host is late as a whole is no straggler."""
    is_late = (
        not is_excused
        and rank.cost_ratio >= _LEAST_COST_RATIO
        and rank.cost_ns >= _LEAST_SHARE_RATIO * whole_cost_ns
        and rank.last_count > 1
    )
    is_clear = is_beyond_clocks(rank.cost_ns, rank.ends_ns)
    return replace(rank, is_straggler=is_late and is_clear, is_unclear=is_late and not is_clear)
