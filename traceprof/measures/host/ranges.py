"""NVTX and other host ranges, and host operators, by name, with their self time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from traceprof.measures.analyses import Analysis
from traceprof.measures.durations import DURATIONS, finish_durations, summarise
from traceprof.measures.rows import Ints, bounds, sums_at
from traceprof.model.grouping import codes_of, rows_by_values
from traceprof.model.intervals import nesting_depth
from traceprof.model.nesting import parents_of
from traceprof.model.results import Note, Result, ResultSpec
from traceprof.model.table import Table
from traceprof.model.trace import Trace
from traceprof.names.ranges import plain_names

_BY_THREAD: Final = ("process", "thread")


def find_parents(spans: Table, lane: Sequence[str] = _BY_THREAD) -> tuple[Ints, Ints]:
    """Return, for each of the nested ``spans``, the row around it (-1: none) and its depth.

    ``lane`` names the columns within whose values rows nest; they are sorted as tables are.
    """
    parent, depth = np.full(len(spans), -1, np.int64), np.zeros(len(spans), np.int64)
    starts, ends = bounds(spans)
    for rows in rows_by_values(*(codes_of(spans[name]) for name in lane)).values():
        depth[rows] = nesting_depth(starts[rows], ends[rows])
        inside = parents_of(depth[rows])
        parent[rows] = np.append(rows, -1)[inside]
    return parent, depth


def self_times(starts: Ints, ends: Ints, parent: Ints) -> Ints:
    """Return what of each span none right inside it covers.

    Where two overlap without nesting, the later one counts with its part inside the earlier.
    """
    own = ends - starts
    inside = np.flatnonzero(parent >= 0)
    outer = parent[inside]
    covered = np.maximum(np.minimum(ends[inside], ends[outer]) - starts[inside], 0)
    np.subtract.at(own, outer, covered)
    return np.asarray(np.maximum(own, 0), np.int64)


def self_time_ns(spans: Table, lane: Sequence[str] = _BY_THREAD) -> Ints:
    """Return the self time of each of ``spans``; arguments are those of `find_parents`."""
    return self_times(*bounds(spans), find_parents(spans, lane)[0])


def _measured(spec: ResultSpec, spans: Table, lane: str) -> Result:
    """Return the durations and self times of ``spans``, which nest by ``lane``, too."""
    name = spec.tables[0].name
    table, samples = summarise(spans, spec.tables[0].keys)
    self_ns = sums_at(samples.rows, self_time_ns(spans, (*_BY_THREAD, lane)), len(table))
    return Result(name, spec, {name: table.assign(self_ns=self_ns)}, samples={name: samples})


RANGES_SPEC: Final = ResultSpec.of(
    """
    table ranges: one row per name, domain and kind of range, by total host time; ranges nest and
        run on many threads, so that totals add up to more than the window
    key name: the name, without the numbers that PyTorch's emit_nvtx adds
    key domain: the NVTX domain; "" for the default one
    key kind: push_pop (they nest on a thread) or start_end
    """,
    *DURATIONS[:2],
    "total self_ns: the time in no other range of the same kind inside, on the same thread",
    *DURATIONS[2:],
)


def measure_ranges(trace: Trace) -> Result:
    """Return the ranges by name; one that the window cuts counts with its part inside."""
    ranges = trace.ranges.assign(name=plain_names(trace.ranges["name"]))
    return _measured(RANGES_SPEC, ranges, "kind")


RANGES = Analysis(
    "ranges", RANGES_SPEC, needs=("ranges",), of_rank=measure_ranges, finish=finish_durations
)


OPERATORS_SPEC: Final = ResultSpec.of(
    """
    table operators: one row per operator, by self time
    key name: the name of the operator or of the call
    key source: who recorded it: cpu_op (PyTorch's operators), osrt …
    total count: how often it ran
    total self_ns: the time in it, and in no operator that it called
    derived self_ratio: self_ns of the sum over all rows
    """,
    *(column for column in DURATIONS if column.name not in ("count", "share_ratio")),
)


def measure_operators(trace: Trace) -> Result:
    """Return the host operators by name."""
    return _measured(OPERATORS_SPEC, trace.host_ops, "source")


def _finish_operators(result: Result) -> Result:
    finished = finish_durations(result)
    if finished.table.empty:  # the embedded recorder sees those of a GPU program in one window
        text = "no operator was recorded in this window: choose another one (--window all)"
        return finished.with_notes(Note(text))
    self_ns = finished.table["self_ns"]
    table = finished.table.assign(self_ratio=self_ns / (int(self_ns.sum()) or float("nan")))
    return finished.with_table(table.in_order("-self_ns", *OPERATORS_SPEC.tables[0].keys))


OPERATORS = Analysis(
    "operators",
    OPERATORS_SPEC,
    needs=("host_ops",),
    of_rank=measure_operators,
    finish=_finish_operators,
)
