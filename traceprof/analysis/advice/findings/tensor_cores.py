"""Matrix work that does not run on tensor cores."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.context import Context
from traceprof.units import format_ratio

__all__ = ["RULE"]

_LEAST: Final = 0.1
_SINGLE_PRECISION: Final = re.compile(
    r"(ampere|volta|turing|maxwell|pascal|sm\d+)_\w*sgemm|simt_sgemm|(^|[^a-z0-9])sgemm_\d", re.I
)
_HAVE_NONE: Final = re.compile(r"GTX|Tesla (K|M|P)\d|P100|Quadro (K|M|P)\d", re.IGNORECASE)


def _check(context: Context) -> Iterator[Finding]:
    if context.trace.devices["name"].map(lambda name: bool(_HAVE_NONE.search(str(name)))).any():
        return
    kernels = context.kernels
    names = kernels["name"].cat.categories
    codes = [i for i, name in enumerate(names) if _SINGLE_PRECISION.search(str(name))]
    own = kernels[kernels["name"].cat.codes.isin(codes)]
    share = int(own["duration_ns"].sum()) / context.typical_ns / max(1, len(context.devices))
    if share < _LEAST:
        return
    top = own.groupby("name", observed=True)["duration_ns"].sum().nlargest(2)
    yield Finding(
        rule=RULE.name,
        title=f"no tensor cores: {format_ratio(share)} of the time in FP32 matrix kernels",
        saving_ratio=share / 2,
        saving_ns=context.saving_ns(share / 2),
        evidence=tuple(f"{context.time_per_step(int(ns))} in {name}" for name, ns in top.items()),
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
    check=_check,
)
