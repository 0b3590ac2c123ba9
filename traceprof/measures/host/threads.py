"""Which threads launch the work of a loop: its own, autograd's, and none that loads ahead.

A thread works for the loop where its name, its operators or its ranges say so, or where it takes
turns with it: what it launches goes to streams of the loop, while the loop's thread calls nothing.
All others are in the background, as data loaders on the GPU are, but for their collectives.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import numpy as np

from traceprof.measures.facts import fact
from traceprof.measures.host.launches import launches_of
from traceprof.measures.rows import Array, Bools, Ints, are_named, bounds
from traceprof.model.activity import Activity
from traceprof.model.grouping import Groups, groups_of, rows_by_value
from traceprof.model.table import Names
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


def are_launched_by_loop(trace: Trace, table: str, main: Mapping[int, tuple[int, int]]) -> Bools:
    """Return which rows of a device table the loop launched, not a thread in the background.

    ``main`` as of `are_working`. What has no known launch is the loop's, as collectives are.
    """
    threads = _threads_of_calls(trace)
    is_working = np.ones(len(threads.first), np.bool_)
    for place, (process, thread) in enumerate(threads.keys):
        own = working_threads(trace, process, *main[process]) if process in main else None
        is_working[place] = own is None or thread in own
    working: Bools = np.append(is_working, True)[_threads_of_work(trace, table)]
    if table == "kernels":
        working |= trace.kernels["activity"] == Activity.COMMUNICATION.value
    return working


@fact
def _threads_of_calls(trace: Trace) -> Groups:
    """Return the threads (process, thread) of API calls, and of which each call is."""
    return groups_of(trace.api_calls["process"], trace.api_calls["thread"])


@fact
def _threads_of_work(trace: Trace, table: str) -> Array:
    """Return which of the threads launched each row of a device table; -1 where it is not known."""
    number = _threads_of_calls(trace).number
    return np.append(number, -1)[launches_of(trace, table).call]


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


@fact
def working_threads(trace: Trace, process: int, main: int, n_steps: int) -> frozenset[int] | None:
    """Return the threads that launch the work of a loop of ``n_steps`` on thread ``main``.

    None where no thread is told from others: one alone launches, or those hardly any kernel.
    """
    counts = {key[1]: own for key, own in _launch_counts(trace).items() if key[0] == process}
    others = counts.keys() - {main}
    if main == ABSENT or not others:
        return None
    working = {main} | {one for one in others if _is_of_loop(trace, process, main, one, n_steps)}
    own = sum(counts[one][one not in working] for one in counts)
    few = own < _FEWEST_LAUNCHED * sum(n_kernels for n_kernels, _ in counts.values())
    return None if few else frozenset(working)


@fact
def _launch_counts(trace: Trace) -> dict[tuple[int, ...], tuple[int, int]]:
    """Return how many kernels, and collectives among them, each thread that launches launched."""
    keys = _threads_of_calls(trace).keys
    chosen = [_threads_of_work(trace, name) for name in DEVICE_TABLES]
    chosen.append(chosen[0][trace.kernels["activity"] == Activity.COMMUNICATION.value])
    kernels, copies, collectives = (
        np.bincount(own + 1, minlength=len(keys) + 1)[1:].tolist() for own in chosen
    )
    return {
        key: (kernels[i], collectives[i]) for i, key in enumerate(keys) if kernels[i] + copies[i]
    }


def _takes_turns(trace: Trace, process: int, main: int, other: int, n_steps: int) -> bool:
    """Return whether a thread launches to streams of the loop's thread ``main``, in turn with it.

    That is while the loop waits for it, outside any call.
    """
    threads = _threads_of_calls(trace)
    number = {thread: i for i, (own, thread) in enumerate(threads.keys) if own == process}
    if main not in number:
        return False
    lanes: dict[int, set[tuple[int, ...]]] = {main: set(), other: set()}
    called = []
    for name in DEVICE_TABLES:
        work, of_work = trace.table(name), _threads_of_work(trace, name)
        for thread, own in lanes.items():
            rows = np.flatnonzero(of_work == number[thread])
            own.update(groups_of(work["device"][rows], work["stream"][rows]).keys)
        called.append(launches_of(trace, name).of_rows(rows).start_ns)
    if lanes[main].isdisjoint(lanes[other]):
        return False
    launched = np.sort(np.concatenate(called), kind="stable")
    of_main = np.flatnonzero(threads.number == number[main])
    starts, ends = (times[of_main] for times in bounds(trace.api_calls))
    turn = np.searchsorted(starts, launched, side="right")
    beside = np.append(0, np.maximum.accumulate(ends))[turn] > launched
    # A pass of a model is many launches, after many of the loop's: of those that run freely there
    # are few between two calls of the other.
    n_turns = np.count_nonzero(np.diff(turn)) + 1
    most = max(_FEWEST_IN_TURN, min(len(launched), len(starts)) // _FEWEST_IN_TURN)
    return bool(n_turns <= max(n_steps, most) and beside.mean() <= _MOST_BESIDE)


def _is_of_loop(trace: Trace, process: int, main: int, thread: int, n_steps: int) -> bool:
    """Return whether its ranges, operators or name say that a thread is of a loop, else turns."""
    ranges, ops, named = (
        table.take((table["process"] == process) & (table["thread"] == thread))
        for table in (trace.ranges, trace.host_ops, trace.threads)
    )
    phases = phases_of_ranges(ranges) if len(ranges) else _NO_ROWS
    loads = bool(np.isin(phases, _LOADS).any() or any(map(_LOADERS.search, named["name"])))
    has_operators = autograd_rows(ranges["name"]).any() or autograd_rows(ops["name"]).any()
    is_named = any(map(_THREADS.search, named["name"]))
    works = bool(np.isin(phases, _PASSES).any() or has_operators or is_named)
    is_clear = works != loads or not _takes_turns(trace, process, main, thread, n_steps)
    return works if is_clear else not loads
