"""Rules on iterations of post-training: the tail of generation, and weight synchronization."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from traceprof.errors import NotRecordedError
from traceprof.findings.amounts import NotApplicableError
from traceprof.findings.claims import Claim, ClaimKind, Kind
from traceprof.findings.context import Context
from traceprof.findings.rules import Finding, rule
from traceprof.measures.device.times import devices_of_processes
from traceprof.measures.host.states import find_host_phases
from traceprof.measures.rows import Floats, Ints
from traceprof.model.intervals import Intervals
from traceprof.model.results import Note
from traceprof.model.timing import TRACEPROF_DOMAIN
from traceprof.model.trace import Trace

_MIN_SHARE_RATIO: Final = 0.05
_TAIL_RATIO: Final = 0.25
"""Share of the sequences with which generation is in its tail."""
_RUNNING: Final = "generation.running"
"""The mark with the number of sequences that are still generated, at each change."""


class _Phase(NamedTuple):
    """A phase of a process: its time, its number of ranges, and the devices of the process.

    ``starts``, ``ends``, and ``running`` are spans with a constant number of sequences; empty if
    the number is unknown.
    """

    time: Intervals
    n_ranges: int
    devices: tuple[int, ...]
    starts: Ints
    ends: Ints
    running: Floats


def _phase_of_hosts(part: Trace, phase: str) -> list[_Phase]:
    """Return the time of a phase in each process of a trace that has it."""
    found, used = [], devices_of_processes(part)
    marks = part.whole.marks
    marks = marks.take((marks["domain"] == TRACEPROF_DOMAIN) & (marks["name"] == _RUNNING))
    for host in find_host_phases(part):
        time = host.times.get(phase, Intervals.empty())
        if time.total_ns:
            of_host = marks.take(marks["process"] == host.process)
            starts = of_host["start_ns"]
            ends = np.append(starts[1:], part.span.end_ns)[: len(starts)]
            devices, count = used.get(host.process, ()), host.counts[phase]
            found.append(_Phase(time, count, devices, starts, ends, of_host["payload"]))
    return found


def _phases(context: Context, phase: str) -> list[tuple[_Phase, tuple[int, ...]]]:
    """Return a phase of each process, with the places of the process in `Context.places`."""
    of_parts = context.ranks.each(_phase_of_hosts, phase=phase)
    found = [
        (one, one.devices if context.devices else (-1 - i,))
        for i, of_part in enumerate(of_parts)
        for one in of_part
    ]
    if not found:
        raise NotApplicableError(f"no {phase.replace('weight_sync', 'weight synchronization')}")
    return found


@rule("communication", "synchronization of weights with rollouts", show="ranges")
def weight_synchronization(context: Context) -> Iterator[Finding]:
    """Find time in which an iteration only sends its new weights to the rollout engine."""
    phases = _phases(context, "weight_sync")
    times = {place: one.time & context.typical for one, places in phases for place in places}
    claim = context.unclaimed(times)
    share = context.share(claim)
    if share < _MIN_SHARE_RATIO:
        return
    n = sum(one.n_ranges for one, _ in phases)
    yield Finding(
        title=Note.of(
            "Weight synchronization with the rollout engine takes {share:ratio} of step time",
            share=share,
        ),
        claims=(claim,),
        kind=Kind.BOUNDED,
        evidence=(
            Note.of(
                "{n:count} synchronization(s), {each:ns} each",
                n=n,
                each=sum(one.time.total_ns for one, _ in phases) / n,
            ),
        ),
        action="Send the weights while the engine still generates (asynchronous updates), in large "
        "buckets, and over NCCL or shared GPU memory (IPC) instead of files or CPU memory.",
        caveat="If the update overlaps generation, some sequences mix old and new weights.",
    )


@rule("SM utilization", "generation with few remaining sequences", show="ranges")
def generation_tail(context: Context) -> Iterator[Finding]:
    """Find generation in which most sequences have ended and the GPU waits for the longest."""
    phases = [phase for phase in _phases(context, "generation") if len(phase[0].running)]
    if not phases:
        raise NotRecordedError("the number of sequences that are generated was not recorded")
    lengths = [(one.time & context.typical).covered_ns(one.starts, one.ends) for one, _ in phases]
    ns, counts = np.concatenate(lengths), np.concatenate([one.running for one, _ in phases])
    most = float(counts[ns > 0].max(initial=0))
    is_tail = (counts > 0) & (counts <= _TAIL_RATIO * most)
    if not ns[is_tail].sum():
        return
    tails: dict[int, Intervals] = {}
    for one, places in phases:
        is_few = (one.running > 0) & (one.running <= _TAIL_RATIO * most)
        spans = Intervals.union_of(one.starts[is_few], one.ends[is_few])
        tails |= dict.fromkeys(places, one.time & context.typical & spans)
    saved = 1 - float(np.average(counts[is_tail], weights=ns[is_tail])) / most
    claims = tuple(
        context.unclaimed(tails, kind, saved) for kind in (ClaimKind.COMPUTE, ClaimKind.LOST)
    )
    share = sum(map(context.share, claims))
    if share < _MIN_SHARE_RATIO:
        return
    yield _tail_finding(claims, share, ns, counts, most)


def _tail_finding(
    claims: tuple[Claim, ...], share: float, ns: Ints, counts: Floats, most: float
) -> Finding:
    """Return the finding; ``ns`` are times with a number of running sequences, ``counts``."""
    order = np.argsort(counts)
    half = counts[order][np.searchsorted(np.cumsum(ns[order]), ns.sum() / 2)]
    return Finding(
        title=Note.of(
            "The tail of generation takes {share:ratio} of step time: at most {few:count} of "
            "{most:count} sequences still run",
            share=share,
            few=int(_TAIL_RATIO * most),
            most=int(most),
        ),
        claims=claims,
        kind=Kind.BOUNDED,
        evidence=(
            Note.of(
                "half of the generation runs with at most {half:count} of {most:count} sequences",
                half=int(half),
                most=int(most),
            ),
        ),
        action="Start the next prompts before the longest sequences end: partial or asynchronous "
        "rollouts, or more prompts than needed. Or limit the response length.",
        caveat="The saving assumes that other sequences fill the batch at all times.",
    )
