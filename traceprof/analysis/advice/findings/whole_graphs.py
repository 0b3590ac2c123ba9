"""CUDA graphs that were traced as a whole: nobody can see inside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.claims import Claim, Ground, Kind
from traceprof.analysis.advice.findings.context import Context
from traceprof.analysis.advice.findings.kernel_times import time_of_kernels
from traceprof.model.activity import Activity
from traceprof.model.intervals import Intervals
from traceprof.model.results import Note

__all__ = ["RULE"]

_LEAST: Final = 0.05
_MOST_OF_IT: Final = 0.5


def _check(context: Context) -> Iterator[Finding]:
    kernels = context.kernels.by_name
    graphs = kernels[kernels["activity"] == Activity.CUDA_GRAPH.value]
    times = time_of_kernels(context.ranks, set(graphs["name"]))
    blind = {d: time for d, time in times.items() if _share(context, d, time) >= _LEAST}
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


RULE = Rule(
    name="whole_graphs",
    subject="graphs",
    summary="graphs that were traced as a whole",
    needs=("kernels",),
    show="kernels",
    check=_check,
)
