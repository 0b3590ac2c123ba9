"""Stragglers: the ranks that the others wait for, in which phase they lose the time, since when.

In a shared collective everybody waits for the last rank to come, so that the wall times of all
ranks are equal and the slow one is the one that waits the least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from traceprof.analysis.base import Analysis
from traceprof.facts.collectives.matches import find_matches
from traceprof.facts.ranks.ends import describe_clocks
from traceprof.facts.ranks.groups import find_late_whole
from traceprof.facts.ranks.late_groups import LATE_GROUPS, describe_lateness, frame_of_late
from traceprof.facts.ranks.lateness import RankLateness, lateness_of_ranks
from traceprof.model.ranks import Ranks
from traceprof.model.results import (
    Note,
    Result,
    ResultSpec,
    TableSpec,
    Unit,
    derived,
    key,
    same,
    total,
)

__all__ = ["ANALYSIS"]

SPEC: Final = ResultSpec(
    tables=(
        TableSpec(
            "ranks",
            "one row per rank, by what it costs the others, the most first",
            (
                key("rank", "the rank", Unit.NUMBER),
                same("is_straggler", Unit.FLAG, "whether the others wait for it, and not its host"),
                total("cost_ns", Unit.NS, "how long it held up the median other, coming last"),
                derived("cost_ratio", Unit.RATIO, "that, of the window"),
                derived("last_ratio", Unit.RATIO, "the share of the collectives it was last to"),
                same("phase", Unit.TEXT, "where it takes the longest beyond the other ranks"),
                total("excess_ns", Unit.NS, "by how much, in all"),
                same("since_ns", Unit.AT_NS, "when it first was late by half of what is usual"),
                total("last_count", Unit.COUNT, "to how many collectives it came last"),
                same("median_late_ns", Unit.NS, "its lateness beyond the median of the others"),
                same("host", Unit.TEXT, "its host"),
                key("process", "its process", Unit.NUMBER),
                key("device", "its device, where a process drives several", Unit.NUMBER),
                same("is_unclear", Unit.FLAG, "whether clocks that differ may account for it"),
                total("ends_ns", Unit.NS, "how much the ends differ of those it was last to"),
            ),
        ),
        LATE_GROUPS,
    ),
    scalars=(
        total("shared_count", Unit.COUNT, "collectives that ranks share"),
        total("waited_ns", Unit.NS, "what all ranks waited in them for the last to come"),
        derived("mean_waited_ns", Unit.NS, "that, of a rank on average"),
        derived("waited_ratio", Unit.RATIO, "the latter, of the window"),
    ),
)


def measure_stragglers(ranks: Ranks) -> Result:
    """Return which ranks the others wait for in the window, and where these lose the time."""
    matches = find_matches(ranks).collectives
    lateness = sorted(lateness_of_ranks(ranks), key=lambda rank: -rank.cost_ns)
    if not matches.is_shared:
        nothing = {"ranks": SPEC.tables[0].frame(), "late_groups": LATE_GROUPS.frame()}
        note = Note("no collective is shared by several ranks")
        return Result("stragglers", SPEC, nothing, {"shared_count": 0}, (note,))
    late_whole = find_late_whole(ranks)
    waited_ns = int(matches.table["waited_ns"].sum())
    mean_ns = waited_ns / len(matches.members)
    scalars = {
        "shared_count": len(matches.table),
        "waited_ns": waited_ns,
        "mean_waited_ns": mean_ns,
        "waited_ratio": mean_ns / (ranks.span.duration_ns or 1),
    }
    on_groups = [] if late_whole is None else [describe_lateness(*late_whole)]
    on_groups += [
        describe_clocks(rank.label, rank.cost_ns, rank.ends_ns)
        for rank in sorted(lateness, key=lambda rank: rank.member)
        if rank.is_unclear
    ]
    return Result(
        "stragglers",
        SPEC,
        {
            "ranks": SPEC.tables[0].frame([asdict(rank) for rank in lateness]),
            "late_groups": frame_of_late(() if late_whole is None else (late_whole,)),
        },
        scalars,
        (*on_groups, *_notes(lateness, scalars, is_explained=bool(on_groups))),
    )


def _notes(
    lateness: Sequence[RankLateness], scalars: dict[str, int | float], *, is_explained: bool
) -> list[Note]:
    late = [_on_straggler(rank) for rank in reversed(lateness) if rank.is_straggler]
    waiting = Note.of(
        "a rank waits {waited:ns} for others on average, {share:ratio} of the window, in "
        "{n:count} collectives",
        waited=scalars["mean_waited_ns"],
        share=scalars["waited_ratio"],
        n=scalars["shared_count"],
    )
    if late or is_explained:
        return [*late, waiting]
    return [waiting, Note("no single rank is to blame for more than half of it")]


def _on_straggler(rank: RankLateness) -> Note:
    where = ", mostly in {phase}" if rank.phase else ""
    since = "" if rank.since_ns is None else ", since {since:ns}"
    return Note.of(
        "{who} is a straggler: last to {last:ratio} of the collectives; it costs the others "
        f"{{cost:ns}} ({{share:ratio}} of the window){where}{since}",
        who=rank.label,
        last=rank.last_ratio,
        cost=rank.cost_ns,
        share=rank.cost_ratio,
        phase=rank.phase,
        since=rank.since_ns,
    )


ANALYSIS = Analysis(
    name="stragglers",
    spec=SPEC,
    uses=("kernels", "collectives", "api_calls", "ranges", "host_ops", "processes"),
    of_steps=True,
    of_ranks=measure_stragglers,
)
