"""Much of the device's time is in short kernels that could be one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.context import Context
from traceprof.facts.names.kernels import SHORT_NS
from traceprof.model.activity import Activity
from traceprof.model.results import Note

__all__ = ["RULE"]

_LEAST: Final = 0.1
_FUSED_AWAY: Final = 0.5
"""The share of the time of short kernels that fusing pairs of them saves."""


def _check(context: Context) -> Iterator[Finding]:
    kernels = context.kernels.by_name
    own = kernels[kernels["activity"] != Activity.COMMUNICATION.value]
    count, n_short = int(own["count"].sum()), int(own["short_count"].sum())
    share = context.kernels_ratio(int(own["short_ns"].sum()))
    if share < _LEAST:
        return
    top = own.groupby("activity")["short_ns"].sum().nlargest(3)
    yield Finding(
        title=Note.of(
            "small kernels: {share:ratio} of the time in kernels below {least:ns}",
            share=share,
            least=SHORT_NS,
        ),
        saving_ratio=share * _FUSED_AWAY,
        saving_ns=context.saving_ns(share * _FUSED_AWAY),
        evidence=(
            context.counted(n_short, "of them ({share:ratio} of all)", share=n_short / count),
            *(context.timed(int(ns), after=" of {name}", name=name) for name, ns in top.items()),
        ),
        action="fuse them: torch.compile, fused optimizers and normalisations, larger batches",
        caveat="the saving assumes that half of their time falls away when they are fused",
    )


RULE = Rule(
    name="small_kernels",
    summary="much time in kernels that are too short",
    needs=("kernels",),
    show="classes",
    check=_check,
)
