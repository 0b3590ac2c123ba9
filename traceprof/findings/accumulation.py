"""A rule on gradients that are reduced in every micro-step of gradient accumulation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from traceprof.errors import NotRecordedError
from traceprof.findings.amounts import COLLECTIVES, AbsentError
from traceprof.findings.claims import Kind, union_by_device
from traceprof.findings.context import Context
from traceprof.findings.rules import Finding, rule
from traceprof.measures.collectives.operations import find_collectives
from traceprof.measures.host.launches import launches_of
from traceprof.measures.host.phases import phases_of_work
from traceprof.measures.rows import are_first, rows_by, unions_by
from traceprof.model.grouping import groups_of
from traceprof.model.results import Note
from traceprof.model.table import Table
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace
from traceprof.names.kernels import MATRIX_WORK
from traceprof.names.ranges import PHASES

_MIN_SHARE_RATIO: Final = 0.01
_REDUCES: Final = ("all_reduce", "reduce_scatter")
_MIN_PASS_BYTES: Final = 1_000_000
"""Smaller sums are metrics, losses, and norms."""
_MAX_DEVIATION_RATIO: Final = 0.01
_MIN_UPDATES_RATIO: Final = 0.5
_BACKWARD, _OPTIMIZER = (PHASES.index(name) for name in ("backward", "optimizer"))
_FORWARD: Final = -1
"""Matrix products outside the backward pass and the optimizer."""


@rule(
    "gradient accumulation",
    "gradients that are reduced in every micro-step",
    "kernels",
    about=COLLECTIVES,
    show="collectives",
)
def reduced_micro_steps(context: Context) -> Iterator[Finding]:
    """Find gradient accumulation that reduces gradients in every backward pass of a step."""
    if not context.is_training:
        raise AbsentError("no backward pass or optimizer in the recording")
    found = context.rows(_reductions)
    if found.empty:
        raise NotRecordedError("no gradient reductions with a known size")
    found = found.take(context.typical.covered_ns(found["start_ns"], found["end_ns"]) > 0)
    early = found.take(found["is_early"])
    times = unions_by(early.take(early["device"] != ABSENT), "device")
    claim = context.unclaimed(
        union_by_device([{d: t - context.times[d].compute for d, t in times.items()}])
    )
    share = context.share(claim)
    if share < _MIN_SHARE_RATIO:
        return
    ops = set(early["op"].tolist())
    n_passes = int(np.median(early["passes_count"]))
    yield Finding(
        title=Note.of(
            "Gradient accumulation reduces gradients in each of {n:count} backward passes per "
            "step: {share:ratio} of step time is exposed communication of passes before the last",
            n=n_passes,
            share=share,
        ),
        claims=(claim,),
        kind=Kind.BOUNDED,
        evidence=(
            context.counted(
                len(early),
                "early reduction(s)",
                " (a later backward pass of the step reduces these gradients again)",
                is_of_host=True,
            ),
            Note.of(
                "{moved:bytes} reduced per backward pass",
                moved=float(np.median(early["pass_bytes"])),
            ),
        ),
        action=_SHARDED if ops == {"reduce_scatter"} else _WITHOUT_SYNC,
        caveat="If other ranks are late, the waiting moves to the last backward pass.",
        window=context.longest_row(early),
    )


_WITHOUT_SYNC: Final = (
    "Reduce gradients only in the last micro-step: run the other backward passes in "
    "`with model.no_sync():` (DDP), `with accelerator.accumulate(model):` (Accelerate), or "
    "`with fabric.no_backward_sync(model):` (Lightning Fabric)."
)
_SHARDED: Final = (
    "If GPU memory allows it, reduce gradients only in the last micro-step: "
    "`model.set_requires_gradient_sync(False)` (FSDP2) or `with model.no_sync():` (FSDP) keep "
    "unsharded gradients between micro-steps."
)


def _reductions(trace: Trace) -> Table:
    """Return the reductions of gradients of the whole recording, with their backward pass.

    Columns: process, device, op, start_ns, end_ns, passes_count (backward passes of the update),
    pass_bytes (reduced in the pass), and is_early (a later pass of the same update reduces the same
    bytes again, so this reduction is unnecessary). Empty if sizes or phases are unknown.
    """
    work = find_collectives(trace.whole)
    work = work.take(
        (work["n_bytes"] > 0) & (work["call_ns"] != ABSENT) & work["op"].isin(_REDUCES)
    )
    passes = _passes(trace.whole)
    rows_of, no_rows = rows_by(passes, "process"), np.empty(0, np.int64)
    found = [
        _of_process(work.take(rows), passes.take(rows_of.get(process, no_rows)))
        for process, rows in rows_by(work, "process").items()
    ]
    return Table.stacked(found or [_of_process(work.head(0), passes.head(0))])


def _of_process(work: Table, passes: Table) -> Table:
    """Return the `_reductions` of one process, from its collectives and its `_passes`."""
    place = np.searchsorted(passes["start_ns"], work["call_ns"], side="right") - 1
    phase = np.where(place >= 0, passes["phase"][place], _FORWARD)
    # Tensor parallelism reduces activations of the same size in the forward pass.
    activations = np.unique(work["n_bytes"][phase == _FORWARD])
    is_gradient = (phase == _BACKWARD) & ~np.isin(work["n_bytes"], activations)
    is_backward = passes["phase"] == _BACKWARD
    update = np.cumsum(passes["phase"] == _OPTIMIZER)[is_backward]
    work = work.take(is_gradient)
    number = (np.cumsum(is_backward) - 1)[place[is_gradient]]
    n_bytes = np.bincount(number, work["n_bytes"], len(update))
    updates = groups_of(update)
    low, high = (updates.reduced(reduce, n_bytes) for reduce in (np.minimum, np.maximum))
    is_same = ~updates.differ(np.bincount(number, minlength=len(update)))
    is_same &= (low >= _MIN_PASS_BYTES) & (high <= (1 + _MAX_DEVIATION_RATIO) * low)
    is_same &= updates.counts > 1
    # The recording may end before the last pass of an update without an optimizer.
    is_same &= np.unique(update) < (passes["phase"] == _OPTIMIZER).sum()
    is_same &= is_same.sum() >= _MIN_UPDATES_RATIO * len(is_same)
    is_last = np.append(update[1:] != update[:-1], True)[: len(update)]
    group = updates.number[number]
    return work.select("process", "device", "op", "start_ns", "end_ns").assign(
        passes_count=updates.counts[group],
        pass_bytes=n_bytes[number],
        is_early=is_same[group] & ~is_last[number],
    )


def _passes(trace: Trace) -> Table:
    """Return process, start_ns, and phase of each pass: of backward, optimizer, or forward.

    A pass is a run of launches of one phase. Matrix products outside of backward passes and
    optimizers are forward passes. Other launches end no pass.
    """
    kernels = trace.kernels
    launches, phases = launches_of(trace, "kernels"), phases_of_work(trace, "kernels")
    is_matrix = kernels["activity"].isin(tuple(activity.value for activity in MATRIX_WORK))
    is_pass = np.isin(phases, (_BACKWARD, _OPTIMIZER))
    table = Table(
        {
            "process": kernels["process"],
            "start_ns": launches.start_ns,
            "phase": np.where(is_pass, phases, _FORWARD),
        }
    ).take(launches.is_known & (is_pass | is_matrix))
    table = table.in_order("process", "start_ns")
    return table.take(are_first(table["process"], table["phase"]))
