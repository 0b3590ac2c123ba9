"""Find the threads that launch the work of a training loop.

A thread works for the loop if its name, operators, or ranges identify it, or if it alternates with
the loop's thread: it launches to streams of the loop while the loop's thread is outside any call.
All other threads are background threads, for example data loaders on the GPU. Their collectives
still belong to the loop.
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

_AUTOGRAD_OPERATORS: Final = re.compile(r"^(autograd::engine::evaluate_function|torch::autograd::)")
_AUTOGRAD_THREADS: Final = re.compile(r"(?i)autograd")
_LOADER_THREADS: Final = re.compile(r"(?i)dali|loader|prefetch|pin_?mem")
_PASS_PHASES: Final = tuple(
    map(PHASES.index, ("forward", "backward", "optimizer", "generation", "logprobs"))
)
_LOADING_PHASES: Final = tuple(map(PHASES.index, ("data", "h2d")))
_NO_ROWS: Final = np.empty(0, np.int64)
_MIN_LAUNCHED_RATIO: Final = 0.1
"""Minimum share of kernels that the loop's threads must launch to be distinguished from others."""
_MAX_DURING_CALLS_RATIO: Final = 0.05
"""Maximum share of a helper's launches during calls of the loop's thread."""
_MIN_LAUNCHES_PER_TURN: Final = 2
"""Minimum mean number of launches per alternation of threads, and minimum limit of alternations."""


def autograd_rows(names: Names) -> Bools:
    """Return which names are operators of PyTorch's autograd engine."""
    return are_named(names, _AUTOGRAD_OPERATORS)


def are_launched_by_loop(trace: Trace, table: str, main: Mapping[int, tuple[int, int]]) -> Bools:
    """Return which rows of a device table the loop launched, as opposed to background threads.

    ``main`` is as in `are_loop_threads`. Rows without a known launch and collectives belong to the
    loop.
    """
    keys = _threads_of_calls(trace).keys
    loops = [
        find_loop_threads(trace, key[0], *main[key[0]]) if key[0] in main else None for key in keys
    ]
    is_working = [loop is None or key[1] in loop for key, loop in zip(keys, loops, strict=True)]
    # The last element is for rows without a known launch.
    working: Bools = np.array([*is_working, True], np.bool_)[_threads_of_work(trace, table)]
    if table == "kernels":
        working |= trace.kernels["activity"] == Activity.COMMUNICATION.value
    return working


@fact
def _threads_of_calls(trace: Trace) -> Groups:
    """Return the threads (process, thread) of API calls, and the thread of each call."""
    return groups_of(trace.api_calls["process"], trace.api_calls["thread"])


@fact
def _threads_of_work(trace: Trace, table: str) -> Array:
    """Return the place of the thread that launched each row of a device table; -1: unknown."""
    return np.append(_threads_of_calls(trace).number, -1)[launches_of(trace, table).call]


def are_loop_threads(
    trace: Trace, process: Ints, thread: Ints, main: Mapping[int, tuple[int, int]]
) -> Bools:
    """Return which threads work for the loop of their process.

    ``main`` has, by process, the thread of the loop and its number of steps (0: unknown). If the
    loop is unknown or launches almost nothing, all threads of the process work for it.
    """
    found = np.ones(len(thread), np.bool_)
    for process_id, rows in rows_by_value(process).items():
        loop_threads = (
            find_loop_threads(trace, process_id, *main[process_id]) if process_id in main else None
        )
        if loop_threads is not None:
            found[rows] = np.isin(thread[rows], list(loop_threads))
    return found


@fact
def find_loop_threads(trace: Trace, process: int, main: int, n_steps: int) -> frozenset[int] | None:
    """Return the threads that launch the work of a loop of ``n_steps`` steps on thread ``main``.

    None if no distinction is possible: only one thread launches work, or the loop's threads launch
    almost no kernels.
    """
    counts = {key[1]: pair for key, pair in _launch_counts(trace).items() if key[0] == process}
    others = counts.keys() - {main}
    if main == ABSENT or not others:
        return None
    working = {main} | {
        thread for thread in others if _is_of_loop(trace, process, main, thread, n_steps)
    }
    # Of threads in the background, only the collectives belong to the loop.
    n_of_loop = sum(counts[thread][thread not in working] for thread in counts)
    few = n_of_loop < _MIN_LAUNCHED_RATIO * sum(n_kernels for n_kernels, _ in counts.values())
    return None if few else frozenset(working)


@fact
def _launch_counts(trace: Trace) -> dict[tuple[int, ...], tuple[int, int]]:
    """Return the number of kernels and of collectives that each launching thread launched."""
    keys = _threads_of_calls(trace).keys
    chosen = [_threads_of_work(trace, name) for name in DEVICE_TABLES]
    chosen.append(chosen[0][trace.kernels["activity"] == Activity.COMMUNICATION.value])
    kernels, copies, collectives = (
        np.bincount(threads_of_rows + 1, minlength=len(keys) + 1)[1:].tolist()
        for threads_of_rows in chosen
    )
    return {
        key: (kernels[i], collectives[i]) for i, key in enumerate(keys) if kernels[i] + copies[i]
    }


def _takes_turns(trace: Trace, process: int, main: int, other: int, n_steps: int) -> bool:
    """Return whether a thread alternates with the loop's thread ``main`` on the same streams.

    It must launch while the loop's thread waits for it, outside any call.
    """
    threads = _threads_of_calls(trace)
    number = {thread: i for i, (owner, thread) in enumerate(threads.keys) if owner == process}
    if main not in number:
        return False
    streams: dict[int, set[tuple[int, ...]]] = {main: set(), other: set()}
    called = []
    for name in DEVICE_TABLES:
        work, of_work = trace.table(name), _threads_of_work(trace, name)
        for thread, streams_of_thread in streams.items():
            rows = np.flatnonzero(of_work == number[thread])
            streams_of_thread.update(groups_of(work["device"][rows], work["stream"][rows]).keys)
        # ``rows`` are those of ``other``, the last key.
        called.append(launches_of(trace, name).of_rows(rows).start_ns)
    if streams[main].isdisjoint(streams[other]):
        return False
    launched = np.sort(np.concatenate(called), kind="stable")
    of_main = np.flatnonzero(threads.number == number[main])
    starts, ends = (times[of_main] for times in bounds(trace.api_calls))
    n_calls_before = np.searchsorted(starts, launched, side="right")
    is_during_call = np.append(0, np.maximum.accumulate(ends))[n_calls_before] > launched
    # A pass of the model is many launches in a row, after many launches of the loop. An independent
    # thread has few launches between two calls of the other thread.
    n_turns = np.count_nonzero(np.diff(n_calls_before)) + 1
    max_turns = max(
        _MIN_LAUNCHES_PER_TURN, min(len(launched), len(starts)) // _MIN_LAUNCHES_PER_TURN
    )
    return bool(
        n_turns <= max(n_steps, max_turns) and is_during_call.mean() <= _MAX_DURING_CALLS_RATIO
    )


def _is_of_loop(trace: Trace, process: int, main: int, thread: int, n_steps: int) -> bool:
    """Return whether a thread works for the loop, by its ranges, operators, and name.

    If these signs are missing or contradict each other, decide by `_takes_turns`.
    """
    ranges, ops, named = (
        table.take((table["process"] == process) & (table["thread"] == thread))
        for table in (trace.ranges, trace.host_ops, trace.threads)
    )
    phases = phases_of_ranges(ranges) if len(ranges) else _NO_ROWS
    loads = bool(
        np.isin(phases, _LOADING_PHASES).any() or any(map(_LOADER_THREADS.search, named["name"]))
    )
    has_operators = autograd_rows(ranges["name"]).any() or autograd_rows(ops["name"]).any()
    is_named = any(map(_AUTOGRAD_THREADS.search, named["name"]))
    works = bool(np.isin(phases, _PASS_PHASES).any() or has_operators or is_named)
    is_clear = works != loads or not _takes_turns(trace, process, main, thread, n_steps)
    return works if is_clear else not loads
