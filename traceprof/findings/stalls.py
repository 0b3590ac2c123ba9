"""Rules on calls that should not be in a loop: kernel loading and memory allocation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from traceprof.findings.claims import Claim, Kind, union_by_device
from traceprof.findings.context import Context
from traceprof.findings.recurrence import counted, is_in_most_iterations, occurs_once
from traceprof.findings.rules import Finding, rule
from traceprof.measures.host.launches import captures, launches_of
from traceprof.measures.rows import are_named, bounds, lengths_of, unions_by
from traceprof.measures.steps.costs import compiling_ranges
from traceprof.model.grouping import grouped_by
from traceprof.model.intervals import Intervals
from traceprof.model.results import Note
from traceprof.model.table import Names, Table
from traceprof.model.trace import Trace

_MIN_SHARE_RATIO: Final = 0.01
_MAX_NAMES_SHOWN: Final = 3
_MIN_SLOW_FACTOR: Final = 20
_MIN_SLOW_NS: Final = 100_000
"""A launch call that takes longer than this, and many times the median, loads its kernel."""
_LOADS: Final = re.compile(
    r"^(cuda|cu|hip)(Module(Load|Unload)|Library(Load|Unload|GetKernel)|Link(Create|Add|Complete))"
    r"|^(nvrtc|hiprtc|nvvm)(Compile|Create|Get(PTX|CUBIN|LTOIR|Code))\w*|^nvJitLink(Create|Complete)"
    r"|^nvPTXCompilerCompile"
)
_INSTANTIATES: Final = re.compile(r"^(cuda|cu|hip)GraphInstantiate")
_FREES: Final = re.compile(r"Free|Unmap|Release|Unregister")
_ADDS: Final = re.compile(r"[Aa]lloc|MemCreate|MemMap|HostRegister")
_PINS: Final = re.compile(
    r"^(cuda|cu|hip)(Host|MallocHost|FreeHost|Mem(HostAlloc|AllocHost|FreeHost))"
)
_ALLOCATES: Final = re.compile(
    r"^(cuda|cu|hip)(Malloc(?!Async|FromPool)|Free(?!Async)|Mem(Host)?Alloc(?!Async)|MemFree(?!Async)"
    r"|Host(Alloc|Register|Unregister|Malloc|Free)|Mem(Create|Map|Unmap|Release|SetAccess|Address))"
)


@rule(
    "kernel loading",
    "kernel compilation or loading in the loop",
    "kernels",
    "api_calls",
    show="idle",
)
def loading(context: Context) -> Iterator[Finding]:
    """Find graph captures, kernel compilation, and kernel loading in the loop."""
    yield from _finding_on_calls(
        context,
        context.rows(_captures, context.typical),
        title="Capture of CUDA graphs{} leaves the GPU idle for {{share:ratio}} of step time",
        action="Capture each graph once, before the measured loop, and replay it with the same "
        "shapes and addresses in every step.",
        caveat="Captured work does not run. If the program only sets up here, change nothing.",
        is_setup=not len(context.steps),
    )
    ranges = context.ranks.each(_compiling, context.typical)
    named = [_calls_named(context, _LOADS, table) for table in ("api_calls", "host_ops")]
    yield from _finding_on_calls(
        context,
        Table.stacked([*named, *ranges]),
        title="Kernel compilation or loading{} leaves the GPU idle for {{share:ratio}} of step "
        "time",
        action=context.advice(pytorch=_KEEP_SHAPES, other=_LOAD_AHEAD),
        caveat="The first launch of a kernel loads it. This cost occurs once.",
    )
    yield from _finding_on_calls(
        context,
        context.rows(_slow_first_launches, context.typical),
        title="Kernel loading at first launches leaves the GPU idle for {{share:ratio}} of step "
        "time",
        action="Run all kernels once before you measure, or load them ahead of time "
        "(`CUDA_MODULE_LOADING=EAGER`).",
        caveat="A first launch can be slow for other reasons, such as a library's algorithm "
        "search.",
        is_setup=True,
    )


@rule("memory allocation", "memory allocation in the loop", "kernels", "api_calls", show="idle")
def allocations(context: Context) -> Iterator[Finding]:
    """Find memory that is allocated and freed in the loop."""
    calls = _calls_named(context, _ALLOCATES)
    lengths = lengths_of(calls)
    # Memory that is hardly ever freed is a growing pool, unless each iteration allocates.
    grows = not len(context.steps) and 2 * _n_named(calls, _FREES) < _n_named(calls, _ADDS)
    grows = grows and not is_in_most_iterations(context, calls)
    if 2 * lengths[are_named(calls["name"], _PINS)].sum() > lengths.sum():
        action = context.advice(pytorch=_REUSE_PINNED_TENSOR, other=_REUSE_PINNED)
    elif grows:
        action = _WARM_UP
    else:
        action = context.advice(pytorch=_KEEP_SIZES, other=_ALLOCATE_AHEAD)
    yield from _finding_on_calls(
        context,
        calls,
        title="Memory allocation{} leaves the GPU idle for {{share:ratio}} of step time",
        action=action,
        caveat="The first steps allocate memory in any case. Look at later steps.",
        is_setup=grows,
    )


def subject_and_advice(context: Context, name: str) -> tuple[str, str]:
    """Return the subject of the rule on calls to ``name``, and its advice; "" for other names."""
    if _PINS.search(name) and _ALLOCATES.search(name):
        advice = context.advice(pytorch=_REUSE_PINNED_TENSOR, other=_REUSE_PINNED)
        return allocations.subject, advice
    if _ALLOCATES.search(name):
        return allocations.subject, context.advice(pytorch=_KEEP_SIZES, other=_ALLOCATE_AHEAD)
    if _LOADS.search(name):
        return loading.subject, context.advice(pytorch=_KEEP_SHAPES, other=_LOAD_AHEAD)
    return "", ""


_KEEP_SHAPES: Final = (
    "Keep shapes constant (`torch.compile(dynamic=True)`, padding), run all shapes once before you "
    "measure, and cache compiled kernels (`TORCHINDUCTOR_CACHE_DIR`)."
)
_LOAD_AHEAD: Final = (
    "Compile ahead of time for this GPU, and load all kernels before the loop "
    "(`CUDA_MODULE_LOADING=EAGER`)."
)
_KEEP_SIZES: Final = (
    "Keep tensor sizes constant from step to step, leave memory free for the caching allocator "
    "(`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`), and do not call "
    "`torch.cuda.empty_cache()`."
)
_ALLOCATE_AHEAD: Final = "Allocate once before the loop, or from a pool (`cudaMallocAsync`)."
_WARM_UP: Final = (
    "Run one pass before you measure, and record later passes: the first pass allocates memory and "
    "keeps it."
)
_REUSE_PINNED_TENSOR: Final = (
    "Reuse pinned buffers: allocate them before the loop (`torch.empty(..., pin_memory=True)`) and "
    "`copy_()` into them. Each new pinned tensor locks pages again."
)
_REUSE_PINNED: Final = (
    "Reuse pinned buffers: allocate or register them once, before the loop, and copy into them."
)


def _finding_on_calls(
    context: Context, calls: Table, *, title: str, action: str, caveat: str, is_setup: bool = False
) -> Iterator[Finding]:
    """Yield the finding on ``calls`` that leave devices idle; its evidence names the longest calls.

    ``is_setup``: the calls are a one-time cost, however often they occur in the analyzed time.
    """
    claim = _idle_in(context, calls)
    share = context.share(claim)
    if share < _MIN_SHARE_RATIO:
        return
    is_once = is_setup or occurs_once(context, calls)
    is_loop = bool(len(context.steps)) and not is_once
    yield Finding(
        title=Note.of(title.format(" in the loop" if is_loop else ""), share=share),
        claims=(claim,),
        kind=Kind.ONCE if is_once else Kind.MEASURED,
        one_time_ns=context.one_time_ns(claim) if is_once else None,
        evidence=tuple(_counted_by_name(context, calls, is_once=is_once)),
        action=action,
        caveat=caveat,
        window=context.longest_row(calls),
    )


def _counted_by_name(context: Context, calls: Table, *, is_once: bool) -> Iterator[Note]:
    """Yield the number of calls for each of the names with the most time."""
    names, groups = grouped_by(calls, "name")
    longest = np.argsort(-groups.sums(lengths_of(calls)), kind="stable")[:_MAX_NAMES_SHOWN]
    for name in names["name"][longest].tolist():
        words = "call(s) to {name}" if name else "graph capture(s)"
        named = calls.take(calls["name"] == name)
        if is_once and context.n_steps == 1:  # one step is not enough for a mean per step
            yield Note.of(f"{{n:count}} {words}", n=len(named), name=name)
        else:
            yield counted(context, named, words, name=name)


def _calls_named(context: Context, pattern: re.Pattern[str], table: str = "api_calls") -> Table:
    """Return process, start_ns, end_ns, and name of the typical calls that match ``pattern``.

    ``table`` is "host_ops" for events that libraries and the operating system recorded.
    """
    return context.rows(_calls_of_rank, pattern, table, context.typical)


def _calls_of_rank(trace: Trace, pattern: re.Pattern[str], table: str, typical: Intervals) -> Table:
    """Return the same as `_calls_named` for one trace."""
    calls = trace.table(table)
    matched = np.array([bool(pattern.search(name)) for name in calls["name"].texts], np.bool_)
    return _within_typical(typical, calls.take(calls["name"].by_text(matched)))


def _n_named(calls: Table, pattern: re.Pattern[str]) -> int:
    """Return the number of calls that match ``pattern``."""
    return int(are_named(calls["name"], pattern).sum())


def _captures(trace: Trace, typical: Intervals) -> Table:
    """Return graph captures, with the name "", and the calls that instantiate graphs."""
    times = captures(trace)
    made = trace.api_calls.take(are_named(trace.api_calls["name"], _INSTANTIATES))
    return Table.stacked(
        [
            _within_typical(typical, times.assign(name=Names.repeated("", len(times)))),
            _within_typical(typical, made),
        ]
    )


def _slow_first_launches(trace: Trace, typical: Intervals) -> Table:
    """Return calls that launch a kernel for the first time and take much longer than the median."""
    whole = trace.whole
    calls, launches = whole.api_calls, launches_of(whole, "kernels")
    lengths, names = lengths_of(calls), whole.kernels["name"].codes
    known = np.flatnonzero(launches.is_known)
    took_ns = lengths[launches.call[known]]
    usual_ns = float(np.median(took_ns)) if len(known) else 0.0
    slow = known[took_ns > max(_MIN_SLOW_NS, _MIN_SLOW_FACTOR * usual_ns)]
    found = []
    for process in np.unique(launches.process[slow]).tolist():
        of_process = known[launches.process[known] == process]
        first = np.full(int(names[of_process].max()) + 1, len(calls))
        np.minimum.at(first, names[of_process], launches.call[of_process])
        slow_of_process = slow[launches.process[slow] == process]
        found.append(
            launches.call[
                slow_of_process[launches.call[slow_of_process] == first[names[slow_of_process]]]
            ]
        )
    rows = np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)
    return _within_typical(typical, calls.take(rows))


def _compiling(trace: Trace, typical: Intervals) -> Table:
    """Return the ranges of kernel compilation in a trace."""
    return _within_typical(typical, compiling_ranges(trace))


def _within_typical(typical: Intervals, rows: Table) -> Table:
    """Return process, start_ns, end_ns, and name of the ``rows`` in the typical time."""
    inside = typical.covered_ns(*bounds(rows)) > 0
    return rows.select("process", "start_ns", "end_ns", "name").take(inside)


def _idle_in(context: Context, calls: Table) -> Claim:
    """Return a claim on the time in which devices are idle while their process is in ``calls``."""
    spans = unions_by(calls)
    return context.unclaimed(
        union_by_device(
            {device: spans[process] - context.times[device].busy}
            for process, device in context.process_devices
            if process in spans and device in context.times
        )
    )
