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

_ONLY_FP16: Final = re.compile(r"V100|TITAN V|\bT4\b|RTX 20\d\d|(Quadro|TITAN) RTX", re.IGNORECASE)
"""Volta and Turing: their tensor cores take neither TF32 nor BF16."""


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
        action=_action(devices),
        caveat="halving is a guess; fewer bits round more: check that the model still converges",
    )


def _action(devices: set[str]) -> str:
    if any(_ONLY_FP16.search(name) for name in devices):
        return "train in FP16 (torch.autocast with a GradScaler): this GPU has no TF32 and no BF16"
    newer = 'allow TF32 (torch.set_float32_matmul_precision("high")) or train in BF16'
    older = "" if any(devices) else "; GPUs before Ampere have FP16 alone"
    return f"{newer} (torch.autocast){older}"


RULE = Rule(
    name="tensor_cores",
    summary="matrix work in single precision, without tensor cores",
    needs=("kernels",),
    show="classes",
    check=_check,
)
