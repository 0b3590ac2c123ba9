"""A rule on code that is compiled again and again in the training loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from traceprof.errors import NotRecordedError
from traceprof.findings.amounts import STEPS
from traceprof.findings.claims import Claim, ClaimKind, Excess, Kind
from traceprof.findings.context import Context
from traceprof.findings.rules import Finding, rule
from traceprof.findings.steps import MIN_STEPS_FOR_SLOW, TOO_FEW_STEPS
from traceprof.measures.steps.costs import COMPILING
from traceprof.measures.steps.measured import measured_steps
from traceprof.model.results import Note

_MIN_COMPILATIONS: Final = 3  # the first one, and one for dynamic shapes, are one-time costs
_BASE: Final = "the mean step with compilations"


@rule(
    "step time variation",
    "code that is compiled again in the loop",
    about=STEPS,
    show="steps",
)
def recompilation(context: Context) -> Iterator[Finding]:
    """Find steps that take longer because code is compiled again."""
    if len(context.steps) < MIN_STEPS_FOR_SLOW:
        raise NotRecordedError(TOO_FEW_STEPS)
    table = measured_steps(context.ranks).table
    is_compiling = table["excess_cause"] == COMPILING
    of_process = table.take(is_compiling & (table["process"] == table["process"][0]))
    usual_ns = table["duration_ns"][context.is_usual]
    if len(of_process) < _MIN_COMPILATIONS or not len(usual_ns):
        return
    mean_ns = float(table["duration_ns"][is_compiling | context.is_usual].mean())
    excess = Excess(_BASE, mean_ns, 1 - float(usual_ns.mean()) / mean_ns)
    yield Finding(
        title=Note.of(
            "Recompilation takes {share:ratio} of the loop time: {n:count} step(s) compile code, "
            "{each:ns} each",
            share=excess.ratio,
            n=len(of_process),
            each=float(of_process["excess_ns"].mean()),
        ),
        claims=(Claim({}, ClaimKind.PERIODIC, excess=excess),),
        kind=Kind.BOUNDED,
        evidence=(
            Note.of(
                "compiled from step {first:number} to step {last:number}; {all:count} steps/s with "
                "compilations, {usual:count} steps/s without",
                first=int(of_process["step"][0]),
                last=int(of_process["step"].max()),
                all=1e9 / mean_ns,
                usual=1e9 / float(usual_ns.mean()),
            ),
        ),
        action="Find out why code is compiled again: set `TORCH_LOGS=recompiles`. Keep shapes "
        "constant (pad or bucket the batches), mark dimensions that vary "
        "(`torch._dynamo.mark_dynamic(x, dim)`), or use `torch.compile(dynamic=True)`.",
        caveat="A new shape that later steps reuse needs its compilation once.",
        window=f"step:{of_process['step'][int(np.argmax(of_process['excess_ns']))]}",
    )
