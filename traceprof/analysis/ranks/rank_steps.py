"""Every step of every rank: its own time, how much it waited, how late it came (a heat map)."""

from __future__ import annotations

from typing import Final

from traceprof.errors import NotRecordedError
from traceprof.facts.collectives.matches import find_matches
from traceprof.facts.collectives.members import Member, find_members
from traceprof.facts.ranks.steps import RankSteps, find_rank_steps
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

_MOST_NAMED: Final = 4

SPEC: Final = ResultSpec(
    tables=(
        TableSpec(
            "rank_steps",
            "one row per step and rank, step by step",
            (
                key("rank", "the rank", Unit.NUMBER),
                key("step", "the number of the step, the same on all ranks", Unit.NUMBER),
                total("own_ns", Unit.NS, "the step without the waiting that no compute hid"),
                derived("slower_ratio", Unit.RATIO, "own_ns beyond the median rank's, of that"),
                total("duration_ns", Unit.NS, "the length of the step"),
                total("waited_ns", Unit.NS, "in its collectives, for the last rank to come"),
                total("late_ns", Unit.NS, "how long it held up the median of the others"),
                same("phase", Unit.TEXT, "where it takes at least 1 % of the step longer"),
                derived("skew_ns", Unit.NS, "its duration beyond the shortest of the ranks"),
                total("collectives_count", Unit.COUNT, "its collectives that others share"),
                same("host", Unit.TEXT, "the host of the rank"),
                same("rack", Unit.TEXT, "the rack of the rank"),
                key("process", "the process of the rank", Unit.NUMBER),
            ),
        ),
        TableSpec(
            "shifts",
            "the ranks whose steps are counted from another beginning",
            (
                key("process", "the process of the rank", Unit.NUMBER),
                same("rank", Unit.NUMBER, "the rank"),
                same("added", Unit.NUMBER, "what was added to the numbers of its steps"),
            ),
        ),
    ),
    scalars=(
        total("steps_count", Unit.COUNT, "steps"),
        total("partial_count", Unit.COUNT, "of these, not known of every rank"),
    ),
)


def measure_rank_steps(ranks: Ranks) -> Result:
    """Return every step that lies in the window, of every rank.

    Raises:
        NotRecordedError: no steps are known.
    """
    found = find_rank_steps(ranks)
    table = found.table
    if table.empty:
        raise NotRecordedError(
            "no whole step is known in this window: record with `traceprof record`, "
            "call traceprof.step(), or choose a larger window"
        )
    members = {member.process: member for member in find_members(ranks)}
    n_ranks, sizes = table["process"].nunique(), table.groupby("step").size()
    scalars = {"steps_count": len(sizes), "partial_count": int((sizes < n_ranks).sum())}
    shifts = [
        {"process": process, "rank": members[process].rank, "added": added}
        for process, added in found.shifts.items()
    ]
    notes = [*_on_shifts(found, members)]
    if n_ranks > 1 and not find_matches(ranks.whole).is_shared:
        text = "no collective is shared: what ranks wait for each other is in their own time"
        notes.append(Note(text))
    if n_ranks > 1 and scalars["partial_count"]:
        text = "{fewer:count} of {n:count} steps are not known of every one of {ranks:count} ranks"
        fewer = scalars["partial_count"]
        notes.append(Note.of(text, fewer=fewer, n=len(sizes), ranks=n_ranks))
    return Result(
        "rank-steps",
        SPEC,
        {"rank_steps": SPEC.tables[0].frame(table), "shifts": SPEC.tables[1].frame(shifts)},
        scalars,
        tuple(notes),
    )


def _on_shifts(found: RankSteps, members: dict[int, Member]) -> list[Note]:
    if not found.shifts:
        return []
    named = [members[process].label for process in list(found.shifts)[:_MOST_NAMED]]
    more = " …" if len(found.shifts) > _MOST_NAMED else ""
    text = (
        "the steps of {ranks} are counted from another beginning: they were lined up by the "
        "collectives that they share"
    )
    return [Note.of(text, ranks=", ".join(named) + more)]


ANALYSIS = Analysis(
    name="rank-steps",
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
    whole=("ranges", "kernels", "collectives"),
    of_steps=True,
    of_ranks=measure_rank_steps,
)
