"""Matrix work that does not run on tensor cores."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.context import Context
from traceprof.model.activity import Activity
from traceprof.model.kernel_names.matrix_units import multiplies_without
from traceprof.model.kernel_names.precision import precision_of
from traceprof.model.results import Note

__all__ = ["RULE"]

_LEAST: Final = 0.1
_HAVE_NONE: Final = re.compile(r"GTX|Tesla (K|M|P)\d|P100|Quadro (K|M|P)\d", re.IGNORECASE)


def _check(context: Context) -> Iterator[Finding]:
    devices = {str(name) for part in context.ranks for name in part.devices["name"]}
    if any(_HAVE_NONE.search(name) for name in devices):
        return
    kernels = context.kernels.by_name
    keys = zip(kernels["name"], kernels["activity"], strict=True)
    plain = [
        precision_of(str(name)) == "fp32" and multiplies_without(str(name), Activity(of))
        for name, of in keys
    ]
    own = kernels[np.array(plain, np.bool_)]
    share = context.kernels_ratio(int(own["total_ns"].sum()))
    if share < _LEAST:
        return
    top = own.nlargest(2, "total_ns")
    yield Finding(
        title=Note.of(
            "no tensor cores: {share:ratio} of the time in FP32 matrix kernels", share=share
        ),
        saving_ratio=share / 2,
        saving_ns=context.saving_ns(share / 2),
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
