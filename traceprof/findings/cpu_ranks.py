"""A rank that is late at collectives, in runs on CPUs: a part of the rule on stragglers."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from traceprof.errors import NotRecordedError
from traceprof.findings.claims import Claim, Times, kind_and_model
from traceprof.findings.context import Context
from traceprof.findings.rules import Finding
from traceprof.findings.waiting import (
    MIN_RANGE_FACTOR,
    MODEL,
    REPLAY_ERROR_FACTOR,
    attributed,
    require_waiting,
)
from traceprof.measures import shown_by
from traceprof.measures.collectives.waits import waiting_of_members
from traceprof.measures.ranks.groups import find_late_host_or_rack
from traceprof.measures.ranks.stragglers import RankLateness, lateness_of_ranks
from traceprof.model.intervals import Intervals
from traceprof.model.results import Note
from traceprof.model.trace import Trace
from traceprof.names.ranges import in_phase

_MIN_SHARE_RATIO: Final = 0.03
_ON_GPU: Final = "nccl"


def are_on_cpus(context: Context) -> bool:
    """Return whether several ranks communicate on CPUs, and no GPU activity was recorded."""
    return not (
        context.devices
        or "kernels" in context.ranks.recorded
        or not context.matches.is_shared
        or any(context.ranks.each(_uses_gpus))
    )


def find_late_rank(context: Context) -> Iterator[Finding]:
    """Find a rank for which the other ranks wait, in a run on CPUs.

    Raises:
        NotRecordedError: the trace does not show which rank waits for which rank.
    """
    require_waiting(context)
    if find_late_host_or_rack(context.ranks) is not None:
        raise NotRecordedError("a whole host or rack is late")
    slow = next((rank for rank in lateness_of_ranks(context.ranks) if rank.is_straggler), None)
    if slow is None or slow.cost_ns < _MIN_SHARE_RATIO * context.window_ns:
        return
    claim = _claim_on_waiting(context, slow)
    kind, model = kind_and_model((claim,), MODEL)
    phase = slow.phase or "outside any phase"
    yield Finding(
        title=Note.of(
            "Straggler: the other ranks wait for {slow} for {share:ratio} of step time",
            slow=slow.label,
            share=context.saving_ratio(claim),
        ),
        claims=(claim,),
        kind=kind,
        model=model,
        evidence=(
            Note.of(
                "{slow} arrives last at {last:ratio} of the collectives; each other rank waits "
                "{cost:ns} for it in this window",
                slow=slow.label,
                last=slow.last_ratio,
                cost=slow.cost_ns,
            ),
            Note.of(
                f"its work takes {{excess:ns}} longer than on the other ranks, most of it "
                f"{in_phase(phase)}",
                excess=slow.excess_ns,
                phase=phase,
            ),
        ),
        action=f"Find what {slow.label} does there (`{shown_by('rank-steps')}`): more samples, "
        "slower storage, logging or checkpoints on this rank only, or other jobs on its CPU cores.",
        caveat="traceprof ignores waits before the first shared collective, so a capture of a few "
        "steps shows less waiting.",
    )


def _uses_gpus(part: Trace) -> bool:
    """Return whether collectives of a trace run on GPUs."""
    return any(_ON_GPU in backend for backend in part.collectives["backend"].distinct())


def _claim_on_waiting(context: Context, slow: RankLateness) -> Claim:
    """Return a claim on the waiting for a late rank, and on the work of that rank meanwhile.

    Without the delay, every rank would be done ``cost_ns`` earlier.
    """
    waiting = waiting_of_members(context.ranks.whole)
    place_of = _place_of_processes(context)
    times: dict[int, Intervals] = {}
    waiting_any, waited = Intervals.empty(), []
    for place, member in enumerate(context.matches.members):
        where = place_of.get(member.process)
        if where is not None and place != slow.member:
            time = waiting[place].here()
            times[where] = times.get(where, Intervals.empty()) | time
            waiting_any |= time
            waited.append((time & context.ranks.span.times).total_ns)
    where = place_of.get(slow.process)
    if where is not None:
        times[where] = waiting_any
    due_ns = slow.cost_ns * len(times) * _typical_ratio(context, times.values())
    claim = attributed((context.unclaimed(_within(times, context)),), due_ns)[0]
    least_waited_ns = min(waited, default=0)
    if least_waited_ns <= MIN_RANGE_FACTOR * slow.cost_ns:
        return claim  # the rank that waits least limits the saving
    return replace(claim, between=(REPLAY_ERROR_FACTOR, least_waited_ns / slow.cost_ns))


def _place_of_processes(context: Context) -> dict[int, int]:
    """Return the number in `Context.places` of each process."""
    processes = context.ranks.each(_processes)
    places = set(context.places)
    return {
        process: -1 - index
        for index, of_part in enumerate(processes)
        for process in of_part
        if -1 - index in places
    }


def _processes(part: Trace) -> list[int]:
    return [int(process) for process in np.unique(part.collectives["process"])]


def _typical_ratio(context: Context, times: Collection[Intervals]) -> float:
    """Return the share of ``times`` in the window that is in usual steps."""
    whole = sum((time & context.ranks.span.times).total_ns for time in times)
    return sum((time & context.typical).total_ns for time in times) / whole if whole else 0.0


def _within(times: Times, context: Context) -> Times:
    """Return the part of ``times`` inside the window."""
    return {place: time & context.ranks.span.times for place, time in times.items()}
