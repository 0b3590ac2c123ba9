"""Rules on a rank, host, or rack that is late at collectives while all other ranks wait."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from traceprof.errors import NotRecordedError
from traceprof.findings.amounts import RANKS, AbsentError
from traceprof.findings.claims import Claim, ClaimKind, Kind, kind_and_model
from traceprof.findings.context import Context
from traceprof.findings.gaps import notes_on_names
from traceprof.findings.machine import notes_on_clock
from traceprof.findings.members import (
    attributed,
    devices_of_members,
    require_ranks,
    require_waiting,
)
from traceprof.findings.rules import SUBJECTS, Finding, rule
from traceprof.findings.waiting import notes_on_profiler
from traceprof.measures import shown_by
from traceprof.measures.collectives.blame import find_blame
from traceprof.measures.collectives.waits import find_waits, matches_in_step, waiting_of_members
from traceprof.measures.idle.losses import idle_times
from traceprof.measures.ranks.costs import Cause, cause_of, cost_of, tails_delayed_by
from traceprof.measures.ranks.groups import Grouping, find_late_host_or_rack
from traceprof.measures.ranks.imbalance import changes_rank
from traceprof.measures.ranks.roles import find_roles
from traceprof.measures.ranks.stragglers import (
    RankLateness,
    describe_delay,
    describe_stage,
    find_late_stage,
    is_once_in_all,
    lateness_of_ranks,
    stages_of_members,
)
from traceprof.measures.ranks.work_times import SlowRanks, describe_slow, find_slow_ranks
from traceprof.model.activity import DeviceTime
from traceprof.model.intervals import Intervals
from traceprof.model.results import Note
from traceprof.names.ranges import in_phase

_MIN_SHARE_RATIO: Final = 0.03
_MIN_SLOW_FACTOR: Final = 1.5
_MIN_RANGE_FACTOR: Final = 1.05
_REPLAY_ERROR_FACTOR: Final = 0.95
_MODEL: Final = Note(
    "traceprof replays the waiting without the delay. Lower bound: 5% less, the error in runs with "
    "known delays. Upper bound: the waiting time of the rank that waits least."
)
_ACTIONS: Final = {
    "host": (
        f"Check what the ranks of {{name}} share (`{shown_by('hosts')}`): CPUs and their clocks, "
        "other jobs, data and storage, throttled GPUs. Or exclude {name}."
    ),
    "rack": (
        f"Check what the hosts of {{name}} share (`{shown_by('racks')}`): cooling and power "
        "limits, storage, the switch. Or exclude {name}."
    ),
}


@rule(
    "load balance across ranks",
    "a whole host or rack that is late at collectives",
    about=RANKS,
    show="hosts",
)
def slow_host(context: Context) -> Iterator[Finding]:
    """Find a whole host or rack that arrives late at collectives."""
    require_ranks(context)
    require_waiting(context)
    members = context.matches.members
    if len({member.host for member in members if member.host}) < 2:
        raise AbsentError(
            "all ranks are on one host, or their hosts are unknown (use --cluster FILE)"
        )
    group = find_late_host_or_rack(context.ranks)
    if group is None:
        return
    cost_ns = _bounded_cost(context, cost_of(context.ranks, group.late_members), group.excess_ns)
    ratio = cost_ns / context.window_ns
    if ratio < _MIN_SHARE_RATIO:
        return
    kind = group.kind
    table = matches_in_step(context.ranks).table
    claims = claims_on_waiting(context, group.late_members, cost_ns)
    kind_of_saving, model = _kind_and_model(context, claims)
    delayed = table.take(
        [Grouping(kind).of_member(members[i]) == group.name for i in table["last_member"]]
    )
    worst = delayed.row(int(delayed["waited_ns"].argmax()))
    text = f"these ranks take longer {in_phase(group.phase)}"
    phase = (Note.of(text, phase=group.phase),) if group.phase else ()
    yield Finding(
        title=Note.of(
            f"Slow {kind}: the other ranks wait for {{name}} for {{share:ratio}} of step time",
            name=group.name,
            share=sum(map(context.saving_ratio, claims)),
        ),
        claims=claims,
        kind=kind_of_saving,
        model=model,
        evidence=(
            Note.of(
                f"{{late:count}} of the {{ranks:count}} ranks of {kind} {{name}} arrive late; the "
                f"{kind} is last at {{last:ratio}} of its shared collectives; on average, another "
                "rank waits {cost:ns} for it",
                late=group.late_ranks,
                ranks=group.ranks,
                name=group.name,
                last=group.last_ratio,
                cost=group.cost_ns,
            ),
            *phase,
        ),
        action=_ACTIONS[kind].format(name=group.name),
        caveat="If the clocks are not aligned (`--align`), a whole host can appear late.",
        window=context.window_text(int(worst["first_start_ns"]), int(worst["end_ns"])),
    )


@rule(
    "load balance across ranks",
    "a rank that is late at collectives",
    about=RANKS,
    show="stragglers",
)
def straggler(context: Context) -> Iterator[Finding]:
    """Find a rank or a pipeline stage that arrives late at collectives."""
    require_ranks(context)
    try:
        require_waiting(context)
    except NotRecordedError as error:
        slow_ranks = find_slow_ranks(context.ranks)
        if slow_ranks is None or not context.devices:
            raise
        yield _slow_rank_finding(context, slow_ranks, str(error))
        return
    if find_late_host_or_rack(context.ranks) is not None:
        return
    slow = _find_straggler(context)
    roles = find_roles(context.ranks)
    if slow is not None and (roles.have_server or roles.are_whole(slow.places)):
        return  # `role_waits` reports that one role waits for another
    ratio = slow.cost_ns / context.window_ns if slow else 0.0
    if slow is None or ratio < _MIN_SHARE_RATIO:
        # The clocks must be wrong if a rank computes much longer but delays no other rank.
        slow_ranks = find_slow_ranks(context.ranks)
        if (
            slow_ranks is not None
            and context.devices
            and slow_ranks.is_compute
            and slow_ranks.factor >= _MIN_SLOW_FACTOR
            and not any(changes_rank(context.ranks, place) for place in slow_ranks.places)
        ):
            yield _slow_rank_finding(
                context, slow_ranks, "according to the clocks, no rank delays the others"
            )
        return
    origins = find_blame(context.ranks).origins
    origins_of_slow = origins.take(np.isin(origins["member"], slow.places))
    at_ns = int(origins_of_slow["at_ns"][origins_of_slow["attributed_ns"].argmax()])
    waits = find_waits(context.ranks)
    begin_ns = int(waits["start_ns"][waits["last_start_ns"] == at_ns].min())
    claims = claims_on_waiting(context, slow.places, slow.cost_ns)
    if slow.is_once and not any(claim.total_ns for claim in claims):
        return  # the delay is in a slow step, which another rule reports
    once = "Late once" if slow.is_once else "Straggler"
    # A one-time cost is a share of the window; a recurring cost is a share of the steps.
    share = ratio if slow.is_once else sum(map(context.saving_ratio, claims))
    kind, model = _kind_and_model(context, claims)
    yield Finding(
        title=Note.of(
            f"{once}: the other ranks wait for {{slow}} for {{share:ratio}} of "
            f"{'the window' if slow.is_once else 'step time'}",
            slow=slow.label,
            share=share,
        ),
        claims=claims,
        kind=Kind.ONCE if slow.is_once else kind,
        model=None if slow.is_once else model,
        one_time_ns=slow.cost_ns if slow.is_once else None,
        evidence=(slow.evidence, *notes_on_names(context, claims[-1].times)[0])
        if slow.is_once
        else (
            slow.evidence,
            *_notes_on_cause(slow.cause),
            # A profiler takes time on the CPU, so it does not slow kernels down.
            *(() if slow.cause and slow.cause.kernels else notes_on_profiler(context, slow.places)),
            *notes_on_clock(context, slow.places),
        ),
        action=_ACTION_ONCE.format(slow=slow.label)
        if slow.is_once
        else _advice_on(slow.label, slow.cause)
        if context.devices
        else _ADVICE_ON_CPUS.format(who=slow.label),
        caveat="traceprof traces the delay back through the waits of the ranks. It ignores waits "
        "before the first shared collective.",
        window=context.window_text(begin_ns, at_ns),
        other_subjects=(_SUBJECT_OF_CAUSE.get(slow.cause.text, ""),) if slow.cause else (),
    )


WAITS_FOR_DATA: Final = "the device waits for data"
_SUBJECT_OF_CAUSE: Final = {
    WAITS_FOR_DATA: SUBJECTS["data"],
    "the device waits for the host": SUBJECTS["host"],
    "copies that nothing hides": SUBJECTS["exposed_transfer"],
}
"""The subject of the rules on the cause of a late rank."""


def _slow_rank_finding(context: Context, slow: SlowRanks, why_not: str) -> Finding:
    """Return the finding on ranks whose own steps are slow.

    ``why_not`` is the reason why the finding is not based on the waits of other ranks.
    """
    device_of = devices_of_members(context)
    slow_devices = {device for place, device in device_of.items() if place in slow.places}
    times = {device: context.times[device] for device in device_of.values()}
    exposed = {
        device: time.communication - time.compute
        for device, time in times.items()
        if device not in slow_devices
    }
    extra = {
        d: times[d].compute if slow.is_compute else context.analyzed_by_place[d]
        for d in slow_devices
    }
    claim_kind = ClaimKind.COMPUTE if slow.is_compute else ClaimKind.LOST
    due_ns = slow.excess_ns * context.n_steps
    claims = (
        *attributed((context.unclaimed(exposed),), due_ns * len(exposed)),
        *attributed((context.unclaimed(extra, claim_kind),), due_ns * len(extra)),
    )
    least = slow.least_ns / slow.excess_ns
    # With wrong clocks, the analyzed time is wrong as well, but the excess is correct.
    most = max(1.0, slow.excess_ns / max(context.saving_ns(claims), 1)) if slow.n_steps else 1.0
    stages = stages_of_members(context.ranks)
    of_slow = {stages.get(place) for place in slow.places}
    number = of_slow.pop() if len(of_slow) == 1 else None
    who = "{who}" if number is None else "{who} (stage {stage} of the pipeline)"
    if number is not None and len(slow.places) > 1:
        who = "stage {stage} of the pipeline ({late:count} of its {ranks:count} ranks)"
    return Finding(
        title=Note.of(
            f"Slow {who}: {{excess:ns}} more {'compute' if slow.is_compute else 'work'} "
            f"{'per step' if slow.n_steps else 'in the recording'} than the median of the other "
            "ranks",
            who=slow.label,
            stage=number,
            late=len(slow.places),
            ranks=sum(stage == number for stage in stages.values()),
            excess=slow.excess_ns,
        ),
        claims=tuple(
            replace(claim, between=(least * claim.saved_ratio, most * claim.saved_ratio))
            for claim in claims
        ),
        kind=Kind.ESTIMATED,
        model=Note(
            "Lower bound: as slow as the slowest other rank. Upper bound: the median of the other "
            "ranks."
        ),
        evidence=(
            describe_slow(slow),
            *notes_on_clock(context, slow.places),
            Note.of(
                "based on each rank's own steps, not on a comparison of clocks: {why}", why=why_not
            ),
        ),
        action=_advice_for(slow.label),
        caveat="A rank can have more work by design, for example the last stage of a pipeline.",
    )


BALANCE_EXPERTS: Final = (
    "Distribute tokens evenly over the experts: use an auxiliary loss or a bias in the router, "
    "limit the tokens per expert (capacity factor), or place experts by load and replicate the hot "
    "ones (EPLB)."
)
"""Advice on ranks that are late because their experts get more tokens."""


def _bounded_cost(context: Context, cost_ns: int, excess_ns: int) -> int:
    """Return the cost of a delay; of CPU ranks, at most the extra time of the late rank.

    CPU collectives may run beside the backward pass, so part of the waiting costs nothing.
    """
    return cost_ns if context.devices or not excess_ns else min(cost_ns, excess_ns)


def _kind_and_model(context: Context, claims: tuple[Claim, ...]) -> tuple[Kind, Note | None]:
    """Return how certain the saving is: of CPU ranks, an upper bound."""
    return kind_and_model(claims, _MODEL) if context.devices else (Kind.BOUNDED, None)


_ADVICE_ON_CPUS: Final = (
    f"Find out why {{who}} is late (`{shown_by('stragglers')}`): more work (uneven batches), a "
    "busier or slower host, or slower data and storage."
)


def _advice_for(who: str) -> str:
    """Return the advice on a late rank or stage."""
    return (
        f"Find out why {who} is late (`{shown_by('stragglers')}`): more work (uneven batches or "
        "layers), a slower or throttled GPU, a busier host, or slower storage."
    )


def _advice_on(who: str, cause: Cause | None) -> str:
    """Return the advice on a late rank by its cause; on a stage, or without a cause, in general."""
    if cause is not None and cause.text == WAITS_FOR_DATA:
        return (
            f"Find out why {who} loads its data more slowly: slower storage, larger or more "
            "samples, fewer DataLoader workers, or a busier host."
        )
    if cause is None or cause.kernels is None:
        return _advice_for(who)
    if cause.kernels.is_of_experts:
        return BALANCE_EXPERTS
    if cause.factor is None:
        return (
            f"Give {who} less work: distribute samples, tokens, or layers evenly over the ranks "
            f"(`{shown_by('stragglers')}`)."
        )
    if not cause.kernels.has_grids:
        return _advice_for(who)
    return (
        f"Check the GPU of {who}: clocks, power limit, temperature, and other jobs on it "
        "(`nvidia-smi --query-gpu=clocks.sm,power.draw,temperature.gpu --format=csv -l 1`). If its "
        "kernels have a fixed grid (one block per SM), compare the batch sizes of the ranks."
    )


def _notes_on_cause(cause: Cause | None) -> Iterator[Note]:
    """Yield a note on the kernel with the most extra work, if more work is the cause."""
    if cause is not None and cause.kernels is not None and cause.factor is None:
        note = cause.kernels.describe_work()
        if note is not None:
            yield note


_ACTION_ONCE: Final = (
    "Check what {slow} did at that time (`traceprof timeline`): a checkpoint, garbage collection, "
    "a storage or network retry, or another job on its host."
)


@dataclass(frozen=True, slots=True)
class _Straggler:
    """The ranks that other ranks wait for, and the mean waiting time of one other rank.

    ``places`` are indices in `find_members`.
    """

    label: str
    places: tuple[int, ...]
    cost_ns: int
    evidence: Note
    is_once: bool = False
    cause: Cause | None = None


def _find_straggler(context: Context) -> _Straggler | None:
    """Return the late stage, the straggler, or the rank that was late once; None without any."""
    stage = find_late_stage(context.ranks)
    if stage is not None:
        label = f"stage {stage.name} of the pipeline"
        return _Straggler(label, stage.late_members, stage.cost_ns, describe_stage(stage))
    lateness = lateness_of_ranks(context.ranks)
    slow = next((rank for rank in lateness if rank.is_straggler), None)
    if slow is not None:
        cause = cause_of(context.ranks, slow.member)
        slow = replace(slow, cost_ns=_bounded_cost(context, slow.cost_ns, slow.excess_ns))
        note = _note_on_rank(slow)
        return _Straggler(slow.label, (slow.member,), slow.cost_ns, note, cause=cause)
    late = next((rank for rank in lateness if is_once_in_all(context.ranks, rank)), None)
    if late is None:
        return None
    evidence = describe_delay(context.ranks, late)
    return _Straggler(late.label, (late.member,), late.cost_ns, evidence, is_once=True)


def _note_on_rank(slow: RankLateness) -> Note:
    """Return a note on the cause and the cost of a straggler."""
    cause = ": {cause}" if slow.cause else ""
    factor = " ({factor:factor})" if slow.factor is not None else ""
    return Note.of(
        f"{{slow}} does not wait for other ranks when its delays begin{cause}{factor}; on "
        "average, another rank waits {cost:ns} for it in this window",
        slow=slow.label,
        cause=slow.cause,
        factor=slow.factor,
        cost=slow.cost_ns,
    )


def claims_on_waiting(context: Context, places: Collection[int], cost_ns: int) -> tuple[Claim, ...]:
    """Return claims on the time in which devices wait for the members at ``places``.

    Without the delay, every rank would be done ``cost_ns`` earlier. The other ranks would wait that
    much less, and the late ranks would work that much less while others wait. Waiting beyond
    ``cost_ns`` has other causes, or would happen anyway.
    """
    device_of = devices_of_members(context)
    waiting = waiting_of_members(context.ranks.whole)
    tails = tails_delayed_by(context.ranks, tuple(places))
    others: dict[int, Intervals] = {}
    for place, device in device_of.items():
        if place not in places:
            others[device] = others.get(device, Intervals.empty()) | waiting[place] | tails[place]
    waiting_any = Intervals.empty()
    for time in others.values():
        waiting_any |= time.here()  # read here: no worker process has the times of all ranks
    nothing = DeviceTime.nothing()
    times = {d: context.times.get(d, nothing) for place, d in device_of.items() if place in places}
    computing = {device: time.compute & waiting_any for device, time in times.items()}
    not_computing = {device: waiting_any - time.compute for device, time in times.items()}
    waited = [(time & context.ranks.span.times).total_ns for time in others.values()]
    waited_ns, most = sum(waited), min(waited, default=0) / max(1, cost_ns)
    typical_ns = sum((time & context.typical).total_ns for time in others.values())
    due_ns = cost_ns * typical_ns / waited_ns if waited_ns else 0.0
    exposed = others
    if context.devices:
        by_host = idle_times(context.ranks)["communication"]
        exposed = {
            d: time & (context.times[d].communication | by_host.get(d, Intervals.empty()))
            for d, time in others.items()
        }
    extra = context.unclaimed(computing, ClaimKind.COMPUTE), context.unclaimed(not_computing)
    claims = (
        *attributed((context.unclaimed(exposed),), due_ns * len(others)),
        *attributed(extra, due_ns * len(times)),
    )
    if most <= _MIN_RANGE_FACTOR:
        return claims  # the rank that waits least limits the saving
    return tuple(
        replace(claim, between=(_REPLAY_ERROR_FACTOR * claim.saved_ratio, most * claim.saved_ratio))
        for claim in claims
    )
