"""Communication that no compute hides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.context import Context
from traceprof.analysis.advice.findings.straggler import waiting_ratio
from traceprof.model.activity import Activity
from traceprof.units import format_ratio

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
    kernels = context.kernels
    own = kernels[kernels["activity"] == Activity.COMMUNICATION.value]
    top = own.groupby("name", observed=True)["duration_ns"].sum().nlargest(2)
    yield Finding(
        rule=RULE.name,
        title=f"exposed communication: {format_ratio(ratio)} of the time nothing else runs",
        saving_ratio=ratio,
        saving_ns=context.saving_ns(ratio),
        evidence=(
            f"communication takes {format_ratio(whole)} of the time, "
            f"{format_ratio(1 - ratio / whole)} of it hidden by compute or spent waiting",
            f"{context.per_step(len(own))} communication kernels",
            *(f"{context.time_per_step(int(ns))} in {name}" for name, ns in top.items()),
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
        window=context.longest_row(own),
    )


RULE = Rule(
    name="exposed_communication",
    summary="communication that compute does not hide",
    needs=("kernels",),
    check=_check,
)
