"""Find stragglers (ranks and stages that the other ranks wait for) and why they are late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

import numpy as np

from traceprof.measures.analyses import Analysis
from traceprof.measures.collectives.blame import Blame, find_blame
from traceprof.measures.collectives.clocks import (
    ENDS_TOGETHER,
    clocks_of,
    describe_clocks,
    is_beyond_clocks,
)
from traceprof.measures.collectives.matches import find_matches
from traceprof.measures.collectives.members import find_members
from traceprof.measures.collectives.waits import matches_in_step
from traceprof.measures.facts import of_window
from traceprof.measures.ranks.arrivals import USED_TABLES, excess_of_members, find_arrivals
from traceprof.measures.ranks.costs import cause_of, cost_of, since_of
from traceprof.measures.ranks.groups import (
    LATE_GROUPS,
    MIN_COST_RATIO,
    MIN_LATE_RANKS,
    MIN_SHARE_RATIO,
    GroupLateness,
    describe_lateness,
    find_late_host_or_rack,
    table_of_late,
)
from traceprof.measures.ranks.imbalance import (
    changes_rank,
    describe_turns,
    find_imbalance,
    notable_steps,
)
from traceprof.measures.ranks.pipeline import find_stages
from traceprof.measures.ranks.work_times import describe_slow, find_slow_ranks
from traceprof.model.grouping import rows_by_value
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note, Result, ResultSpec, TableSpec
from traceprof.model.table import Table


@of_window
def stages_of_members(ranks: Ranks) -> dict[int, int]:
    """Return the stage number of each rank, by position in `find_members`."""
    place = {member: i for i, member in enumerate(find_members(ranks))}
    return {place[stage.member]: stage.number for stage in find_stages(ranks)}


@of_window
def find_late_stage(ranks: Ranks) -> GroupLateness | None:
    """Return the stage that the other ranks wait for, if all its ranks are to blame about equally.

    None for a stage with one rank: that rank is reported instead.
    """
    blame = find_blame(ranks)
    stages = stages_of_members(ranks)
    if blame.why_not or not stages:
        return None
    of_member = np.array([stages.get(i, -1) for i in range(len(blame.attributed_ns))])
    threshold_ns = MIN_SHARE_RATIO * int(blame.attributed_ns.sum())
    for number in sorted(set(stages.values())):
        members = np.flatnonzero(of_member == number)
        charged = int(blame.attributed_ns[members].sum())
        if not MIN_LATE_RANKS <= len(members) < len(of_member) or charged < threshold_ns:
            continue
        places, excess = tuple(members.tolist()), np.sort(blame.excess_ns[members])
        cost_ns = cost_of(ranks, places)
        cost_ratio = cost_ns / (ranks.span.duration_ns or 1)
        if excess[0] < MIN_SHARE_RATIO * excess[-1] or cost_ratio < MIN_COST_RATIO:
            continue
        return GroupLateness(
            kind="stage",
            name=str(number),
            ranks=len(members),
            late_ranks=len(members),
            late_members=places,
            is_straggler=True,
            last_rank_delay_ns=cost_ns,
            cost_ns=cost_ns,
            cost_ratio=cost_ratio,
            excess_ns=int(excess[(len(excess) - 1) // 2]),
            late_from_ns=since_of(ranks, blame, places),
            waited_ns=charged,
        )
    return None


def describe_stage(stage: GroupLateness) -> Note:
    """Return a note on a slow stage."""
    return Note.of(
        "Pipeline stage {stage} is slow: its {n:count} ranks work {excess:ns} longer than the "
        "other ranks (medians), which wait {cost:ns} for it on average ({share:ratio} of the "
        "window).",
        stage=stage.name,
        n=stage.ranks,
        excess=stage.excess_ns,
        cost=stage.cost_ns,
        share=stage.cost_ratio,
    )


@dataclass(frozen=True, slots=True)
class RankLateness:
    """What a rank costs the others, directly or through ranks that pass on its delay.

    The fields are the columns of the table ``ranks``, and ``member``, the position in
    `find_members`. ``cost_ns`` is at most the excess work of the rank. A cause is "" or None if it
    is unknown or if nobody waits for the rank. Ranks are not stragglers if their whole stage, host,
    or rack is late.
    """

    member: int
    rank: int | None
    device: int | None
    is_straggler: bool
    is_within_clock_error: bool
    is_blamed: bool
    cost_ns: int
    cost_ratio: float
    attributed_ns: int
    last_ratio: float
    phase: str
    excess_ns: int
    late_from_ns: int | None
    delays_count: int
    last_count: int
    median_late_ns: float
    end_skew_ns: int
    host: str
    process: int
    stage: int | None = None
    cause: str = ""
    cause_ns: int | None = None
    factor: float | None = None

    @property
    def is_late_once(self) -> bool:
        """Whether the others wait for the rank, nearly only in a single collective."""
        return self.is_blamed and self.delays_count == 1

    @property
    def label(self) -> str:
        """The name for display."""
        return f"process {self.process}" if self.rank is None else f"rank {self.rank}"


@of_window
def lateness_of_ranks(ranks: Ranks) -> tuple[RankLateness, ...]:
    """Return the lateness of each rank, in the order of `find_members`.

    Empty if no rank waited for another rank in step, or if the matches must be wrong.
    """
    blame = find_blame(ranks)
    if blame.why_not or not blame.busy_ns.any():
        return ()
    late_groups = filter(None, (find_late_host_or_rack(ranks), find_late_stage(ranks)))
    excused = {place for group in late_groups for place in group.late_members}
    matches = matches_in_step(ranks)
    table = matches.table
    spread_ns = np.where(table["op"].isin(ENDS_TOGETHER), table["spread_ns"], 0)
    excess = excess_of_members(ranks)
    arrivals = find_arrivals(ranks)
    rows_of = rows_by_value(arrivals["member"])
    no_rows = np.empty(0, np.intp)
    found = []
    for place in range(len(matches.members)):
        longest = max(excess, key=lambda name: float(excess[name][place]), default="")
        phase = (longest, int(np.rint(excess[longest][place]))) if longest else ("", 0)
        rows = arrivals.take(rows_of.get(place, no_rows))
        match_rows = matches.places(rows)
        is_last = table["last_member"][match_rows] == place
        rank_arrivals = Table(
            {"late_ns": rows["late_ns"], "is_last": is_last, "spread_ns": spread_ns[match_rows]}
        )
        rank = _measure_rank(ranks, blame, place, rank_arrivals, phase)
        found.append(rank if place in excused else _with_verdict(ranks, rank, blame))
    return tuple(found)


def _measure_rank(
    ranks: Ranks, blame: Blame, place: int, rank_arrivals: Table, longest_phase: tuple[str, int]
) -> RankLateness:
    """Return the lateness of a rank from its arrivals, without a verdict yet."""
    member = find_members(ranks)[place]
    last = rank_arrivals.take(rank_arrivals["is_last"])
    phase, excess_ns = longest_phase
    is_most = blame.attributed_ns[place] >= MIN_SHARE_RATIO * int(blame.attributed_ns.sum())
    cost_ns = cost_of(ranks, (place,)) if is_most else int(blame.cost_ns[place])
    return RankLateness(
        member=place,
        rank=member.known_rank,
        device=member.known_device,
        process=member.process,
        host=member.host,
        stage=stages_of_members(ranks).get(place),
        is_straggler=False,
        is_within_clock_error=False,
        is_blamed=False,
        delays_count=_count_delays(blame, place),
        last_count=len(last),
        last_ratio=len(last) / len(rank_arrivals) if len(rank_arrivals) else 0.0,
        cost_ns=cost_ns,
        cost_ratio=cost_ns / (ranks.span.duration_ns or 1),
        attributed_ns=int(blame.attributed_ns[place]),
        median_late_ns=float(np.nanmedian(rank_arrivals["late_ns"])) if len(rank_arrivals) else 0.0,
        phase=phase if excess_ns > 0 else "",
        excess_ns=max(excess_ns, 0),
        late_from_ns=since_of(ranks, blame, (place,)) if cost_ns else None,
        end_skew_ns=int(last["spread_ns"][last["late_ns"] > 0].sum()),
    )


def _count_delays(blame: Blame, place: int) -> int:
    """Return the number of collectives in which 90% of the time charged to the rank arises."""
    charged = np.sort(blame.origins["attributed_ns"][blame.origins["member"] == place])[::-1]
    return (
        int(np.searchsorted(np.cumsum(charged), _NEARLY_ALL_RATIO * charged.sum()) + 1)
        if len(charged)
        else 0
    )


def _with_verdict(ranks: Ranks, rank: RankLateness, blame: Blame) -> RankLateness:
    """Return the rank with its verdict, and with the cause if it is a straggler."""
    is_blamed = rank.cost_ratio >= MIN_COST_RATIO and rank.attributed_ns >= MIN_SHARE_RATIO * int(
        blame.attributed_ns.sum()
    )
    # With one clock, different ends are real: some ranks finish later, as with gloo.
    has_one_clock = len({*clocks_of(find_members(ranks))}) == 1
    is_clear = has_one_clock or is_beyond_clocks(rank.cost_ns, rank.end_skew_ns)
    is_late = is_blamed and rank.delays_count > 1 and not changes_rank(ranks, rank.member)
    evaluated = replace(
        rank,
        is_straggler=is_late and is_clear,
        is_within_clock_error=is_late and not is_clear,
        is_blamed=is_blamed and is_clear,
    )
    cause = cause_of(ranks, rank.member) if evaluated.is_straggler else None
    if cause is None:
        return evaluated
    return replace(evaluated, cause=cause.text, cause_ns=cause.excess_ns, factor=cause.factor)


_NEARLY_ALL_RATIO: Final = 0.9
_MIN_NOTABLE_SKEW_NS: Final = 100_000

_LEGEND: Final = Note(
    "Columns: attributed is the time that all other ranks together wait because of a rank; cost is "
    "the mean wait of one of them; excess is the extra time of the rank in the phase; late from is "
    "when it was first late by half of its usual delay; last % is the share of the collectives in "
    "which it arrived last; end skew is how far the ends of these collectives differ."
)

_RANKS: Final = TableSpec.of("""
    table ranks: one row per rank, sorted by the time that it costs the other ranks
    key rank: rank
    same is_straggler: whether the other ranks wait for this rank, and not for its whole stage,
        host, or rack
    total cost_ns: mean time that another rank waits because of this rank
    derived cost_ratio: cost_ns as a share of the window
    derived last_ratio: share of the collectives in which this rank arrived last
    same cause: what the rank spends more time on than the other ranks
    same phase: phase in which the rank takes longest compared with the other ranks
    total excess_ns: total extra time of the rank
    same late_from_ns [at_ns]: when the rank was first late by half of its usual delay
    same delays_count: number of collectives that account for 90% of the delay; 1 means late only
        once
    total last_count: number of collectives in which this rank arrived last
    same median_late_ns: median lateness compared with the median of the other ranks
    same host: host of the rank
    key process: process of the rank
    key device: GPU of the rank, if a process uses several GPUs
    same is_within_clock_error: whether different clocks can explain the lateness
    total end_skew_ns: difference between the ends of the collectives in which this rank arrived
        last
    total attributed_ns: total time that all other ranks waited because of this rank
    same cause_ns: total extra time from the cause
    same factor [factor]: slowdown of the same kernels compared with the other ranks
    same stage: pipeline stage of the rank
    """)
SPEC: Final = ResultSpec.of(
    _RANKS,
    LATE_GROUPS,
    """
    scalars:
    total shared_count: number of collectives and messages recorded on several ranks
    total waited_ns: total time that all ranks waited in them without computing
    derived mean_waited_ns: waited_ns per rank
    derived waited_ratio: mean_waited_ns as a share of the window
    total attributed_ns: part of waited_ns caused by ranks that do more work than others
    total pipeline_fill_ns: part of waited_ns with no rank to blame: a pipeline fills and drains, or
        ranks take turns
    total within_clock_error_ns: part of waited_ns in waits shorter than the clock accuracy
    total skew_ns: waiting before the ranks first synchronized; not part of waited_ns
    """,
)


def measure_stragglers(ranks: Ranks) -> Result:
    """Return which ranks the others wait for in the window, and where these ranks lose the time."""
    matches, blame = find_matches(ranks), find_blame(ranks)
    lateness = sorted(lateness_of_ranks(ranks), key=lambda rank: (-rank.cost_ns, rank.member))
    scalars: dict[str, int | float] = {"shared_count": len(matches.table)}
    why = "No collective was recorded on several ranks." if not matches.is_shared else ""
    if blame.why_not:
        why = f"Rank wait times are not reported: {blame.why_not}"
    skew = _notes_on_skew(blame)
    if why or not lateness:
        empty_tables = {"ranks": _RANKS.of_rows(), "late_groups": LATE_GROUPS.of_rows()}
        why = why or "The ranks share no collective after they first synchronized."
        slow = find_slow_ranks(ranks)
        on_compute = () if slow is None else (describe_slow(slow),)
        return Result("stragglers", SPEC, empty_tables, scalars, (Note(why), *on_compute, *skew))
    mean_ns = blame.whole_ns / len(matches.members)
    scalars |= {
        "waited_ns": blame.whole_ns,
        "mean_waited_ns": mean_ns,
        "waited_ratio": mean_ns / (ranks.span.duration_ns or 1),
        "attributed_ns": int(blame.attributed_ns.sum()),
        "pipeline_fill_ns": blame.shared_ns,
        "within_clock_error_ns": blame.within_clock_error_ns,
        "skew_ns": blame.skew_ns,
    }
    late_whole, late_stage = find_late_host_or_rack(ranks), find_late_stage(ranks)
    on_groups = [describe_lateness(late_whole)] if late_whole else []
    on_groups += [describe_stage(late_stage)] if late_stage else []
    on_groups += [
        describe_clocks(rank.label, rank.cost_ns, rank.end_skew_ns)
        for rank in sorted(lateness, key=lambda rank: rank.member)
        if rank.is_within_clock_error
    ]
    tables = {
        "ranks": _RANKS.of_rows([asdict(rank) for rank in lateness]),
        "late_groups": table_of_late(group for group in (late_whole, late_stage) if group),
    }
    on_delays = [describe_delay(ranks, rank) for rank in lateness if rank.is_late_once]
    if any(rank.is_blamed and changes_rank(ranks, rank.member) for rank in lateness):
        on_delays.append(_describe_turns(ranks))
    on_ranks = _notes(lateness, on_delays, scalars, is_explained=bool(on_groups))
    notes = (*on_groups, *on_ranks, *skew, _LEGEND)
    return Result("stragglers", SPEC, tables, scalars, notes)


def _describe_turns(ranks: Ranks) -> Note:
    """Return a note on ranks that are late in turn."""
    note = describe_turns(ranks, notable_steps(find_imbalance(ranks)))
    return Note(f"No rank is a straggler: {note.text}.", note.values)


def _notes_on_skew(blame: Blame) -> list[Note]:
    """Return a note on the skew before the first synchronization, if it is notable."""
    mean_ns = blame.skew_ns / max(len(blame.waited_ns), 1)
    if mean_ns < _MIN_NOTABLE_SKEW_NS:
        return []
    text = (
        "Before the ranks first synchronized, each waited {skew:ns} on average. Recording and "
        "setup started at different times on the ranks, so traceprof blames no rank for it."
    )
    return [Note.of(text, skew=mean_ns)]


def _notes(
    lateness: Sequence[RankLateness],
    on_delays: Sequence[Note],
    scalars: dict[str, int | float],
    *,
    is_explained: bool,
) -> list[Note]:
    """Return notes on stragglers and on ranks that are late once, then on the mean wait time."""
    late = [_describe_straggler(rank) for rank in reversed(lateness) if rank.is_straggler]
    waiting = Note.of(
        "Mean wait time per rank: {waited:ns} ({share:ratio} of the window) in {n:count} "
        "collectives and messages.",
        waited=scalars["mean_waited_ns"],
        share=scalars["waited_ratio"],
        n=scalars["shared_count"],
    )
    if late or on_delays or is_explained:
        return [*late, *on_delays, waiting]
    return [waiting, Note("No single rank causes more than half of this wait time.")]


def is_once_in_all(ranks: Ranks, rank: RankLateness) -> bool:
    """Return whether a rank that is late once in the window is late once in the whole recording."""
    return rank.is_late_once and _count_delays(find_blame(ranks.whole), rank.member) == 1


def describe_delay(ranks: Ranks, rank: RankLateness) -> Note:
    """Return a note on a rank that is late once, in the whole recording or in the window."""
    is_in_all = is_once_in_all(ranks, rank)
    n = len(find_matches(ranks.whole if is_in_all else ranks).table)
    when = "once, in one of {n:count}" if is_in_all else "once in this window, in one of {n:count}"
    when += " shared collectives and messages"
    return Note.of(
        f"{{who}} is late {when if n > 1 else 'in the only collective that the ranks share'}: on "
        "average, another rank waits {cost:ns} for it ({share:ratio} of the window), at {since:ns}",
        who=rank.label,
        n=n,
        cost=rank.cost_ns,
        share=rank.cost_ratio,
        since=rank.late_from_ns,
    )


def _describe_straggler(rank: RankLateness) -> Note:
    stage = "" if rank.stage is None else " (stage {stage})"
    cause = "" if not rank.cause else ". Cause: {cause}"
    cause += " ({factor:factor})" if rank.factor is not None else ""
    where = ". Main phase: {phase}" if rank.phase else ""
    since = "" if rank.late_from_ns is None else " since {since:ns}"
    return Note.of(
        f"{{who}}{stage} is a straggler: it arrives last in {{last:ratio}} of the collectives. "
        "On average, another rank waits {cost:ns} for it ({share:ratio} of the window)"
        f"{since}{where}{cause}.",
        who=rank.label,
        stage=rank.stage,
        last=rank.last_ratio,
        cost=rank.cost_ns,
        share=rank.cost_ratio,
        phase=rank.phase,
        since=rank.late_from_ns,
        cause=rank.cause,
        factor=rank.factor,
    )


STRAGGLERS: Final = Analysis(
    "stragglers", SPEC, uses=USED_TABLES, of_steps=True, of_ranks=measure_stragglers
)
