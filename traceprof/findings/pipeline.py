"""A rule on pipeline bubbles: stages that wait for work from other stages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from traceprof.errors import NotRecordedError
from traceprof.findings.amounts import NotApplicableError
from traceprof.findings.claims import Claim, Kind, Times, union_by_device
from traceprof.findings.context import Context
from traceprof.findings.members import devices_of_members, require_waiting
from traceprof.findings.rules import Finding, rule
from traceprof.measures.collectives.members import find_members
from traceprof.measures.collectives.messages import find_messages
from traceprof.measures.collectives.operations import find_collectives
from traceprof.measures.collectives.waits import waiting_of_members
from traceprof.measures.ranks.pipeline import POINT_TO_POINT, find_bubbles, find_stages
from traceprof.measures.rows import bounds, unions_by
from traceprof.model.intervals import Intervals
from traceprof.model.results import Note
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace

_MIN_SHARE_RATIO: Final = 0.05
_MIN_WAITED_RATIO: Final = 0.5


@rule("pipeline bubbles", "pipeline stages that wait for one another", "kernels", show="pipeline")
def pipeline_bubble(context: Context) -> Iterator[Finding]:
    """Find time in which the stages of a pipeline wait for one another."""
    stages = find_stages(context.ranks)
    if not stages:
        raise NotApplicableError("the trace contains no pipeline stages")
    require_waiting(context)
    times = _bubble_times(context)
    claim = context.unclaimed(times)
    share = context.share(claim)
    if share < _MIN_SHARE_RATIO:
        whole = Claim({device: time & context.typical for device, time in times.items()})
        if context.share(whole) >= _MIN_SHARE_RATIO:
            raise NotRecordedError("other findings are about the time in which the stages wait")
        return
    rows = find_bubbles(context.ranks).rows
    ratios = [row["bubble_ratio"] for row in rows]
    known_row = next((row for row in rows if row["micro_batches"]), None)
    yield Finding(
        title=Note.of("Pipeline bubble: stages wait for {share:ratio} of step time", share=share),
        claims=(claim,),
        kind=Kind.BOUNDED,
        evidence=(
            Note.of(
                "each of {n:count} stages is idle {least:ratio}"
                + (" to {most:ratio}" if max(ratios) - min(ratios) >= 0.001 else "")
                + " of the time between its first and last compute of a step, sends and receives "
                "included",
                n=len(rows),
                least=min(ratios),
                most=max(ratios),
            ),
            *(
                []
                if known_row is None
                else [_note_on_ideal_bubble(stages[0].n_stages, known_row["micro_batches"])]
            ),
        ),
        action="Use more micro-batches per step, or interleaved stages (several smaller parts of "
        "the model per GPU). In training, you can also use a schedule that splits the backward "
        "pass (zero bubble).",
        caveat="The bubble includes sends and receives. If the interconnect is slow, a part of the "
        "bubble is transfer time.",
    )


def _note_on_ideal_bubble(n_stages: int, n_micro_batches: float) -> Note:
    """Return a note on the minimum bubble, and on that of twice as many micro-batches."""
    others = n_stages - 1
    return Note.of(
        "{stages:count} stages with {n:number} micro-batches per step have a bubble of at least "
        "{ideal:ratio} ({twice:ratio} with twice as many)",
        stages=n_stages,
        n=round(n_micro_batches, 1),
        ideal=others / (n_micro_batches + others),
        twice=others / (2 * n_micro_batches + others),
    )


def _bubble_times(context: Context) -> Times:
    """Return the times when each device waits for other stages or has no work in a step."""
    ranks = context.ranks
    bubbles, device_of = find_bubbles(ranks), devices_of_members(context)
    place_of = {member: place for place, member in enumerate(find_members(ranks))}
    waiting = waiting_of_members(ranks.whole)
    messages = union_by_device(ranks.each(_message_times))
    nothing = Intervals.empty()
    found: dict[int, Intervals] = {}
    sent: list[tuple[int, int]] = []
    for number, stage in enumerate(find_stages(ranks)):
        place = place_of[stage.member]
        if place not in device_of:
            continue
        device = device_of[place]
        time, waits = context.times[device], waiting[place]
        steps = Intervals.union_of(*bounds(bubbles.spans[number]))
        at_work = Intervals.union_of(*bounds(bubbles.compute_spans[number]))
        exposed = messages.get(device, nothing) - time.compute
        sent.append(((exposed & waits).total_ns, exposed.total_ns))
        working = time.communication - exposed - waits
        waiting_time = (steps - at_work) | (waits & steps) | (exposed & steps)
        found[device] = waiting_time - time.compute - working
    waited_ns, whole_ns = (sum(values) for values in zip(*sent, strict=True)) if sent else (0, 0)
    if waited_ns < _MIN_WAITED_RATIO * whole_ns and find_messages(ranks)["is_matched"].all():
        # Transfers are not a bubble: more and smaller micro-batches do not shorten them.
        for stage in find_stages(ranks):
            device = device_of.get(place_of[stage.member], ABSENT)
            if device in found:
                found[device] -= messages.get(device, nothing) - waiting[place_of[stage.member]]
    return found


def _message_times(trace: Trace) -> dict[int, Intervals]:
    """Return the times when the devices of a trace send or receive, by device."""
    work = find_collectives(trace)
    return unions_by(work.take(work["op"].isin(POINT_TO_POINT)), "device")
