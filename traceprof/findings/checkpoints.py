"""A rule on checkpoints that stall the training loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from traceprof.errors import NotRecordedError
from traceprof.findings.amounts import STEPS
from traceprof.findings.claims import Claim, ClaimKind, Excess, Kind, starts_within
from traceprof.findings.context import Context
from traceprof.findings.rules import Finding, rule
from traceprof.findings.steps import MIN_STEPS_FOR_SLOW, TOO_FEW_STEPS
from traceprof.measures.rows import mean_of, union_of
from traceprof.measures.steps.between import CHECKPOINT, activity_of_ranges
from traceprof.measures.steps.costs import (
    costs_of_processes,
    joined_over_borders,
    steps_between,
    unnamed_checkpoints,
)
from traceprof.measures.steps.measured import measured_steps
from traceprof.measures.steps.parts import DEVICE_PARTS
from traceprof.model.results import Note
from traceprof.model.table import Table
from traceprof.model.trace import Trace

_MIN_SHARE_RATIO: Final = 0.01
_MIN_PART_RATIO: Final = 0.1
_BASE: Final = "the mean step with checkpoints"


@rule(
    "step time variation",
    "checkpoints that stall training",
    about=STEPS,
    show="steps",
)
def checkpoint_stalls(context: Context) -> Iterator[Finding]:
    """Find steps that take longer because the program saves a checkpoint."""
    if len(context.steps) < MIN_STEPS_FOR_SLOW:
        raise NotRecordedError(TOO_FEW_STEPS)
    table = measured_steps(context.ranks).table
    is_saving = table["excess_cause"] == CHECKPOINT
    saving, usual = table.take(is_saving), table.take(context.is_usual)
    if saving.empty or usual.empty:
        yield from _in_most_steps(context)
        return
    durations = table["duration_ns"][is_saving | context.is_usual]
    usual_ns = float(usual["duration_ns"].mean())
    excess = Excess(_BASE, float(durations.mean()), 1 - usual_ns / float(durations.mean()))
    if excess.ratio < _MIN_SHARE_RATIO:
        return
    # Ranks wait for each other, so one rank shows all checkpoints.
    of_process = saving.take(saving["process"] == saving["process"][0])
    found = joined_over_borders(of_process, CHECKPOINT)
    every = steps_between(found)
    often = "one every {every:count} steps" if every else "{n:count} in {n_steps:count} steps"
    n_steps = len(durations) // len(np.unique(table["process"]))
    # The GPU may lag by a step: the ranges show which step the checkpoint follows.
    named = table.take(table["process"] == saving["process"][0])
    named = named.take(named["between_cause"] == CHECKPOINT)
    yield Finding(
        title=Note.of(
            "Checkpoints stall training for {share:ratio} of the loop time: {n:count} checkpoint(s)"
            " of {each:ns}",
            share=excess.ratio,
            n=len(found),
            each=float(found["excess_ns"].mean()),
        ),
        claims=(Claim({}, ClaimKind.PERIODIC, excess=excess),),
        kind=Kind.BOUNDED,
        evidence=(
            Note.of(
                f"{often}, the first after step {{first}}",
                n=len(found),
                every=every,
                n_steps=n_steps,
                first=int(min([*named["step"][:1], found["step"][0]])),
            ),
            Note.of(
                "{all:count} steps/s with checkpoints, {usual:count} steps/s without",
                all=1e9 / excess.base_ns,
                usual=1e9 / usual_ns,
            ),
            *_notes_on_parts(of_process, usual, len(found)),
            *_notes_on_copies(context, of_process, usual, len(found)),
        ),
        action=f"{_SAVE_ASYNCHRONOUSLY} If that is not possible, save less often, or save only the "
        "parameters in most cases.",
        caveat=_CAVEAT,
        window=f"step:{found['step'][0]}",
    )


def _in_most_steps(context: Context) -> Iterator[Finding]:
    """Yield a finding if so many steps contain a checkpoint that no step is unusual."""
    found = Table.stacked(context.ranks.each(_checkpoints))
    stalled = {
        device: context.typical & union_of(found.take(found["process"] == process))
        for process, device in context.process_devices
    }
    compute = {device: time.compute for device, time in context.times.items()}
    claim = context.unclaimed({device: stalled[device] - compute[device] for device in stalled})
    if (share := context.share(claim)) < _MIN_SHARE_RATIO:
        return
    found = found.take(starts_within(found, context.typical))
    n = int((found["process"] == found["process"][0]).sum())
    yield Finding(
        title=Note.of(
            "Checkpoints stall training for {share:ratio} of step time: {n:count} checkpoint(s) in "
            "{n_steps:count} step(s)",
            share=share,
            n=n,
            n_steps=round(context.n_steps),
        ),
        claims=(claim,),
        kind=Kind.BOUNDED,
        evidence=(
            context.timed(claim.total_ns, after=" in checkpoints, without compute"),
            *_notes_on_names(context),
        ),
        action=f"Save less often: every 100th step, for example. {_SAVE_ASYNCHRONOUSLY}",
        caveat=_CAVEAT,
    )


def _checkpoints(part: Trace) -> Table:
    """Return process, start_ns, and end_ns of the checkpoints of a trace, named or not."""
    found = [
        Table({"process": process, "start_ns": time.starts, "end_ns": time.ends})
        for (process, cause), time in activity_of_ranges(part.whole).items()
        if cause == CHECKPOINT
    ]
    if any(kind == CHECKPOINT for _, kind in costs_of_processes(part.whole)):
        found.append(unnamed_checkpoints(part.whole).select("process", "start_ns", "end_ns"))
    empty = part.ranges.select("process", "start_ns", "end_ns").head(0)
    return Table.stacked([empty, *found])


_SAVE_ASYNCHRONOUSLY: Final = (
    "Save asynchronously: `torch.distributed.checkpoint.async_save` copies the state to the CPU "
    "and writes the file during the next steps. Keep the buffers pinned."
)
_CAVEAT: Final = (
    "An asynchronous checkpoint still copies the state, and it needs CPU memory for it."
)


def _notes_on_parts(saving: Table, usual: Table, n: int) -> Iterator[Note]:
    """Yield a note on each part of GPU time that grows, as a mean of ``n`` checkpoints."""
    grown = {
        name: float((saving[name] - mean_of(usual[name])).sum()) / n
        for name in DEVICE_PARTS
        if name in saving
    }
    whole_ns = sum(ns for ns in grown.values() if ns > 0)
    for name, ns in sorted(grown.items(), key=lambda item: -item[1]):
        if ns > _MIN_PART_RATIO * whole_ns:
            part = name.removesuffix("_ns").replace("_", " ")
            yield Note.of("{part}: {ns:ns} per checkpoint", part=part, ns=ns)


def _notes_on_copies(context: Context, saving: Table, usual: Table, n: int) -> Iterator[Note]:
    """Yield notes on the bytes that a checkpoint copies, and on how it was recognized."""
    if "d2h_bytes" in saving:
        more = float((saving["d2h_bytes"] - mean_of(usual["d2h_bytes"])).sum()) / n
        if more > 0:
            yield Note.of("{moved:bytes} copied to the CPU per checkpoint", moved=round(more))
    yield from _notes_on_names(context)


def _notes_on_names(context: Context) -> Iterator[Note]:
    """Yield how checkpoints were recognized if no range names them."""
    if not any(context.ranks.each(_has_named_checkpoints)):
        yield Note(
            "no range names this work: many copies to the CPU without a matrix product in between"
        )


def _has_named_checkpoints(part: Trace) -> bool:
    """Return whether ranges name checkpoints."""
    return any(cause == CHECKPOINT for _, cause in activity_of_ranges(part.whole))
