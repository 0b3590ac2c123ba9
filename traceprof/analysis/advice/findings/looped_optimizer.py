"""An optimizer that goes from parameter to parameter, some tiny kernels for each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np
import pandas as pd

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.claims import Ground, Kind
from traceprof.analysis.advice.findings.context import Context
from traceprof.measures.host.phases import phases_of_work
from traceprof.measures.idle.gaps import LAUNCH_BOUND_NS
from traceprof.model.intervals import Intervals
from traceprof.model.results import Note
from traceprof.model.trace import Trace
from traceprof.names.ranges import PHASES
from traceprof.values import dataclass

__all__ = ["RULE"]

_LEAST: Final = 0.02
_FEWEST: Final = 100
"""Kernels of an optimizer step: foreach needs some tens, however many parameters there are."""
_POINTWISE: Final = re.compile(r"elementwise_kernel|addcmul|addcdiv|pointwise")
_OTHER: Final = re.compile(r"multi_?tensor_apply|FillFunctor|Fused|reduce_kernel|_amp_")
_FUSED: Final = 7 / 4
"""A fused Adam reads four tensors and writes three; the longest pass of several reads three and
writes one."""


@dataclass(frozen=True, slots=True)
class _Passes:
    """The kernels of all devices by name, when they ran, and the pauses between them."""

    by_name: pd.DataFrame
    running: dict[int, Intervals]
    pauses: dict[int, Intervals]


def _check(context: Context) -> Iterator[Finding]:
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
    if context.share(running) * saved + context.share(pauses) < _LEAST:
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
        _POINTWISE.search(str(name)) is not None and _OTHER.search(str(name)) is None
        for name in names.categories
    ]
    chosen = np.array([*fits, False], np.bool_)[names.codes.to_numpy()]
    chosen &= phases_of_work(part, "kernels") == PHASES.index("optimizer")
    starts = part.kernels["start_ns"].to_numpy(np.int64)
    chosen &= typical.covered_ns(starts, starts + 1) > 0
    own = part.kernels[chosen]
    columns = own[["name", "device", "start_ns", "end_ns"]].astype({"name": object})
    return columns.assign(ns=own["end_ns"] - own["start_ns"])


RULE = Rule(
    name="looped_optimizer",
    subject="fusion",
    summary="an optimizer with some kernels for each parameter",
    needs=("kernels", "ranges"),
    show="kernels",
    check=_check,
)
