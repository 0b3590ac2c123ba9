"""Finds savings that do not shorten the step, because other work determines the step time."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Final

from traceprof.findings.claims import Claim, ClaimKind, Kind, Times, union_by_device
from traceprof.findings.context import Context
from traceprof.findings.members import devices_of_members
from traceprof.findings.rules import MINOR_RATIO, SUBJECTS, SettledFinding
from traceprof.measures.collectives.blame import find_blame
from traceprof.measures.device.times import devices_at_work, devices_of_processes
from traceprof.measures.host.states import paces_of_batches
from traceprof.measures.idle.losses import DRAINED, idle_times
from traceprof.measures.path.path import find_path
from traceprof.measures.ranks.groups import find_late_host_or_rack
from traceprof.measures.ranks.stragglers import find_late_stage, lateness_of_ranks
from traceprof.measures.steps.base import WINDOW
from traceprof.model.intervals import Intervals
from traceprof.model.results import Note
from traceprof.model.trace import Trace

_MIN_WAITING_RATIO: Final = 0.05
"""Minimum share of waiting for data that shows that the loader determines the step time."""
_MIN_IDLE_RATIO: Final = 0.2
"""Minimum share of idle time that shows that the CPU can determine the step time."""
_MAX_ON_PATH_RATIO: Final = 0.5
_HOST_CAUSES: Final = ("data", "launch", "host", "synchronizing", DRAINED)
_NOT_IN_STEP: Final = ("input_bound", "profiler_overhead")
"""Rules whose savings a loader does not limit. The same applies to ranks that are late due to data.
"""
WORKERS: Final = "_MultiProcessingDataLoaderIter"
_LOADERS: Final = re.compile(rf"{WORKERS}|_SingleProcessDataLoaderIter")
_IN_STEP: Final = (ClaimKind.LOST, ClaimKind.COMPUTE)


def mark_hidden_savings(context: Context, found: Sequence[SettledFinding]) -> list[SettledFinding]:
    """Return ``found`` with the savings that other work hides as bounds with the reason.

    If the loop waits for the workers of its loader, the loader determines the step time: other
    savings only lengthen the wait. Names of ranges show the kind of the loader. If the kernels of a
    finding are mostly not on the critical path, the CPU determines the step time: faster kernels
    only lengthen the idle time.
    """
    found = _limited_by_late_ranks(context, _without_data_of_late_rank(found))
    found = _limited_by_loader(context, found)
    saving = [one for one in found if _saves_in_step(one)]
    if not saving:
        return list(found)
    if _waits_for_data(context):
        loaders = loaders_of(context)
        share = context.share(_idle(context, ("data",)))
        if loaders == {WORKERS}:
            reason = Note.of(_BEHIND_WORKERS, share=share)
            return [_hidden(one, reason) if _is_behind_loader(one) else one for one in found]
        if not loaders:
            reason = Note.of(_BEHIND_LOADER, share=share)
            found = [
                replace(_hidden(one, reason), is_hidden=False) if _is_behind_loader(one) else one
                for one in found
            ]
    if context.base.unit == WINDOW or context.share(_idle(context, _HOST_CAUSES)) < _MIN_IDLE_RATIO:
        return list(found)
    path = union_by_device(context.ranks.each(_computing_on_path))
    return [_hidden_off_path(one, path) if _saves_in_step(one) else one for one in found]


def _without_data_of_late_rank(found: Sequence[SettledFinding]) -> list[SettledFinding]:
    """Return ``found`` with data loading as a bound if it makes a rank late: it saves time once."""
    is_late = any(_is_due_to_data(one) for one in found if one.rule.subject == _OF_RANKS)
    return [
        _hidden(one, Note(_OF_LATE_RANK)) if is_late and one.rule.name == "input_bound" else one
        for one in found
    ]


def _limited_by_late_ranks(
    context: Context, found: Sequence[SettledFinding]
) -> list[SettledFinding]:
    """Return ``found`` with savings limited to the time of the late ranks.

    The other ranks wait for them in each step, so less work of the other ranks only lengthens their
    waits. Communication, and the waits themselves, are time of all ranks.
    """
    if not any(one.rule.subject == _OF_RANKS and _saves_in_step(one) for one in found):
        return list(found)
    who, members = _late_members(context)
    device_of, blamed_ns = devices_of_members(context), find_blame(context.ranks).attributed_ns
    late = {device_of[member] for member in members if member in device_of}
    if not late or late.issuperset(context.places):
        return list(found)
    blamed = float(blamed_ns[list(members)].sum() / max(1, blamed_ns.sum()))
    where = "in the window" if context.base.unit == WINDOW else f"per {context.base.unit}"
    blame = Note.of(f"{{ns:ns}} {where} on {_BLAME}", ns=0, who=who, share=blamed)
    return [
        one
        if one.rule.subject in _OF_ALL_RANKS or not _saves_in_step(one)
        else _limited_by_late(one, late, len(context.places), blame)
        for one in found
    ]


def _late_members(context: Context) -> tuple[str, tuple[int, ...]]:
    """Return the name of the late rank, host, or stage, and its indices in `find_members`."""
    group = find_late_host_or_rack(context.ranks) or find_late_stage(context.ranks)
    if group is not None:
        return f"{group.kind} {group.name}", group.late_members
    late = next((rank for rank in lateness_of_ranks(context.ranks) if rank.is_straggler), None)
    return ("", ()) if late is None else (late.label, (late.member,))


def _limited_by_late(
    settled: SettledFinding, late: Collection[int], n_devices: int, blame: Note
) -> SettledFinding:
    """Return a finding whose saving is limited to its time on the ``late`` devices.

    ``blame`` names the late ranks and the share of the waits that they cause. In the remaining
    waits, other ranks determine the step time. If nearly all of a measured saving is on the late
    ranks, this is said as evidence.
    """
    total_ns = sum(claim.total_ns for claim in settled.claims)
    late_ns = sum(t.total_ns for c in settled.claims for d, t in c.times.items() if d in late)
    ratio = late_ns / len(late) * n_devices / max(1, total_ns)
    reason = Note(blame.text, {**blame.values, "ns": ratio * settled.saving_ns})
    if ratio < _MIN_LATE_RATIO:
        most = ratio + (1 - blame.values["share"]) * (1 - ratio)
        return _limited(settled, most * settled.saving_ns, reason)
    if settled.finding.kind != Kind.MEASURED:
        return settled
    evidence = (*settled.finding.evidence, reason)
    return replace(settled, finding=replace(settled.finding, evidence=evidence))


def _limited_by_loader(
    context: Context, found: Sequence[SettledFinding]
) -> Sequence[SettledFinding]:
    """Return ``found`` with the savings on slow steps and checkpoints that a loader leaves.

    If the next steps wait for their batches until the loader would have delivered them anyway, a
    shorter step only lengthens these waits.
    """
    if not any(map(_is_in_single_steps, found)):
        return found
    paces = [
        pace
        for paces in context.ranks.each(paces_of_batches, context.steps.table)
        for pace in paces
    ]
    if not paces:
        return found
    pace_ns, excess_ns = min(paces, key=lambda pace: pace[1])
    remains = _REMAINS if excess_ns >= MINOR_RATIO * pace_ns else _NOTHING_REMAINS
    reason = Note.of(_AT_PACE + remains, pace=pace_ns, most=excess_ns)
    return [
        _limited(one, excess_ns, reason)
        if _is_in_single_steps(one) and one.saving_ns > excess_ns
        else one
        for one in found
    ]


def _is_in_single_steps(settled: SettledFinding) -> bool:
    """Return whether a finding saves time in single steps, and not by faster data loading."""
    is_single = any(claim.claim_kind in _IN_SINGLE_STEPS for claim in settled.claims)
    return is_single and settled.saving_ns > 0 and not _is_due_to_data(settled)


def _limited(settled: SettledFinding, most_ns: float, reason: Note) -> SettledFinding:
    """Return a finding that saves at most ``most_ns``; no saving if that is a minor share.

    The range of an estimate becomes smaller in proportion.
    """
    is_little = most_ns < MINOR_RATIO * settled.base_ns
    saving_ns = 0 if is_little else round(most_ns)
    least, most = settled.range_ns or (0, 0)
    scale = saving_ns / settled.saving_ns
    range_ns = (round(least * scale), round(most * scale)) if most and saving_ns else None
    finding = replace(
        settled.finding,
        kind=Kind.NONE if is_little else Kind.ESTIMATED if range_ns else Kind.BOUNDED,
        model=settled.finding.model if range_ns else None,
        evidence=(reason, *settled.finding.evidence[:1]),
    )
    return replace(
        settled,
        finding=finding,
        saving_ns=saving_ns,
        saving_ratio=saving_ns / settled.base_ns,
        range_ns=range_ns,
        is_hidden=is_little,
    )


_IN_SINGLE_STEPS: Final = (ClaimKind.SLOW, ClaimKind.PERIODIC)
_AT_PACE: Final = "the loop gets a batch every {pace:ns}, and waits less for it after these steps, "
_REMAINS: Final = "so this change saves at most {most:ns} per step before data loading is faster"
_NOTHING_REMAINS: Final = "so this change saves time only after data loading is faster"
_BLAME: Final = "{who}, which causes {share:ratio} of the waits of the other ranks"
_MIN_LATE_RATIO: Final = 0.9
_OF_ALL_RANKS: Final = (SUBJECTS["exposed_communication"], "load balance across ranks")
_OF_RANKS: Final = "load balance across ranks"
_OF_LATE_RANK: Final = "the saving on the late rank, which waits for data, includes this time"
_BEHIND_WORKERS: Final = (
    "the loop waits for the DataLoader workers ({share:ratio} of step time), so this change saves "
    "time only after data loading is faster"
)
_BEHIND_LOADER: Final = (
    "the loop waits for data ({share:ratio} of step time): if other processes load the data, this "
    "change saves time only after data loading is faster"
)
_OFF_PATH: Final = (
    "{share:ratio} of this time is not on the critical path: the CPU determines the step time"
)


def _is_behind_loader(settled: SettledFinding) -> bool:
    """Return whether a slow loader can hide the saving of a finding."""
    is_limited = settled.rule.name not in _NOT_IN_STEP and not _is_due_to_data(settled)
    return _saves_in_step(settled) and is_limited


def _is_due_to_data(settled: SettledFinding) -> bool:
    """Return whether the cause of a finding is data loading."""
    return SUBJECTS["data"] in settled.finding.other_subjects


def _saves_in_step(settled: SettledFinding) -> bool:
    """Return whether a finding saves time in each step."""
    is_in_step = all(claim.claim_kind in _IN_STEP for claim in settled.claims)
    return settled.saving_ns > 0 and is_in_step and not settled.is_minor


def _hidden(settled: SettledFinding, reason: Note) -> SettledFinding:
    """Return a finding with an upper bound of its saving, the reason, and its main evidence."""
    evidence = (reason, *settled.finding.evidence[:1])
    finding = replace(settled.finding, kind=Kind.BOUNDED, model=None, evidence=evidence)
    return replace(settled, finding=finding, range_ns=None, is_hidden=True)


def _hidden_off_path(settled: SettledFinding, path: Times) -> SettledFinding:
    """Return a finding on kernels as hidden if most of their time is not on the critical path."""
    total_ns = sum(claim.total_ns for claim in settled.claims)
    if not total_ns or any(c.claim_kind is not ClaimKind.COMPUTE for c in settled.claims):
        return settled
    on_path_ns = sum(
        (time & path[device]).total_ns
        for claim in settled.claims
        for device, time in claim.times.items()
        if device in path
    )
    if on_path_ns > _MAX_ON_PATH_RATIO * total_ns:
        return settled
    return _hidden(settled, Note.of(_OFF_PATH, share=1 - on_path_ns / total_ns))


def _idle(context: Context, causes: Iterable[str]) -> Claim:
    """Return the idle time of the typical time with one of ``causes``, claimed or not."""
    times = union_by_device(idle_times(context.ranks)[cause] for cause in causes)
    return Claim({device: time & context.typical for device, time in times.items()})


def _waits_for_data(context: Context) -> bool:
    """Return whether all GPUs wait for data."""
    waiting, nothing = _idle(context, ("data",)).times, Intervals.empty()
    least_ns = _MIN_WAITING_RATIO * context.typical.total_ns
    return len(context.devices) > 0 and all(
        waiting.get(device, nothing).total_ns >= least_ns for device in context.devices
    )


def loaders_of(context: Context) -> set[str]:
    """Return the kinds of DataLoader iterators that the ranges of all ranks name."""
    return set[str]().union(*context.ranks.each(_loaders))


def _loaders(part: Trace) -> set[str]:
    """Return the kinds of DataLoader iterators that the ranges of a trace name."""
    names = [text for t in (part.ranges, part.host_ops) for text in t["name"].distinct()]
    return {found[0] for found in map(_LOADERS.search, names) if found}


def _computing_on_path(part: Trace) -> Times:
    """Return when compute is on the critical path of the process of each device of a trace."""
    working = devices_at_work(part)
    return {
        device: find_path(part, process)[0]["compute"]
        for process, devices in devices_of_processes(part).items()
        if process in working
        for device in devices
    }
