"""Rules on kernels that are too short for the launch rate, and on CUDA graphs traced whole."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from traceprof.findings.amounts import GRAPHS
from traceprof.findings.claims import ClaimKind, Kind, Times
from traceprof.findings.context import Context
from traceprof.findings.gaps import names_of_gaps, notes_on_names
from traceprof.findings.host_work import is_call, is_operator
from traceprof.findings.kernel_times import time_of_kernels
from traceprof.findings.rules import Finding, rule
from traceprof.measures.host.launches import launch_table
from traceprof.measures.idle.charges import NOTHING
from traceprof.measures.idle.losses import DRAINED, idle_times, within
from traceprof.measures.rows import Ints, are_named, ints
from traceprof.model.activity import Activity
from traceprof.model.combining import median_of_counted
from traceprof.model.grouping import groups_of
from traceprof.model.intervals import Intervals
from traceprof.model.results import Note
from traceprof.model.table import Table
from traceprof.model.trace import Trace

_MIN_SHARE_RATIO: Final = 0.05
_MIN_NAMED_RATIO: Final = 0.01
_MAIN_RATIO: Final = 0.5
_PAUSE_NS: Final = 1_000
"""The pause of a device between two kernels that are both launched already."""
_LAUNCHES_KERNEL: Final = re.compile(r"^(cuda|cu|hip)(Ext|Hcc)?(Module)?Launch(Cooperative)?Kernel")
_USUAL_CALLS: Final = " (usual: 4–10 µs)"
"""The usual duration of a call that launches a kernel, in recordings of many GPUs."""
_MIN_SLOW_CALL_NS: Final = 25_000
"""Minimum duration of a slow call. With old profilers, calls take 20 µs without another cause."""
_FASTER_CALLS: Final = (
    "First find out why the CPU is slow. Use at most one thread per core (`export "
    "OMP_NUM_THREADS=1`, fewer data loader workers). Check the CPU affinity (`taskset -cp PID`) "
    "and the cgroup limit (`cat /sys/fs/cgroup/cpu.max`). Stop other jobs (`top`), debuggers, and "
    "other profilers. "
)
_CAVEAT: Final = "Profilers slow launches down (some µs per call). Measure the gain without one."


@rule(
    "kernel launches",
    "launch overhead that leaves the GPU idle",
    "kernels",
    "api_calls",
    show="launches",
)
def launch_bound(context: Context) -> Iterator[Finding]:
    """Find kernels that are too short for the host to keep the launch queue filled."""
    claim = context.idle_for("launch")
    share = context.share(claim)
    if share < _MIN_SHARE_RATIO:
        return
    n_pauses = sum(len(time) for time in claim.times.values())
    after_wait = within(idle_times(context.ranks)[DRAINED], context.analyzed_by_place)
    after_ns = sum(time.total_ns for time in after_wait.values())
    min_ratio = max(0.0, 1 - _PAUSE_NS * n_pauses / claim.total_ns)
    claim = replace(claim, between=(min_ratio, 1 + after_ns / claim.total_ns))
    model = Note.of(
        "No work waits for its launch. Lower bound: {pause:ns} between kernels remain. Upper "
        "bound: the idle time after host synchronization shrinks as well.",
        pause=_PAUSE_NS,
    )
    call_ns = _median_call_ns(context, _launch_calls)
    is_slow = _median_call_ns(context, _awaited_calls) >= _MIN_SLOW_CALL_NS
    of_calls = Note.of(
        "median launch call: {call:ns}" + (_USUAL_CALLS if is_slow else ""), call=call_ns
    )
    lengths, counts = context.kernels.lengths, context.kernels.counts
    if not len(lengths.rows):  # only copies, for which graphs and fusion do not help
        yield Finding(
            title=Note.of(
                "Launch-bound: the GPU is idle between copies for {share:ratio} of step time",
                share=share,
            ),
            claims=(claim,),
            kind=Kind.ESTIMATED,
            model=model,
            evidence=(context.counted(context.n_copies, "cop(y|ies) or memset(s)"), of_calls),
            action="Copy larger pieces in each call.",
            caveat=_CAVEAT,
            window=context.longest_gap("launch"),
        )
        return
    median_ns = median_of_counted(lengths.values, counts)
    shares = _shares_of_work(context, claim.times)
    is_other = shares.get(_OTHER, 0.0) > _MAIN_RATIO and not is_slow
    title = "Launch-bound: the GPU is idle between kernel launches for {share:ratio} of step time"
    if is_slow:
        title = "Slow launch calls leave the GPU idle for {share:ratio} of step time"
    elif is_other:
        title = "Short CPU work between launches: the GPU is idle for {share:ratio} of step time"
    yield Finding(
        title=Note.of(title, share=share),
        claims=(claim,),
        kind=Kind.ESTIMATED,
        model=model,
        evidence=(
            context.counted(
                int(counts.sum()), "kernel(s)", " (median {median:ns})", median=median_ns
            ),
            of_calls,
            context.counted(
                n_pauses, "idle period(s)", " (mean {mean:ns})", mean=claim.total_ns / n_pauses
            ),
            *_notes_on_work(shares),
            *(notes_on_names(context, claim.times)[0][:1] if is_other else ()),
        ),
        action=(_FASTER_CALLS if is_slow else _LESS_CODE if is_other else "")
        + (context.software.recorder.how_to("launch") or _fewer_launches(context)),
        caveat=f"{_CAVEAT} CUDA graphs do not support shapes that change in every step.",
        window=context.longest_gap("launch"),
    )


_LESS_CODE: Final = "Move the code between the launches out of the loop, or make it faster. "
_CALLS, _OPERATORS, _OTHER, _UNKNOWN = "launch calls", "operators", "other code", "not recorded"


def _shares_of_work(context: Context, times: Times) -> dict[str, float]:
    """Return the share of each kind of CPU work in the idle ``times``; {} without charges."""
    charged, _ = names_of_gaps(context, times)
    sums = dict.fromkeys((_CALLS, _OPERATORS, _OTHER, _UNKNOWN), 0)
    for row in charged.rows():
        if row["name"] == NOTHING:
            kind = _UNKNOWN
        elif is_call(row["name"]):
            kind = _CALLS
        else:
            names = row["name"], row["operator"]
            kind = _OPERATORS if any(map(is_operator, names)) else _OTHER
        sums[kind] += row["ns"]
    whole_ns = sum(sums.values())
    return {kind: ns / whole_ns for kind, ns in sums.items()} if whole_ns else {}


def _notes_on_work(shares: Mapping[str, float]) -> Iterator[Note]:
    """Yield a note on the CPU work in the idle time, without kinds below 1%."""
    shown = {kind: share for kind, share in shares.items() if share >= _MIN_NAMED_RATIO}
    if shown and list(shown) != [_UNKNOWN]:
        text = ", ".join(f"{kind} {{share{i}:ratio}}" for i, kind in enumerate(shown))
        values = {f"share{i}": share for i, share in enumerate(shown.values())}
        yield Note.of(f"CPU meanwhile: {text}", **values)


def _fewer_launches(context: Context) -> str:
    """Return the advice to launch less."""
    return context.advice(
        pytorch='Reduce launches: use CUDA graphs (`torch.compile(mode="reduce-overhead")`), '
        + ("a fused optimizer (`fused=True`), " if context.is_training else "")
        + "fused layers, or a larger batch.",
        other="Reduce launches: put repeated work into a CUDA graph, fuse small kernels, or "
        "give each launch more work.",
    )


def _median_call_ns(context: Context, measure: Callable[[Trace], Table]) -> float:
    """Return the median of the calls that ``measure`` returns; NaN without any."""
    calls = context.rows(measure)
    return median_of_counted(calls["call_ns"], calls["count"])


def _launch_calls(part: Trace) -> Table:
    """Return the durations of launch calls: call_ns and count."""
    table = launch_table(part)
    table = table.take(table["is_first"])
    return _counted(table["launched_ns"] - table["launch_ns"])


def _awaited_calls(part: Trace) -> Table:
    """Return the durations of kernel launch calls that find no queued work: call_ns and count.

    These calls do not wait for space in a queue. A call counts until its kernel starts, because
    the CPU waits for the kernel with `CUDA_LAUNCH_BLOCKING=1`.
    """
    table = launch_table(part)
    is_awaited = table["is_first"] & (table["queue_depth"] == 0)
    table = table.take(is_awaited & are_named(table["api"], _LAUNCHES_KERNEL))
    launch, launched, starts = ints(table, "launch_ns", "launched_ns", "start_ns")
    return _counted(np.minimum(launched, starts) - launch)


def _counted(call_ns: Ints) -> Table:
    """Return the distinct values of ``call_ns`` with their count."""
    groups = groups_of(call_ns)
    return Table({"call_ns": groups.values[0], "count": groups.counts})


@rule(
    "graph tracing", "CUDA graphs that were traced whole", "kernels", about=GRAPHS, show="kernels"
)
def whole_graphs(context: Context) -> Iterator[Finding]:
    """Find CUDA graphs that were traced whole, without their kernels."""
    graphs = context.kernels.with_activity(Activity.CUDA_GRAPH)
    times = time_of_kernels(context.ranks, set(graphs["name"]))
    shares = {device: _share(context, device, time) for device, time in times.items()}
    blind = {device: time for device, time in times.items() if shares[device] >= _MIN_SHARE_RATIO}
    if not blind:
        return
    mostly = [device for device in blind if shares[device] >= _MAIN_RATIO]
    everything = dict.fromkeys(mostly, context.typical)
    yield Finding(
        title=Note.of(
            "CUDA graphs were traced whole: traceprof cannot analyze {inside:ratio} of the GPU's "
            "busy time",
            inside=sum(shares[device] for device in blind) / len(context.places),
        ),
        # Claim all time of devices that mostly run graphs: their other work is not typical.
        claims=(
            context.unclaimed({**blind, **everything}, ClaimKind.COMPUTE),
            context.unclaimed(everything),
        ),
        kind=Kind.NONE,
        evidence=(
            context.counted(int(graphs["count"].sum()), "graph launch(es)"),
            Note(
                "gaps, communication, and slow kernels inside a graph count as compute, and "
                "traceprof reports no findings for GPUs that mostly run graphs"
            ),
        ),
        action=f"Record the kernels of graphs: {context.software.recorder.how_to('graphs')}",
        caveat="Tracing every node slows graphs down.",
    )


def _share(context: Context, device: int, time: Intervals) -> float:
    """Return ``time`` as a share of the busy time of a device, both in the typical time."""
    busy = (context.times[device].busy & context.typical).total_ns
    return (time & context.typical).total_ns / max(1, busy)
