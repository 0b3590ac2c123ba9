"""Rules on optimizers that run several kernels per tensor, or update parameters one by one."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Final

from traceprof.findings.amounts import COMPUTE
from traceprof.findings.claims import ClaimKind, Kind, starts_within
from traceprof.findings.context import Context
from traceprof.findings.kernel_times import summed, times_of
from traceprof.findings.rules import Finding, rule
from traceprof.measures.host.phases import phases_of_work
from traceprof.measures.idle.gaps import LAUNCH_BOUND_NS
from traceprof.measures.rows import are_named, lengths_of, unions_by
from traceprof.model.intervals import Intervals
from traceprof.model.results import Note
from traceprof.model.table import Table
from traceprof.model.trace import Trace
from traceprof.names.ranges import PHASES

_MIN_SHARE_RATIO: Final = 0.02
_MIN_KERNELS_PER_STEP: Final = 100
"""Minimum kernels of an optimizer step: foreach needs some tens for any number of parameters."""
_POINTWISE: Final = re.compile(r"elementwise_kernel|addcmul|addcdiv|pointwise")
_MULTI_TENSOR: Final = re.compile(r"multi_?tensor_apply|FillFunctor|Fused|reduce_kernel|_amp_")
_PASS: Final = re.compile(
    r"^(?>.*?multi_?tensor_apply).*(Unary|Binary|Ternary|Pointwise)Op", re.DOTALL
)
_NO_PASS: Final = re.compile(r"_amp_|LpNorm|CopyFunctor|Fused")
_MIN_PASSES: Final = 3
_FUSED_FACTOR: Final = 7 / 4
"""Data moved by a fused kernel, relative to the longest pass: a fused Adam reads four tensors and
writes three. The longest of several passes reads three and writes one."""


_MAX_FUSED_FACTOR: Final = 7 / 3
"""The same ratio if the longest pass reads two tensors and writes one."""


def _saved_by_fusing(pass_ns: Collection[int], fused: float = _FUSED_FACTOR) -> float:
    """Return the ratio of time saved if one kernel replaces all passes over the parameters.

    The fused kernel takes ``fused`` times as long as the longest pass.
    """
    return max(0.0, 1 - fused * max(pass_ns) / max(1, sum(pass_ns)))


@rule(
    "kernel fusion",
    "an optimizer that updates parameters one by one",
    "kernels",
    "ranges",
    about=COMPUTE,
    show="kernels",
)
def looped_optimizer(context: Context) -> Iterator[Finding]:
    """Find an optimizer that runs tiny kernels for each parameter, one parameter after another."""
    if not context.software.has_pytorch:
        return
    found = context.ranks.each(_optimizer_kernels, context.typical)
    kernels = Table.stacked(found)
    count, lengths = len(kernels), lengths_of(kernels)
    if count < _MIN_KERNELS_PER_STEP * context.n_steps * max(1, len(context.devices)):
        return
    times = {device: time for rows in found for device, time in unions_by(rows, "device").items()}
    times_by_name = times_of(summed(kernels, lengths, "name"), "ns")
    saved = _saved_by_fusing(times_by_name.values())
    most = _saved_by_fusing(times_by_name.values(), 1.0)
    running = context.unclaimed(times, ClaimKind.COMPUTE, saved, (0.0, most))
    busy = {device: time.busy for device, time in context.times.items()}
    pauses = context.unclaimed(
        {device: _pauses(time) - busy[device] for device, time in times.items()}
    )
    if context.share(running) * saved + context.share(pauses) < _MIN_SHARE_RATIO:
        return
    yield Finding(
        title=Note.of(
            "The optimizer updates parameters one by one: {share:ratio} of step time",
            share=context.share(running) + context.share(pauses),
        ),
        claims=(running, pauses),
        kind=Kind.ESTIMATED,
        model=Note(
            "One fused kernel moves 7/4 of the data of the longest kernel, without pauses. Lower "
            "bound: only the pauses disappear. Upper bound: as fast as the longest kernel."
        ),
        evidence=(
            context.counted(count, "elementwise optimizer kernel(s)"),
            context.timed(int(lengths.sum()), "in these kernels: "),
            context.timed(pauses.total_ns, "between them: "),
        ),
        action="Update all parameters at once: `torch.optim.AdamW(..., fused=True)`, or "
        "`foreach=True` if the optimizer has no fused version.",
        caveat="`foreach=True` needs memory for a copy of the parameters.",
        ncu=context.ncu(times_by_name),
    )


def _pauses(running: Intervals) -> Intervals:
    """Return the short gaps between the intervals of ``running``."""
    starts, ends = running.ends[:-1], running.starts[1:]
    is_short = ends - starts <= LAUNCH_BOUND_NS
    return Intervals.union_of(starts[is_short], ends[is_short])


def _optimizer_kernels(trace: Trace, typical: Intervals) -> Table:
    """Return the elementwise kernels of a trace that an optimizer launched in the typical time."""
    kernels = trace.kernels
    chosen = are_named(kernels["name"], _POINTWISE) & ~are_named(kernels["name"], _MULTI_TENSOR)
    chosen &= phases_of_work(trace, "kernels") == PHASES.index("optimizer")
    chosen &= starts_within(kernels, typical)
    return kernels.select("name", "device", "start_ns", "end_ns").take(chosen)


@rule(
    "kernel fusion",
    "an optimizer that runs several kernels per parameter tensor",
    "kernels",
    about=COMPUTE,
    show="kernels",
)
def unfused_optimizer(context: Context) -> Iterator[Finding]:
    """Find an optimizer that makes several passes over the parameters."""
    if not context.software.has_pytorch:
        return
    passes = context.kernels.with_name(_PASS)
    passes = passes.take([_NO_PASS.search(name) is None for name in passes["name"]])
    if len(passes) < _MIN_PASSES:
        return
    saved, *between = (
        _saved_by_fusing(passes["total_ns"].tolist(), factor)
        for factor in (_FUSED_FACTOR, _MAX_FUSED_FACTOR, 1.0)
    )
    claim = context.kernel_claim(passes, saved, (between[0], between[1]))
    share = context.share(claim)
    if share * saved < _MIN_SHARE_RATIO:
        return
    yield Finding(
        title=Note.of(
            "The optimizer runs {n:count} kernels per parameter tensor (not fused): {share:ratio} "
            "of step time",
            n=len(passes),
            share=share,
        ),
        claims=(claim,),
        kind=Kind.ESTIMATED,
        model=Note(
            "A fused kernel moves 7/4 of the data of the longest kernel. Range: 1 to 7/3 of it."
        ),
        evidence=(
            context.counted(int(passes["count"].sum()), "kernel(s)"),
            context.timed(int(passes["total_ns"].max()), "longest kernel: "),
        ),
        action="Use the fused optimizer instead of foreach: `torch.optim.AdamW(..., fused=True)`.",
        caveat="The fused optimizer supports neither closures nor parameters on several device "
        "types.",
        ncu=context.ncu(times_of(passes)),
    )
