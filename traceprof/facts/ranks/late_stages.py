"""A stage of a pipeline that is slow as a whole: all its ranks do more than those of others."""

from __future__ import annotations

from typing import Final

import numpy as np

from traceprof.facts.collectives.members import find_members
from traceprof.facts.ranks.blame import find_blame
from traceprof.facts.ranks.costs import cost_of
from traceprof.facts.ranks.groups import GroupLateness
from traceprof.facts.ranks.since import since_of
from traceprof.facts.ranks.stages import find_stages
from traceprof.measures.facts import of_window
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note

__all__ = ["describe_stage", "find_late_stage", "stages_of_members"]

_LEAST_COST_RATIO: Final = 0.01
_LEAST_SHARE_RATIO: Final = 0.5
_FEWEST_RANKS: Final = 2


@of_window
def stages_of_members(ranks: Ranks) -> dict[int, int]:
    """Return the number of the stage of each rank, by place in `find_members`."""
    place = {member: i for i, member in enumerate(find_members(ranks))}
    return {place[stage.member]: stage.number for stage in find_stages(ranks)}


@of_window
def find_late_stage(ranks: Ranks) -> GroupLateness | None:
    """Return the stage for which the others wait, if all of its ranks are to blame alike.

    Of a stage of one rank it is that rank's.
    """
    blame = find_blame(ranks)
    stages = stages_of_members(ranks)
    if blame.why_not or not stages:
        return None
    of_member = np.array([stages.get(i, -1) for i in range(len(blame.charged_ns))])
    whole = int(blame.charged_ns.sum())
    for number in sorted(set(stages.values())):
        own = np.flatnonzero(of_member == number)
        charged = int(blame.charged_ns[own].sum())
        excess = np.sort(blame.excess_ns[own])
        others = len(of_member) - len(own)
        if len(own) < _FEWEST_RANKS or not others or charged < _LEAST_SHARE_RATIO * whole:
            continue
        cost_ns = cost_of(ranks, tuple(own.tolist()))
        cost_ratio = cost_ns / (ranks.span.duration_ns or 1)
        if excess[0] < _LEAST_SHARE_RATIO * excess[-1] or cost_ratio < _LEAST_COST_RATIO:
            continue
        return GroupLateness(
            name=str(number),
            ranks=len(own),
            late_ranks=len(own),
            late_members=tuple(own.tolist()),
            is_straggler=True,
            held_up_ns=cost_ns,
            cost_ns=cost_ns,
            cost_ratio=cost_ratio,
            last_ratio=0.0,
            phase="",
            excess_ns=int(excess[(len(excess) - 1) // 2]),
            since_ns=since_of(ranks, blame, tuple(own.tolist())),
            waited_ns=charged,
            ends_ns=0,
        )
    return None


def describe_stage(stage: GroupLateness) -> Note:
    """Return a note on a slow stage."""
    return Note.of(
        "stage {stage} of the pipeline is slow: each of its {n:count} ranks works {excess:ns} "
        "longer than the others; that costs these {cost:ns} ({share:ratio} of the window)",
        stage=stage.name,
        n=stage.ranks,
        excess=stage.excess_ns,
        cost=stage.cost_ns,
        share=stage.cost_ratio,
    )
