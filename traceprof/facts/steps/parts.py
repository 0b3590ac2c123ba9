"""What the time of each step consists of: parts of the devices, phases of the host, bytes.

All functions return one value per step of `find_steps`, those that lie wholly inside the window.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.facts.cache import fact
from traceprof.facts.device.times import device_time, devices_of_processes
from traceprof.facts.host.phases import find_host_phases
from traceprof.facts.launches import launches_of
from traceprof.facts.steps.find import find_steps, rows_of_steps
from traceprof.model.intervals import Intervals
from traceprof.model.parts import PARTS
from traceprof.model.steps import OWN_DOMAIN
from traceprof.model.trace import DEVICE_TABLES, Trace

__all__ = [
    "DEVICE_PARTS",
    "device_durations",
    "owner_of",
    "parts_of_devices",
    "phases_of_host",
    "profiler_in_steps",
    "sums_in_steps",
]

_Int64Array = npt.NDArray[np.int64]
_Float64Array = npt.NDArray[np.float64]

DEVICE_PARTS: Final = tuple(f"{part}_ns" for part in PARTS)
_WINDOW_WORK: Final = ("traceprof.window.start", "traceprof.window.stop")
_COUNTED: Final = ("h2d", "d2h", "p2p")


def parts_of_devices(trace: Trace) -> Mapping[str, _Float64Array]:
    """Return the five parts of each step, the mean over the devices that its process uses.

    They add up to the length of the step (see `traceprof.model.parts`); NaN where the process
    uses no device.
    """
    steps = find_steps(trace).table
    starts, ends = _spans(steps)
    used = devices_of_processes(trace)
    parts = {name: np.full(len(steps), np.nan) for name in DEVICE_PARTS}
    for process, rows in _rows_by(steps, "process").items():
        times = [
            device_time(trace, device).parts_within(starts[rows], ends[rows])
            for device in used.get(process, ())
        ]
        if times:
            for part in PARTS:
                parts[f"{part}_ns"][rows] = np.mean([time[part] for time in times], axis=0)
    return parts


def device_durations(trace: Trace) -> _Float64Array:
    """Return how long the devices took per step, in ns; NaN where it launched nothing.

    From the end of the last work that the previous step launched to the end of the last work of
    this step: these add up. The first step counts from the start of its own first work.
    """
    rows = rows_of_steps(trace)
    first, last = (instants[rows] for instants in _work_of_steps(trace))
    durations = np.full(len(rows), np.nan)
    for own in _rows_by(find_steps(trace).table, "process").values():
        end = np.maximum.accumulate(last[own])
        before = np.concatenate(([-np.inf], end[:-1]))
        start = np.where(np.isfinite(before), before, first[own])
        worked = np.isfinite(last[own])
        durations[own[worked]] = (end - start)[worked]
    return durations


@fact
def _work_of_steps(trace: Trace) -> tuple[_Float64Array, _Float64Array]:
    """Return when the first work of each step of the recording starts, and when its last ends.

    Infinite where it launched nothing.
    """
    steps = find_steps(trace).table
    first, last = np.full(len(steps), np.inf), np.full(len(steps), -np.inf)
    for name in DEVICE_TABLES:
        frame = trace.table(name)
        owner = owner_of(steps, frame["process"], launches_of(trace, name).start_ns)
        owned = owner >= 0
        np.minimum.at(first, owner[owned], frame["start_ns"].to_numpy()[owned])
        np.maximum.at(last, owner[owned], frame["end_ns"].to_numpy()[owned])
    return first, last


def owner_of(steps: pd.DataFrame, process: pd.Series, instants: _Int64Array) -> _Int64Array:
    """Return the row of the step that each instant of a process lies in, -1 where in none."""
    owner = np.full(len(instants), -1, np.int64)
    starts, ends = _spans(steps)
    of_process = _rows_by(process.to_frame("process"), "process")
    for key, rows in _rows_by(steps, "process").items():
        mine = of_process.get(key)
        if mine is None:
            continue
        place = np.searchsorted(starts[rows], instants[mine], side="right") - 1
        inside = (place >= 0) & (instants[mine] < ends[rows][np.maximum(place, 0)])
        owner[mine[inside]] = rows[place[inside]]
    return owner


def _rows_by(frame: pd.DataFrame, column: str) -> dict[int, _Int64Array]:
    """Return the rows of each value of an integer column, in the order of the values."""
    return {
        int(str(value)): np.asarray(rows, np.int64)
        for value, rows in frame.groupby(column).indices.items()
    }


def _spans(steps: pd.DataFrame) -> tuple[_Int64Array, _Int64Array]:
    return steps["start_ns"].to_numpy(np.int64), steps["end_ns"].to_numpy(np.int64)


def phases_of_host(trace: Trace) -> Mapping[str, _Float64Array]:
    """Return the host time per phase of each step; NaN where its process names no phases."""
    steps = find_steps(trace).table
    starts, ends = _spans(steps)
    columns: dict[str, _Float64Array] = {}
    indices = _rows_by(steps, "process")
    for phases in find_host_phases(trace):
        rows = indices.get(phases.process)
        if rows is None:
            continue
        for phase, time in phases.times.items():
            column = columns.setdefault(f"{phase}_ns", np.full(len(steps), np.nan))
            column[rows] = time.covered_ns(starts[rows], ends[rows])
    return columns


def profiler_in_steps(trace: Trace) -> Mapping[str, _Float64Array]:
    """Return the host time of each step that the profiler took for itself, where it took any.

    Its overheads, and the beginning and end of windows of the embedded recorder.
    """
    steps = find_steps(trace).table
    starts, ends = _spans(steps)
    ranges = trace.ranges
    own = ranges[(ranges["domain"] == OWN_DOMAIN) & ranges["name"].isin(_WINDOW_WORK)]
    columns = ["process", "start_ns", "end_ns"]
    spans = pd.concat([own[columns], trace.overheads[columns]], ignore_index=True)
    busy = np.zeros(len(steps))
    of_process = _rows_by(spans, "process")
    for process, rows in _rows_by(steps, "process").items():
        mine = spans.iloc[of_process.get(process, np.empty(0, np.int64))]
        time = Intervals.union_of(mine["start_ns"], mine["end_ns"])
        busy[rows] = time.covered_ns(starts[rows], ends[rows])
    return {"profiler_ns": busy} if busy.any() else {}


def sums_in_steps(trace: Trace) -> Mapping[str, _Float64Array]:
    """Return the bytes of the copies that start in each step, and the samples of its batches.

    Only what was recorded: without marks of batches there is no column of samples.
    """
    steps = find_steps(trace).table
    columns: dict[str, _Float64Array] = {}
    copies = trace.copies
    for direction in _COUNTED:
        chosen = copies[copies["direction"] == direction]
        if len(chosen):
            columns[f"{direction}_bytes"] = _sums(steps, chosen, chosen["n_bytes"].clip(lower=0))
    marks = trace.marks
    batches = marks[(marks["domain"] == OWN_DOMAIN) & (marks["name"] == "batch")]
    batches = batches[batches["payload"] > 0]
    if len(batches):
        columns["samples_count"] = _sums(steps, batches, batches["payload"])
    return columns


def _sums(steps: pd.DataFrame, rows: pd.DataFrame, values: pd.Series) -> _Float64Array:
    owner = owner_of(steps, rows["process"], rows["start_ns"].to_numpy())
    sums = np.zeros(len(steps))
    np.add.at(sums, owner[owner >= 0], values.to_numpy(np.float64)[owner >= 0])
    return sums
