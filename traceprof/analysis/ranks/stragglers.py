"""Stragglers: the ranks that the others wait for, what they do more of, since when.

Who comes last to a collective may itself have waited for another: blame follows the chain to the
rank that waited for nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from traceprof.facts.collectives.matches import find_matches
from traceprof.facts.ranks.blame import Blame, find_blame
from traceprof.facts.ranks.ends import describe_clocks
from traceprof.facts.ranks.groups import find_late_whole
from traceprof.facts.ranks.late_groups import LATE_GROUPS, describe_lateness, frame_of_late
from traceprof.facts.ranks.late_stages import describe_stage, find_late_stage
from traceprof.facts.ranks.lateness import RankLateness, lateness_of_ranks
from traceprof.measures.analyses import Analysis
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

_NOTABLE_SKEW_NS: Final = 100_000

SPEC: Final = ResultSpec(
    tables=(
        TableSpec(
            "ranks",
            "one row per rank, by what it costs the others, the most first",
            (
                key("rank", "the rank", Unit.NUMBER),
                same("is_straggler", Unit.FLAG, "whether the others wait for it, and not its host"),
                total("cost_ns", Unit.NS, "how long another rank waits because of it, on average"),
                derived("cost_ratio", Unit.RATIO, "that, of the window"),
                derived("last_ratio", Unit.RATIO, "the share of the collectives it was last to"),
                same("cause", Unit.TEXT, "what a straggler does more of than the others"),
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
                total("charged_ns", Unit.NS, "what all others waited because of it, together"),
                same("cause_ns", Unit.NS, "how much more of its cause it does, in all"),
                same("factor", Unit.FACTOR, "how many times as long the same kernels take"),
                same("stage", Unit.NUMBER, "its stage, in a pipeline"),
            ),
        ),
        LATE_GROUPS,
    ),
    scalars=(
        total("shared_count", Unit.COUNT, "collectives and messages that ranks share"),
        total("waited_ns", Unit.NS, "what all ranks waited in them, and did not compute"),
        derived("mean_waited_ns", Unit.NS, "that, of a rank on average"),
        derived("waited_ratio", Unit.RATIO, "the latter, of the window"),
        total("charged_ns", Unit.NS, "what of it goes back to ranks that do more than others"),
        total("by_design_ns", Unit.NS, "to none: a pipeline fills and empties, ranks take turns"),
        total("unclear_ns", Unit.NS, "of waits shorter than the clocks agree"),
        total("skew_ns", Unit.NS, "before the ranks were in step, which is not in it"),
    ),
)


def measure_stragglers(ranks: Ranks) -> Result:
    """Return which ranks the others wait for in the window, and where these lose the time."""
    matches, blame = find_matches(ranks), find_blame(ranks)
    lateness = sorted(lateness_of_ranks(ranks), key=lambda rank: (-rank.cost_ns, rank.member))
    scalars: dict[str, int | float] = {"shared_count": len(matches.table)}
    why = "no collective is shared by several ranks" if not matches.is_shared else ""
    if blame.why_not:
        why = f"who waits for whom is withheld: {blame.why_not}"
    skew = _on_skew(blame)
    if why or not lateness:
        nothing = {"ranks": SPEC.tables[0].frame(), "late_groups": LATE_GROUPS.frame()}
        why = why or "the ranks share nothing after they first were in step"
        return Result("stragglers", SPEC, nothing, scalars, (Note(why), *skew))
    mean_ns = blame.whole_ns / len(matches.members)
    scalars |= {
        "waited_ns": blame.whole_ns,
        "mean_waited_ns": mean_ns,
        "waited_ratio": mean_ns / (ranks.span.duration_ns or 1),
        "charged_ns": int(blame.charged_ns.sum()),
        "by_design_ns": blame.shared_ns,
        "unclear_ns": blame.unclear_ns,
        "skew_ns": blame.skew_ns,
    }
    late_whole, late_stage = find_late_whole(ranks), find_late_stage(ranks)
    on_groups = [] if late_whole is None else [describe_lateness(*late_whole)]
    on_groups += [] if late_stage is None else [describe_stage(late_stage)]
    on_groups += [
        describe_clocks(rank.label, rank.cost_ns, rank.ends_ns)
        for rank in sorted(lateness, key=lambda rank: rank.member)
        if rank.is_unclear
    ]
    groups = [(kind.value, group) for kind, group in (late_whole,)] if late_whole else []
    groups += [("stage", late_stage)] if late_stage else []
    return Result(
        "stragglers",
        SPEC,
        {
            "ranks": SPEC.tables[0].frame([asdict(rank) for rank in lateness]),
            "late_groups": frame_of_late(groups),
        },
        scalars,
        (*on_groups, *_notes(lateness, scalars, is_explained=bool(on_groups)), *skew),
    )


def _on_skew(blame: Blame) -> list[Note]:
    """Return what the first collectives hold, where that is not next to nothing."""
    mean_ns = blame.skew_ns / max(len(blame.waited_ns), 1)
    if mean_ns < _NOTABLE_SKEW_NS:
        return []
    text = (
        "before the ranks were first in step one waited {skew:ns} on average: the recordings and "
        "the set-up began at different times, which is blamed on nobody"
    )
    return [Note.of(text, skew=mean_ns)]


def _notes(
    lateness: Sequence[RankLateness], scalars: dict[str, int | float], *, is_explained: bool
) -> list[Note]:
    late = [_on_straggler(rank) for rank in reversed(lateness) if rank.is_straggler]
    waiting = Note.of(
        "a rank waits {waited:ns} for others on average, {share:ratio} of the window, in "
        "{n:count} collectives and messages",
        waited=scalars["mean_waited_ns"],
        share=scalars["waited_ratio"],
        n=scalars["shared_count"],
    )
    if late or is_explained:
        return [*late, waiting]
    return [waiting, Note("no single rank is to blame for more than half of it")]


def _on_straggler(rank: RankLateness) -> Note:
    stage = "" if rank.stage is None else " (stage {stage})"
    cause = "" if not rank.cause else "; what it does more: {cause}"
    cause += " ({factor:factor})" if rank.factor is not None else ""
    where = ", mostly in {phase}" if rank.phase else ""
    since = "" if rank.since_ns is None else ", since {since:ns}"
    return Note.of(
        f"{{who}}{stage} is a straggler: last to {{last:ratio}} of the collectives; it costs the "
        f"others {{cost:ns}} ({{share:ratio}} of the window){where}{since}{cause}",
        who=rank.label,
        stage=rank.stage,
        last=rank.last_ratio,
        cost=rank.cost_ns,
        share=rank.cost_ratio,
        phase=rank.phase,
        since=rank.since_ns,
        cause=rank.cause,
        factor=rank.factor,
    )


ANALYSIS = Analysis(
    name="stragglers",
    spec=SPEC,
    uses=(
        "kernels",
        "copies",
        "collectives",
        "api_calls",
        "ranges",
        "host_ops",
        "processes",
        "devices",
    ),
    of_steps=True,
    of_ranks=measure_stragglers,
)
