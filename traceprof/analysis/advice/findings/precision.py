"""Matrix work in 32 bits where the GPU multiplies 16 bits faster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pandas as pd

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.claims import Claim, Ground, Kind
from traceprof.analysis.advice.findings.context import Context
from traceprof.facts.names.precision import wide_precision_of
from traceprof.facts.software import Vendor
from traceprof.model.activity import Activity
from traceprof.model.hardware import Gpu
from traceprof.model.peaks import model_of
from traceprof.model.results import Note

__all__ = ["RULE"]

_LEAST: Final = 0.05
_MATRIX_WORK: Final = (
    Activity.GEMM.value,
    Activity.CONVOLUTION.value,
    Activity.ATTENTION.value,
)
_NAMES: Final = {"fp32": "FP32", "tf32": "TF32", "fp16": "FP16", "bf16": "BF16"}


def _check(context: Context) -> Iterator[Finding]:
    kernels = context.kernels.by_name
    matrix = kernels[kernels["activity"].isin(_MATRIX_WORK)]
    precision = np.array([wide_precision_of(str(name)) for name in matrix["name"]], object)
    models = {device: model_of(context.ranks, device) for device in context.devices}
    for wide in ("fp32", "tf32"):
        own = matrix[precision == wide]
        claims = _claims(context, own, wide, models)
        share = sum(map(context.share, claims))
        if share < _LEAST:
            continue
        gpu = next(iter({gpu.key: gpu for gpu in models.values() if gpu is not None}.values()))
        yield _finding(context, own, wide, gpu, claims)


def _faster(gpu: Gpu | None) -> str:
    """Return the precision of 16 bits that training on ``gpu`` gains by, "" for none."""
    if gpu is None:
        return ""
    return next((name for name in ("bf16", "fp16") if name in gpu.flops_per_s), "")


def _claims(
    context: Context, rows: pd.DataFrame, wide: str, models: dict[int, Gpu | None]
) -> tuple[Claim, ...]:
    """Return the claims on the kernels ``rows``, one for each device that could be faster."""
    times = context.kernel_claim(rows).times
    found = []
    for device, gpu in models.items():
        faster = _faster(gpu)
        if gpu is None or not faster or wide not in gpu.flops_per_s or device not in times:
            continue
        saved = 1 - gpu.flops_per_s[wide] / gpu.flops_per_s[faster]
        found.append(context.left({device: times[device]}, Ground.COMPUTE, saved))
    return tuple(found)


def _finding(
    context: Context, rows: pd.DataFrame, wide: str, gpu: Gpu, claims: tuple[Claim, ...]
) -> Finding:
    rates, faster = gpu.flops_per_s, _faster(gpu)
    top = rows.nlargest(2, "total_ns")
    return Finding(
        title=Note.of(
            f"{_NAMES[wide]} matrix work: {{share:ratio}} of the time, and this GPU is faster in "
            f"{_NAMES[faster]}",
            share=sum(map(context.share, claims)),
        ),
        claims=claims,
        kind=Kind.ESTIMATED,
        model=Note.of(
            f"the same share of the peak ({gpu.key}: {{wide:number}} TFLOP/s in {_NAMES[wide]}, "
            f"{{fast:number}} in {_NAMES[faster]})",
            wide=rates[wide] / 1e12,
            fast=rates[faster] / 1e12,
        ),
        evidence=tuple(
            context.timed(ns, after=" in {name}", name=name)
            for name, ns in zip(top["name"], top["total_ns"].tolist(), strict=True)
        ),
        action=_action(context, wide, gpu),
        caveat=(
            "what memory limits gains at most a factor of two; fewer bits round more: check that "
            "the model still converges"
        ),
    )


def _action(context: Context, wide: str, gpu: Gpu) -> str:
    rates, faster = gpu.flops_per_s, _NAMES[_faster(gpu)]
    scaled = "" if faster == "BF16" else " and a GradScaler"
    train = f"train in {faster} (torch.autocast{scaled})"
    has_tf32 = rates.get("tf32", 0) > rates["fp32"]
    if wide == "fp32" and has_tf32 and context.software.vendor is Vendor.NVIDIA:
        train += ', or at least allow TF32 (torch.set_float32_matmul_precision("high"))'
    return context.advice(pytorch=train, other=f"let the library multiply {faster} matrices")


RULE = Rule(
    name="precision",
    summary="matrix work in 32 bits where 16 are faster",
    needs=("kernels",),
    show="classes",
    check=_check,
)
