"""Calls that should not be in a loop: kernels that are loaded, memory that is allocated."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from traceprof.findings.claims import Claim, Kind, together
from traceprof.findings.context import Context
from traceprof.findings.rules import Finding, rule
from traceprof.measures.rows import bounds, lengths_of, unions_by
from traceprof.measures.steps.costs import compiling_ranges
from traceprof.model.grouping import grouped_by
from traceprof.model.intervals import Intervals
from traceprof.model.results import Note
from traceprof.model.table import Table
from traceprof.model.trace import Trace

_LEAST: Final = 0.01
_SHOWN: Final = 3
_LOADS: Final = re.compile(
    r"^(cuda|cu|hip)(Module(Load|Unload)|Library(Load|Unload|GetKernel)|Link(Create|Add|Complete))"
    r"|^(nvrtc|hiprtc|nvvm)(Compile|Create|Get(PTX|CUBIN|LTOIR|Code))\w*|^nvJitLink(Create|Complete)"
    r"|^nvPTXCompilerCompile"
)
_ALLOCATES: Final = re.compile(
    r"^(cuda|cu|hip)(Malloc(?!Async|FromPool)|Free(?!Async)|Mem(Host)?Alloc(?!Async)|MemFree(?!Async)"
    r"|Host(Alloc|Register|Unregister|Malloc|Free)|Mem(Create|Map|Unmap|Release|SetAccess|Address))"
)


@rule(
    "loading of kernels",
    "kernels that are compiled or loaded in the loop",
    "kernels",
    "api_calls",
    show="idle",
)
def loading(context: Context) -> Iterator[Finding]:
    """Find kernels that are compiled or loaded in the loop."""
    ranges = context.ranks.each(_compiling, context.typical)
    named = [_calls_named(context, _LOADS, table) for table in ("api_calls", "host_ops")]
    calls = Table.stacked([*named, *ranges])
    names, groups = grouped_by(calls, "name")
    longest = np.argsort(-groups.sums(lengths_of(calls)), kind="stable")[:_SHOWN]
    counts = zip(names["name"][longest], groups.counts[longest].tolist(), strict=True)
    yield from _on_calls(
        context,
        calls,
        list(counts),
        title="kernels are compiled or loaded{}: devices are idle {{share:ratio}} of the time "
        "meanwhile",
        action=context.advice(
            pytorch="keep shapes the same (torch.compile(dynamic=True), padding), run all shapes "
            "once before measuring, cache what was compiled (TORCHINDUCTOR_CACHE_DIR)",
            other="compile ahead of time for this GPU, and load all kernels before the loop "
            "(CUDA_MODULE_LOADING=EAGER)",
        ),
        caveat="a kernel is loaded with its first launch: that occurs once",
    )


@rule("allocation", "memory that is allocated in the loop", "kernels", "api_calls", show="idle")
def allocations(context: Context) -> Iterator[Finding]:
    """Find memory that is allocated and freed in the loop."""
    calls = _calls_named(context, _ALLOCATES)
    yield from _on_calls(
        context,
        calls,
        Counter(calls["name"]).most_common(_SHOWN),
        title="memory is allocated{}: devices are idle {{share:ratio}} of the time in these calls",
        action=context.advice(
            pytorch="keep the sizes of tensors the same from step to step, leave memory free for "
            "the caching allocator (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True), do not call "
            "torch.cuda.empty_cache()",
            other="allocate once before the loop, or from a pool (cudaMallocAsync)",
        ),
        caveat="the first steps allocate in any case: look at later ones",
    )


def _on_calls(
    context: Context,
    calls: Table,
    counts: Sequence[tuple[str, int]],
    *,
    title: str,
    action: str,
    caveat: str,
) -> Iterator[Finding]:
    """Yield the finding on ``calls`` that leave devices idle; ``counts`` of those that are told."""
    claim = _idle_in(context, calls)
    share = context.share(claim)
    if share < _LEAST:
        return
    is_loop = bool(len(context.steps))
    yield Finding(
        title=Note.of(title.format(" in the loop" if is_loop else ""), share=share),
        claims=(claim,),
        kind=Kind.MEASURED if is_loop else Kind.ONCE,
        once_ns=None if is_loop else context.once_ns(claim),
        evidence=tuple(
            context.counted(n, "call(s) of {name}", is_of_host=True, name=name)
            for name, n in counts
        ),
        action=action,
        caveat=caveat,
        window=context.longest_row(calls),
    )


def _calls_named(context: Context, pattern: re.Pattern[str], table: str = "api_calls") -> Table:
    """Return the calls of the typical time that are named so: process, start_ns, end_ns, name.

    ``table`` is "host_ops" for what libraries and the operating system recorded.
    """
    return context.rows(_calls_of_one, pattern, table, context.typical)


def _calls_of_one(part: Trace, pattern: re.Pattern[str], table: str, typical: Intervals) -> Table:
    calls = part.table(table)
    matched = np.array([bool(pattern.search(name)) for name in calls["name"].texts], np.bool_)
    return _typical(typical, calls.take(calls["name"].by_text(matched)))


def _compiling(part: Trace, typical: Intervals) -> Table:
    return _typical(typical, compiling_ranges(part))


def _typical(typical: Intervals, rows: Table) -> Table:
    """Return process, start_ns, end_ns and name of the ``rows`` that the ``typical`` time sees."""
    inside = typical.covered_ns(*bounds(rows)) > 0
    return rows.select("process", "start_ns", "end_ns", "name").take(inside)


def _idle_in(context: Context, calls: Table) -> Claim:
    """Return the claim on the time in which devices are idle and their process is in ``calls``."""
    spans = unions_by(calls)
    return context.left(
        together(
            {device: spans[process] - context.times[device].busy}
            for process, device in context.users
            if process in spans and device in context.times
        )
    )
