"""Time that the profiler itself takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pandas as pd

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.claims import Kind
from traceprof.analysis.advice.findings.context import Context
from traceprof.model.results import Note
from traceprof.model.trace import Trace

__all__ = ["RULE"]

_LEAST: Final = 0.02


def _check(context: Context) -> Iterator[Finding]:
    claim = context.idle_for("profiler")
    share = context.share(claim)
    if share < _LEAST:
        return
    ns = pd.concat(context.ranks.each(_by_name)).groupby(level=0).sum().nlargest(2)
    yield Finding(
        title=Note.of(
            "the profiler itself: devices are idle {share:ratio} of the time", share=share
        ),
        claims=(claim,),
        kind=Kind.MEASURED,
        evidence=tuple(
            context.timed(int(own), after=" of {name}", name=str(name))
            for name, own in ns.items()
            if own
        ),
        action="trace fewer kinds of events or fewer steps, and trust the shares less",
        caveat="without the profiler this time is not lost",
        window=context.longest_gap("profiler"),
    )


def _by_name(trace: Trace) -> pd.Series:
    rows = trace.overheads
    return (rows["end_ns"] - rows["start_ns"]).groupby(rows["name"].astype(str)).sum()


RULE = Rule(
    name="profiler_overhead",
    subject="profiler",
    summary="devices wait for the profiler",
    needs=("kernels", "overheads"),
    show="idle",
    check=_check,
)
