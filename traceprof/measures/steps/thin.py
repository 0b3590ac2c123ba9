"""Steps that lack launches and kernels alike, so that both agree: as some profilers lose both.

Far fewer kernels than in other steps may be right: steps differ. They are suspicious where the host
did the same for as long: a range of one name that takes as long as in the other steps launches
hardly half of what it launches there, the devices did less, and every kernel that is left is one
that the other steps have, too. Nothing is said of first and last steps, of warm-up, or of steps of
which the ranges do not tell what the host did.
"""

from __future__ import annotations

import re
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
    are_named,
    bounds,
    lengths_of,
    rows_by,
    span_at,
)
from traceprof.measures.steps.find import find_steps
from traceprof.model.grouping import rows_by_value
from traceprof.model.intervals import Intervals
from traceprof.model.ranks import Ranks
from traceprof.model.table import Names, Table
from traceprof.model.trace import DEVICE_TABLES, Trace

LAUNCHING: Final = re.compile(r"^(cuda|cu|hip)((Ext|Module|ExtModule)?Launch(?!Host)|GraphLaunch)")
"""What calls are named that launch kernels or graphs."""
_FEWEST: Final = 3
_MANY: Final = 20
"""A step with fewer kernels tells nothing by their number."""
_FULL: Final = 0.9
_THIN: Final = 0.6
_AS_LONG: Final = 0.9
_LESS_WORK: Final = 0.8
_HALF: Final = 0.5
_MUCH: Final = 8
_KNOWN: Final = 0.98
_NOTHING: Final = np.empty(0, np.int64)


@fact
def are_thin(trace: Trace) -> Bools:
    """Return which of `find_steps` lack launches with their kernels, as far as ranges tell."""
    found = np.zeros(len(find_steps(trace)), np.bool_)
    for process, own, table, launched, rows in _suspects(trace):
        found[own[_as_long_on_the_host(trace, process, table, launched, rows)]] = True
    return found


def may_be_thin(ranks: Ranks) -> bool:
    """Return whether it takes all ranges to tell which steps are thin, not just those of steps."""
    return any(ranks.each(_suspects))


@fact
def _suspects(trace: Trace) -> list[tuple[int, Ints, Table, Ints, tuple[Ints, Ints]]]:
    """Return the processes with full steps and others that did less: these may be thin.

    With the rows of their inner steps, these, the instants of launches, and which are which.
    """
    steps, found = find_steps(trace), []
    is_judged = {"api_calls", "ranges", *DEVICE_TABLES} <= trace.recorded
    # Of a part the calls before its window are those of what is in it alone.
    if steps.is_inferred or not is_judged or trace.info.is_part or len(steps) < 2 * _FEWEST:
        return []
    inner = _are_inner(trace, steps.table) & ~steps.warmup()
    calls = trace.api_calls.select("process", "start_ns")
    calls = calls.take(are_named(trace.api_calls["name"], LAUNCHING))
    calls_of = rows_by(calls, "process")
    for process, rows in rows_by(steps.table, "process").items():
        own = rows[inner[rows]]
        launched = calls["start_ns"][calls_of.get(process, _NOTHING)]
        if len(own) >= 2 * _FEWEST and len(launched):
            table = steps.table.take(own).assign(length=steps.periods_ns[own])
            if (kinds := _full_and_thin(trace, process, table, launched)) is not None:
                found.append((process, own, table, launched, kinds))
    return found


def _are_inner(trace: Trace, steps: Table) -> Bools:
    """Return which steps were recorded whole, with the one before and the one after them."""
    windows, calls_of = recorded_windows(trace), rows_by(trace.api_calls, "process")
    found = np.zeros(len(steps), np.bool_)
    for process, rows in rows_by(steps, "process").items():
        called = trace.api_calls["start_ns"][calls_of.get(process, _NOTHING)]
        if not len(called):
            continue
        seen = windows.get(process) or Intervals.single(int(called.min()), int(called.max()))
        starts, ends = steps["start_ns"][rows], steps["next_ns"][rows]
        whole = seen.covered_ns(starts, ends) == ends - starts
        # A row of two windows is none.
        window = np.searchsorted(seen.starts, starts, side="right")
        beside = whole[1:] & whole[:-1] & (window[1:] == window[:-1])
        found[rows[1:-1]] = beside[1:] & beside[:-1]
    return found


def _full_and_thin(
    trace: Trace, process: int, steps: Table, launched: Ints
) -> tuple[Ints, Ints] | None:
    """Return the rows of full steps of one process, and of those that may lack launches."""
    starts, ends = steps["start_ns"], steps["next_ns"]
    counts = _within(launched, starts, ends)
    most = int(np.sort(counts)[-_FEWEST])
    full = np.flatnonzero(counts >= _FULL * most)
    thin = np.flatnonzero(counts <= _THIN * most)
    thin = thin[steps["length"][thin] >= _AS_LONG * np.median(steps["length"][full])]
    if most < _MANY or min(len(full), len(thin)) < _FEWEST:
        return None
    return (full, thin) if _did_less(trace, process, steps, full, thin) else None


def _within(instants: Ints, starts: Ints, ends: Ints) -> Ints:
    return np.asarray(np.searchsorted(instants, ends) - np.searchsorted(instants, starts), np.int64)


def _did_less(trace: Trace, process: int, steps: Table, full: Ints, thin: Ints) -> bool:
    """Return whether devices did less in thin steps, and nothing that full ones do not do."""
    launches = launches_of(trace, "kernels")
    own = np.flatnonzero((trace.kernels["process"] == process) & launches.is_known)
    place = span_at(steps["start_ns"], steps["next_ns"], launches.start_ns[own])
    busy = np.bincount(place[place >= 0], lengths_of(trace.kernels)[own[place >= 0]], len(steps))
    if np.median(busy[thin]) > _LESS_WORK * np.median(busy[full]):
        return False
    codes = trace.kernels["name"].codes[own]
    in_full, in_thin = (codes[np.isin(place, rows)] for rows in (full, thin))
    return not len(in_thin) or bool(np.isin(in_thin, in_full).mean() >= _KNOWN)


def _as_long_on_the_host(
    trace: Trace, process: int, steps: Table, launched: Ints, rows: tuple[Ints, Ints]
) -> Ints:
    """Return the thin steps with a range that is as long as in full ones, and launches half."""
    ranges = trace.ranges
    own = np.flatnonzero((ranges["process"] == process) & (ranges["kind"] == "push_pop"))
    starts, ends = (column[own] for column in bounds(ranges))
    place = span_at(steps["start_ns"], steps["next_ns"], starts)
    # The step itself, and what is around several, say nothing of what was done in it.
    is_inside = (place >= 0) & (ends <= steps["next_ns"][place])
    is_inside &= ends - starts < _AS_LONG * steps["length"][place]
    names: Names = ranges["name"]
    full, thin = rows
    found: Array = _NOTHING
    for of_name in rows_by_value(names.packed[own]).values():
        at = of_name[is_inside[of_name]]
        n, length, called = (
            np.bincount(place[at], weights, len(steps))
            for weights in (
                None,
                (ends - starts)[at].astype(np.float64),
                _within(launched, starts[at], ends[at]).astype(np.float64),
            )
        )
        usual = _usual(n[full]), _usual(length[full]), _usual(called[full])
        if usual[2] < _MUCH or not (n[full] == usual[0]).all():
            continue
        is_like = (n[thin] == usual[0]) & (length[thin] >= _AS_LONG * usual[1])
        found = np.union1d(found, thin[is_like & (called[thin] <= _HALF * usual[2])])
    return found.astype(np.int64) if len(found) >= _FEWEST else _NOTHING


def _usual(values: Floats | Ints) -> float:
    return float(np.median(values))
