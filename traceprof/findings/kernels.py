"""Rules on kernels that could use fewer bits or another data layout."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from traceprof.findings.amounts import CONVOLUTIONS, GEMMS
from traceprof.findings.claims import Claim, ClaimKind, Kind, Times
from traceprof.findings.context import Context
from traceprof.findings.kernel_times import largest, times_of
from traceprof.findings.rules import Finding, rule
from traceprof.measures.compute.operators import sizes_of_input
from traceprof.measures.device.peaks import matrix_speedups
from traceprof.measures.rows import are_named
from traceprof.measures.workload import Vendor
from traceprof.model.activity import Activity
from traceprof.model.results import Note
from traceprof.model.table import Table
from traceprof.model.trace import Trace
from traceprof.names.kernels import SHORT_NS, wide_precision_of

_MIN_CONVERTING_RATIO: Final = 0.01
_MIN_WIDE_RATIO: Final = 0.05
_MIN_NAMED_RATIO: Final = 0.05
_MAIN_RATIO: Final = 0.5

_NCHW_NORMS: Final = re.compile(
    r"(?i)^(?!.*(channels_?last|nhwc)).*(batch_?norm|\bbn_\w*nchw)", re.DOTALL
)
_NORMS_SAVED: Final = 0.5
_NORMS_BETWEEN: Final = (0.0, 0.75)
_DIMENSIONS: Final = {
    2: re.compile(
        r"(?i)(conv(olution)?|norm|pool|pooling)(_transpose)?_?2d|max_pool_\w{1,40}_nchw"
    ),
    3: re.compile(r"(?i)(conv(olution)?|norm|pool|pooling)(_transpose)?_?3d|ncdhw|ndhwc"),
}
"""Names of operators, modules, and kernels of images (2) and of volumes (3).

Other names occur for both: cuDNN's `convolveNd` and `nchwToNhwc` kernels also compute volumes.
"""
_CONVOLVES: Final = re.compile(r"^aten::\w{0,40}convolution\w*$")
_CONVERTS: Final = re.compile(
    r"ncd?hw_?to_?nd?hwc|nd?hwc_?to_?ncd?hw|tensorTransform|batched_transpose_\d", re.IGNORECASE
)
_MATRIX_WORK: Final = {
    Activity.GEMM: "GEMMs",
    Activity.CONVOLUTION: "convolutions",
    Activity.ATTENTION: "attention",
}
_PRECISION_NAMES: Final = {"fp32": "FP32", "tf32": "TF32", "fp16": "FP16", "bf16": "BF16"}


@rule(
    "precision",
    "FP32 matrix multiplications on a GPU with faster 16-bit units",
    "kernels",
    about=GEMMS,
    show="classes",
)
def precision(context: Context) -> Iterator[Finding]:
    """Find matrix work in 32 bits on a GPU that multiplies 16-bit numbers faster."""
    matrix = context.kernels.with_activity(*_MATRIX_WORK)
    widths = np.array([wide_precision_of(name) for name in matrix["name"]], object)
    for wide, ways in _WIDE.items():
        rows = matrix.take(np.isin(widths, ways))
        faster, factors, claims = "", [], []
        for way in ways:
            kernels = matrix.take(widths == way)
            for device, time in context.kernel_claim(kernels).times.items():
                if gain := _speedup_in_16_bits(context, device, way):
                    faster = faster or gain[0]
                    factors.append(gain[1])
                    most = (_speedup_in_16_bits(context, device, wide) or gain)[1]
                    claims.append(
                        _claim_in_16_bits(context, kernels, {device: time}, gain[1], most)
                    )
        if sum(map(context.share, claims)) >= _MIN_WIDE_RATIO:
            yield _precision_finding(context, rows, wide, (faster, factors), tuple(claims))


_WIDE: Final = {"fp32": ("fp32", "3xtf32"), "tf32": ("tf32",)}
"""The 32-bit types with the ways in which GPUs multiply them."""
_REACHED_SPEEDUP_RATIO: Final = 0.8
"""The share of the peak speedup that 16-bit kernels reach: they use less of their peak rate."""
_MIN_SPEEDUP: Final = 1.5
"""The minimum speedup of 16 bits: memory-bound kernels move half of the data, with other work."""


def _speedup_in_16_bits(context: Context, device: int, way: str) -> tuple[str, float] | None:
    """Return the faster 16-bit type of a device and its speedup over ``way``, or None."""
    speedups = matrix_speedups(context.ranks, device)
    faster = next((name for name in ("bf16", "fp16") if name in speedups), "")
    tf32 = speedups.get("tf32", 0.0)
    now = {"fp32": 1.0, "tf32": tf32, "3xtf32": tf32 / 3 or 1.0}[way]
    if not faster or not now or speedups[faster] <= now:
        return None
    return faster, speedups[faster] / now


def _claim_in_16_bits(
    context: Context, rows: Table, times: Times, factor: float, most: float
) -> Claim:
    """Return a claim on kernels whose peak rate is ``factor`` times as high in 16 bits.

    Only kernels that are not short get faster, by 80% of ``factor``. At best, all kernels run
    ``most`` times as fast.
    """
    total_ns = int(rows["total_ns"].sum())
    gaining = 1 - int(rows["short_ns"].sum()) / total_ns if total_ns else 0.0
    reached = max(1.0, _REACHED_SPEEDUP_RATIO * factor)
    saved, least, most = (
        1 - 1 / speedup for speedup in (reached, min(reached, _MIN_SPEEDUP), max(factor, most))
    )
    return context.unclaimed(times, ClaimKind.COMPUTE, gaining * saved, (gaining * least, most))


def _precision_finding(
    context: Context,
    rows: Table,
    wide: str,
    gain: tuple[str, list[float]],
    claims: tuple[Claim, ...],
) -> Finding:
    """Return the finding on kernels of a 32-bit type.

    ``gain`` is the faster 16-bit type with the speedups of each device and way.
    """
    (faster, factors), names = gain, times_of(rows)
    least, most = min(factors), max(factors)
    as_fast = "{most:factor}" if least == most else "{least:factor} (as 3 × TF32) to {most:factor}"
    return Finding(
        title=Note.of(
            f"{_PRECISION_NAMES[wide]} {_kinds_in_words(rows)}: {{share:ratio}} of step time, "
            f"although this GPU is faster in {_PRECISION_NAMES[faster]}",
            share=sum(map(context.share, claims)),
        ),
        claims=claims,
        kind=Kind.ESTIMATED,
        model=Note.of(
            f"The kernels gain 80% of the peak speedup ({_PRECISION_NAMES[faster]}: {as_fast} as "
            f"fast as {_PRECISION_NAMES[wide]}), "
            "and kernels below {short:ns} save nothing. Lower bound: 1.5 times as fast, as in "
            "memory-bound kernels. Upper bound: all kernels run at peak rate.",
            least=least,
            most=most,
            short=SHORT_NS,
        ),
        evidence=tuple(context.timed_by_kernel(names)),
        action=_precision_advice(context, rows, wide, faster),
        caveat="Lower precision rounds more. Check that the "
        + ("model still converges." if context.is_training else "results stay accurate."),
        ncu=context.ncu(names),
    )


def _kinds_in_words(rows: Table) -> str:
    """Return the kinds of matrix work in ``rows``, the longest first, in words."""
    sums = {
        words: int(rows["total_ns"][rows["activity"] == activity.value].sum())
        for activity, words in _MATRIX_WORK.items()
    }
    total_ns = max(1, sum(sums.values()))
    kinds = [words for words, ns in largest(sums, 3) if ns >= _MIN_NAMED_RATIO * total_ns]
    return " and ".join((", ".join(kinds[:-1]), kinds[-1])) if len(kinds) > 1 else "".join(kinds)


def _precision_advice(context: Context, rows: Table, wide: str, faster: str) -> str:
    """Return the advice on matrix work of the 32-bit type ``wide``."""
    scaled = context.is_training and faster != "bf16"
    scaler = " and a `GradScaler`" if scaled else ""
    train = "Train" if context.is_training else "Compute"
    train += f" in {_PRECISION_NAMES[faster]} (`torch.autocast`{scaler})"
    if wide == "fp32" and _helps_tf32(context, rows):
        train += ', or at least allow TF32 (`torch.set_float32_matmul_precision("high")`)'
    other = f"Multiply matrices in {_PRECISION_NAMES[faster]} if the result allows it"
    return f"{context.advice(pytorch=train, other=other)}."


def _helps_tf32(context: Context, rows: Table) -> bool:
    """Return whether most of ``rows`` are GEMMs that TF32 speeds up, and no GEMM uses TF32 yet.

    Convolutions are ignored, because PyTorch allows TF32 for them by default. Attention is ignored,
    because it multiplies three times in TF32.
    """
    if context.software.vendor is not Vendor.NVIDIA:
        return False
    speedups = [matrix_speedups(context.ranks, device) for device in context.devices]
    gemms = context.kernels.with_activity(Activity.GEMM)
    widths = np.array([wide_precision_of(name) for name in gemms["name"]], object)
    fp32_ns = int(gemms["total_ns"][widths == "fp32"].sum())
    return (
        all(speedup.get("tf32", 0.0) > 1 for speedup in speedups)
        and not (widths == "tf32").any()
        and fp32_ns > _MAIN_RATIO * int(rows["total_ns"].sum())
    )


@rule(
    "layout conversions",
    "layout conversions (NCHW↔NHWC)",
    "kernels",
    about=CONVOLUTIONS,
    show="kernels",
)
def layout_conversion(context: Context) -> Iterator[Finding]:
    """Find kernels that only convert between the layouts NCHW and NHWC."""
    conversions = context.kernels.with_name(_CONVERTS)
    names = times_of(conversions)
    claim = context.kernel_claim(conversions)
    share = context.share(claim)
    if share < _MIN_CONVERTING_RATIO:
        return
    norms = context.kernels.with_name(_NCHW_NORMS)
    of_norms = context.kernel_claim(norms, _NORMS_SAVED, _NORMS_BETWEEN)
    norms_ns = int(norms["total_ns"].sum())
    words = " and NCHW batch norm" if norms_ns else ""
    yield Finding(
        title=Note.of(
            f"Layout conversions (NCHW↔NHWC){words} take {{share:ratio}} of step time",
            share=share + context.share(of_norms),
        ),
        claims=(claim, of_norms) if norms_ns else (claim,),
        kind=Kind.ESTIMATED if norms_ns else Kind.MEASURED,
        model=Note(_WITHOUT_CONVERSIONS) if norms_ns else None,
        evidence=(
            context.counted(int(conversions["count"].sum()), "conversion(s)"),
            *([context.timed(norms_ns, "NCHW batch norm: ")] if norms_ns else ()),
            *context.timed_by_kernel(names),
        ),
        action=context.advice(
            pytorch=_channels_last(context),
            other="Keep data in the layout that the kernels need (NHWC on tensor cores).",
        ),
        caveat="Layers without a channels_last kernel still convert back and forth.",
        ncu=context.ncu(names),
    )


_WITHOUT_CONVERSIONS: Final = (
    "The conversions disappear, and NCHW batch norm takes half as long (measured on an H100). "
    "Lower bound: only the conversions disappear. Upper bound: batch norm takes a quarter as long."
)


def _channels_last(context: Context) -> str:
    """Return the advice to use the channels_last layout in PyTorch.

    PyTorch raises an error if a layout does not fit the dimensions. If the trace does not show one
    kind of convolution, the advice names both layouts.
    """
    dimensions = set[int]().union(*context.ranks.each(_dimensions))
    if len(dimensions) == 1:
        layout = "channels_last_3d" if 3 in dimensions else "channels_last"
        advice = f"Use `model.to(memory_format=torch.{layout})`, and the same for the input batch"
    else:
        advice = (
            "Use `module.to(memory_format=torch.channels_last)` for modules with 2-D convolutions, "
            "`torch.channels_last_3d` for modules with 3-D convolutions (the other layout raises "
            "an error), and the same for the input batch"
        )
    if context.software.vendor is Vendor.AMD:
        advice += ", with `PYTORCH_MIOPEN_SUGGEST_NHWC=1`"
    return f"{advice}."


def _dimensions(part: Trace) -> set[int]:
    """Return the dimensions of the convolutions that operators, ranges, and kernels show: 2, 3."""
    tables = (part.ranges, part.host_ops, part.kernels)
    names = [name for table in tables for name in table["name"].distinct()]
    named = {n for n, pattern in _DIMENSIONS.items() if any(map(pattern.search, names))}
    inputs = part.operator_inputs
    sizes = inputs["dims"][are_named(inputs["name"], _CONVOLVES)].distinct()
    # Without the batch and the channels.
    return named | ({len(sizes_of_input(dims)) - 2 for dims in sizes} & {2, 3})
