"""The device work of each host range: what was launched inside it, and when that ran."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.facts.launches import (
    adopting_range_of_launches,
    find_launches,
    innermost,
)
from traceprof.model.intervals import nesting_depth, parents_of
from traceprof.model.trace import DEVICE_TABLES, Trace

__all__ = ["RangeWork", "find_parents", "find_range_work"]

_Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class RangeWork:
    """For each of some nested host spans, the kernels and copies launched inside it.

    ``parent`` is the row of the span around each, -1 for the outermost. Totals include the
    spans inside, self times do not; times are summed over streams and devices. ``first_ns`` to
    ``last_ns`` is the span projected onto the devices: from the first start to the last end of
    its work (0, 0 where ``work_count`` is 0).
    """

    parent: _Int64Array
    self_ns: _Int64Array
    total_ns: _Int64Array
    self_count: _Int64Array
    work_count: _Int64Array
    first_ns: _Int64Array
    last_ns: _Int64Array

    def is_outermost_of(self, codes: _Int64Array) -> npt.NDArray[np.bool_]:
        """Return which spans have none of the same code around them (recursion counts once)."""
        outermost = np.ones(len(codes), np.bool_)
        above = self.parent.copy()
        while (above >= 0).any():
            same = (above >= 0) & (codes[np.maximum(above, 0)] == codes)
            outermost &= ~same
            above = np.where(above >= 0, self.parent[np.maximum(above, 0)], -1)
        return outermost


def find_parents(spans: pd.DataFrame) -> tuple[_Int64Array, _Int64Array]:
    """Return, for each of the nested ``spans``, the row around it and its depth, per thread."""
    parent = np.full(len(spans), -1, np.int64)
    depth = np.zeros(len(spans), np.int64)
    starts, ends = spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy()
    for rows in spans.groupby(["process", "thread"]).indices.values():
        depth[rows] = nesting_depth(starts[rows], ends[rows])
        inside = parents_of(depth[rows])
        parent[rows] = np.where(inside >= 0, rows[np.maximum(inside, 0)], -1)
    return parent, depth


def find_range_work(trace: Trace, spans: pd.DataFrame, *, adopt: bool = False) -> RangeWork:
    """Return the work of ``trace`` that was launched inside each of ``spans``.

    The spans (rows of the whole trace's ranges or host operators, sorted) nest on each thread.
    ``adopt`` also counts what threads without a span of their own launch, as autograd's do, for
    the span that is open on the thread that calls backward.
    """
    parent, depth = find_parents(spans)
    own_ns, count = np.zeros(len(spans), np.int64), np.zeros(len(spans), np.int64)
    first = np.full(len(spans), np.iinfo(np.int64).max)
    last = np.full(len(spans), np.iinfo(np.int64).min)
    for name in DEVICE_TABLES:
        work = trace.table(name)
        launches = find_launches(trace, work)
        owner = (
            adopting_range_of_launches(trace, spans, launches)
            if adopt
            else innermost(spans, launches.process, launches.thread, launches.start_ns)
        )
        owned = (owner >= 0) & launches.is_known
        starts, ends = work["start_ns"].to_numpy()[owned], work["end_ns"].to_numpy()[owned]
        np.add.at(own_ns, owner[owned], ends - starts)
        np.add.at(count, owner[owned], 1)
        np.minimum.at(first, owner[owned], starts)
        np.maximum.at(last, owner[owned], ends)
    total_ns, total_count = own_ns.copy(), count.copy()
    for level in range(int(depth.max(initial=0)), 0, -1):
        rows = np.flatnonzero((depth == level) & (parent >= 0))
        np.add.at(total_ns, parent[rows], total_ns[rows])
        np.add.at(total_count, parent[rows], total_count[rows])
        np.minimum.at(first, parent[rows], first[rows])
        np.maximum.at(last, parent[rows], last[rows])
    worked = total_count > 0
    return RangeWork(
        parent=parent,
        self_ns=own_ns,
        total_ns=total_ns,
        self_count=count,
        work_count=total_count,
        first_ns=np.where(worked, first, 0),
        last_ns=np.where(worked, last, 0),
    )
