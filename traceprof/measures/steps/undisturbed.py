"""Finds steps without profiling overhead, and measures the overhead of the profiled steps.

Some steps contain only ranges: steps outside the windows of the embedded recorder, or before and
after the capture of torch.profiler or nsys. They take as long as the program takes without a
profiler. The additional time of profiled steps is the overhead.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from traceprof.measures.device.times import (
    device_time,
    devices_of_processes,
    recorded_windows,
    recorder_times,
)
from traceprof.measures.facts import fact, of_window
from traceprof.measures.rows import Bools, Floats, Ints, are_named, bounds, owner_of, rows_by
from traceprof.measures.steps.find import find_steps
from traceprof.model.intervals import Intervals
from traceprof.model.ranks import Ranks
from traceprof.model.table import Table
from traceprof.model.trace import DEVICE_TABLES, Trace

_MIN_STEPS: Final = 3
_CAPTURED: Final = ("api_calls", *DEVICE_TABLES)
_MIN_PERIOD_TO_BUSY_RATIO: Final = 0.97
"""Minimum ratio of the host period of a step to its device work.

If host periods are shorter, the host runs ahead of the devices, so its periods do not show the step
time.
"""
_MAKES_WORK: Final = re.compile(r"\b(cuda|cu|hip)\w*(Launch|Memcpy|Memset)")
_RECORDED_QUANTILE, _UNPROFILED_QUANTILE = 0.25, 0.75
"""Quantiles that are compared to decide if the difference is significant.

It is significant if the lower quartile of the profiled steps exceeds the upper quartile of the
unprofiled steps.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Disturbance:
    """Effect of the profiler on the steps of one process.

    ``rows``: rows of `find_steps` without profiling. ``periods_ns``: their periods.
    ``recorded_ns``: durations of the completely recorded steps. ``recorded``: their times.
    ``captured``: when anything was recorded. ``launches``: number of calls that launched work in
    the recorded steps.
    """

    rows: Ints
    periods_ns: Floats
    recorded_ns: Floats
    captured: Intervals
    recorded: Intervals
    launches: int

    @property
    def excess_ns(self) -> float:
        """Additional duration of a recorded step (median); 0 if it is not significant."""
        low, high = (
            np.quantile(self.recorded_ns, _RECORDED_QUANTILE),
            np.quantile(self.periods_ns, _UNPROFILED_QUANTILE),
        )
        return float(np.median(self.recorded_ns) - self.period_ns) if low > high else 0.0

    @property
    def period_ns(self) -> float:
        """Duration of an unprofiled step (median)."""
        return float(np.median(self.periods_ns))


@fact
def disturbances(trace: Trace) -> Mapping[int, Disturbance]:
    """Return the effect of recording on the steps of each process with unprofiled steps."""
    if not {"kernels", "api_calls"} <= trace.recorded:
        return {}
    steps = find_steps(trace)
    if not len(steps) or steps.is_inferred or not _has_unrecorded_steps(trace, steps.table):
        return {}
    captured, recorder = captured_times(trace), recorder_times(trace)
    devices, calls = devices_of_processes(trace), _work_calls(trace)
    called = rows_by(calls, "process")
    table, periods, lengths = steps.table, steps.periods_ns, steps.durations_ns
    by_process: dict[int, Disturbance] = {}
    for process, rows in rows_by(table, "process").items():
        if process not in captured or process not in devices:
            continue
        starts, ends = table["start_ns"][rows], table["next_ns"][rows]
        captured_ns = captured[process].covered_ns(starts, ends)
        paused = recorder.get(process, Intervals.empty()).covered_ns(starts, ends)
        # The period of the last step is unknown.
        is_whole = ~steps.warmup()[rows] & (paused == 0) & (np.arange(len(rows)) < len(rows) - 1)
        inside = is_whole & (captured_ns == ends - starts) & table["on_device"][rows]
        outside = _settled(is_whole & (captured_ns == 0))
        if min(int(inside.sum()), int(outside.sum())) < _MIN_STEPS:
            continue
        recorded = Intervals.union_of(starts[inside], ends[inside])
        call_starts = calls["start_ns"][called.get(process, np.empty(0, np.int64))]
        disturbance = Disturbance(
            rows=rows[outside],
            periods_ns=periods[rows][outside].astype(np.float64),
            recorded_ns=lengths[rows][inside].astype(np.float64),
            captured=captured[process],
            recorded=recorded,
            launches=int((recorded.covered_ns(call_starts, call_starts + 1) > 0).sum()),
        )
        busy_ns = _busy_ns(trace, devices[process], table.take(rows[inside]))
        if disturbance.period_ns >= _MIN_PERIOD_TO_BUSY_RATIO * busy_ns:
            by_process[process] = disturbance
    return by_process


def _settled(are_outside: Bools) -> Bools:
    """Return the second half of each stretch of consecutive unprofiled steps.

    In the first half, the host runs ahead of devices with empty queues, so its periods are too
    short. The step before a window prepares the window.
    """
    found = np.zeros(len(are_outside), np.bool_)
    rows = np.flatnonzero(are_outside)
    for stretch in np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1):
        half = stretch[len(stretch) // 2 :]
        found[half if len(half) >= _MIN_STEPS else half[:0]] = True
    return found


def _busy_ns(trace: Trace, devices: Collection[int], steps: Table) -> float:
    """Return the mean time per step in which the busiest of ``devices`` works."""
    starts, ends = steps["device_start_ns"], steps["device_end_ns"]
    busy = [device_time(trace, device).busy.covered_ns(starts, ends).mean() for device in devices]
    return float(max(busy, default=0.0))


def _work_calls(trace: Trace) -> Table:
    """Return the API calls that launch kernels, copies, or memsets."""
    return trace.api_calls.take(are_named(trace.api_calls["name"], _MAKES_WORK))


def _has_unrecorded_steps(trace: Trace, steps: Table) -> bool:
    """Return whether steps may lie outside the recorded time; this is rare."""
    if recorded_windows(trace):
        return True
    tables = [table for table in map(trace.table, _CAPTURED) if len(table)]
    first = min((int(table["start_ns"].min()) for table in tables), default=0)
    last = max((int(table["end_ns"].max()) for table in tables), default=0)
    return bool(((steps["next_ns"] < first) | (steps["start_ns"] > last)).any())


@fact
def captured_times(trace: Trace) -> Mapping[int, Intervals]:
    """Return the recorded time of each process: its windows, else from first to last row."""
    if windows := recorded_windows(trace):
        return windows
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for name in _CAPTURED:
        table = trace.table(name)
        starts, ends = bounds(table)
        for process, rows in rows_by(table, "process").items():
            first[process] = min(
                int(starts[rows].min()), first.get(process, int(starts[rows].min()))
            )
            last[process] = max(int(ends[rows].max()), last.get(process, int(ends[rows].max())))
    return {process: Intervals.single(start, last[process]) for process, start in first.items()}


@of_window
def disturbances_in(ranks: Ranks) -> dict[int, Disturbance]:
    """Return the `Disturbance` of each process with recorded steps in the window."""
    return {
        process: disturbance
        for part in ranks.each(_disturbances_in)
        for process, disturbance in part.items()
    }


def profiler_overhead(ranks: Ranks) -> dict[str, float]:
    """Return the profiling overhead in the window, as means over processes; {} if unknown.

    profiler_overhead_ratio: additional duration of a profiled step, 0 if not significant.
    profiler_overhead_per_launch_ns: the additional time per call that launches work.
    """
    found = disturbances_in(ranks).values()
    if not found:
        return {}
    excess_ns = float(np.mean([disturbance.excess_ns for disturbance in found]))
    period_ns = float(np.median(np.concatenate([disturbance.periods_ns for disturbance in found])))
    known = {"profiler_overhead_ratio": excess_ns / period_ns}
    if launches := sum(disturbance.launches for disturbance in found):
        known["profiler_overhead_per_launch_ns"] = (
            excess_ns * sum(len(disturbance.recorded_ns) for disturbance in found) / launches
        )
    return known


def _disturbances_in(trace: Trace) -> dict[int, Disturbance]:
    table = find_steps(trace).table
    starts, ends = table["start_ns"], table["next_ns"]
    rows_of = rows_by(table, "process")
    return {
        process: disturbance
        for process, disturbance in disturbances(trace).items()
        if process in rows_of
        and disturbance.recorded.covered_ns(starts[rows_of[process]], ends[rows_of[process]]).any()
    }


def waiting_start_ns(trace: Trace, process: Ints, called_ns: Ints, starts_ns: int) -> int:
    """Return the time from which a device waits for the work of a call of ``process``, in ns.

    It is the device start of the step of the call, at most ``starts_ns``.
    """
    steps = find_steps(trace.whole).table
    place = int(owner_of(steps, process, called_ns)[0])
    return int(min(starts_ns, starts_ns if place < 0 else steps["device_start_ns"][place]))
