"""Many small collectives: latency instead of bandwidth."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.context import Context
from traceprof.model.activity import Activity
from traceprof.units import format_bytes, format_duration, format_ratio

__all__ = ["RULE"]

_LEAST: Final = 0.02
_FEWEST_PER_STEP: Final = 20
_SMALL_BYTES: Final = 1_000_000
_SHORT_NS: Final = 60_000
_USEFUL_BYTES: Final = 25_000_000
"""The default size of DDP's buckets."""


def _check(context: Context) -> Iterator[Finding]:
    kernels = context.kernels
    own = kernels[kernels["activity"] == Activity.COMMUNICATION.value]
    exposed = context.mean_ratio(
        {device: time.communication - time.compute for device, time in context.times.items()}
    )
    per_step = len(own) / context.n_steps / max(1, len(context.devices))
    sizes = context.trace.collectives["n_bytes"]
    sizes = sizes[sizes > 0]
    median_ns = float(own["duration_ns"].median()) if len(own) else 0.0
    small = float(sizes.median()) < _SMALL_BYTES if len(sizes) else median_ns < _SHORT_NS
    if per_step < _FEWEST_PER_STEP or not small:
        return
    needed = max(1.0, float(sizes.sum()) / context.n_steps / _USEFUL_BYTES) if len(sizes) else 1.0
    ratio = exposed * max(0.0, 1 - needed / per_step)
    if ratio < _LEAST:
        return
    size = (
        f"median message {format_bytes(float(sizes.median()))}"
        if len(sizes)
        else "sizes were not recorded"
    )
    yield Finding(
        rule=RULE.name,
        title=f"small collectives: {per_step:.0f} per step cost {format_ratio(ratio)} in latency",
        # The same time is exposed communication; what larger buckets save of it is uncertain.
        saving_ratio=ratio / 2,
        saving_ns=context.saving_ns(ratio / 2),
        evidence=(f"median duration {format_duration(median_ns)}, {size}",),
        action="send fewer, larger messages: raise bucket_cap_mb, coalesce, flatten gradients",
        caveat="larger buckets start later and may overlap less",
    )


RULE = Rule(
    name="small_buckets",
    summary="many collectives that are too small for the link",
    needs=("kernels",),
    check=_check,
)
