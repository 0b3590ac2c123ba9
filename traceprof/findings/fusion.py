"""Rules on kernels that could be fused: elementwise kernels, attention, short kernels."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from traceprof.findings.amounts import COMPUTE
from traceprof.findings.claims import ClaimKind, Kind, Times, union_by_device
from traceprof.findings.context import Context
from traceprof.findings.kernel_times import largest, summed, times_of
from traceprof.findings.rules import Finding, rule
from traceprof.measures.host.launches import launches_of, range_of_launches
from traceprof.measures.host.phases import phases_of_work
from traceprof.measures.rows import Bools, Ints, are_first, are_named, bounds, lengths_of, unions_by
from traceprof.model.activity import Activity
from traceprof.model.intervals import Intervals
from traceprof.model.results import Note
from traceprof.model.table import Table
from traceprof.model.trace import Trace
from traceprof.names.kernels import SHORT_NS
from traceprof.names.ranges import PHASES

_MIN_FUSABLE_RATIO: Final = 0.03
_MIN_SMALL_RATIO: Final = 0.1

_POINTWISE: Final = ("elementwise", "random", "rng_dropout")
_FUSABLE_IN_PYTORCH: Final = (
    *("layout", "reduction", "normalization", "softmax", "loss", "embedding"),
)
"""Activities that compilers fuse with elementwise kernels if PyTorch's own kernels do the work."""
_PYTORCH_KERNELS: Final = re.compile(r"^(void )?(at::native|\(anonymous namespace\)::softmax_warp)")
_COMPILED_KERNELS: Final = re.compile(r"(?i)triton|nvfuser|fused|fusion")
"""Names of kernels that a compiler generated and has already fused."""
_STATISTICS: Final = re.compile(r"batch_norm_(collect_statistics|backward_reduce)|welford")
"""Kernels that end a run: the next kernel needs the whole result and rereads all data."""
_MIN_KERNEL_NS: Final = 1_000
"""The duration of the shortest kernels, whatever they do."""
_PAIR_SAVED_RATIO: Final = 0.5
"""The share of the time of short kernels that fusing pairs of them saves."""


@rule(
    "kernel fusion",
    "consecutive kernels that could be fused",
    "kernels",
    about=COMPUTE,
    show="classes",
)
def fusable_kernels(context: Context) -> Iterator[Finding]:
    """Find consecutive memory-bound kernels that could be fused."""
    found = context.ranks.each(_runs_of_rank, context.typical)
    n_runs = sum(runs.count for runs in found)
    if not n_runs:
        return
    sum_ns = max(1, sum(runs.sum_ns for runs in found))
    least = sum(runs.of_pairs_ns for runs in found) / sum_ns
    saved = sum(runs.saved_ns for runs in found) / sum_ns
    times = union_by_device(runs.times for runs in found)
    claim = context.unclaimed(times, ClaimKind.COMPUTE, saved, (least, (1 + saved) / 2))
    share = context.share(claim)
    if share * claim.saved_ratio < _MIN_FUSABLE_RATIO:
        return
    by_name = Table.stacked([runs.by_name for runs in found])
    names = times_of(summed(by_name, by_name["ns"], "name"), "ns")
    yield Finding(
        title=Note.of(
            f"Unfused {_kinds_in_words(by_name)} kernels take {{share:ratio}} of step time",
            share=share,
        ),
        claims=(claim,),
        kind=Kind.ESTIMATED,
        model=Note(
            "Each run of consecutive kernels becomes one kernel, which takes as long as the "
            "longest. Lower bound: only pairs of different kernels are fused. Upper bound: the "
            "longest kernel also moves half as much data."
        ),
        evidence=(
            context.counted(n_runs, "run(s) of consecutive kernels"),
            *context.timed_by_kernel(names),
        ),
        action=context.advice(
            pytorch="Fuse them with `torch.compile`, or use fused layers (bias and activation, "
            "dropout, residual).",
            other="Fuse them: each kernel reads from memory what the previous kernel wrote.",
        ),
        caveat="Kernels that work on different tensors cannot be fused.",
        ncu=context.ncu(names),
    )


def _kinds_in_words(by_name: Table) -> str:
    """Return the words for the kinds of fusable kernels."""
    if by_name["activity"].isin(_POINTWISE).all():
        return "elementwise"
    return "elementwise, cast, copy, and reduction"


@dataclass(frozen=True, slots=True)
class _Runs:
    """The runs of fusable kernels of a rank: count, length, savings, times, and time by name.

    ``saved_ns`` is the saving if each run takes as long as its longest kernel. ``of_pairs_ns`` is
    the saving if only pairs of different kernels are fused: the first and second kernel, the third
    and fourth, and so on.
    """

    count: int
    sum_ns: int
    saved_ns: int
    of_pairs_ns: int
    times: dict[int, Intervals]
    by_name: Table


def _runs_of_rank(trace: Trace, typical: Intervals) -> _Runs:
    """Return the runs of fusable kernels of a trace in the typical time."""
    kernels, (order, run) = trace.kernels, fusable_runs(trace)
    starts, ends = bounds(kernels)
    inside = typical.covered_ns(starts[order], ends[order]) > 0
    order, run = order[inside], run[inside]
    lengths = (ends - starts)[order]
    firsts = np.flatnonzero(are_first(run))
    counts = np.diff(np.append(firsts, len(run)))
    position = np.arange(len(run)) - np.repeat(firsts, counts)
    second = np.flatnonzero(position % 2 == 1)
    # Kernels with one name one after the other can work on different tensors (casts, optimizers).
    names = kernels["name"].codes[order]
    second = second[names[second] != names[second - 1]]
    longest = np.maximum.reduceat(lengths, firsts) if len(firsts) else lengths
    rows = kernels.select("start_ns", "end_ns", "device", "name", "activity").take(order)

    return _Runs(
        int((counts > 1).sum()),
        int(lengths.sum()),
        int(lengths.sum() - longest.sum()),
        int(np.minimum(lengths[second], lengths[second - 1]).sum()),
        unions_by(rows, "device"),
        summed(rows, lengths, "name", "activity"),
    )


def fusable_runs(part: Trace) -> tuple[Ints, Ints]:
    """Return the rows of consecutive fusable kernels, and the run number of each.

    A run has at least two kernels on one stream. Optimizer kernels belong to other rules.
    """
    kernels = part.kernels
    order = np.lexsort((kernels["start_ns"], kernels["stream"], kernels["device"]))
    fits = _is_fusable(kernels)[order]
    fits &= (phases_of_work(part, "kernels") != PHASES.index("optimizer"))[order]
    ends_run = are_named(kernels["name"], _STATISTICS)[order]
    follows = fits.copy()
    follows[:1] = False
    follows[1:] &= fits[:-1] & ~ends_run[:-1]
    for name in ("device", "stream"):
        column = kernels[name][order]
        follows[1:] &= column[1:] == column[:-1]
    in_run = follows.copy()
    in_run[:-1] |= follows[1:]
    run = np.cumsum(~follows, dtype=np.int64)
    return np.asarray(order[in_run], np.int64), np.asarray(run[in_run], np.int64)


def _is_fusable(kernels: Table) -> Bools:
    """Return which kernels a compiler could fuse with their neighbors."""
    names, activity = kernels["name"], kernels["activity"]
    of_pytorch = are_named(names, _PYTORCH_KERNELS) & activity.isin(_FUSABLE_IN_PYTORCH)
    compiled = are_named(names, _COMPILED_KERNELS)
    return np.asarray((activity.isin(_POINTWISE) | of_pytorch) & ~compiled, np.bool_)


@rule(
    "kernel fusion",
    "attention as two matrix multiplications with a separate softmax",
    "kernels",
    about=COMPUTE,
    show="kernels",
)
def unfused_attention(context: Context) -> Iterator[Finding]:
    """Find attention that writes its scores to memory: a softmax between two matrix products."""
    found = context.ranks.each(_attention_of_rank, context.typical)
    n_softmax = sum(attention.count for attention in found)
    between_ns = max(1, sum(attention.between_ns for attention in found))
    products_ns = sum(attention.products_ns for attention in found)
    most = 1 + _ATTENTION_REST_RATIO * products_ns / between_ns
    times = union_by_device(attention.times for attention in found)
    claim = context.unclaimed(times, ClaimKind.COMPUTE, 1.0, (1 - _ATTENTION_REST_RATIO, most))
    share = context.share(claim)
    if not n_softmax or share < _MIN_FUSABLE_RATIO:
        return
    by_name = Table.stacked([attention.by_name for attention in found])
    names = times_of(summed(by_name, by_name["ns"], "name"), "ns")
    yield Finding(
        title=Note.of(
            "Unfused attention: softmax and other kernels between two matrix multiplications take "
            "{share:ratio} of step time",
            share=share,
        ),
        claims=(claim,),
        kind=Kind.ESTIMATED,
        model=Note(
            "The attention scores stay on the chip, so the kernels between the matrix "
            "multiplications disappear. Lower bound: half of their time. Upper bound: half of the "
            "time of the matrix multiplications as well."
        ),
        evidence=(
            context.counted(n_softmax, "softmax(es) between matrix multiplications"),
            context.timed(products_ns, "these matrix multiplications: "),
            *context.timed_by_kernel(names),
        ),
        action=context.advice(
            pytorch="Use fused attention: `torch.nn.functional.scaled_dot_product_attention` "
            "selects FlashAttention or another fused kernel for these shapes.",
            other="Use fused attention (for example FlashAttention), so that no kernel writes the "
            "scores to memory.",
        ),
        caveat="If the program reads the attention weights, a kernel must write them to memory.",
        ncu=context.ncu(names),
    )


_ATTENTION_REST_RATIO: Final = 0.5
_BETWEEN_PRODUCTS: Final = ("elementwise", "random", "rng_dropout", "layout", "softmax")
_MAX_KERNELS_BETWEEN: Final = 16
_LOG_SOFTMAX: Final = re.compile(r"(?i)log_?softmax|softmax_warp\w{0,40}<[^<>]*, \d+, true")
"""Names of the softmax of a loss."""
_OF_SOFTMAX: Final = re.compile(r"(?i)^aten::_?(safe_)?softmax(_backward_data)?$")
_OF_PRODUCT: Final = re.compile(r"^aten::(bmm|baddbmm|matmul)$")


@dataclass(frozen=True, slots=True)
class _Attention:
    """The unfused attention of a rank.

    ``count`` is the number of softmaxes. ``between_ns``, ``times``, and ``by_name`` describe the
    kernels between the matrix products.
    """

    count: int
    between_ns: int
    products_ns: int
    times: dict[int, Intervals]
    by_name: Table


def _attention_of_rank(trace: Trace, typical: Intervals) -> _Attention:
    """Return the unfused attention of a trace in the typical time."""
    kernels = trace.kernels
    starts, ends = bounds(kernels)
    order = np.lexsort((starts, kernels["stream"], kernels["device"]))
    is_softmax, is_product = _softmax_and_products(trace)
    is_between = np.asarray(kernels["activity"].isin(_BETWEEN_PRODUCTS) | is_softmax, np.bool_)
    # For each kernel: the last kernel before it and the first after it that are no candidates.
    position, between = np.arange(len(order)), (is_between & ~is_product)[order]
    nothing, beyond = -1, len(order)
    before = np.maximum.accumulate(np.where(between, nothing, position))
    after = np.minimum.accumulate(np.where(between, beyond, position)[::-1])[::-1]
    chosen = np.flatnonzero(is_softmax[order] & (before >= 0) & (after < beyond))
    first, last = (of_all[chosen] for of_all in (before, after))
    del position, between, before, after
    is_near = last - first <= _MAX_KERNELS_BETWEEN + 1
    chosen, first, last = chosen[is_near], first[is_near], last[is_near]
    softmax_rows, first_rows, last_rows = order[chosen], order[first], order[last]
    fits = is_product[first_rows] & is_product[last_rows]
    for column in ("device", "stream"):
        fits &= kernels[column][first_rows] == kernels[column][last_rows]
    fits &= typical.covered_ns(starts[softmax_rows], starts[softmax_rows] + 1) > 0
    first, last = first[fits], last[fits]
    inside = np.zeros(len(order) + 1, np.int64)
    np.add.at(inside, first + 1, 1)
    np.add.at(inside, last, -1)
    rows = order[np.cumsum(inside)[:-1] > 0]
    products = order[np.unique(np.concatenate((first, last)))]
    lengths = ends - starts
    table = kernels.select("start_ns", "end_ns", "device", "name").take(rows)

    return _Attention(
        int(fits.sum()),
        int(lengths[rows].sum()),
        int(lengths[products].sum()),
        unions_by(table, "device"),
        summed(table, lengths[rows], "name"),
    )


def _softmax_and_products(trace: Trace) -> tuple[Bools, Bools]:
    """Return which kernels are softmaxes of attention scores, and which are matrix products.

    Kernels are classified by their names, or otherwise by the operators that launched them.
    """
    kernels, ranges = trace.kernels, trace.whole.ranges["name"]
    is_softmax = kernels["activity"] == Activity.SOFTMAX.value
    is_product = kernels["activity"] == Activity.GEMM.value
    of_operators = [are_named(ranges, pattern) for pattern in (_OF_SOFTMAX, _OF_PRODUCT)]
    if of_operators[0].any():
        row = range_of_launches(trace, launches_of(trace, "kernels"))
        is_other = kernels["activity"] == Activity.OTHER.value
        launched = [np.append(matches, np.False_)[row] & is_other for matches in of_operators]
        is_softmax, is_product = is_softmax | launched[0], is_product | launched[1]
    is_softmax &= ~are_named(kernels["name"], _LOG_SOFTMAX)
    return np.asarray(is_softmax, np.bool_), np.asarray(is_product, np.bool_)


@rule(
    "kernel fusion",
    "a large share of time in short kernels",
    "kernels",
    about=COMPUTE,
    show="classes",
)
def small_kernels(context: Context) -> Iterator[Finding]:
    """Find a large share of GPU time in short kernels that could be fused."""
    kernels = context.kernels.by_name
    compute = kernels.take(kernels["activity"] != Activity.COMMUNICATION.value)
    count, n_short = int(compute["count"].sum()), int(compute["short_count"].sum())
    short = union_by_device(context.ranks.each(_short_kernel_times))
    fixed = min(
        _PAIR_SAVED_RATIO, n_short * _MIN_KERNEL_NS / max(1, int(compute["short_ns"].sum()))
    )
    claim = context.unclaimed(short, ClaimKind.COMPUTE, _PAIR_SAVED_RATIO, (fixed, 1 - fixed))
    share = context.share(claim)
    if share < _MIN_SMALL_RATIO:
        return
    sums = times_of(summed(compute, compute["short_ns"], "activity"), "ns", key="activity")
    yield Finding(
        title=Note.of(
            "Small kernels: kernels below {least:ns} take {share:ratio} of step time",
            share=share,
            least=SHORT_NS,
        ),
        claims=(claim,),
        kind=Kind.ESTIMATED,
        model=Note.of(
            "Fusion saves half of the time of these kernels. Lower bound: the fixed {fixed:ns} of "
            "each kernel. Upper bound: all except this fixed time.",
            fixed=_MIN_KERNEL_NS,
        ),
        evidence=(
            context.counted(
                n_short, "small kernel(s)", " ({share:ratio} of all kernels)", share=n_short / count
            ),
            *(
                context.timed(ns, "{name}: ", name=Activity(name).label)
                for name, ns in largest(sums, 3)
            ),
        ),
        action=context.advice(
            pytorch="Fuse them: use `torch.compile`, fused "
            + ("optimizers and normalizations" if context.is_training else "normalizations")
            + ", or a larger batch.",
            other="Fuse them, or give each kernel more work.",
        ),
        caveat="Kernels that exchange data between thread blocks cannot be fused.",
        ncu=context.ncu(times_of(compute, "short_ns")),
    )


def _short_kernel_times(trace: Trace) -> Times:
    """Return the times of short compute kernels, by device."""
    kernels = trace.kernels
    is_short = lengths_of(kernels) < SHORT_NS
    is_short &= kernels["activity"] != Activity.COMMUNICATION.value
    return unions_by(kernels.select("start_ns", "end_ns", "device").take(is_short), "device")
