"""Much of the device's time is in short kernels that could be one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.claims import Ground, Kind, Times
from traceprof.analysis.advice.findings.context import Context
from traceprof.model.activity import Activity
from traceprof.model.intervals import Intervals
from traceprof.model.results import Note
from traceprof.model.trace import Trace
from traceprof.names.kernels import SHORT_NS

__all__ = ["RULE"]

_LEAST: Final = 0.1
_FUSED_AWAY: Final = 0.5
"""The share of the time of short kernels that fusing pairs of them saves."""


def _check(context: Context) -> Iterator[Finding]:
    kernels = context.kernels.by_name
    own = kernels[kernels["activity"] != Activity.COMMUNICATION.value]
    count, n_short = int(own["count"].sum()), int(own["short_count"].sum())
    claim = context.left(_short_kernels(context), Ground.COMPUTE, _FUSED_AWAY)
    share = context.share(claim)
    if share < _LEAST:
        return
    top = own.groupby("activity")["short_ns"].sum().nlargest(3)
    yield Finding(
        title=Note.of(
            "small kernels: {share:ratio} of the time in kernels below {least:ns}",
            share=share,
            least=SHORT_NS,
        ),
        claims=(claim,),
        kind=Kind.ESTIMATED,
        model=Note("half of their time falls away when they are fused"),
        evidence=(
            context.counted(n_short, "of them", " ({share:ratio} of all)", share=n_short / count),
            *(context.timed(int(ns), after=" of {name}", name=name) for name, ns in top.items()),
        ),
        action=context.advice(
            pytorch="fuse them: torch.compile, fused optimizers and normalisations, larger batches",
            other="fuse them, or give each more work",
        ),
        caveat="kernels that depend on one another across threads cannot be fused",
        ncu=context.ncu(own.set_index("name")["short_ns"]),
    )


def _short_kernels(context: Context) -> Times:
    found: dict[int, Intervals] = {}
    for own in context.ranks.each(_short_of_one):
        found |= own
    return found


def _short_of_one(part: Trace) -> dict[int, Intervals]:
    kernels = part.kernels
    lengths = kernels["end_ns"] - kernels["start_ns"]
    own = kernels[(lengths < SHORT_NS) & (kernels["activity"] != Activity.COMMUNICATION.value)]
    starts, ends = (own[name].to_numpy() for name in ("start_ns", "end_ns"))
    return {
        int(str(device)): Intervals.union_of(starts[rows], ends[rows])
        for device, rows in own.groupby("device").indices.items()
    }


RULE = Rule(
    name="small_kernels",
    subject="fusion",
    summary="much time in kernels that are too short",
    needs=("kernels",),
    show="classes",
    check=_check,
)
