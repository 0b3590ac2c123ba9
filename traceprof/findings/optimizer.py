"""An optimizer that passes over the parameters several times, or goes from one to the next."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from traceprof.findings.claims import Ground, Kind
from traceprof.findings.context import Context
from traceprof.findings.rules import Finding, Rule
from traceprof.measures.host.phases import phases_of_work
from traceprof.measures.idle.gaps import LAUNCH_BOUND_NS
from traceprof.model.intervals import Intervals
from traceprof.model.results import Note
from traceprof.model.trace import Trace
from traceprof.names.ranges import PHASES

_LEAST_LOOPED_OPTIMIZER: Final = 0.02
_FEWEST: Final = 100
"""Kernels of an optimizer step: foreach needs some tens, however many parameters there are."""
_POINTWISE: Final = re.compile(r"elementwise_kernel|addcmul|addcdiv|pointwise")
_NOT_ALONE: Final = re.compile(r"multi_?tensor_apply|FillFunctor|Fused|reduce_kernel|_amp_")
_FUSED: Final = 7 / 4
"""A fused Adam reads four tensors and writes three; the longest pass of several reads three and
writes one."""


@dataclass(frozen=True, slots=True)
class _Passes:
    """The kernels of all devices by name, when they ran, and the pauses between them."""

    by_name: pd.DataFrame
    running: dict[int, Intervals]
    pauses: dict[int, Intervals]


def _check_looped_optimizer(context: Context) -> Iterator[Finding]:
    if not context.software.has_pytorch:
        return
    passes = _passes(context)
    count, total_ns = (int(passes.by_name[name].sum()) for name in ("count", "total_ns"))
    steps = context.n_steps * max(1, len(context.devices))
    if count < _FEWEST * steps:
        return
    saved = max(0.0, 1 - _FUSED * int(passes.by_name["total_ns"].max()) / max(1, total_ns))
    running = context.left(passes.running, Ground.COMPUTE, saved)
    pauses = context.left(passes.pauses)
    if context.share(running) * saved + context.share(pauses) < _LEAST_LOOPED_OPTIMIZER:
        return
    yield Finding(
        title=Note.of(
            "the optimizer goes from parameter to parameter: {share:ratio} of the time",
            share=context.share(running) + context.share(pauses),
        ),
        claims=(running, pauses),
        kind=Kind.ESTIMATED,
        model=Note("in one launch it moves 7/4 of what its longest pass moves, without pauses"),
        evidence=(
            context.counted(count, "pointwise kernel(s) of the optimizer"),
            context.timed(total_ns, after=" in them"),
            context.timed(pauses.total_ns, after=" between them"),
        ),
        action="let the optimizer take all parameters at once: torch.optim.AdamW(..., fused=True), "
        "or foreach=True where the fused one is not to be had",
        caveat="foreach needs memory for a copy of the parameters",
        ncu=context.ncu(passes.by_name["total_ns"]),
    )


def _passes(context: Context) -> _Passes:
    tables, running, pauses = [], {}, {}
    for own in context.ranks.each(_of_optimizer, context.typical):
        tables.append(own[["name", "ns"]])
        for device, rows in own.groupby("device").indices.items():
            starts = own["start_ns"].to_numpy(np.int64)[rows]
            ends = own["end_ns"].to_numpy(np.int64)[rows]
            time = Intervals.union_of(starts, ends)
            between = time.gaps(int(starts.min()), int(ends.max()))
            short = between.ends - between.starts <= LAUNCH_BOUND_NS
            between = Intervals.union_of(between.starts[short], between.ends[short])
            running[int(str(device))] = time
            pauses[int(str(device))] = between - context.times[int(str(device))].busy
    by_name = pd.concat(tables, ignore_index=True).groupby("name")["ns"].agg(["size", "sum"])
    by_name = by_name.rename(columns={"size": "count", "sum": "total_ns"})
    return _Passes(by_name, running, pauses)


def _of_optimizer(part: Trace, typical: Intervals) -> pd.DataFrame:
    """Return the pointwise kernels of a rank that were launched in an optimizer, and their ns."""
    names = part.kernels["name"].cat
    fits = [
        _POINTWISE.search(str(name)) is not None and _NOT_ALONE.search(str(name)) is None
        for name in names.categories
    ]
    chosen = np.array([*fits, False], np.bool_)[names.codes.to_numpy()]
    chosen &= phases_of_work(part, "kernels") == PHASES.index("optimizer")
    starts = part.kernels["start_ns"].to_numpy(np.int64)
    chosen &= typical.covered_ns(starts, starts + 1) > 0
    own = part.kernels[chosen]
    columns = own[["name", "device", "start_ns", "end_ns"]].astype({"name": object})
    return columns.assign(ns=own["end_ns"] - own["start_ns"])


LOOPED_OPTIMIZER = Rule(
    name="looped_optimizer",
    subject="fusion",
    summary="an optimizer with some kernels for each parameter",
    needs=("kernels", "ranges"),
    show="kernels",
    check=_check_looped_optimizer,
)


_LEAST_UNFUSED_OPTIMIZER: Final = 0.02
_PASS: Final = re.compile(r"multi_?tensor_apply.*(Unary|Binary|Ternary|Pointwise)Op", re.DOTALL)
_NO_PASS: Final = re.compile(r"_amp_|LpNorm|CopyFunctor|Fused")
_FEWEST_PASSES: Final = 3


def _check_unfused_optimizer(context: Context) -> Iterator[Finding]:
    if not context.software.has_pytorch:
        return
    passes = context.kernels.named(_PASS)
    passes = passes[[_NO_PASS.search(str(name)) is None for name in passes["name"]]]
    if len(passes) < _FEWEST_PASSES:
        return
    total_ns, longest_ns = int(passes["total_ns"].sum()), int(passes["total_ns"].max())
    saved = max(0.0, 1 - _FUSED * longest_ns / max(1, total_ns))
    claim = context.kernel_claim(passes, saved)
    share = context.share(claim)
    if share * saved < _LEAST_UNFUSED_OPTIMIZER:
        return
    top = passes.nlargest(1, "total_ns").iloc[0]
    yield Finding(
        title=Note.of(
            "the optimizer passes over the parameters {n:count} times: {share:ratio} of the time",
            n=len(passes),
            share=share,
        ),
        claims=(claim,),
        kind=Kind.ESTIMATED,
        model=Note("fused it moves 7/4 of what its longest pass moves"),
        evidence=(
            context.counted(int(passes["count"].sum()), "kernel(s)"),
            context.timed(int(top["total_ns"]), "the longest pass takes "),
        ),
        action="use the fused optimizer (torch.optim.AdamW(..., fused=True)) in place of foreach",
        caveat="a closure, or parameters on several kinds of devices, rule the fused one out",
        ncu=context.ncu(passes.set_index("name")["total_ns"]),
    )


UNFUSED_OPTIMIZER = Rule(
    name="unfused_optimizer",
    subject="fusion",
    summary="an optimizer in several passes over the parameters",
    needs=("kernels",),
    show="kernels",
    check=_check_unfused_optimizer,
)
