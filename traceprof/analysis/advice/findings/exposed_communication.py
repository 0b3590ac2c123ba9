"""Communication that no compute hides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.context import Context
from traceprof.analysis.advice.findings.straggler import waiting_ratio
from traceprof.model.results import Note

__all__ = ["RULE"]

_LEAST: Final = 0.05


def _check(context: Context) -> Iterator[Finding]:
    exposed = {device: time.communication - time.compute for device, time in context.times.items()}
    ratio = context.mean_ratio(exposed) - waiting_ratio(context)
    if ratio < _LEAST:
        return
    whole = context.mean_ratio(
        {device: time.communication for device, time in context.times.items()}
    )
    own = context.kernels.communication
    top = own.nlargest(2, "total_ns")
    longest = context.kernels.longest_communication
    yield Finding(
        title=Note.of(
            "exposed communication: {share:ratio} of the time nothing else runs", share=ratio
        ),
        saving_ratio=ratio,
        saving_ns=context.saving_ns(ratio),
        evidence=(
            Note.of(
                "communication takes {whole:ratio} of the time, {hidden:ratio} of it hidden by "
                "compute or spent waiting",
                whole=whole,
                hidden=1 - ratio / whole,
            ),
            context.counted(int(own["count"].sum()), "communication kernels"),
            *(
                context.timed(ns, after=" in {name}", name=name)
                for name, ns in zip(top["name"], top["total_ns"].tolist(), strict=True)
            ),
        ),
        action=(
            "overlap it with compute: DDP with gradient_as_bucket_view and a tuned bucket_cap_mb, "
            "FSDP prefetching; accumulate gradients with no_sync(); reduce in BF16; check that "
            "communication has a stream of its own"
        ),
        caveat=(
            "on one rank the time includes waiting for the others: with traces of all ranks the "
            "slow rank can be told from a slow network"
        ),
        window="" if longest is None else context.window_text(*longest),
    )


RULE = Rule(
    name="exposed_communication",
    summary="communication that compute does not hide",
    needs=("kernels",),
    show="collectives",
    check=_check,
)
