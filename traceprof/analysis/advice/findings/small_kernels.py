"""Much of the device's time is in short kernels that could be one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.context import Context
from traceprof.analysis.training.classes import SHORT_NS
from traceprof.model.activity import Activity
from traceprof.units import format_duration, format_ratio

__all__ = ["RULE"]

_LEAST: Final = 0.1
_FUSED_AWAY: Final = 0.5
"""The share of the time of short kernels that fusing pairs of them saves."""


def _check(context: Context) -> Iterator[Finding]:
    kernels = context.kernels
    own = kernels[kernels["activity"] != Activity.COMMUNICATION.value]
    short = own[own["duration_ns"] < SHORT_NS]
    share = int(short["duration_ns"].sum()) / context.typical_ns / max(1, len(context.devices))
    if share < _LEAST:
        return
    top = short.groupby("activity", observed=True)["duration_ns"].sum().nlargest(3)
    yield Finding(
        rule=RULE.name,
        title=f"small kernels: {format_ratio(share)} of the time in kernels "
        f"below {format_duration(SHORT_NS)}",
        saving_ratio=share * _FUSED_AWAY,
        saving_ns=context.saving_ns(share * _FUSED_AWAY),
        evidence=(
            f"{context.per_step(len(short))} of them, {format_ratio(len(short) / len(own))} of all",
            *(f"{context.time_per_step(int(ns))} of {name}" for name, ns in top.items()),
        ),
        action="fuse them: torch.compile, fused optimizers and normalisations, larger batches",
        caveat="the saving assumes that half of their time falls away when they are fused",
    )


RULE = Rule(
    name="small_kernels",
    summary="much time in kernels that are too short",
    needs=("kernels",),
    check=_check,
)
