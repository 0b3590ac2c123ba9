"""Kernels too short for the host to keep the queue filled; graphs traced as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pandas as pd

from traceprof.findings.claims import Claim, Ground, Kind
from traceprof.findings.context import Context
from traceprof.findings.kernel_times import time_of_kernels
from traceprof.findings.rules import Finding, Rule
from traceprof.measures.host.launches import launch_table
from traceprof.model.activity import Activity
from traceprof.model.combining import median_of_counted
from traceprof.model.intervals import Intervals
from traceprof.model.results import Note
from traceprof.model.trace import Trace

_LEAST_LAUNCH_BOUND: Final = 0.05


def _check_launch_bound(context: Context) -> Iterator[Finding]:
    claim = context.idle_for("launch")
    share = context.share(claim)
    if share < _LEAST_LAUNCH_BOUND:
        return
    calls = pd.concat(context.ranks.each(_calls_of_one), ignore_index=True)
    call_ns = median_of_counted(calls["call_ns"].to_numpy(), calls["count"].to_numpy())
    n_calls = int(calls["count"].sum())
    if not len(context.kernels.lengths.rows):
        yield _of_copies(context, claim, call_ns)
        return
    yield Finding(
        title=Note.of(
            "launch-bound: devices are idle {share:ratio} of the time between launches", share=share
        ),
        claims=(claim,),
        kind=Kind.BOUNDED,
        evidence=(
            *_kernels(context),
            Note.of("a launching call takes {call:ns} (median)", call=call_ns),
            Note.of(
                "{share:ratio} of the launches found the device without work",
                share=int(calls["empty"].sum()) / n_calls if n_calls else float("nan"),
            ),
        ),
        action=context.advice(
            pytorch="launch less: CUDA graphs or torch.compile(mode='reduce-overhead'), fused "
            "optimizers (fused=True, foreach=True), fused layers, larger batches",
            other="launch less: put what repeats into a CUDA graph, fuse small kernels, give each "
            "launch more work",
        ),
        caveat=(
            "profilers slow launches down (some µs per call): measure the gain without one; shapes "
            "that change in every step rule CUDA graphs out"
        ),
        window=context.longest_gap("launch"),
    )


def _calls_of_one(part: Trace) -> pd.DataFrame:
    """Return how many launches took how long, and how many found the device empty."""
    table = launch_table(part)
    call_ns = table["launched_ns"].to_numpy() - table["launch_ns"].to_numpy()
    rows = pd.DataFrame({"call_ns": call_ns, "count": 1, "empty": table["is_empty"].to_numpy()})
    return rows.groupby("call_ns", as_index=False).sum()


def _of_copies(context: Context, claim: Claim, call_ns: float) -> Finding:
    """Return the finding where only copies are launched: no graph or fusing helps them."""
    return Finding(
        title=Note.of(
            "launch-bound: devices are idle {share:ratio} of the time between copies",
            share=context.share(claim),
        ),
        claims=(claim,),
        kind=Kind.BOUNDED,
        evidence=(
            context.counted(context.n_copies, "cop(y|ies) or memset(s)"),
            Note.of("a launching call takes {call:ns} (median)", call=call_ns),
        ),
        action="copy larger pieces at once",
        caveat="profilers slow launches down (some µs per call): measure the gain without one",
        window=context.longest_gap("launch"),
    )


def _kernels(context: Context) -> Iterator[Note]:
    lengths, counts = context.kernels.lengths, context.kernels.counts
    if len(counts):
        median = median_of_counted(lengths.values, counts)
        count = int(counts.sum())
        yield context.counted(count, "kernel(s)", " (median {median:ns})", median=median)


LAUNCH_BOUND = Rule(
    name="launch_bound",
    subject="launches",
    summary="devices wait for kernels to be launched",
    needs=("kernels", "api_calls"),
    show="launches",
    check=_check_launch_bound,
)


_LEAST_WHOLE_GRAPHS: Final = 0.05
_MOST_OF_IT: Final = 0.5


def _check_whole_graphs(context: Context) -> Iterator[Finding]:
    kernels = context.kernels.by_name
    graphs = kernels[kernels["activity"] == Activity.CUDA_GRAPH.value]
    times = time_of_kernels(context.ranks, set(graphs["name"]))
    blind = {
        d: time for d, time in times.items() if _share(context, d, time) >= _LEAST_WHOLE_GRAPHS
    }
    if not blind:
        return
    share = sum(_share(context, d, time) for d, time in blind.items()) / len(context.places)
    yield Finding(
        title=Note.of(
            "CUDA graphs were traced whole: what happens inside them, {inside:ratio} of the time, "
            "cannot be seen",
            inside=share,
        ),
        claims=tuple(_claims(context, blind)),
        kind=Kind.NONE,
        evidence=(
            context.counted(int(graphs["count"].sum()), "launch(es) of a graph"),
            Note(
                "gaps, communication and slow kernels in a graph count as compute here, and "
                "nothing is said of devices that mostly run graphs"
            ),
        ),
        action=(
            "record the kernels of graphs: nsys profile --cuda-graph-trace=node"
            if context.software.recorder == "nsys"
            else "record with a profiler that traces the kernels of graphs"
        ),
        caveat="tracing every node slows graphs down",
    )


def _share(context: Context, device: int, time: Intervals) -> float:
    busy = (context.times[device].busy & context.typical).total_ns
    return (time & context.typical).total_ns / max(1, busy)


def _claims(context: Context, blind: dict[int, Intervals]) -> Iterator[Claim]:
    """Yield the claims on the graphs, and on all of the devices that mostly run graphs."""
    whole = {d: t for d, t in blind.items() if _share(context, d, t) >= _MOST_OF_IT}
    everything = dict.fromkeys(whole, context.typical)
    yield context.left({**blind, **everything}, Ground.COMPUTE)
    yield context.left(everything)


WHOLE_GRAPHS = Rule(
    name="whole_graphs",
    subject="graphs",
    summary="graphs that were traced as a whole",
    needs=("kernels",),
    show="kernels",
    check=_check_whole_graphs,
)
