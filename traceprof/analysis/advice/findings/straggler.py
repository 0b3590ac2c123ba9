"""One rank arrives late at the collectives, and all others wait for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.claims import Kind
from traceprof.analysis.advice.findings.context import Context
from traceprof.analysis.advice.findings.waiting import waiting_for
from traceprof.errors import NotRecordedError
from traceprof.facts.ranks.blame import find_blame
from traceprof.facts.ranks.groups import find_late_whole
from traceprof.facts.ranks.late_stages import describe_stage, find_late_stage
from traceprof.facts.ranks.lateness import RankLateness, lateness_of_ranks
from traceprof.facts.ranks.waits import find_waits
from traceprof.model.results import Note
from traceprof.values import dataclass

__all__ = ["RULE"]

_LEAST: Final = 0.03


@dataclass(frozen=True, slots=True)
class _Slow:
    """Who the others wait for, and how long: all of them together, and one on average."""

    label: str
    places: tuple[int, ...]
    charged_ns: int
    cost_ns: int
    evidence: Note


def _slow(context: Context) -> _Slow | None:
    stage = find_late_stage(context.ranks)
    if stage is not None:
        label = f"stage {stage.name} of the pipeline"
        note = describe_stage(stage)
        return _Slow(label, stage.late_members, stage.waited_ns, stage.cost_ns, note)
    ranks = [rank for rank in lateness_of_ranks(context.ranks) if rank.is_straggler]
    if not ranks:
        return None
    slow = ranks[0]
    return _Slow(slow.label, (slow.member,), slow.charged_ns, slow.cost_ns, _on_rank(slow))


def _on_rank(slow: RankLateness) -> Note:
    cause = ": {cause}" if slow.cause else ""
    factor = " ({factor:factor})" if slow.factor is not None else ""
    return Note.of(
        f"{{slow}} waits for nobody when the delays arise{cause}{factor}; it costs every other "
        "rank {cost:ns} in this window",
        slow=slow.label,
        cause=slow.cause,
        factor=slow.factor,
        cost=slow.cost_ns,
    )


def _check(context: Context) -> Iterator[Finding]:
    if len(context.devices) < 2:
        raise NotRecordedError("the trace has one device: give the traces of all ranks")
    if not context.matches.is_shared:
        raise NotRecordedError("no collective is shared by several ranks")
    why_not = find_blame(context.ranks).why_not
    if why_not:
        raise NotRecordedError(why_not)
    slow = _slow(context)
    if slow is None or find_late_whole(context.ranks) is not None:
        return
    ratio = slow.cost_ns / context.window_ns
    if ratio < _LEAST:
        return
    claims = waiting_for(context, slow.places, slow.cost_ns)
    origins = find_blame(context.ranks).origins
    own = origins[origins["member"].isin(slow.places)]
    at_ns = int(own["at_ns"].iloc[int(own["charged_ns"].to_numpy().argmax())])
    waits = find_waits(context.ranks)
    begin_ns = int(waits.array("start_ns")[waits.array("last_start_ns") == at_ns].min())
    yield Finding(
        title=Note.of(
            "straggler: the others wait for {slow}, {share:ratio} of the window",
            slow=slow.label,
            share=ratio,
        ),
        claims=claims,
        kind=Kind.BOUNDED,
        evidence=(slow.evidence,),
        action=(
            f"find out why {slow.label} is late (`traceprof show stragglers`): more work (uneven "
            "batches or layers), a slower or throttled GPU, a busier host, slower storage"
        ),
        caveat="its delay is traced back along the waiting of the ranks; what they waited before "
        "they first were in step is left out",
        window=context.window_text(begin_ns, at_ns),
    )


RULE = Rule(
    name="straggler",
    subject="ranks in step",
    summary="one rank is late at the collectives",
    needs=("kernels",),
    show="stragglers",
    check=_check,
)
