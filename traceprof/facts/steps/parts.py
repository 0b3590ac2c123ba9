"""What the time of each step consists of: parts of the devices, phases of the host, bytes.

All functions take the table of some `Steps` and return one value for each of its rows.
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
from traceprof.facts.steps.find import find_steps, rows_of_steps
from traceprof.facts.steps.passes import are_of_training
from traceprof.facts.steps.spans import owner_of, rows_by
from traceprof.model.activity import PARTS
from traceprof.model.intervals import Intervals
from traceprof.model.timing import OWN_DOMAIN
from traceprof.model.trace import Trace
from traceprof.names.ranges import PROFILER, PROFILER_RANGES

__all__ = [
    "DEVICE_PARTS",
    "batches_of_steps",
    "parts_of_devices",
    "phases_of_host",
    "profiler_in_steps",
    "sums_in_steps",
]

_Int64Array = npt.NDArray[np.int64]
_Float64Array = npt.NDArray[np.float64]

DEVICE_PARTS: Final = tuple(f"{part}_ns" for part in PARTS)
_COUNTED: Final = ("h2d", "d2h", "p2p")


def parts_of_devices(trace: Trace, steps: pd.DataFrame) -> Mapping[str, _Float64Array]:
    """Return the five parts of each step, the mean over the devices that its process uses.

    They add up to the length of the step (see `traceprof.model.activity`); NaN where the process
    uses no device.
    """
    starts, ends = _spans(steps, "device_start_ns", "device_end_ns")
    used = devices_of_processes(trace)
    parts = {name: np.full(len(steps), np.nan) for name in DEVICE_PARTS}
    for process, rows in rows_by(steps, "process").items():
        times = [
            device_time(trace, device).parts_within(starts[rows], ends[rows])
            for device in used.get(process, ())
        ]
        if times:
            for part in PARTS:
                parts[f"{part}_ns"][rows] = np.mean([time[part] for time in times], axis=0)
    return parts


def _spans(
    steps: pd.DataFrame, start: str = "start_ns", end: str = "end_ns"
) -> tuple[_Int64Array, _Int64Array]:
    return steps[start].to_numpy(np.int64), steps[end].to_numpy(np.int64)


def phases_of_host(trace: Trace, steps: pd.DataFrame) -> Mapping[str, _Float64Array]:
    """Return the host time per phase of each step; NaN where its process names no phases.

    Between its borders on the host: what lies between two steps is told apart.
    """
    starts, ends = _spans(steps)
    columns: dict[str, _Float64Array] = {}
    indices = rows_by(steps, "process")
    for phases in find_host_phases(trace):
        rows = indices.get(phases.process)
        if rows is None:
            continue
        for phase, time in phases.times.items():
            if phase == PROFILER:  # which takes more than its ranges: see `profiler_in_steps`
                continue
            column = columns.setdefault(f"{phase}_ns", np.full(len(steps), np.nan))
            column[rows] = time.covered_ns(starts[rows], ends[rows])
    return columns


def profiler_in_steps(trace: Trace, steps: pd.DataFrame) -> Mapping[str, _Float64Array]:
    """Return the host time of each step that the profiler took for itself, where it took any.

    Its overheads, and the beginning and end of windows of the embedded recorder.
    """
    starts, ends = _spans(steps)
    ranges = trace.ranges
    own = ranges[(ranges["domain"] == OWN_DOMAIN) & ranges["name"].isin(PROFILER_RANGES)]
    columns = ["process", "start_ns", "end_ns"]
    spans = pd.concat([own[columns], trace.overheads[columns]], ignore_index=True)
    busy = np.zeros(len(steps))
    of_process = rows_by(spans, "process")
    for process, rows in rows_by(steps, "process").items():
        mine = spans.iloc[of_process.get(process, np.empty(0, np.int64))]
        time = Intervals.union_of(mine["start_ns"], mine["end_ns"])
        busy[rows] = time.covered_ns(starts[rows], ends[rows])
    return {"profiler_ns": busy} if busy.any() else {}


def sums_in_steps(trace: Trace, steps: pd.DataFrame) -> Mapping[str, _Float64Array]:
    """Return the bytes of the copies that start in each step, and the samples of its batches.

    Only what was recorded: without marks of batches there is no column of samples, and a step
    without a batch of its own has NaN there.
    """
    columns: dict[str, _Float64Array] = {}
    copies = trace.copies
    on_device = _bordered(steps, "device_start_ns", "device_end_ns")
    for direction in _COUNTED:
        chosen = copies[copies["direction"] == direction]
        if len(chosen):
            sizes = chosen["n_bytes"].clip(lower=0)
            columns[f"{direction}_bytes"] = _sums(on_device, chosen, sizes)
    n_steps = len(find_steps(trace.whole))
    batches = batches_of_steps(trace.whole) if n_steps else _batches(trace.whole)
    if len(batches) and n_steps:
        samples = batches["payload"].to_numpy(np.float64)
        sums = np.bincount(batches["row"], samples, minlength=n_steps).astype(np.float64)
        columns["samples_count"] = _unless_zero(sums[rows_of_steps(trace)])
    elif len(batches):  # of turns of a pattern
        on_host = _bordered(steps, "start_ns", "next_ns")
        columns["samples_count"] = _unless_zero(_sums(on_host, batches, batches["payload"]))
    return columns


def _unless_zero(values: _Float64Array) -> _Float64Array:
    return np.where(values > 0, values, np.nan)


def _batches(trace: Trace) -> pd.DataFrame:
    """Return the marks of batches, without those of loaders that evaluate."""
    marks = trace.marks
    batches = marks[((marks["domain"] == OWN_DOMAIN) & (marks["name"] == "batch")).to_numpy()]
    batches = batches[(batches["payload"] > 0).to_numpy()]
    return batches[are_of_training(trace, batches)] if len(batches) else batches


@fact
def batches_of_steps(trace: Trace) -> pd.DataFrame:
    """Return the marks of batches that were trained with, and in which ``row`` of the steps.

    One that was fetched in no step, as by a thread that fetches ahead, is of the next one.
    """
    batches, steps = _batches(trace), find_steps(trace).table
    ends, of_steps = steps["end_ns"].to_numpy(np.int64), rows_by(steps, "process")
    owner = np.full(len(batches), -1, np.int64)
    for process, rows in rows_by(batches, "process").items():
        own = of_steps.get(process, np.empty(0, np.int64))
        at = batches["start_ns"].to_numpy(np.int64)[rows]
        owner[rows] = np.append(own, -1)[np.searchsorted(ends[own], at, side="right")]
    return batches.assign(row=owner)[owner >= 0]


def _bordered(steps: pd.DataFrame, start: str, end: str) -> pd.DataFrame:
    """Return the steps with other borders, in the order of these."""
    return steps[["process"]].assign(start_ns=steps[start], end_ns=steps[end])


def _sums(steps: pd.DataFrame, rows: pd.DataFrame, values: pd.Series) -> _Float64Array:
    owner = owner_of(steps, rows["process"], rows["start_ns"].to_numpy())
    sums = np.zeros(len(steps))
    np.add.at(sums, owner[owner >= 0], values.to_numpy(np.float64)[owner >= 0])
    return sums
