"""Kernels that could be fewer, shorter or of fewer bits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.errors import NotRecordedError
from traceprof.findings.claims import Claim, Ground, Kind, Times, together
from traceprof.findings.context import Context
from traceprof.findings.kernel_times import largest, times_of
from traceprof.findings.rules import COMPUTE, CONVOLUTIONS, GEMMS, Finding, rule
from traceprof.measures.device.counters import active_sms
from traceprof.measures.device.peaks import matrix_speedups
from traceprof.measures.rows import are_named, bounds, lengths_of, unions_by
from traceprof.measures.workload import Vendor
from traceprof.model.activity import Activity
from traceprof.model.grouping import grouped_by
from traceprof.model.intervals import Intervals
from traceprof.model.results import Note
from traceprof.model.table import Table
from traceprof.model.trace import Trace
from traceprof.names.kernels import SHORT_NS, wide_precision_of

_LEAST_CONVERTING: Final = 0.01
_LEAST_FUSABLE: Final = 0.03
_LEAST_SMALL: Final = 0.1
_LEAST_WIDE: Final = 0.05

_POINTWISE: Final = ("elementwise", "random", "rng_dropout")
_BY_COMPILERS: Final = re.compile(r"(?i)triton|nvfuser|fused")
"""What a compiler made: it has fused what it could."""
_FUSED_AWAY: Final = 0.5
"""The share of the time of short kernels that fusing pairs of them saves."""
_CONVERTS: Final = re.compile(r"nchw_?to_?nhwc|nhwc_?to_?nchw|tensorTransform", re.IGNORECASE)
_MATRIX_WORK: Final = (Activity.GEMM, Activity.CONVOLUTION, Activity.ATTENTION)
_NAMES: Final = {"fp32": "FP32", "tf32": "TF32", "fp16": "FP16", "bf16": "BF16"}


@rule(
    "precision",
    "GEMMs and convolutions in 32 bits where 16 are faster",
    "kernels",
    about=GEMMS,
    show="classes",
)
def precision(context: Context) -> Iterator[Finding]:
    """Find matrix work in 32 bits where the GPU multiplies 16 bits faster."""
    matrix = context.kernels.doing(*_MATRIX_WORK)
    widths = np.array([wide_precision_of(name) for name in matrix["name"]], object)
    for wide in ("fp32", "tf32"):
        own = matrix.take(widths == wide)
        gains = {d: gain for d in context.devices if (gain := _gain_of(context, d, wide))}
        times = context.kernel_claim(own).times
        # Of kernels that are long enough multiplying takes the time.
        whole = int(own["total_ns"].sum())
        gaining = 1 - int(own["short_ns"].sum()) / whole if whole else 0.0
        claims = tuple(
            context.left({device: times[device]}, Ground.COMPUTE, gaining * (1 - 1 / gain.factor))
            for device, gain in gains.items()
            if device in times
        )
        if sum(map(context.share, claims)) >= _LEAST_WIDE:
            yield _on_width(context, own, wide, next(iter(gains.values())), claims)


@dataclass(frozen=True, slots=True)
class _Gain:
    """The precision of 16 bits that a device gains by, how much; and whether TF32 helps, too."""

    faster: str
    factor: float
    tf32_helps: bool


def _gain_of(context: Context, device: int, wide: str) -> _Gain | None:
    speedups = matrix_speedups(context.ranks, device)
    faster = next((name for name in ("bf16", "fp16") if name in speedups), "")
    now = 1.0 if wide == "fp32" else speedups.get(wide, 0.0)
    if not faster or not now or speedups[faster] <= now:
        return None
    return _Gain(faster, speedups[faster] / now, speedups.get("tf32", 0.0) > now)


def _on_width(
    context: Context, rows: Table, wide: str, gain: _Gain, claims: tuple[Claim, ...]
) -> Finding:
    names = times_of(rows)
    return Finding(
        title=Note.of(
            f"{_NAMES[wide]} GEMMs and convolutions: {{share:ratio}} of the time, where this GPU "
            f"is faster in {_NAMES[gain.faster]}",
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
        evidence=tuple(context.timed_by_kernel(names)),
        action=_narrower(context, gain),
        caveat=(
            "what memory limits gains at most a factor of two; fewer bits round more: check that "
            "the model still " + ("converges" if context.is_training else "answers well")
        ),
        ncu=context.ncu(names),
    )


def _narrower(context: Context, gain: _Gain) -> str:
    scaled = context.is_training and gain.faster != "bf16"
    scaler = " and a GradScaler" if scaled else ""
    train = "train" if context.is_training else "compute"
    train += f" in {_NAMES[gain.faster]} (torch.autocast{scaler})"
    if gain.tf32_helps and context.software.vendor is Vendor.NVIDIA:
        train += ', or at least allow TF32 (torch.set_float32_matmul_precision("high"))'
    other = f"multiply matrices in {_NAMES[gain.faster]} where the result allows it"
    return context.advice(pytorch=train, other=other)


@rule("layouts", "conversions between NCHW and NHWC", "kernels", about=CONVOLUTIONS, show="kernels")
def layout_conversion(context: Context) -> Iterator[Finding]:
    """Find kernels that only convert between NCHW and NHWC."""
    own = context.kernels.named(_CONVERTS)
    names = times_of(own)
    claim = context.kernel_claim(own)
    share = context.share(claim)
    if share < _LEAST_CONVERTING:
        return
    yield Finding(
        title=Note.of(
            "layout conversion: {share:ratio} of the time between NCHW and NHWC", share=share
        ),
        claims=(claim,),
        # No bound: channels_last saved 9.35 ms of an H100's step of which conversions took 5.2.
        kind=Kind.ESTIMATED,
        model=Note("the conversions alone; convolutions are often faster without them, too"),
        evidence=(
            context.counted(int(own["count"].sum()), "conversion(s)"),
            *context.timed_by_kernel(names),
        ),
        action=context.advice(
            pytorch="keep model and input in channels_last: .to(memory_format=torch.channels_last)",
            other="keep data in the layout that the kernels want (NHWC on tensor cores)",
        ),
        caveat="layers without a channels_last kernel convert back and forth",
        ncu=context.ncu(names),
    )


@rule("fusion", "pointwise kernels that could be one", "kernels", about=COMPUTE, show="classes")
def fusable_kernels(context: Context) -> Iterator[Finding]:
    """Find pointwise kernels that follow one another and could be one."""
    found = context.ranks.each(_pairs_of_one, context.typical)
    n_pairs = sum(own.count for own in found)
    if not n_pairs:
        return
    sum_ns, shorter_ns = sum(own.sum_ns for own in found), sum(own.shorter_ns for own in found)
    times = together(own.times for own in found)
    claim = context.left(times, Ground.COMPUTE, shorter_ns / max(1, sum_ns))
    share = context.share(claim)
    if share * claim.saved_ratio < _LEAST_FUSABLE:
        return
    by_name = Table.stacked([own.by_name for own in found])
    kernels, groups = grouped_by(by_name, "name")
    names = times_of(kernels.assign(total_ns=groups.sums(by_name["ns"])))
    yield Finding(
        title=Note.of(
            "pointwise kernels one after the other: {share:ratio} of the time, and they could be "
            "fused",
            share=share,
        ),
        claims=(claim,),
        kind=Kind.ESTIMATED,
        model=Note("two that follow one another become one, which takes as long as the longer"),
        evidence=(context.counted(n_pairs, "pair(s) of them"), *context.timed_by_kernel(names)),
        action=context.advice(
            pytorch="let torch.compile fuse them, or use fused versions (of activations with bias, "
            "dropout, residuals)",
            other="fuse them: what one writes to memory the next reads again",
        ),
        caveat="kernels on different tensors cannot be fused",
        ncu=context.ncu(names),
    )


def pairs_of(part: Trace) -> npt.NDArray[np.int64]:
    """Return the rows of the kernels that form pairs, the first and the second of each in a row.

    Of pointwise kernels that follow one another on a stream the first and the second are a pair,
    the third and the fourth, and so on.
    """
    kernels = part.kernels
    order = np.lexsort((kernels["start_ns"], kernels["stream"], kernels["device"]))
    fits = _is_pointwise(kernels)[order]
    device, stream = (kernels[name][order] for name in ("device", "stream"))
    follows = np.zeros(len(order), np.bool_)
    follows[1:] = fits[1:] & fits[:-1] & (device[1:] == device[:-1]) & (stream[1:] == stream[:-1])
    run_start = np.maximum.accumulate(np.where(follows, 0, np.arange(len(order))))
    second = np.flatnonzero(follows & ((np.arange(len(order)) - run_start) % 2 == 1))
    return order[np.column_stack((second - 1, second))]


@dataclass(frozen=True, slots=True)
class _Pairs:
    """The pairs of a rank: how many, how long, how long the shorter of each, when, by name."""

    count: int
    sum_ns: int
    shorter_ns: int
    times: dict[int, Intervals]
    by_name: Table


def _pairs_of_one(part: Trace, typical: Intervals) -> _Pairs:
    kernels, pairs = part.kernels, pairs_of(part)
    starts, ends = bounds(kernels)
    pairs = pairs[typical.covered_ns(starts[pairs[:, 0]], ends[pairs[:, 0]]) > 0]
    lengths = (ends - starts)[pairs]
    rows = kernels.select("start_ns", "end_ns", "device", "name").take(pairs.ravel())
    names, groups = grouped_by(rows, "name")
    return _Pairs(
        len(pairs),
        int(lengths.sum()),
        int(lengths.min(axis=1).sum()),
        unions_by(rows, "device"),
        names.assign(ns=groups.sums(lengths.ravel())),
    )


def _is_pointwise(kernels: Table) -> npt.NDArray[np.bool_]:
    compiled = are_named(kernels["name"], _BY_COMPILERS)
    return np.asarray(kernels["activity"].isin(_POINTWISE) & ~compiled, np.bool_)


@rule("fusion", "much time in kernels that are too short", "kernels", about=COMPUTE, show="classes")
def small_kernels(context: Context) -> Iterator[Finding]:
    """Find much of the device's time in short kernels that could be one."""
    kernels = context.kernels.by_name
    own = kernels.take(kernels["activity"] != Activity.COMMUNICATION.value)
    count, n_short = int(own["count"].sum()), int(own["short_count"].sum())
    short = together(context.ranks.each(_short_of_one))
    claim = context.left(short, Ground.COMPUTE, _FUSED_AWAY)
    share = context.share(claim)
    if share < _LEAST_SMALL:
        return
    activities, groups = grouped_by(own, "activity")
    sums = dict(zip(activities["activity"], groups.sums(own["short_ns"]).tolist(), strict=True))
    yield Finding(
        title=Note.of(
            "small kernels: {share:ratio} of the time in kernels below {least:ns}",
            share=share,
            least=SHORT_NS,
        ),
        claims=(claim,),
        kind=Kind.ESTIMATED,
        model=Note("half of their time falls away when they are fused"),
        evidence=(
            context.counted(n_short, "of them", " ({share:ratio} of all)", share=n_short / count),
            *(context.timed(ns, after=" of {name}", name=name) for name, ns in largest(sums, 3)),
        ),
        action=context.advice(
            pytorch="fuse them: torch.compile, fused optimizers and normalisations, larger batches",
            other="fuse them, or give each more work",
        ),
        caveat="kernels that depend on one another across threads cannot be fused",
        ncu=context.ncu(times_of(own, "short_ns")),
    )


def _short_of_one(part: Trace) -> Times:
    kernels = part.kernels
    is_short = lengths_of(kernels) < SHORT_NS
    is_short &= kernels["activity"] != Activity.COMMUNICATION.value
    return unions_by(kernels.select("start_ns", "end_ns", "device").take(is_short), "device")


_LEAST_UNFILLED: Final = 0.1


@rule("use of the SMs", "kernels that leave SMs idle", "kernels", about=COMPUTE, show="counters")
def unfilled_kernels(context: Context) -> Iterator[Finding]:
    """Find kernels that occupy few of the SMs, as counters of the GPU measured."""
    counted = [own for part in context.ranks.each(active_sms) for own in part]
    if not counted:
        raise NotRecordedError("no counters of the SMs were sampled")
    compute = {device: time.compute for device, time in context.times.items()}
    found = [
        (own, context.left({own.device: compute[own.device]}, Ground.COMPUTE, 1 - own.of_kernels))
        for own in counted
        if own.device in compute and own.of_kernels < 1
    ]
    if sum(context.share(claim) * claim.saved_ratio for _, claim in found) < _LEAST_UNFILLED:
        return
    names = context.kernels.by_name.in_order("-total_ns")
    yield Finding(
        title=Note.of(
            "kernels leave SMs idle: while they run, {share:ratio} of the SMs work",
            share=sum(own.of_kernels for own, _ in found) / len(found),
        ),
        claims=tuple(claim for _, claim in found),
        kind=Kind.BOUNDED,
        model=Note("every kernel would fill all SMs"),
        evidence=tuple(
            Note.of(
                "device {device:number}: SMs active {active:ratio} of the time, kernels "
                "{recorded:ratio} (measured)",
                device=own.device,
                active=own.active_ratio,
                recorded=own.recorded_ratio,
            )
            for own, _ in found[:_FEW]
        ),
        action=context.advice(
            pytorch="give each kernel more work: a larger batch, fewer and larger operations, or "
            "work of several streams side by side",
            other="give each kernel more blocks than the GPU has SMs, or run several side by side",
        ),
        caveat="kernels that wait for memory gain less",
        ncu=context.ncu(times_of(names)),
    )


_FEW: Final = 3
