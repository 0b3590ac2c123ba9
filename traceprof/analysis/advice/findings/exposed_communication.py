"""Communication that no compute hides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.claims import Kind
from traceprof.analysis.advice.findings.context import Context
from traceprof.model.results import Note

__all__ = ["RULE"]

_LEAST: Final = 0.05


def _check(context: Context) -> Iterator[Finding]:
    exposed = {device: time.communication - time.compute for device, time in context.times.items()}
    claim = context.left(exposed)
    share = context.share(claim)
    if share < _LEAST:
        return
    total = sum((time & context.typical).total_ns for time in exposed.values())
    others = total / context.typical_ns / len(context.places) - share
    busy = sum((t.communication & context.typical).total_ns for t in context.times.values())
    whole = busy / context.typical_ns / len(context.places)
    own = context.kernels.communication
    top = own.nlargest(2, "total_ns")
    longest = context.kernels.longest_communication
    yield Finding(
        title=Note.of(
            "exposed communication: {share:ratio} of the time no compute hides it", share=share
        ),
        claims=(claim,),
        kind=Kind.BOUNDED,
        evidence=(
            Note.of(
                "communication takes {whole:ratio} of the time, compute hides {hidden:ratio} of it"
                + (", {others:ratio} of the time belongs to other findings" if others else ""),
                whole=whole,
                hidden=1 - (share + others) / whole,
                others=others,
            ),
            context.counted(int(own["count"].sum()), "communication kernel(s)"),
            *(
                context.timed(ns, after=" in {name}", name=name)
                for name, ns in zip(top["name"], top["total_ns"].tolist(), strict=True)
            ),
        ),
        action=context.advice(
            pytorch="overlap it with compute: DDP with gradient_as_bucket_view and a tuned "
            "bucket_cap_mb, FSDP prefetching; accumulate gradients with no_sync(); reduce in 16 "
            "bits; check that communication has a stream of its own",
            other="overlap it with compute, on a stream of its own; send less, in fewer bits, or "
            "less often",
        ),
        caveat=(
            "on one rank the time includes waiting for the others: with traces of all ranks the "
            "slow rank can be told from a slow network"
        ),
        window="" if longest is None else context.window_text(*longest),
    )


RULE = Rule(
    name="exposed_communication",
    subject="communication",
    summary="communication that compute does not hide",
    needs=("kernels",),
    show="collectives",
    check=_check,
)
