"""Detects steps that lack both launches and kernels, which some profilers lose together.

Steps may legitimately differ in their number of kernels. A step is suspicious if the host did the
same work for the same time: a range of the same name takes as long as in the other steps but
launches at most half as much, the devices did less, and every kernel of the step also occurs in the
other steps. First and last steps, warm-up steps, and steps whose host work no range shows are not
evaluated. In the same way, `gaps_in_graphs` finds graphs that lack kernels in nearly every launch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import numpy as np

from traceprof.measures.device.times import recorded_windows
from traceprof.measures.facts import fact
from traceprof.measures.host.launches import launches_of
from traceprof.measures.rows import (
    Array,
    Bools,
    Floats,
    Ints,
    are_first,
    are_named,
    bounds,
    count_within,
    lengths_of,
    rows_by,
    span_at,
)
from traceprof.measures.steps.find import find_steps
from traceprof.model.grouping import groups_of, rows_by_value
from traceprof.model.intervals import Intervals
from traceprof.model.ranks import Ranks
from traceprof.model.table import Names, Table
from traceprof.model.tables import ABSENT
from traceprof.model.trace import DEVICE_TABLES, Trace

LAUNCHING: Final = re.compile(r"^(cuda|cu|hip)((Ext|Module|ExtModule)?Launch(?!Host)|GraphLaunch)")
"""Names of calls that launch kernels or graphs."""
LAUNCHING_GRAPHS: Final = re.compile(r"^(cuda|cu|hip)GraphLaunch")
_MIN_STEPS: Final = 3
_MIN_STEP_LAUNCHES: Final = 20
"""The number of launches of smaller steps is not significant."""
_MIN_FULL_RATIO: Final = 0.9
_MAX_THIN_RATIO: Final = 0.6
_MIN_LENGTH_RATIO: Final = 0.9
_MAX_BUSY_RATIO: Final = 0.8
_MAX_RANGE_LAUNCHES_RATIO: Final = 0.5
_MIN_RANGE_LAUNCHES: Final = 8
_MIN_KNOWN_KERNELS_RATIO: Final = 0.98
_MIN_GRAPH_LAUNCHES: Final = 3
_MIN_SAME_PLACE_RATIO: Final = 0.8
_MIN_GRAPH_GAP_NS: Final = 20_000
_MIN_GAP_FACTOR: Final = 10
"""A gap in a graph is long if it exceeds this multiple of the median gap of all graphs."""
_MAX_GRAPH_GAP_NS: Final = 100_000
"""Longer gaps are long even if the median gap is, because most kernels of the graph are missing."""
_NO_ROWS: Final = np.empty(0, np.int64)


@fact
def are_thin(trace: Trace) -> Bools:
    """Return which of `find_steps` lack launches and their kernels, as far as ranges show it."""
    found = np.zeros(len(find_steps(trace)), np.bool_)
    for process, step_rows, table, launched, rows in _suspects(trace):
        found[step_rows[_as_long_on_the_host(trace, process, table, launched, rows)]] = True
    return found


def may_be_thin(ranks: Ranks) -> bool:
    """Return whether all ranges are needed to find thin steps, not only the ranges of steps."""
    return any(ranks.each(_suspects))


@fact
def _suspects(trace: Trace) -> list[tuple[int, Ints, Table, Ints, tuple[Ints, Ints]]]:
    """Return the processes that have full steps and steps with less work, which may be thin.

    Each entry: process, rows of its inner steps, their table, instants of launches, and the indices
    of (full, thin) steps in that table.
    """
    steps, found = find_steps(trace), []
    is_recorded = {"api_calls", "ranges", *DEVICE_TABLES} <= trace.recorded
    # A part of a recording contains earlier calls only for the work inside it.
    if steps.is_inferred or not is_recorded or trace.info.is_part or len(steps) < 2 * _MIN_STEPS:
        return []
    inner = _are_inner(trace, steps.table) & ~steps.warmup()
    calls = trace.api_calls.select("process", "start_ns")
    calls = calls.take(are_named(trace.api_calls["name"], LAUNCHING))
    calls_of = rows_by(calls, "process")
    for process, rows in rows_by(steps.table, "process").items():
        step_rows = rows[inner[rows]]
        launched = calls["start_ns"][calls_of.get(process, _NO_ROWS)]
        if len(step_rows) >= 2 * _MIN_STEPS and len(launched):
            table = steps.table.take(step_rows).assign(length=steps.periods_ns[step_rows])
            if (kinds := _full_and_thin(trace, process, table, launched)) is not None:
                found.append((process, step_rows, table, launched, kinds))
    return found


def recorded_host_times(trace: Trace, calls_of: Mapping[int, Ints]) -> dict[int, Intervals]:
    """Return the recorded time of each process with calls: its windows, else first to last call.

    ``calls_of`` are the rows of the calls by process.
    """
    windows, starts = recorded_windows(trace), trace.api_calls["start_ns"]
    return {
        process: windows.get(process)
        or Intervals.single(int(starts[rows].min()), int(starts[rows].max()))
        for process, rows in calls_of.items()
    }


def _are_inner(trace: Trace, steps: Table) -> Bools:
    """Return which steps were completely recorded, together with the previous and the next step."""
    host_times = recorded_host_times(trace, rows_by(trace.api_calls, "process"))
    found = np.zeros(len(steps), np.bool_)
    for process, rows in rows_by(steps, "process").items():
        if process not in host_times:
            continue
        seen = host_times[process]
        starts, ends = steps["start_ns"][rows], steps["next_ns"][rows]
        whole = seen.covered_ns(starts, ends) == ends - starts
        # Adjacent steps must be in the same window.
        window = np.searchsorted(seen.starts, starts, side="right")
        is_adjacent = whole[1:] & whole[:-1] & (window[1:] == window[:-1])
        found[rows[1:-1]] = is_adjacent[1:] & is_adjacent[:-1]
    return found


def _full_and_thin(
    trace: Trace, process: int, steps: Table, launched: Ints
) -> tuple[Ints, Ints] | None:
    """Return the indices of full steps of one process, and of steps that may lack launches."""
    starts, ends = steps["start_ns"], steps["next_ns"]
    counts = count_within(launched, starts, ends)
    max_count = int(np.sort(counts)[-_MIN_STEPS])
    full = np.flatnonzero(counts >= _MIN_FULL_RATIO * max_count)
    thin = np.flatnonzero(counts <= _MAX_THIN_RATIO * max_count)
    thin = thin[steps["length"][thin] >= _MIN_LENGTH_RATIO * np.median(steps["length"][full])]
    if max_count < _MIN_STEP_LAUNCHES or min(len(full), len(thin)) < _MIN_STEPS:
        return None
    return (full, thin) if _did_less(trace, process, steps, full, thin) else None


def _did_less(trace: Trace, process: int, steps: Table, full: Ints, thin: Ints) -> bool:
    """Return whether devices did less in thin steps, and ran only kernels of full steps."""
    launches = launches_of(trace, "kernels")
    kernel_rows = np.flatnonzero((trace.kernels["process"] == process) & launches.is_known)
    place = span_at(steps["start_ns"], steps["next_ns"], launches.start_ns[kernel_rows])
    busy = np.bincount(
        place[place >= 0], lengths_of(trace.kernels)[kernel_rows[place >= 0]], len(steps)
    )
    if np.median(busy[thin]) > _MAX_BUSY_RATIO * np.median(busy[full]):
        return False
    codes = trace.kernels["name"].codes[kernel_rows]
    in_full, in_thin = (codes[np.isin(place, rows)] for rows in (full, thin))
    return not len(in_thin) or bool(np.isin(in_thin, in_full).mean() >= _MIN_KNOWN_KERNELS_RATIO)


def _as_long_on_the_host(
    trace: Trace, process: int, steps: Table, launched: Ints, rows: tuple[Ints, Ints]
) -> Ints:
    """Return the thin steps with a range as long as in full steps but at most half the launches."""
    ranges = trace.ranges
    range_rows = np.flatnonzero((ranges["process"] == process) & (ranges["kind"] == "push_pop"))
    starts, ends = (column[range_rows] for column in bounds(ranges))
    place = span_at(steps["start_ns"], steps["next_ns"], starts)
    # The range of the step itself, and ranges around several steps, give no evidence.
    is_inside = (place >= 0) & (ends <= steps["next_ns"][place])
    is_inside &= ends - starts < _MIN_LENGTH_RATIO * steps["length"][place]
    names: Names = ranges["name"]
    full, thin = rows
    found: Array = _NO_ROWS
    for of_name in rows_by_value(names.packed[range_rows]).values():
        at = of_name[is_inside[of_name]]
        n, length, called = (
            np.bincount(place[at], weights, len(steps))
            for weights in (
                None,
                (ends - starts)[at].astype(np.float64),
                count_within(launched, starts[at], ends[at]).astype(np.float64),
            )
        )
        usual = _usual(n[full]), _usual(length[full]), _usual(called[full])
        if usual[2] < _MIN_RANGE_LAUNCHES or not (n[full] == usual[0]).all():
            continue
        is_like = (n[thin] == usual[0]) & (length[thin] >= _MIN_LENGTH_RATIO * usual[1])
        found = np.union1d(
            found, thin[is_like & (called[thin] <= _MAX_RANGE_LAUNCHES_RATIO * usual[2])]
        )
    return found.astype(np.int64) if len(found) >= _MIN_STEPS else _NO_ROWS


def _usual(values: Floats | Ints) -> float:
    """Return the median."""
    return float(np.median(values))


def gaps_in_graphs(trace: Trace) -> int:
    """Return the length of long gaps at the same place in at least 80% of the launches of a graph.

    The host takes no part in a running graph, so such a gap contains work that was not recorded, or
    the graph waits for a host function or another stream.
    """
    work = _work_of_graphs(trace)
    starts, ends = bounds(work)
    is_first = work["is_first"]
    launch = np.cumsum(is_first) - 1
    # Streams of a graph overlap: all earlier work of the launch counts.
    of_launches = np.split(ends, np.flatnonzero(is_first)[1:])
    reach = np.concatenate([np.maximum.accumulate(of_launch) for of_launch in of_launches])
    gaps = np.where(is_first[1:], 0, np.maximum(starts[1:] - reach[:-1], 0))
    if is_first.all():
        return 0
    usual_ns = _MIN_GAP_FACTOR * float(np.median(gaps[~is_first[1:]]))
    long_ns = max(_MIN_GRAPH_GAP_NS, min(usual_ns, _MAX_GRAPH_GAP_NS))
    found = 0
    later = np.flatnonzero(~is_first)
    for rows in rows_by_value(work["graph_node"][later]).values():
        of_node = later[rows]
        at_long = of_node[gaps[of_node - 1] > long_ns]
        n, n_long = len(np.unique(launch[of_node])), len(np.unique(launch[at_long]))
        if n_long >= max(_MIN_GRAPH_LAUNCHES, _MIN_SAME_PLACE_RATIO * n):
            found += int(gaps[at_long - 1].sum())
    return found


def _work_of_graphs(trace: Trace) -> Table:
    """Return the work of graphs in the order of launches and time.

    Columns: process, device, correlation, start_ns, end_ns, is_first (of its launch), graph_node.
    If the profiler recorded no nodes, a negative number identifies the same place in launches with
    the same work.
    """
    columns = ("process", "device", "correlation", "start_ns", "end_ns", "graph_node")
    called = np.append(are_named(trace.whole.api_calls["name"], LAUNCHING_GRAPHS), False)
    parts = []
    for name in DEVICE_TABLES:
        table = trace.table(name)
        is_graph = (table["graph_node"] != ABSENT) | called[launches_of(trace, name).call]
        kind = groups_of(table["name" if name == "kernels" else "direction"]).number
        work = table.select(*columns).assign(kind=kind + 1)
        parts.append(work.take(is_graph & (table["correlation"] != ABSENT)))
    work = Table.stacked(parts).in_order("process", "device", "correlation", "start_ns")
    is_first = are_first(work["process"], work["device"], work["correlation"])
    launch = np.cumsum(is_first) - 1
    place = np.arange(len(work)) - np.flatnonzero(is_first)[launch]
    alike = np.bincount(launch, (place + 1) * work["kind"])[launch]
    node = np.where(
        work["graph_node"] == ABSENT, -2 - groups_of(place, alike).number, work["graph_node"]
    )
    return work.without("kind").assign(is_first=is_first, graph_node=node)
