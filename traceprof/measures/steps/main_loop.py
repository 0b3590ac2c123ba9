"""Finds the main loop of a run without its set-up, and the iterations of the loop.

If the trace has no steps but kernels repeat in a pattern, the loop is the time in which they
repeat. Otherwise set-up is excluded: ranges at the beginning with such names, and a long beginning
(or end) with almost no kernels, for example while a model is copied to the device.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from traceprof.measures.device.times import recorder_times
from traceprof.measures.facts import fact
from traceprof.measures.host.launches import launches_of
from traceprof.measures.host.phases import phases_of_all_ranges
from traceprof.measures.rows import are_named, bounds, lengths_of
from traceprof.measures.steps.find import find_steps, pattern_of_ranks
from traceprof.measures.steps.from_passes import rounds_of_passes
from traceprof.measures.steps.steadiness import count_warmup
from traceprof.model.grouping import rows_by_value
from traceprof.model.intervals import Intervals
from traceprof.model.ranks import Ranks
from traceprof.model.table import Table
from traceprof.model.timing import Steps, TimeWindow
from traceprof.model.trace import DEVICE_TABLES, Trace
from traceprof.names.ranges import PHASES, POST_TRAINING_PHASES

_MIN_KERNEL_TIME_RATIO: Final = 0.5
_MIN_KERNELS: Final = 20
_MAX_OUTSIDE_RATIO: Final = 0.02
_MIN_SETUP_RATIO: Final = 0.1
_MIN_PAUSE_RATIO: Final = 0.01
_PASSES: Final = tuple(
    map(PHASES.index, ("forward", "eval", "backward", "optimizer", *POST_TRAINING_PHASES))
)
_SETUP: Final = re.compile(
    r"(?i)^(init|initiali[sz]e|setup|set_up|load|build|prepare|create|generate|compile|capture"
    r"|warm[ _-]?up)([^a-z]|$)|(^|[^a-z])warm[ _-]?up$"
)


@dataclass(frozen=True, slots=True)
class MainLoop:
    """The window to analyze, and the reason.

    ``turns_count``: number of pattern iterations in the window (0 if unknown). ``before_ns`` and
    ``after_ns``: excluded time of device activity before and after the window. ``setup``: name of
    the last range with a set-up name, "" if there is none.
    """

    window: TimeWindow
    turns_count: int = 0
    before_ns: int = 0
    after_ns: int = 0
    setup: str = ""


def active_window(ranks: Ranks) -> TimeWindow | None:
    """Return the time from the first to the last operation of any device; None if there is none."""
    return _hull([_span_of(part.table(name)) for part in ranks for name in DEVICE_TABLES])


@fact
def host_window(ranks: Ranks) -> TimeWindow | None:
    """Return the time from the first to the last model pass on the host; None if there is none.

    It is for runs without device work. The time before it contains imports and model construction.
    """
    return _hull(ranks.each(_passes_on_host))


def _passes_on_host(trace: Trace) -> TimeWindow | None:
    """Return the time from the first to the last model pass on the host of one rank."""
    return _span_of(trace.ranges.take(np.isin(phases_of_all_ranges(trace), _PASSES)))


@fact
def main_loop(ranks: Ranks) -> MainLoop | None:
    """Return the main loop of a run without known steps; None if no device worked."""
    active = active_window(ranks)
    if active is None:
        return None
    pattern = pattern_of_ranks(ranks)
    found = _pattern_window(ranks, pattern) if len(pattern) else None
    n_iterations, setup = (0, "") if found is None else (len(pattern), "")
    if found is None:
        hull = _hull(ranks.whole.each(_kernel_window, active)) or active
        found, setup = _after_named_setup(ranks, hull & active)
    before, after = found.start_ns - active.start_ns, active.end_ns - found.end_ns
    return MainLoop(found, n_iterations, before, after, setup)


def _span_of(rows: Table) -> TimeWindow | None:
    """Return the time from the first start to the last end of ``rows``; None if empty."""
    if rows.empty:
        return None
    return TimeWindow(int(rows["start_ns"].min()), int(rows["end_ns"].max()))


def _hull(windows: Sequence[TimeWindow | None]) -> TimeWindow | None:
    """Return the smallest window that contains all known windows; None if there are none."""
    known = [window for window in windows if window is not None]
    if not known:
        return None
    return TimeWindow(min(w.start_ns for w in known), max(w.end_ns for w in known))


def _pattern_window(ranks: Ranks, pattern: Steps) -> TimeWindow | None:
    """Return the time of all iterations; None if it contains less than half of the kernel time."""
    iterations = pattern.table
    start_ns, end_ns = (
        int(iterations["device_start_ns"].min()),
        int(iterations["device_end_ns"].max()),
    )
    window = TimeWindow(start_ns, end_ns, is_of_steps=True)
    inside, whole = (
        sum(column) for column in zip(*ranks.each(kernel_time_inside, window), strict=True)
    )
    return window if inside >= _MIN_KERNEL_TIME_RATIO * whole else None


def kernel_time_inside(trace: Trace, window: TimeWindow) -> tuple[int, int]:
    """Return the duration of the kernels that begin in ``window``, and of all kernels."""
    length = lengths_of(trace.kernels)
    return int(length[window.holds(trace.kernels["start_ns"])].sum()), int(length.sum())


def _kernel_window(trace: Trace, active: TimeWindow) -> TimeWindow:
    """Return ``active`` without a long beginning or end that has almost no kernels."""
    starts, ends = bounds(trace.kernels)
    if len(starts) < _MIN_KERNELS:
        return active
    length, ends = ends - starts, np.maximum.accumulate(ends)
    pauses = np.concatenate(([starts[0] - active.start_ns], starts[1:] - ends[:-1]))
    share = np.cumsum(length) / max(1, int(length.sum()))
    is_long = pauses >= _MIN_PAUSE_RATIO * active.duration_ns
    leading = np.flatnonzero(
        is_long & (share - length / max(1, length.sum()) <= _MAX_OUTSIDE_RATIO)
    )
    start = int(starts[leading[-1]]) if len(leading) else active.start_ns
    closing = (
        np.append(pauses[1:], active.end_ns - ends[-1]) >= _MIN_PAUSE_RATIO * active.duration_ns
    )
    trailing = np.flatnonzero(closing & (1 - share <= _MAX_OUTSIDE_RATIO))
    end = int(ends[trailing[0]]) if len(trailing) else active.end_ns
    min_setup_ns = _MIN_SETUP_RATIO * active.duration_ns
    return TimeWindow(
        start if start - active.start_ns >= min_setup_ns else active.start_ns,
        end if active.end_ns - end >= min_setup_ns else active.end_ns,
    )


def _after_named_setup(ranks: Ranks, window: TimeWindow) -> tuple[TimeWindow, str]:
    """Return the window after the set-up ranges at its beginning, and the name of the last one.

    At least half of the kernel time must remain.
    """
    latest, setup = window.start_ns, ""
    for setup_ranges in ranks.each(_setup_of):
        for end, name in setup_ranges:
            if end > latest:
                latest, setup = end, name
    if latest >= window.end_ns:
        return window, ""
    return TimeWindow(latest, window.end_ns), setup


def _setup_of(trace: Trace) -> list[tuple[int, str]]:
    """Return the end of the device work of each outermost set-up range, and its name."""
    ranges, names = trace.ranges, trace.ranges["name"]
    is_unique = names.isin([name for name, count in names.counts().items() if count == 1])
    setup = ranges.take(are_named(names, _SETUP) & is_unique & (ranges["depth"] <= 1))
    if setup.empty or trace.kernels.empty:
        return []
    starts, ends = bounds(trace.kernels)
    length, launched = ends - starts, launches_of(trace, "kernels")
    called = np.where(launched.is_known, launched.start_ns, starts)
    found = []
    for end, name in zip(setup["end_ns"].tolist(), setup["name"].tolist(), strict=True):
        before = called < end
        if length[before].sum() < _MIN_KERNEL_TIME_RATIO * length.sum():
            last = int(ends[before].max()) if before.any() else end
            found.append((max(end, last), name))
    return found


_COLUMNS: Final = ("process", "round", "start_ns", "end_ns", "recorder_ns", "is_warmup")


@fact
def find_iterations(trace: Trace) -> Table:
    """Return the iterations of each process, in the columns `_COLUMNS`.

    ``round`` is the number of the iteration; recorder_ns is the part of it that the embedded
    recorder used. An iteration is a step up to the start of the next step. A process without steps
    that does not train has the rounds of `rounds_of_passes`. Other processes have no iterations.
    """
    steps = find_steps(trace.whole).table
    rounds = steps.select("process", "step", "start_ns", "next_ns", "recorder_ns", "is_warmup")
    others = _forward_iterations(trace.whole, set(steps["process"].tolist()))
    return Table.stacked([rounds.renamed(step="round", next_ns="end_ns"), *others])


def _forward_iterations(trace: Trace, stepping: set[int]) -> Iterator[Table]:
    """Yield the iterations of each process that only runs forward passes."""
    rounds, recorder = rounds_of_passes(trace), recorder_times(trace)
    for process, rows in rows_by_value(rounds["process"]).items():
        if process in stepping:
            continue
        starts, ends = bounds(rounds.take(rows))
        paused = recorder.get(process, Intervals.empty()).covered_ns(starts, ends)
        numbers = np.arange(len(rows))
        is_warmup = numbers < count_warmup(ends - starts - paused)
        values = (process, numbers, starts, ends, paused, is_warmup)
        yield Table(dict(zip(_COLUMNS, values, strict=True)))
