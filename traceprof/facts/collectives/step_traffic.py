"""What the collectives of a step add up to."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from traceprof.facts.collectives.callers import of_rows, steps_of_collectives
from traceprof.measures.steps.find import find_steps, rows_of_steps, steps_of_ranks
from traceprof.model.compact import CompactTable
from traceprof.model.intervals import Intervals
from traceprof.model.ranks import Ranks
from traceprof.model.trace import Trace
from traceprof.values import dataclass

__all__ = ["StepTraffic", "are_in_steps", "find_step_traffic"]


@dataclass(frozen=True, slots=True)
class StepTraffic:
    """The collectives of an average step of one process.

    ``size_bytes`` is what the rank hands in, None where a size is not known;
    ``all_reduce_ratio`` the share of the steps in which an all-reduce ran.
    """

    n_steps: int
    count: float
    size_bytes: float | None
    all_reduce_ratio: float


def are_in_steps(trace: Trace) -> npt.NDArray[np.bool_]:
    """Return whether each collective of the whole recording was called in a step of the window."""
    known = np.zeros(len(find_steps(trace.whole)) + 1, np.bool_)
    known[rows_of_steps(trace)] = True
    return np.asarray(known[steps_of_collectives(trace)], np.bool_)


def find_step_traffic(ranks: Ranks, work: CompactTable) -> StepTraffic | None:
    """Return what the collectives ``work`` add up to per step of the window; None without steps.

    ``work`` has the columns of `collectives_of_ranks`.
    """
    steps = steps_of_ranks(ranks)
    in_step = work.where(of_rows(work, ranks.each(are_in_steps)))
    if in_step.empty:
        return None
    sizes = in_step.array("n_bytes")
    spans = Intervals.union_of(steps.table["device_start_ns"], steps.table["device_end_ns"])
    is_reducing = in_step.isin("op", ("all_reduce",)) & in_step.array("is_timed").astype(np.bool_)
    reducing = in_step.where(is_reducing)
    reduced = Intervals.union_of(reducing["start_ns"], reducing["end_ns"]) & spans
    return StepTraffic(
        n_steps=len(steps),
        count=len(in_step) / len(steps),
        size_bytes=None if (sizes < 0).any() else float(sizes.sum()) / len(steps),
        all_reduce_ratio=reduced.total_ns / (spans.total_ns or 1),
    )
