"""Rules on kernels that are too short for the launch rate, and on CUDA graphs traced whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from traceprof.findings.claims import ClaimKind, Kind
from traceprof.findings.context import Context
from traceprof.findings.kernel_times import time_of_kernels
from traceprof.findings.rules import GRAPHS, Finding, rule
from traceprof.measures.host.launches import launch_table
from traceprof.measures.idle.losses import DRAINED, idle_times, within
from traceprof.model.activity import Activity
from traceprof.model.combining import median_of_counted
from traceprof.model.grouping import groups_of
from traceprof.model.intervals import Intervals
from traceprof.model.results import Note
from traceprof.model.table import Table
from traceprof.model.trace import Trace

_MIN_SHARE_RATIO: Final = 0.05
_MAIN_RATIO: Final = 0.5
_PAUSE_NS: Final = 1_000
"""The pause of a device between two kernels that are both launched already."""
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
    calls = context.rows(_launch_calls)
    n_calls = int(calls["count"].sum())
    of_calls = Note.of(
        "median launch call: {call:ns}", call=median_of_counted(calls["call_ns"], calls["count"])
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
    yield Finding(
        title=Note.of(
            "Launch-bound: the GPU is idle between kernel launches for {share:ratio} of step time",
            share=share,
        ),
        claims=(claim,),
        kind=Kind.ESTIMATED,
        model=model,
        evidence=(
            context.counted(
                int(counts.sum()), "kernel(s)", " (median {median:ns})", median=median_ns
            ),
            of_calls,
            Note.of(
                "{share:ratio} of launches found the GPU idle",
                share=int(calls["empty"].sum()) / n_calls if n_calls else float("nan"),
            ),
        ),
        action=context.software.recorder.how_to("launch")
        or context.advice(
            pytorch='Reduce launches: use CUDA graphs (`torch.compile(mode="reduce-overhead")`), '
            + ("a fused optimizer (`fused=True`), " if context.is_training else "")
            + "fused layers, or a larger batch.",
            other="Reduce launches: put repeated work into a CUDA graph, fuse small kernels, or "
            "give each launch more work.",
        ),
        caveat=f"{_CAVEAT} CUDA graphs do not support shapes that change in every step.",
        window=context.longest_gap("launch"),
    )


def _launch_calls(part: Trace) -> Table:
    """Return launch calls by duration: call_ns, count, and empty (the GPU was idle)."""
    table = launch_table(part)
    table = table.take(table["is_first"])
    groups = groups_of(table["launched_ns"] - table["launch_ns"])
    (lengths,) = groups.values
    empty = groups.sums(table["is_empty"])
    return Table({"call_ns": lengths, "count": groups.counts, "empty": empty})


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
