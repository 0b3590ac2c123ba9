"""The collectives of a step in order: buckets of DDP, shards of FSDP."""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.measures.analyses import Analysis
from traceprof.measures.collectives.callers import (
    phases_of_collectives,
    steps_of_collectives,
    values_of_rows,
)
from traceprof.measures.collectives.operations import find_collectives, require_collectives
from traceprof.measures.collectives.rates import with_sizes
from traceprof.measures.rows import bounds, lengths_of, ratio_of, where_known
from traceprof.measures.steps.find import find_steps, rows_of_steps, steps_of_ranks
from traceprof.model.combining import medians_of
from traceprof.model.grouping import grouped_by, groups_of
from traceprof.model.intervals import Int64Array, Intervals
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note, Result, ResultSpec, Samples
from traceprof.model.table import Table, is_known
from traceprof.model.trace import Trace


def are_in_steps(trace: Trace) -> npt.NDArray[np.bool_]:
    """Return whether each collective of the whole recording was called in a step of the window."""
    return np.isin(steps_of_collectives(trace), rows_of_steps(trace))


def traffic_per_step(ranks: Ranks, work: Table) -> dict[str, float | None]:
    """Return the mean traffic of ``work`` per step and process; empty if there are no steps.

    Keys: per_step_count, per_step_bytes (input size of the rank; None if any size is unknown), and
    all_reduce_ratio (share of step time in which an all-reduce ran). ``work`` has the columns of
    `collectives_of_ranks`.
    """
    steps = steps_of_ranks(ranks)
    in_step = work.take(values_of_rows(work, ranks.each(are_in_steps)))
    if in_step.empty:
        return {}
    sizes = in_step["n_bytes"]
    spans = Intervals.union_of(steps.table["device_start_ns"], steps.table["device_end_ns"])
    reducing = in_step.take((in_step["op"] == "all_reduce") & in_step["is_timed"])
    reduced = Intervals.union_of(*bounds(reducing)) & spans
    return {
        "per_step_count": len(in_step) / len(steps),
        "per_step_bytes": None if (sizes < 0).any() else float(sizes.sum()) / len(steps),
        "all_reduce_ratio": reduced.total_ns / (spans.total_ns or 1),
    }


_KEYS: Final = ("process", "place", "op", "phase", "size_bytes")

SPEC: Final = ResultSpec.of("""
    table buckets: one row per process and position in the step. If steps differ in operation or
        size at a position, each variant has its own row
    key process: process
    key place [number]: position of the collective in its step, starting at 1
    key op: operation
    key phase: phase of the training loop that called the collective
    key size_bytes: input size per rank
    total count: number of steps with this collective
    same after_ns: median time from the start of the step to the start of the collective
    same duration_ns: median duration
    same exposed_ns: median time not overlapped with compute
    same algbw_bytes_per_s: algorithm bandwidth: operation size divided by time
    same busbw_bytes_per_s: bus bandwidth: the rate that each link must carry
    table steps: one row per step in the window
    key step: step number
    total count: number of collectives in the step, summed over ranks
    scalars:
    same step_source: how the steps were detected
    """)
_BUCKETS, _ = SPEC.tables


def measure_buckets(trace: Trace) -> Result:
    """Return the collectives of the steps in the window by their position in the step.

    Raises:
        NotRecordedError: neither collectives nor kernels were recorded.
    """
    require_collectives(trace)
    steps = find_steps(trace)
    # A collective that a step called may run after the end of the window.
    inside = np.flatnonzero(are_in_steps(trace))
    step = steps_of_collectives(trace)[inside]
    whole_steps = find_steps(trace.whole).table
    work = find_collectives(trace.whole).take(inside)
    work = work.assign(step=step, phase=phases_of_collectives(trace)[inside])
    count = Counter(whole_steps["step"][step].tolist())
    numbers = np.unique(steps.table["step"])
    counted = Table({"step": numbers, "count": [count[number] for number in numbers.tolist()]})
    buckets = (
        _summarize_buckets(with_sizes(work), whole_steps["start_ns"][step]) if len(work) else ()
    )
    return Result(
        "buckets",
        SPEC,
        {"buckets": _BUCKETS.of_rows(buckets), "steps": counted},
        {"step_source": steps.source},
    )


def _summarize_buckets(work: Table, step_starts: Int64Array) -> Table:
    """Return one row per bucket; ``step_starts`` is the start of the step of each collective."""
    timed, sizes = work["is_timed"], work["n_bytes"]
    work = work.assign(
        after_ns=work["start_ns"] - step_starts,
        duration_ns=where_known(lengths_of(work), timed),
        size_bytes=where_known(sizes, sizes >= 0).astype(np.float64),
        operation_bytes=where_known(work["operation_bytes"], timed),
        bus_bytes=where_known(work["bus_bytes"], timed),
    ).in_order("step", "call_ns", "start_ns")
    work = work.assign(place=groups_of(work["step"]).earlier + 1)
    table, groups = grouped_by(work, *_KEYS)
    medians = {}
    for name in ("after_ns", "duration_ns", "exposed_ns"):
        known = is_known(work[name])
        medians[name] = medians_of(table, Samples(groups.number[known], work[name][known]))
    seconds = groups.sums(work["duration_ns"]) / 1e9
    return table.assign(
        **medians,
        count=groups.counts,
        algbw_bytes_per_s=ratio_of(groups.sums(work["operation_bytes"]), seconds),
        busbw_bytes_per_s=ratio_of(groups.sums(work["bus_bytes"]), seconds),
    )


def _finish(result: Result) -> Result:
    table = result.table
    if table.empty:
        return result.with_notes(Note("No step in this window has collectives."))
    note = Note.of(
        "Medians over {n:count} steps ({source})",
        n=len(result.tables["steps"]),
        source=result.scalars["step_source"],
    )
    return result.with_table(table.in_order(*_KEYS)).with_notes(note)


BUCKETS: Final = Analysis(
    "buckets",
    SPEC,
    uses=("collectives", "kernels", "api_calls", "ranges"),
    whole=("collectives", "kernels", "ranges"),
    of_steps=True,
    of_rank=measure_buckets,
    finish=_finish,
)
