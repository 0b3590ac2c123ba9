"""Which threads launch the work of a loop: its own, autograd's, and none that loads ahead.

A thread works for the loop where its name, its operators or its ranges say so, or where it takes
turns with it: what it launches goes to streams of the loop, while the loop's thread calls nothing.
All others are in the background, as data loaders on the GPU are, but for their collectives.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

import numpy as np

from traceprof.measures.facts import fact
from traceprof.measures.host.launches import launches_of
from traceprof.measures.rows import Array, Bools, Ints, are_named, bounds, rows_by
from traceprof.model.activity import Activity
from traceprof.model.grouping import groups_of, rows_by_value
from traceprof.model.table import Names, Table
from traceprof.model.tables import ABSENT
from traceprof.model.trace import DEVICE_TABLES, Trace
from traceprof.names.ranges import PHASES, phases_of_ranges

_OPERATORS: Final = re.compile(r"^(autograd::engine::evaluate_function|torch::autograd::)")
_THREADS: Final = re.compile(r"(?i)autograd")
_LOADERS: Final = re.compile(r"(?i)dali|loader|prefetch|pin_?mem")
_PASSES: Final = tuple(map(PHASES.index, ("forward", "backward", "optimizer")))
_LOADS: Final = tuple(map(PHASES.index, ("data", "h2d")))
_NO_ROWS: Final = np.empty(0, np.int64)
_FEWEST_LAUNCHED: Final = 0.1
_MOST_BESIDE: Final = 0.05
_FEWEST_IN_TURN: Final = 2


def autograd_rows(names: Names) -> Bools:
    """Return which of a column are operators of PyTorch's autograd engine."""
    return are_named(names, _OPERATORS)


def are_of_loop(trace: Trace, table: str, main: Mapping[int, tuple[int, int]]) -> Bools:
    """Return which rows of a device table the loop launched, not a thread in the background.

    ``main`` as of `are_working`. What has no known launch is the loop's, as collectives are.
    """
    launches = launches_of(trace, table)
    working = are_working(trace, launches.process, launches.thread, main) | ~launches.is_known
    return working | _are_collectives(trace) if table == "kernels" else working


def are_working(
    trace: Trace, process: Ints, thread: Ints, main: Mapping[int, tuple[int, int]]
) -> Bools:
    """Return which threads work for the loop of their process.

    ``main`` is the thread of the loop of each, and in how many steps it runs (0: not known). All
    of a process work for it whose loop is not known, or launches hardly anything itself.
    """
    found = np.ones(len(thread), np.bool_)
    for own, rows in rows_by_value(process).items():
        working = working_threads(trace, own, *main[own]) if own in main else None
        if working is not None:
            found[rows] = np.isin(thread[rows], list(working))
    return found


def _are_collectives(trace: Trace) -> Bools:
    found: Bools = trace.kernels["activity"] == Activity.COMMUNICATION.value
    return found


@fact
def working_threads(trace: Trace, process: int, main: int, n_steps: int) -> frozenset[int] | None:
    """Return the threads that launch the work of a loop of ``n_steps`` on thread ``main``.

    None where no thread is told from others: one alone launches, or those hardly any kernel.
    """
    launched = _launched(trace)
    launched = launched.take(launched["process"] == process)
    rows_of = rows_by(launched, "thread")
    if main == ABSENT or not len(rows_of.keys() - {main}):
        return None
    calls = trace.api_calls
    own = np.flatnonzero((calls["process"] == process) & (calls["thread"] == main))
    starts, ends = (times[own] for times in bounds(calls))
    reach, lane, called = np.maximum.accumulate(ends), launched["lane"], launched["start_ns"]
    working, shared = {main}, lane[rows_of.get(main, _NO_ROWS)]
    for other in rows_of.keys() - working:
        rows = rows_of[other]
        is_shared = bool(np.isin(lane[rows], shared).any())
        takes_turns = is_shared and _takes_turns(np.sort(called[rows]), starts, reach, n_steps)
        if _is_of_loop(trace, process, other, otherwise=takes_turns):
            working.add(other)
    kernels = launched["is_kernel"]
    is_own = np.isin(launched["thread"], list(working)) | launched["is_collective"]
    few = (kernels & is_own).sum() < _FEWEST_LAUNCHED * kernels.sum()
    return None if few else frozenset(working)


def _takes_turns(launches: Ints, starts: Ints, reach: Ints, n_steps: int) -> bool:
    """Return whether a thread launches only while the loop's waits for it, outside any call.

    The latter's calls begin at ``starts``; ``reach`` is how far each and those before it last.
    """
    turn = np.searchsorted(starts, launches, side="right")
    beside = np.append(0, reach)[turn] > launches
    # A pass of a model is many launches, after many of the loop's: of those that run freely there
    # are few between two calls of the other.
    n_turns = np.count_nonzero(np.diff(turn)) + 1
    most = max(_FEWEST_IN_TURN, min(len(launches), len(starts)) // _FEWEST_IN_TURN)
    return bool(n_turns <= max(n_steps, most) and beside.mean() <= _MOST_BESIDE)


@fact
def _launched(trace: Trace) -> Table:
    """Return all device work whose launch is known.

    Columns: process, thread, start_ns (of the launch), lane (a number for each stream of each
    device), is_kernel and is_collective.
    """
    columns: dict[str, list[Array]] = defaultdict(list)
    for name in DEVICE_TABLES:
        launches, work, is_kernel = launches_of(trace, name), trace.table(name), name == "kernels"
        known = np.flatnonzero(launches.is_known)
        for column in ("process", "device", "stream"):
            columns[column].append(work[column][known])
        columns["thread"].append(launches.thread[known])
        columns["start_ns"].append(launches.start_ns[known])
        columns["is_kernel"].append(np.full(len(known), is_kernel))
        columns["is_collective"].append(
            _are_collectives(trace)[known] if is_kernel else np.zeros(len(known), np.bool_)
        )
    # A column at a time: all together take much memory.
    found = {name: np.concatenate(columns.pop(name)) for name in [*columns]}
    lane = groups_of(found.pop("device"), found.pop("stream")).number
    return Table({**found, "lane": lane})


def _is_of_loop(trace: Trace, process: int, thread: int, *, otherwise: bool) -> bool:
    """Return whether its ranges, its operators or its name say that a thread is of a loop."""
    ranges, ops, named = (
        table.take((table["process"] == process) & (table["thread"] == thread))
        for table in (trace.ranges, trace.host_ops, trace.threads)
    )
    phases = phases_of_ranges(ranges) if len(ranges) else _NO_ROWS
    if otherwise:
        return not (np.isin(phases, _LOADS).any() or any(map(_LOADERS.search, named["name"])))
    has_operators = autograd_rows(ranges["name"]).any() or autograd_rows(ops["name"]).any()
    is_named = any(map(_THREADS.search, named["name"]))
    return bool(np.isin(phases, _PASSES).any() or has_operators or is_named)
