"""The time that slow ranks cost: what the others wait, and what they themselves do meanwhile."""

from __future__ import annotations

from collections.abc import Collection

from traceprof.analysis.advice.findings.claims import Claim, Ground, Times
from traceprof.analysis.advice.findings.context import Context
from traceprof.facts.ranks.costs import tails_after
from traceprof.facts.ranks.waits import waiting_of_members
from traceprof.model.intervals import Intervals

__all__ = ["waiting_for"]


def waiting_for(context: Context, places: Collection[int], cost_ns: int) -> tuple[Claim, ...]:
    """Return the claims on the time in which devices wait for the members at ``places``.

    Were these faster, every rank would be done ``cost_ns`` earlier: the others wait that much less
    and they do that much less while the others wait. Where more is waited than that, it belongs to
    others, or would be waited all the same.
    """
    device_of = _devices(context)
    waiting = waiting_of_members(context.ranks.whole)
    tails = tails_after(context.ranks, tuple(places))
    others: dict[int, Intervals] = {}
    for place, device in device_of.items():
        if place not in places:
            others[device] = others.get(device, Intervals.empty()) | waiting[place] | tails[place]
    together = Intervals.empty()
    for time in others.values():
        together |= time.here()  # of several ranks: no process of a crew has all of them
    slow = {device_of[place] for place in places if place in device_of}
    computing = {device: context.times[device].compute & together for device in slow}
    resting = {device: together - context.times[device].compute for device in slow}
    span = context.ranks.span
    waited_ns = sum(time.clip(span.start_ns, span.end_ns).total_ns for time in others.values())
    typical_ns = sum((time & context.typical).total_ns for time in others.values())
    due_ns = cost_ns * typical_ns / waited_ns if waited_ns else 0.0
    waits = context.left(_exposed(context, others))
    more = context.left(computing, Ground.COMPUTE), context.left(resting)
    return (
        _shared((waits,), due_ns * len(others))[0],
        *_shared(more, due_ns * len(slow)),
    )


def _devices(context: Context) -> dict[int, int]:
    """Return the device on which each rank communicates, by place in `find_members`."""
    rows = context.matches.rows[["member", "device"]]
    known = rows[rows["device"].isin(context.places) & (rows["member"] >= 0)]
    return {int(str(place)): int(own.iloc[0]) for place, own in known.groupby("member")["device"]}


def _exposed(context: Context, waiting: Times) -> Times:
    return {device: time & context.times[device].communication for device, time in waiting.items()}


def _shared(claims: tuple[Claim, ...], due_ns: float) -> tuple[Claim, ...]:
    """Return the claims such that of all their time ``due_ns`` are saved, if they have as much."""
    whole = sum(claim.total_ns for claim in claims)
    ratio = min(1.0, due_ns / whole) if whole else 0.0
    return tuple(Claim(claim.times, claim.ground, ratio) for claim in claims)
