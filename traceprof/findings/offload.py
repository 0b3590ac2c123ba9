"""A rule on optimizers that run on the CPU while the GPU waits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from traceprof.errors import NotRecordedError
from traceprof.findings.amounts import TRANSFERS, AbsentError
from traceprof.findings.claims import Kind, Times
from traceprof.findings.context import Context
from traceprof.findings.gaps import notes_on_names
from traceprof.findings.rules import Finding, rule
from traceprof.measures.host.states import host_communication
from traceprof.measures.rows import bounds, rows_by, sums_at
from traceprof.model.intervals import Intervals
from traceprof.model.results import Note
from traceprof.model.table import Table
from traceprof.model.trace import Trace
from traceprof.names.kernels import MATRIX_WORK

_MIN_SHARE_RATIO: Final = 0.05
_MIN_BYTES: Final = 20_000_000
_MIN_RETURNED_RATIO: Final = 0.5
"""The CPU returns 16-bit parameters for 16-bit or 32-bit gradients."""
_MIN_STEPS_RATIO: Final = 0.5


@rule(
    "optimizer offloading",
    "an optimizer on the CPU that leaves the GPU idle",
    "kernels",
    "copies",
    about=TRANSFERS,
    show="idle",
)
def offloaded_optimizer(context: Context) -> Iterator[Finding]:
    """Find steps that copy gradients to the CPU and then copy parameters back to the GPU."""
    if not context.is_training:
        raise AbsentError("no backward pass or optimizer in the recording")
    if not len(context.steps):
        raise NotRecordedError("no steps are marked")
    found = context.rows(_returns)
    found = found.take(context.typical.covered_ns(*bounds(found)) > 0)
    if len(found) < _MIN_STEPS_RATIO * context.n_steps * len(context.devices):
        return
    times: Times = {
        device: Intervals.union_of(*bounds(found.take(rows))) - context.times[device].compute
        for device, rows in rows_by(found, "device").items()
    }
    claim = context.unclaimed(times)
    share = context.share(claim)
    if share < _MIN_SHARE_RATIO:
        return
    named, names = notes_on_names(context, claim.times)
    yield Finding(
        title=Note.of(
            "Offloaded optimizer: the GPU waits for {share:ratio} of step time while the CPU "
            "updates parameters, and for the copies",
            share=share,
        ),
        claims=(claim,),
        kind=Kind.BOUNDED,
        evidence=(
            Note.of(
                "per update, {saved:bytes} go to the CPU and {sent:bytes} return to the GPU",
                saved=float(np.median(found["saved_bytes"])),
                sent=float(np.median(found["sent_bytes"])),
            ),
            *named,
        ),
        action="Keep the optimizer on the GPU if its states fit: shard them (ZeRO, FSDP), or store "
        "them in 8 bits. Otherwise offload a part of them (DeepSpeed: `offload_optimizer` with "
        "`ratio`), use pinned memory (`pin_memory`), and give each rank more CPU threads.",
        caveat="Optimizer states on the GPU need memory: 8 bytes per parameter for FP32 Adam.",
        window=context.longest_row(found),
        ranges=names,
    )


def _returns(trace: Trace) -> Table:
    """Return when a device waits for parameters that the CPU updates.

    Columns: device, start_ns and end_ns (from the last matrix product before the wait to the first
    one after it), saved_bytes, and sent_bytes. Between two matrix products, a copy to the CPU is
    followed by copies to the GPU with at least half of the bytes that were copied to the CPU since
    the last such wait, and the CPU communicates with no other rank.
    """
    kernels, copies = trace.whole.kernels, trace.whole.copies
    is_matrix = kernels["activity"].isin(tuple(activity.value for activity in MATRIX_WORK))
    matrix = kernels.select("device", "start_ns", "end_ns").take(is_matrix)
    rows_of, found = rows_by(matrix, "device"), [_waits(matrix.head(0), copies.head(0))]
    for device, rows in rows_by(copies, "device").items():
        if device in rows_of:
            found.append(_waits(matrix.take(rows_of[device]), copies.take(rows)))
    waits = Table.stacked(found)
    # gloo and MPI copy gradients to the CPU and back, too.
    communicates = Intervals.empty()
    for time in host_communication(trace.whole).values():
        communicates |= time
    return waits.take(communicates.covered_ns(*bounds(waits)) == 0)


def _waits(matrix: Table, copies: Table) -> Table:
    """Return the `_returns` of one device."""
    n = len(matrix) + 1
    place = np.searchsorted(matrix["start_ns"], copies["start_ns"])
    sizes, is_saved = np.maximum(copies["n_bytes"], 0), copies["direction"] == "d2h"
    is_sent = copies["direction"] == "h2d"
    saved, sent = (sums_at(place[rows], sizes[rows], n) for rows in (is_saved, is_sent))
    last_saved, last_sent = np.full(n, -1), np.full(n, -1)
    np.maximum.at(last_saved, place[is_saved], copies["start_ns"][is_saved])
    np.maximum.at(last_sent, place[is_sent], copies["start_ns"][is_sent])
    is_return = (sent >= _MIN_BYTES) & (last_saved >= 0) & (last_sent > last_saved)
    is_return[[0, -1]] = False  # no matrix product before, or none after
    returns = np.flatnonzero(is_return)
    # Gradients may go to the CPU during the backward pass.
    before = np.cumsum(saved)[returns]
    saved_since = np.diff(before, prepend=0)
    fits = (saved_since >= _MIN_BYTES) & (sent[returns] >= _MIN_RETURNED_RATIO * saved_since)
    returns, saved_since = returns[fits], saved_since[fits]
    ends = np.maximum.accumulate(matrix["end_ns"])
    return Table(
        {
            "device": matrix["device"][returns],
            "start_ns": ends[returns - 1],
            "end_ns": matrix["start_ns"][returns],
            "saved_bytes": saved_since,
            "sent_bytes": sent[returns],
        }
    )
