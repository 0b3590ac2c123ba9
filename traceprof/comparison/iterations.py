"""Measure the iterations of each rank: phases, layers and collectives, without warm-up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import Final

import numpy as np

from traceprof.comparison.nodes import NodeIterations
from traceprof.comparison.records import program_of
from traceprof.comparison.summary.history import of_recorder
from traceprof.comparison.summary.summarize import environment_of
from traceprof.errors import NotRecordedError
from traceprof.measures import load_analysis
from traceprof.measures.analyses import run_analysis
from traceprof.measures.host.layers import OUTSIDE
from traceprof.measures.host.states import find_host_phases, inferred_backward_on_host
from traceprof.measures.rows import bounds, lengths_of, rows_by
from traceprof.measures.steps.base import counted_steps, steady_window
from traceprof.measures.steps.ledger import WARMUP, all_steps, ledger_of_window, step_ledger
from traceprof.measures.steps.main_loop import find_iterations
from traceprof.model.grouping import find_matching_rows, groups_of
from traceprof.model.intervals import Intervals
from traceprof.model.ranks import Ranks, of_process
from traceprof.model.results import Result
from traceprof.model.table import Table, is_known, objects
from traceprof.model.tables import ABSENT
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace
from traceprof.names.ranges import PROFILER
from traceprof.session.caveats import caveats_of
from traceprof.session.run import Run

_TRAINING_PHASES: Final = frozenset({"forward", "backward", "optimizer"})

_OPERATORS: Final = "operators"
"""Source of layers if only operators have names; operators are not layers."""

_LAYERS: Final = (
    *("layer", "type", "count", "host_ns", "host_backward_ns", "device_ns", "backward_ns"),
)


def iterations_of_run(run: Run, name: str) -> list[NodeIterations]:
    """Return the iterations of every rank of ``run``, with ``name`` as the name of the run.

    Raises:
        TraceError: the run cannot be read.
    """
    ranks = run.within("all").of_ranks().whole
    n_warm = max((_warmup_of(find_iterations(part)) for part in ranks), default=0)
    unusual = _unusual_steps(ranks)
    found = [rank for part in ranks for rank in _of_part(part, name, n_warm, unusual)]
    n = max([len(found), *(int(size) for size in ranks.table("processes")["world_size"])])
    waited, caveats = _waited_by_rank(ranks, found), caveats_of(ranks).notes
    program = program_of(environment_of(ranks).get("command", ""))
    return [
        replace(
            rank,
            ranks_count=n,
            waited_ns=waited.get(rank.rank) if rank.calls_count else None,
            caveats=caveats,
            program=program,
        )
        for rank in found
    ]


def _unusual_steps(ranks: Ranks) -> Table:
    """Return process and step of the steps that the step time of the page does not average.

    Warm-up is not included.
    """
    ledger = step_ledger(ranks)
    is_counted = counted_steps(ranks, steady_window(ranks, ranks.span))
    counted = ledger_of_window(ranks).take(is_counted)
    is_left_out = find_matching_rows(ledger, counted, "process", "step") < 0
    is_left_out &= ledger["kind"] != WARMUP
    if all_steps(ranks).is_pattern:
        is_left_out[:] = False
    return ledger.select("process", "step").take(is_left_out)


def _warmup_of(iterations: Table) -> int:
    """Return the number of leading warm-up iterations, the maximum over processes."""
    return max(
        groups_of(iterations["process"][iterations["is_warmup"].astype(bool)]).counts.tolist(),
        default=0,
    )


def _of_part(part: Trace, name: str, n_warm: int, unusual: Table) -> Iterator[NodeIterations]:
    """Yield the iterations of each rank of a file; the first ``n_warm`` of a rank are warm-up.

    ``unusual`` are the process and step of iterations that do not count.
    """
    iterations = find_iterations(part)
    by_process = rows_by(iterations, "process")
    for process, rows in by_process.items():
        process_rows = part.processes.take(part.processes["process"] == process).rows()
        rank, host = ABSENT, ""
        if process_rows:
            rank, host = process_rows[0]["rank"], process_rows[0]["host"]
        process_trace = part
        if len(by_process) > 1:
            process_trace = replace(of_process(part, process), steps=None)
        numbered = iterations.take(rows).assign(is_warmup=np.arange(len(rows)) < n_warm)
        place = find_matching_rows(numbered.renamed(round="step"), unusual, "process", "step")
        numbered = numbered.assign(is_counted=(place < 0) & ~numbered["is_warmup"])
        yield _measured(
            process_trace, numbered, name, None if rank == ABSENT else rank, host or part.info.host
        )


def _measured(
    trace: Trace, iterations: Table, name: str, rank: int | None, node: str
) -> NodeIterations:
    """Measure the usual iterations of a rank, from the first one after warm-up to the last one."""
    n_warm = int(iterations["is_warmup"].sum())
    kept = iterations.take(iterations["is_counted"])
    if kept.empty:
        return NodeIterations(name, rank, node, 1, 0, n_warm, 0)
    window = TimeWindow.of(Intervals.union_of(*bounds(kept)))
    inside = trace.within(window)
    # One-time collectives in the first iteration do not synchronize the ranks of each iteration.
    after_first = kept.take(slice(min(1, len(kept) - 1), None))
    after_window = TimeWindow.of(Intervals.union_of(*bounds(after_first)))
    collectives = _result(Ranks.of(trace.within(after_window)), "collectives")
    calls = None if collectives is None else collectives.table
    layers = _result(Ranks.of(inside), "layers")
    if layers is not None and layers.scalars.get("source") == _OPERATORS:
        layers = None
    return NodeIterations(
        run=name,
        rank=rank,
        node=node,
        ranks_count=1,
        iterations_count=len(kept),
        warmup_count=n_warm,
        span=window,
        iterations_ns=_together_ns(kept),
        phases=_phases(inside, int(kept["process"][0])),
        are_phases_from_recorder=len(of_recorder(inside.ranges, "forward", "eval")) > 0,
        layers=Table({}) if layers is None else _layers(layers.table),
        samples_count=_samples_count(inside),
        calls_count=None if collectives is None else int(collectives.scalars.get("count", 0)),
        calls_iterations_ns=_together_ns(after_first),
        calls_bytes=_sum_if_known(calls, "size_bytes"),
        calls_ns=_sum_if_known(calls, "total_ns"),
    )


def _together_ns(rounds: Table) -> int:
    """Return the total time of iterations without recorder overhead."""
    return int((lengths_of(rounds) - rounds["recorder_ns"]).sum())


def _layers(found: Table) -> Table:
    """Return the layers, whose names have no prefix of wrappers such as DDP."""
    layers = found.select(*(name for name in _LAYERS if name in found))
    layers = layers.take(layers["layer"].astype(str) != OUTSIDE)
    return layers.assign(layer=objects(name.removeprefix("module.") for name in layers["layer"]))


def _sum_if_known(calls: Table | None, name: str) -> float | None:
    """Return the sum of a column of the collectives; None if a value is unknown."""
    if calls is None or calls.empty or name not in calls or not is_known(calls[name]).all():
        return None
    return float(calls[name].sum())


def _phases(inside: Trace, process: int) -> dict[str, int]:
    """Return the host time by phase; the backward pass includes the autograd threads.

    Without training phases, forward passes without gradients ("eval") count as forward.
    """
    inferred = inferred_backward_on_host(inside)
    for host in find_host_phases(inside):
        if host.process == process:
            times = dict(host.times)
            autograd = inferred.get(process, Intervals.empty()) & inside.span.times
            times["backward"] = times.get("backward", Intervals.empty()) | autograd
            times.pop(PROFILER, None)  # not part of an iteration
            found = {name: time.total_ns for name, time in times.items() if time.total_ns}
            if "eval" in found and not found.keys() & _TRAINING_PHASES:
                found["forward"] = found.pop("eval")
            return found
    return {}


def _result(ranks: Ranks, name: str) -> Result | None:
    """Return the result of an analysis; None if the traces lack its data."""
    try:
        return run_analysis(load_analysis(name), ranks)
    except NotRecordedError:
        return None


def _waited_by_rank(ranks: Ranks, found: Sequence[NodeIterations]) -> dict[int | None, float]:
    """Return the time each rank waited for other ranks in the usual iterations of any rank."""
    spans = [each.span.times for each in found if each.span is not None]
    if len(spans) < 2:
        return {}
    window = TimeWindow.of(reduce(or_, spans))
    result = _result(ranks.within(window), "ranks")
    if result is None or "waited_ns" not in result.table:
        return {}
    known = result.table.known("waited_ns", "rank")
    pairs = zip(known["rank"].tolist(), known["waited_ns"].tolist(), strict=True)
    return {int(rank): float(ns) for rank, ns in pairs}


def _samples_count(inside: Trace) -> float | None:
    """Return the number of samples of the batches in the window; None if unknown."""
    sizes = of_recorder(inside.marks, "batch")["payload"]
    return float(sizes.sum()) if len(sizes) and (sizes > 0).all() else None
