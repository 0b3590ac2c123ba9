"""Devices that are busy and mostly empty: kernels that occupy few of their SMs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from traceprof.errors import NotRecordedError
from traceprof.findings.claims import Claim, Ground, Kind, Times
from traceprof.findings.context import Context
from traceprof.findings.kernel_times import times_of
from traceprof.findings.rules import COMPUTE, Finding, rule
from traceprof.measures.device.counters import active_sms
from traceprof.model.results import Note

_LEAST_UNFILLED: Final = 0.1


@rule("use of the SMs", "kernels that leave SMs idle", "kernels", about=COMPUTE, show="counters")
def unfilled_kernels(context: Context) -> Iterator[Finding]:
    """Find kernels that occupy few of the SMs, as counters of the GPU measured."""
    counted = [own for part in context.ranks.each(active_sms) for own in part]
    if not counted:
        raise NotRecordedError("no counters of the SMs were sampled")
    compute = {device: time.compute for device, time in context.times.items()}
    found = [
        (own, _claim(context, compute, own.device, 1 - own.of_kernels))
        for own in counted
        if own.device in compute and own.of_kernels < 1
    ]
    if sum(context.share(claim) * claim.saved_ratio for _, claim in found) < _LEAST_UNFILLED:
        return
    names = context.kernels.by_name.in_order("-total_ns")
    yield Finding(
        title=Note.of(
            "kernels leave SMs idle: while they run, {share:ratio} of the SMs work",
            share=sum(own.of_kernels for own, _ in found) / len(found),
        ),
        claims=tuple(claim for _, claim in found),
        kind=Kind.ESTIMATED,
        model=Note("every kernel would fill all SMs; at least nothing, where memory limits them"),
        evidence=tuple(
            Note.of(
                "device {device:number}: SMs active {active:ratio} of the time, kernels "
                "{recorded:ratio} (measured)",
                device=own.device,
                active=own.active_ratio,
                recorded=own.recorded_ratio,
            )
            for own, _ in found[:_FEW]
        ),
        action=context.advice(
            pytorch="give each kernel more work: a larger batch, fewer and larger operations, or "
            "work of several streams side by side",
            other="give each kernel more blocks than the GPU has SMs, or run several side by side",
        ),
        caveat="kernels that wait for memory gain less",
        ncu=context.ncu(times_of(names)),
    )


def _claim(context: Context, compute: Times, device: int, empty: float) -> Claim:
    return context.left({device: compute[device]}, Ground.COMPUTE, empty, (0.0, empty))


_FEW: Final = 3
