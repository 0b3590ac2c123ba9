"""Kernels that are compiled or loaded in the loop."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import pandas as pd

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.claims import Kind
from traceprof.analysis.advice.findings.context import Context
from traceprof.analysis.advice.findings.stalling_calls import (
    calls_named,
    idle_in_calls,
    in_typical_time,
)
from traceprof.measures.steps.costs import compiling_ranges
from traceprof.model.intervals import Intervals
from traceprof.model.results import Note
from traceprof.model.trace import Trace

__all__ = ["RULE"]

_LEAST: Final = 0.01
_SHOWN: Final = 3
_LOADS: Final = re.compile(
    r"^(cuda|cu|hip)(Module(Load|Unload)|Library(Load|Unload|GetKernel)|Link(Create|Add|Complete))"
    r"|^(nvrtc|hiprtc|nvvm)(Compile|Create|Get(PTX|CUBIN|LTOIR|Code))\w*|^nvJitLink(Create|Complete)"
    r"|^nvPTXCompilerCompile"
)


def _check(context: Context) -> Iterator[Finding]:
    ranges = context.ranks.each(_compiling, context.typical)
    named = [calls_named(context, _LOADS, table) for table in ("api_calls", "host_ops")]
    calls = pd.concat([*named, *ranges], ignore_index=True)
    claim = idle_in_calls(context, calls)
    share = context.share(claim)
    if share < _LEAST:
        return
    is_loop = bool(len(context.steps))
    lengths = (calls["end_ns"] - calls["start_ns"]).groupby(calls["name"]).sum()
    longest = lengths.sort_values(ascending=False, kind="stable").index[:_SHOWN]
    counts = calls["name"].value_counts()
    yield Finding(
        title=Note.of(
            "kernels are compiled or loaded"
            + (" in the loop" if is_loop else "")
            + ": devices are idle {share:ratio} of the time meanwhile",
            share=share,
        ),
        claims=(claim,),
        kind=Kind.MEASURED if is_loop else Kind.ONCE,
        once_ns=None if is_loop else round(claim.total_ns / max(1, len(context.places))),
        evidence=tuple(
            context.counted(int(counts[name]), "call(s) of {name}", is_of_host=True, name=str(name))
            for name in longest
        ),
        action=context.advice(
            pytorch="keep shapes the same (torch.compile(dynamic=True), padding), run all shapes "
            "once before measuring, cache what was compiled (TORCHINDUCTOR_CACHE_DIR)",
            other="compile ahead of time for this GPU, and load all kernels before the loop "
            "(CUDA_MODULE_LOADING=EAGER)",
        ),
        caveat="a kernel is loaded with its first launch: that occurs once",
        window=context.longest_row(calls),
    )


def _compiling(part: Trace, typical: Intervals) -> pd.DataFrame:
    return in_typical_time(typical, compiling_ranges(part))


RULE = Rule(
    name="loading",
    subject="loading of kernels",
    summary="kernels that are compiled or loaded in the loop",
    needs=("kernels", "api_calls"),
    show="idle",
    check=_check,
)
