"""Which ranks the others wait for: whose delays waiting goes back to, and what they do more of."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import pandas as pd

from traceprof.facts.collectives.matches import Matches
from traceprof.facts.ranks.arrivals import excess_of_members, find_arrivals
from traceprof.facts.ranks.blame import Blame, find_blame
from traceprof.facts.ranks.causes import cause_of
from traceprof.facts.ranks.costs import cost_of
from traceprof.facts.ranks.ends import ENDS_TOGETHER, is_beyond_clocks
from traceprof.facts.ranks.groups import find_late_whole
from traceprof.facts.ranks.late_stages import find_late_stage, stages_of_members
from traceprof.facts.ranks.since import since_of
from traceprof.facts.ranks.waits import matches_in_step
from traceprof.measures.facts import of_window
from traceprof.model.grouping import rows_by_value
from traceprof.model.ranks import Ranks
from traceprof.model.tables import ABSENT
from traceprof.values import dataclass

__all__ = ["RankLateness", "lateness_of_ranks"]

_LEAST_COST_RATIO: Final = 0.01
_LEAST_SHARE_RATIO: Final = 0.5


@dataclass(frozen=True, slots=True)
class RankLateness:
    """What a rank costs the others, directly or along a chain of ranks that pass its delay on.

    ``charged_ns`` is what all others together waited because of it, ``cost_ns`` another one on
    average (no more than it does more itself), ``cost_ratio`` the share of that of the window.
    ``cause`` is what it does more of, by ``cause_ns`` in all; kernels that take longer take
    ``factor`` times as long; "" and None where that is not known, or nobody waits for it.
    ``phase`` is where its time between collectives is the longest beyond the median of the others,
    by ``excess_ns`` in all. ``since_ns`` is when it first held the others up by half of what is
    usual, from the start of the trace. ``ends_ns`` is how much the clocks differ where it came
    last: `is_unclear`, where they may account for it. Ranks whose whole stage, host or rack is late
    are no stragglers themselves.
    """

    member: int
    rank: int | None
    device: int | None
    is_straggler: bool
    is_unclear: bool
    cost_ns: int
    cost_ratio: float
    charged_ns: int
    last_ratio: float
    phase: str
    excess_ns: int
    since_ns: int | None
    last_count: int
    median_late_ns: float
    ends_ns: int
    host: str
    process: int
    stage: int | None = None
    cause: str = ""
    cause_ns: int | None = None
    factor: float | None = None

    @property
    def label(self) -> str:
        """What it is called."""
        return f"process {self.process}" if self.rank is None else f"rank {self.rank}"


@of_window
def lateness_of_ranks(ranks: Ranks) -> tuple[RankLateness, ...]:
    """Return the lateness of each rank, in the order of `find_members`.

    Nothing where no rank waited for another in step, or where the matches cannot be right.
    """
    blame = find_blame(ranks)
    if blame.why_not or not blame.busy_ns.any():
        return ()
    found = _measured(ranks, blame)
    late_whole, late_stage = find_late_whole(ranks), find_late_stage(ranks)
    excused = () if late_whole is None else late_whole[1].late_members
    excused = excused if late_stage is None else (*excused, *late_stage.late_members)
    return tuple(_judged(ranks, rank, blame, rank.member in excused) for rank in found)


def _measured(ranks: Ranks, blame: Blame) -> list[RankLateness]:
    """Return the lateness of each rank, not judged yet."""
    matches = matches_in_step(ranks)
    together = matches.table["spread_ns"].where(matches.table["op"].isin(ENDS_TOGETHER), 0)
    excess = excess_of_members(ranks)
    phases, sums = excess.columns.to_numpy(object), excess.to_numpy(np.float64)
    arrivals = find_arrivals(ranks)
    rows_of = rows_by_value(arrivals.array("member"))
    nothing = np.empty(0, np.intp)
    found = []
    for place in range(len(matches.members)):
        most = int(sums[place].argmax()) if len(phases) else 0
        phase = (str(phases[most]), int(np.rint(sums[place, most]))) if len(phases) else ("", 0)
        own = arrivals.where(rows_of.get(place, nothing))[["match", "late_ns"]]
        own = own.assign(
            last_member=own["match"].map(matches.table["last_member"]),
            spread_ns=own["match"].map(together),
        )
        found.append(_of_rank(ranks, blame, matches, place, own, phase))
    return found


def _of_rank(
    ranks: Ranks,
    blame: Blame,
    matches: Matches,
    place: int,
    own: pd.DataFrame,
    most: tuple[str, int],
) -> RankLateness:
    member = matches.members[place]
    last = own[own["last_member"].to_numpy() == place]
    late = last[last["late_ns"] > 0]
    phase, excess_ns = most
    is_most = blame.charged_ns[place] >= _LEAST_SHARE_RATIO * int(blame.charged_ns.sum())
    cost_ns = cost_of(ranks, (place,)) if is_most else int(blame.cost_ns[place])
    return RankLateness(
        member=place,
        rank=None if member.rank == ABSENT else member.rank,
        device=None if member.device == ABSENT else member.device,
        process=member.process,
        host=member.host,
        stage=stages_of_members(ranks).get(place),
        is_straggler=False,
        is_unclear=False,
        last_count=len(last),
        last_ratio=len(last) / len(own) if len(own) else 0.0,
        cost_ns=cost_ns,
        cost_ratio=cost_ns / (ranks.span.duration_ns or 1),
        charged_ns=int(blame.charged_ns[place]),
        median_late_ns=float(own["late_ns"].median()) if len(own) else 0.0,
        phase=phase if excess_ns > 0 else "",
        excess_ns=max(excess_ns, 0),
        since_ns=since_of(ranks, blame, (place,)) if cost_ns else None,
        ends_ns=int(late["spread_ns"].sum()),
    )


def _judged(ranks: Ranks, rank: RankLateness, blame: Blame, is_excused: bool) -> RankLateness:
    """Return the rank with the verdict; one whose host is late as a whole is no straggler."""
    times = int((blame.origins["member"] == rank.member).sum())
    is_late = (
        not is_excused
        and rank.cost_ratio >= _LEAST_COST_RATIO
        and rank.charged_ns >= _LEAST_SHARE_RATIO * int(blame.charged_ns.sum())
        and times > 1
    )
    is_clear = is_beyond_clocks(rank.cost_ns, rank.ends_ns)
    judged = replace(rank, is_straggler=is_late and is_clear, is_unclear=is_late and not is_clear)
    cause = cause_of(ranks, rank.member) if judged.is_straggler else None
    if cause is None:
        return judged
    return replace(judged, cause=cause.text, cause_ns=cause.excess_ns, factor=cause.factor)
