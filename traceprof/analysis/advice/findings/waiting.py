"""The time that slow ranks cost: what the others wait, and what they themselves do meanwhile."""

from __future__ import annotations

from collections.abc import Collection

from traceprof.analysis.advice.findings.claims import Claim, Ground, Times
from traceprof.analysis.advice.findings.context import Context
from traceprof.facts.ranks.waits import waiting_of_members
from traceprof.model.intervals import Intervals
from traceprof.model.tables import ABSENT

__all__ = ["waiting_for"]


def waiting_for(context: Context, places: Collection[int], cost_ns: int) -> tuple[Claim, ...]:
    """Return the claims on the time in which devices wait for the members at ``places``.

    Were these faster, every rank would be done ``cost_ns`` earlier: the others wait that much less
    and they do that much less while the others wait. Where more is waited than that, it belongs to
    others, or would be waited all the same.
    """
    members = context.matches.members
    waiting = waiting_of_members(context.ranks.whole)
    others: dict[int, Intervals] = {}
    for place, time in enumerate(waiting):
        device = members[place].device
        if place not in places and device != ABSENT:
            others[device] = others[device] | time if device in others else time
    together = Intervals.empty()
    for time in others.values():
        together |= time
    slow = {members[place].device for place in places} - {ABSENT}
    computing = {device: context.times[device].compute & together for device in slow}
    resting = {device: together - context.times[device].compute for device in slow}
    due_ns = cost_ns / context.window_ns * context.typical_ns
    waits = context.left(_exposed(context, others))
    more = context.left(computing, Ground.COMPUTE), context.left(resting)
    return (
        _shared((waits,), due_ns * len(others))[0],
        *_shared(more, due_ns * len(slow)),
    )


def _exposed(context: Context, waiting: Times) -> Times:
    return {device: time & context.times[device].communication for device, time in waiting.items()}


def _shared(claims: tuple[Claim, ...], due_ns: float) -> tuple[Claim, ...]:
    """Return the claims such that of all their time ``due_ns`` are saved, if they have as much."""
    whole = sum(claim.total_ns for claim in claims)
    ratio = min(1.0, due_ns / whole) if whole else 0.0
    return tuple(Claim(claim.times, claim.ground, ratio) for claim in claims)
