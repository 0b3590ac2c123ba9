"""Matrix work that does not run on tensor cores."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.claims import Kind
from traceprof.analysis.advice.findings.context import Context
from traceprof.model.results import Note

__all__ = ["RULE"]

_LEAST: Final = 0.1
_SINGLE_PRECISION: Final = re.compile(
    r"(ampere|volta|turing|maxwell|pascal|sm\d+)_\w*sgemm|simt_sgemm|(^|[^a-z0-9])sgemm_\d", re.I
)
_HAVE_NONE: Final = re.compile(r"GTX|Tesla (K|M|P)\d|P100|Quadro (K|M|P)\d", re.IGNORECASE)


def _check(context: Context) -> Iterator[Finding]:
    devices = {str(name) for part in context.ranks for name in part.devices["name"]}
    if any(_HAVE_NONE.search(name) for name in devices):
        return
    own = context.kernels.named(_SINGLE_PRECISION)
    claim = context.kernel_claim(own, 0.5)
    share = context.share(claim)
    if share < _LEAST:
        return
    top = own.nlargest(2, "total_ns")
    yield Finding(
        title=Note.of(
            "no tensor cores: {share:ratio} of the time in FP32 matrix kernels", share=share
        ),
        claims=(claim,),
        kind=Kind.ESTIMATED,
        model="half",
        evidence=tuple(
            context.timed(ns, after=" in {name}", name=name)
            for name, ns in zip(top["name"], top["total_ns"].tolist(), strict=True)
        ),
        action=(
            'allow TF32 (torch.set_float32_matmul_precision("high")) or train in BF16 '
            "(torch.autocast)"
        ),
        caveat="halving is a guess; TF32 and BF16 round more: check that the model still converges",
    )


RULE = Rule(
    name="tensor_cores",
    summary="matrix work in single precision, without tensor cores",
    needs=("kernels",),
    show="classes",
    check=_check,
)
