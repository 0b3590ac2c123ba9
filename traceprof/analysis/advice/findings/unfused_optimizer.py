"""An optimizer that passes over the parameters several times."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.claims import Kind
from traceprof.analysis.advice.findings.context import Context
from traceprof.model.results import Note

__all__ = ["RULE"]

_LEAST: Final = 0.02
_PASS: Final = re.compile(r"multi_?tensor_apply.*(Unary|Binary|Ternary|Pointwise)Op", re.DOTALL)
_OTHER: Final = re.compile(r"_amp_|LpNorm|CopyFunctor|Fused")
_FEWEST_PASSES: Final = 3
_FUSED: Final = 7 / 4
"""A fused Adam reads four tensors and writes three; the longest pass of several reads three and
writes one."""


def _check(context: Context) -> Iterator[Finding]:
    if not context.software.has_pytorch:
        return
    passes = context.kernels.named(_PASS)
    passes = passes[[_OTHER.search(str(name)) is None for name in passes["name"]]]
    if len(passes) < _FEWEST_PASSES:
        return
    total_ns, longest_ns = int(passes["total_ns"].sum()), int(passes["total_ns"].max())
    saved = max(0.0, 1 - _FUSED * longest_ns / max(1, total_ns))
    claim = context.kernel_claim(passes, saved)
    share = context.share(claim)
    if share * saved < _LEAST:
        return
    top = passes.nlargest(1, "total_ns").iloc[0]
    yield Finding(
        title=Note.of(
            "the optimizer passes over the parameters {n:count} times: {share:ratio} of the time",
            n=len(passes),
            share=share,
        ),
        claims=(claim,),
        kind=Kind.ESTIMATED,
        model=Note("fused it moves 7/4 of what its longest pass moves"),
        evidence=(
            context.counted(int(passes["count"].sum()), "kernel(s)"),
            context.timed(int(top["total_ns"]), "the longest pass takes "),
        ),
        action="use the fused optimizer (torch.optim.AdamW(..., fused=True)) in place of foreach",
        caveat="a closure, or parameters on several kinds of devices, rule the fused one out",
        ncu=context.ncu(passes.set_index("name")["total_ns"]),
    )


RULE = Rule(
    name="unfused_optimizer",
    subject="fusion",
    summary="an optimizer in several passes over the parameters",
    needs=("kernels",),
    show="kernels",
    check=_check,
)
