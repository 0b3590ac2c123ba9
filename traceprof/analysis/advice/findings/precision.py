"""Matrix work in 32 bits where the GPU multiplies 16 bits faster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pandas as pd

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.claims import Claim, Ground, Kind
from traceprof.analysis.advice.findings.context import Context
from traceprof.measures.device.peaks import matrix_speedups
from traceprof.measures.workload import Vendor
from traceprof.model.activity import Activity
from traceprof.model.results import Note
from traceprof.names.kernels import SHORT_NS, short_name, wide_precision_of
from traceprof.values import dataclass

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
    for wide in ("fp32", "tf32"):
        own = matrix[precision == wide]
        gains = {d: gain for d in context.devices if (gain := _gain_of(context, d, wide))}
        times = context.kernel_claim(own).times
        gaining = _share_that_gains(own)
        claims = tuple(
            context.left({device: times[device]}, Ground.COMPUTE, gaining * (1 - 1 / gain.factor))
            for device, gain in gains.items()
            if device in times
        )
        share = sum(map(context.share, claims))
        if share >= _LEAST:
            yield _finding(context, own, wide, next(iter(gains.values())), claims)


@dataclass(frozen=True, slots=True)
class _Gain:
    """The precision of 16 bits that a device gains by, how much; and whether TF32 helps, too."""

    faster: str
    factor: float
    tf32_helps: bool


def _share_that_gains(kernels: pd.DataFrame) -> float:
    """Return what share of the time is of kernels long enough that multiplying takes it."""
    whole = int(kernels["total_ns"].sum())
    return 1 - int(kernels["short_ns"].sum()) / whole if whole else 0.0


def _gain_of(context: Context, device: int, wide: str) -> _Gain | None:
    speedups = matrix_speedups(context.ranks, device)
    faster = next((name for name in ("bf16", "fp16") if name in speedups), "")
    now = 1.0 if wide == "fp32" else speedups.get(wide, 0.0)
    if not faster or not now or speedups[faster] <= now:
        return None
    return _Gain(faster, speedups[faster] / now, speedups.get("tf32", 0.0) > now)


def _finding(
    context: Context, rows: pd.DataFrame, wide: str, gain: _Gain, claims: tuple[Claim, ...]
) -> Finding:
    top = rows.nlargest(2, "total_ns")
    return Finding(
        title=Note.of(
            f"{_NAMES[wide]} matrix work: {{share:ratio}} of the time, where this GPU is faster in "
            f"{_NAMES[gain.faster]}",
            share=sum(map(context.share, claims)),
        ),
        claims=claims,
        kind=Kind.ESTIMATED,
        model=Note.of(
            f"peaks: {_NAMES[gain.faster]} is {{factor:factor}} as fast as {_NAMES[wide]} here, if "
            "nothing else limits these kernels; of those below {short:ns} nothing is counted",
            factor=gain.factor,
            short=SHORT_NS,
        ),
        evidence=tuple(
            context.timed(ns, after=" in {name}", name=short_name(str(name)))
            for name, ns in zip(top["name"], top["total_ns"].tolist(), strict=True)
        ),
        action=_action(context, gain),
        caveat=(
            "what memory limits gains at most a factor of two; fewer bits round more: check that "
            "the model still " + ("converges" if context.is_training else "answers well")
        ),
        ncu=context.ncu(rows.set_index("name")["total_ns"]),
    )


def _action(context: Context, gain: _Gain) -> str:
    scaled = context.is_training and gain.faster != "bf16"
    scaler = " and a GradScaler" if scaled else ""
    train = "train" if context.is_training else "compute"
    train += f" in {_NAMES[gain.faster]} (torch.autocast{scaler})"
    if gain.tf32_helps and context.software.vendor is Vendor.NVIDIA:
        train += ', or at least allow TF32 (torch.set_float32_matmul_precision("high"))'
    other = f"multiply matrices in {_NAMES[gain.faster]} where the result allows it"
    return context.advice(pytorch=train, other=other)


RULE = Rule(
    name="precision",
    subject="precision",
    summary="matrix work in 32 bits where 16 are faster",
    needs=("kernels",),
    show="classes",
    check=_check,
)
