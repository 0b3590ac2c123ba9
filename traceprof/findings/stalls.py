"""Calls that should not be in a loop: kernels that are loaded, memory that is allocated."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np
import pandas as pd

from traceprof.findings.claims import Claim, Kind
from traceprof.findings.context import Context
from traceprof.findings.rules import Finding, Rule
from traceprof.measures.device.times import devices_of_processes
from traceprof.measures.steps.costs import compiling_ranges
from traceprof.model.intervals import Intervals
from traceprof.model.results import Note
from traceprof.model.trace import Trace


def calls_named(
    context: Context, pattern: re.Pattern[str], table: str = "api_calls"
) -> pd.DataFrame:
    """Return the calls of the typical time that are named so: process, start_ns, end_ns, name.

    ``table`` is "host_ops" for what libraries and the operating system recorded.
    """
    found = context.ranks.each(_calls_of_one, pattern, table, context.typical)
    return pd.concat(found, ignore_index=True)


def _calls_of_one(
    part: Trace, pattern: re.Pattern[str], table: str, typical: Intervals
) -> pd.DataFrame:
    calls = part.table(table)
    names = calls["name"].cat.categories
    matched = np.array([*(bool(pattern.search(str(name))) for name in names), False])
    return in_typical_time(typical, calls[matched[calls["name"].cat.codes.to_numpy()]])


def in_typical_time(typical: Intervals, rows: pd.DataFrame) -> pd.DataFrame:
    """Return process, start_ns, end_ns and name of the ``rows`` that the ``typical`` time sees."""
    inside = typical.covered_ns(rows["start_ns"], rows["end_ns"]) > 0
    return rows[["process", "start_ns", "end_ns", "name"]][inside].astype({"name": object})


def idle_in_calls(context: Context, calls: pd.DataFrame) -> Claim:
    """Return the claim on the time in which devices are idle and their process is in ``calls``."""
    spans = {
        int(str(process)): Intervals.union_of(own["start_ns"], own["end_ns"])
        for process, own in calls.groupby("process")
    }
    times: dict[int, Intervals] = {}
    for part in context.ranks:
        for process, devices in devices_of_processes(part).items():
            for device in devices:
                if process in spans and device in context.times:
                    idle = spans[process] - context.times[device].busy
                    times[device] = times[device] | idle if device in times else idle
    return context.left(times)


_LEAST_LOADING: Final = 0.01
_SHOWN: Final = 3
_LOADS: Final = re.compile(
    r"^(cuda|cu|hip)(Module(Load|Unload)|Library(Load|Unload|GetKernel)|Link(Create|Add|Complete))"
    r"|^(nvrtc|hiprtc|nvvm)(Compile|Create|Get(PTX|CUBIN|LTOIR|Code))\w*|^nvJitLink(Create|Complete)"
    r"|^nvPTXCompilerCompile"
)


def _check_loading(context: Context) -> Iterator[Finding]:
    ranges = context.ranks.each(_compiling, context.typical)
    named = [calls_named(context, _LOADS, table) for table in ("api_calls", "host_ops")]
    calls = pd.concat([*named, *ranges], ignore_index=True)
    claim = idle_in_calls(context, calls)
    share = context.share(claim)
    if share < _LEAST_LOADING:
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


LOADING = Rule(
    name="loading",
    subject="loading of kernels",
    summary="kernels that are compiled or loaded in the loop",
    needs=("kernels", "api_calls"),
    show="idle",
    check=_check_loading,
)


_LEAST_ALLOCATIONS: Final = 0.01
_ALLOCATES: Final = re.compile(
    r"^(cuda|cu|hip)(Malloc(?!Async|FromPool)|Free(?!Async)|Mem(Host)?Alloc(?!Async)|MemFree(?!Async)"
    r"|Host(Alloc|Register|Unregister|Malloc|Free)|Mem(Create|Map|Unmap|Release|SetAccess|Address))"
)


def _check_allocations(context: Context) -> Iterator[Finding]:
    calls = calls_named(context, _ALLOCATES)
    claim = idle_in_calls(context, calls)
    share = context.share(claim)
    if share < _LEAST_ALLOCATIONS:
        return
    is_loop = bool(len(context.steps))
    counts = calls["name"].value_counts().head(3)
    yield Finding(
        title=Note.of(
            "memory is allocated"
            + (" in the loop" if is_loop else "")
            + ": devices are idle {share:ratio} of the time in these calls",
            share=share,
        ),
        claims=(claim,),
        kind=Kind.MEASURED if is_loop else Kind.ONCE,
        once_ns=None if is_loop else round(claim.total_ns / max(1, len(context.places))),
        evidence=tuple(
            context.counted(int(n), "call(s) of {name}", is_of_host=True, name=str(name))
            for name, n in counts.items()
        ),
        action=context.advice(
            pytorch="keep the sizes of tensors the same from step to step, leave memory free for "
            "the caching allocator (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True), do not call "
            "torch.cuda.empty_cache()",
            other="allocate once before the loop, or from a pool (cudaMallocAsync)",
        ),
        caveat="the first steps allocate in any case: look at later ones",
        window=context.longest_row(calls),
    )


ALLOCATIONS = Rule(
    name="allocations",
    subject="allocation",
    summary="memory that is allocated in the loop",
    needs=("kernels", "api_calls"),
    show="idle",
    check=_check_allocations,
)
