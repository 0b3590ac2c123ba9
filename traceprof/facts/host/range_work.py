"""The device work of each host range: what was launched inside it, and when that ran."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.facts.cache import fact
from traceprof.facts.launches import launches_of, range_of_launches
from traceprof.model.grouping import (
    has_alike_around,
    levels_of,
    nearest_around,
    parents_of,
    sum_of_chains,
)
from traceprof.model.intervals import check_pairs, nesting_depth
from traceprof.model.trace import Trace
from traceprof.values import dataclass

__all__ = [
    "NestedRanges",
    "RangeWork",
    "SpanKinds",
    "add_to_parents",
    "find_parents",
    "is_outermost_of",
    "nested_ranges",
    "ranges_of_work",
    "sum_work",
]

_Int64Array = npt.NDArray[np.int64]
_FEW_ROUNDS: Final = 64
"""Spans seldom nest deeper; up to here one look at the next outer one after the other is quick."""


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
    work_count: _Int64Array
    first_ns: _Int64Array
    last_ns: _Int64Array


def is_outermost_of(codes: _Int64Array, parent: _Int64Array) -> npt.NDArray[np.bool_]:
    """Return which spans have none of the same code around them (recursion counts once)."""
    outermost = np.ones(len(codes), np.bool_)
    rows, above = np.arange(len(codes)), parent
    for _ in range(_FEW_ROUNDS):
        inside = above >= 0
        rows, above = rows[inside], above[inside]
        if not len(rows):
            break
        outermost[rows[codes[above] == codes[rows]]] = False
        above = parent[above]
    return outermost if not len(rows) else ~has_alike_around(codes, parent)


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


def add_to_parents(values: _Int64Array, parent: _Int64Array, depth: _Int64Array) -> _Int64Array:
    """Return the value of each span together with those of all spans inside it."""
    total = values.copy()
    for rows in _inside_others(parent, depth):
        np.add.at(total, parent[rows], total[rows])
    return total


def _inside_others(parent: _Int64Array, depth: _Int64Array) -> Iterator[_Int64Array]:
    """Yield the spans that are inside others, the deepest first."""
    inside = np.flatnonzero(parent >= 0)
    return (inside[rows] for rows in reversed(levels_of(depth[inside])))


def sum_work(
    trace: Trace, owners: Mapping[str, _Int64Array], parent: _Int64Array, depth: _Int64Array
) -> RangeWork:
    """Return the work of nested spans; ``owners`` say which span launched each row of a table.

    That is the innermost one, -1 where there is none.
    """
    own_ns, count = np.zeros(len(parent), np.int64), np.zeros(len(parent), np.int64)
    first = np.full(len(parent), np.iinfo(np.int64).max)
    last = np.full(len(parent), np.iinfo(np.int64).min)
    for name, owner in owners.items():
        work = trace.table(name)
        owned = owner >= 0
        starts, ends = work["start_ns"].to_numpy()[owned], work["end_ns"].to_numpy()[owned]
        np.add.at(own_ns, owner[owned], ends - starts)
        np.add.at(count, owner[owned], 1)
        np.minimum.at(first, owner[owned], starts)
        np.maximum.at(last, owner[owned], ends)
    for rows in _inside_others(parent, depth):
        np.minimum.at(first, parent[rows], first[rows])
        np.maximum.at(last, parent[rows], last[rows])
    total_count = add_to_parents(count, parent, depth)
    worked = total_count > 0
    return RangeWork(
        parent=parent,
        self_ns=own_ns,
        total_ns=add_to_parents(own_ns, parent, depth),
        work_count=total_count,
        first_ns=np.where(worked, first, 0),
        last_ns=np.where(worked, last, 0),
    )


@dataclass(frozen=True, slots=True, eq=False)
class NestedRanges:
    """The ranges of the whole trace that nest on their thread.

    ``rows`` are their rows in ``ranges``; ``parent`` (the place in ``rows`` of the range around
    each, -1 for the outermost) and ``depth`` are as `find_parents` gives them.
    """

    rows: _Int64Array
    parent: _Int64Array
    depth: _Int64Array


@fact
def nested_ranges(trace: Trace) -> NestedRanges:
    """Return how the ranges of the whole trace nest."""
    rows = np.flatnonzero((trace.ranges["kind"] == "push_pop").to_numpy())
    spans = trace.ranges[["process", "thread", "start_ns", "end_ns"]].iloc[rows]
    return NestedRanges(rows, *find_parents(spans.reset_index(drop=True)))


def ranges_of_work(trace: Trace, table: str) -> _Int64Array:
    """Return the place in `nested_ranges` of the innermost range that launched each row; -1: none.

    That is on the launching thread: what autograd's threads launch belongs to their own ranges.
    """
    return _ranges_of_table(trace, table)[trace.rows_in_whole(table)]


@fact
def _ranges_of_table(trace: Trace, table: str) -> _Int64Array:
    place = np.full(len(trace.ranges) + 1, -1, np.int64)
    rows = nested_ranges(trace).rows
    place[rows] = np.arange(len(rows))
    return place[range_of_launches(trace, launches_of(trace, table))]


@dataclass(frozen=True, slots=True, eq=False)
class SpanKinds:
    """Nested spans by their kind: of those of a kind in one another the outermost alone counts.

    ``codes`` are the kinds (a number for its name, say), from 0 to ``n_kinds`` - 1. ``nearest`` is
    the innermost span that counts of each and those around it, ``outer`` the next of those around.
    """

    codes: _Int64Array
    n_kinds: int
    counts: npt.NDArray[np.bool_]
    nearest: _Int64Array
    outer: _Int64Array
    chain: _Int64Array

    @classmethod
    def of(cls, codes: _Int64Array, n_kinds: int, parent: _Int64Array) -> SpanKinds:
        """Return the kinds of spans; ``parent`` is the one around each, -1 for the outermost."""
        counts = is_outermost_of(codes, parent)
        outer = nearest_around(parent, counts)
        nearest = np.where(counts, np.arange(len(codes)), outer)
        return cls(codes, n_kinds, counts, nearest, outer, sum_of_chains(counts, parent))

    def summed(self, totals: _Int64Array) -> _Int64Array:
        """Return the sum of each kind; ``totals`` are of each span and all inside it."""
        sums = np.zeros(self.n_kinds, np.int64)
        np.add.at(sums, self.codes[self.counts], totals[self.counts])
        return sums

    def inside(self, owner: _Int64Array) -> Iterator[tuple[_Int64Array, _Int64Array]]:
        """Yield which work was launched inside which kind, each pair of a kind and a row once.

        ``owner`` is the innermost span around each row of work, -1 where there is none. Rows ascend
        in each portion: first those of the innermost kinds, then of those around them.
        """
        row = np.flatnonzero(owner >= 0)
        check_pairs(int(self.chain[owner[row]].sum()), len(row) + len(self.codes))
        span = self.nearest[owner[row]]
        while len(row):
            yield self.codes[span], row
            span = self.outer[span]
            row, span = row[span >= 0], span[span >= 0]
