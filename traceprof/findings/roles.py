"""Rule on roles in post-training: the trainer waits for rollouts, and rollouts for the trainer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from traceprof.errors import NotRecordedError
from traceprof.findings.amounts import NotApplicableError
from traceprof.findings.claims import Claim, Kind
from traceprof.findings.context import Context
from traceprof.findings.members import devices_of_members
from traceprof.findings.rules import Finding, rule
from traceprof.measures.collectives.clocks import why_no_common_clock
from traceprof.measures.collectives.members import find_members, list_members
from traceprof.measures.collectives.waits import waiting_of_members
from traceprof.measures.host.states import find_host_phases
from traceprof.measures.idle.losses import idle_times, within
from traceprof.measures.ranks.roles import find_roles
from traceprof.model.intervals import Intervals
from traceprof.model.results import Note
from traceprof.names.ranges import PHASE_WORDS

_MIN_SHARE_RATIO: Final = 0.05
_N_PARTS: Final = 3
_ACTION: Final = (
    "Let the roles work at the same time: generate the next batch while the trainer updates "
    "(asynchronous or one-step off-policy rollouts). Then give more ranks to {slower} until both "
    "roles wait equally long."
)
_ACTION_SERVER: Final = (
    "Send the gradients of each layer while the backward pass still runs, and answer each worker "
    "without waiting for the others (asynchronous updates). Divide the parameters among several "
    "servers. Or reduce gradients among the workers (DistributedDataParallel) without a server."
)


@rule("load balance across ranks", "a role that waits for another role", show="ranks")
def role_waits(context: Context) -> Iterator[Finding]:
    """Find trainers that wait for rollouts, or rollouts that wait for trainers."""
    roles = find_roles(context.ranks)
    trainers, others = (roles.places(are_trainers=is_trainer) for is_trainer in (True, False))
    if not others:
        raise NotApplicableError("all ranks have the same role")
    if why_not := why_no_common_clock(context.ranks):
        raise NotRecordedError(why_not)
    place_of = _analyzed_places(context, (*trainers, *others))
    of_trainers, of_others = (
        [place_of[member] for member in members if member in place_of]
        for members in (trainers, others)
    )
    if not of_trainers or not of_others:
        raise NotRecordedError("no activity of one of the roles was recorded")
    waits = _waits(context, {place: member for member, place in place_of.items()})
    idle = within(
        idle_times(context.ranks)["role"], dict.fromkeys(place_of.values(), context.typical)
    )
    waits |= {place: waits.get(place, Intervals.empty()) | time for place, time in idle.items()}
    claim = context.unclaimed(waits)
    typical_ns = max(1, context.typical.total_ns)
    waits = {place: time & context.typical for place, time in waits.items()}
    shares = [
        sum(waits.get(place, Intervals.empty()).total_ns for place in places)
        / (len(places) * typical_ns)
        for places in (of_trainers, of_others)
    ]
    if max(shares) < _MIN_SHARE_RATIO:
        return
    members = find_members(context.ranks)
    trainer = "worker" if roles.have_server else "trainer"
    names = [
        f"{_name_of(role)} ({list_members([members[place] for place in places])})"
        for role, places in ((trainer, trainers), (roles.of_member[others[0]], others))
    ]
    waiting, slower = (0, 1) if shares[0] >= shares[1] else (1, 0)
    waited = [waits[place] for place in (of_trainers, of_others)[waiting] if place in waits]
    longest = max(waited, key=lambda time: time.total_ns)
    yield Finding(
        title=Note.of(
            "The {who} waits for the {whom} for {share:ratio} of step time",
            who=names[waiting],
            whom=names[slower],
            share=shares[waiting],
            mean=sum(time.total_ns for time in waits.values()) / (len(place_of) * typical_ns),
        ),
        claims=(_with_saving(claim, min(shares), len(place_of) * typical_ns),),
        kind=Kind.BOUNDED,
        evidence=(
            Note.of(
                "the {whom} waits for the {who} for {share:ratio} of step time",
                who=names[waiting],
                whom=names[slower],
                share=shares[slower],
            ),
            *(
                _note_on_role(context, names[i], (of_trainers, of_others)[i], waits, shares[i])
                for i in (0, 1)
            ),
        ),
        action=_ACTION_SERVER
        if roles.have_server
        else _ACTION.format(slower=f"the {names[slower]}"),
        caveat="The saving assumes that both roles can work at the same time, with "
        f"{'gradients' if roles.have_server else 'rollouts'} of older weights.",
        window=context.longest_of(longest.starts, longest.ends),
    )


def _note_on_role(
    context: Context,
    name: str,
    places: Sequence[int],
    waits: Mapping[int, Intervals],
    waiting: float,
) -> Note:
    """Return a note on the parts of a role's step, with the largest part first.

    On GPUs, these are compute, waiting for the other role, and the rest; on hosts, the named phases
    instead of compute.
    """
    typical = context.typical
    working: dict[str, float] = {}
    if context.devices:
        ns = sum((context.times[place].compute & typical).total_ns for place in places)
        working["compute"] = float(ns)
    else:
        for i, hosts in enumerate(context.ranks.each(find_host_phases)):
            waited = waits.get(-1 - i, Intervals.empty())
            for host in hosts if -1 - i in places else ():
                for phase, time in host.times.items():
                    words = _WORDS_OF_PASSES.get(phase) or PHASE_WORDS.get(phase, phase)
                    working[words] = working.get(words, 0.0) + ((time & typical) - waited).total_ns
    whole_ns = max(1, len(places) * typical.total_ns)
    parts = {part: ns / whole_ns for part, ns in working.items()}
    parts["waiting for the other role"] = waiting
    parts["other"] = max(0.0, 1 - sum(parts.values()))
    largest = sorted(parts, key=lambda part: -parts[part])[:_N_PARTS]
    words = ", ".join(f"{{part{i}}} {{share{i}:ratio}}" for i in range(len(largest)))
    return Note.of(
        f"{{who}}, per step of {{step:ns}}: {words}",
        who=name,
        step=context.base.unit_ns,
        **{f"part{i}": part for i, part in enumerate(largest)},
        **{f"share{i}": parts[part] for i, part in enumerate(largest)},
    )


_WORDS_OF_PASSES: Final = {"eval": "forward passes"}
"""Words for passes without gradients: a rollout is not an evaluation."""


def _name_of(role: str) -> str:
    """Return the name of a role in a sentence."""
    is_model = role in ("reference", "reward")
    return f"{role} model" if is_model else role


def _with_saving(claim: Claim, overlap_ratio: float, whole_ns: int) -> Claim:
    """Return the claim with the saving of a perfect overlap: the shorter wait disappears."""
    saved = overlap_ratio * whole_ns / max(1, claim.total_ns)
    return Claim(claim.times, claim.claim_kind, saved_ratio=min(1.0, saved))


def _analyzed_places(context: Context, members: Sequence[int]) -> dict[int, int]:
    """Return the place in `Context.places` of each of ``members``: its GPU, else its host."""
    if context.devices:
        device_of = devices_of_members(context)
        return {member: device_of[member] for member in members if member in device_of}
    number = {
        process: -1 - i
        for i, part in enumerate(context.ranks)
        for process in set(part.processes["process"].tolist()) | set(part.recordings)
    }
    known = find_members(context.ranks)
    return {m: number[known[m].process] for m in members if known[m].process in number}


def _waits(context: Context, member_of: dict[int, int]) -> dict[int, Intervals]:
    """Return when each place waited for other ranks in collectives and messages."""
    waiting = waiting_of_members(context.ranks.whole)
    return {place: waiting[member] & context.typical for place, member in member_of.items()}
