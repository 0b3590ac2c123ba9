"""What the time of each step consists of: parts of the devices, phases of the host, bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.facts.devices import device_time
from traceprof.facts.host.phases import find_host_phases
from traceprof.facts.launches import find_launches
from traceprof.model.intervals import Intervals
from traceprof.model.steps import OWN_DOMAIN
from traceprof.model.trace import DEVICE_TABLES, Trace

__all__ = [
    "DEVICE_PARTS",
    "device_duration",
    "owner_of",
    "parts_of_devices",
    "phases_of_host",
    "profiler_in_steps",
    "sums_in_steps",
]

_Float64Array = npt.NDArray[np.float64]

DEVICE_PARTS: Final = (
    "compute_ns",
    "exposed_communication_ns",
    "exposed_transfer_ns",
    "device_memory_ns",
    "idle_ns",
)
_WINDOW_WORK: Final = ("traceprof.window.start", "traceprof.window.stop")
_COUNTED: Final = ("h2d", "d2h", "p2p")


def parts_of_devices(trace: Trace, steps: pd.DataFrame) -> Mapping[str, _Float64Array]:
    """Return the five parts of each step, the mean over the devices that its process uses.

    They add up to the length of the step (see `traceprof.analysis.device.breakdown`); NaN where the
    process uses no device.
    """
    parts = {name: np.full(len(steps), np.nan) for name in DEVICE_PARTS}
    for process, rows in steps.groupby("process").indices.items():
        devices = _devices_of(trace, process)
        if not len(devices):
            continue
        mine = steps.iloc[rows]
        starts, ends = mine["start_ns"].to_numpy(), mine["end_ns"].to_numpy()
        per_device = [_parts_of(trace, int(device), starts, ends) for device in devices]
        mean = np.mean(per_device, axis=0)
        for i, name in enumerate(DEVICE_PARTS):
            parts[name][rows] = mean[i]
    return parts


def _devices_of(trace: Trace, process: object) -> npt.NDArray[np.int64]:
    frames = [trace.whole.table(name) for name in DEVICE_TABLES]
    return np.unique(np.concatenate([f.loc[f["process"] == process, "device"] for f in frames]))


def _parts_of(
    trace: Trace, device: int, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    time = device_time(trace, device)
    kernel = time.compute | time.communication
    sets = (
        time.compute,
        time.communication - time.compute,
        time.transfer - kernel,
        time.device_memory - (kernel | time.transfer),
    )
    busy = np.stack([part.covered_ns(starts, ends) for part in sets])
    return np.vstack([busy, (ends - starts) - busy.sum(axis=0)])


def device_duration(trace: Trace, steps: pd.DataFrame) -> _Float64Array:
    """Return how long the devices took per step, in ns; NaN where it launched nothing.

    From the end of the last work that the previous step launched to the end of the last work of
    this step: these add up. The first step counts from the start of its own first work.
    """
    frames = [trace.whole.table(name) for name in DEVICE_TABLES]
    first = np.full(len(steps), np.inf)
    last = np.full(len(steps), -np.inf)
    for frame in frames:
        owner = owner_of(steps, frame["process"], find_launches(trace, frame).start_ns)
        owned = owner >= 0
        np.minimum.at(first, owner[owned], frame["start_ns"].to_numpy()[owned])
        np.maximum.at(last, owner[owned], frame["end_ns"].to_numpy()[owned])
    durations = np.full(len(steps), np.nan)
    for rows in steps.groupby("process").indices.values():
        end = np.maximum.accumulate(last[rows])
        before = np.concatenate(([-np.inf], end[:-1]))
        start = np.where(np.isfinite(before), before, first[rows])
        worked = np.isfinite(last[rows])
        durations[rows[worked]] = (end - start)[worked]
    return durations


def owner_of(
    steps: pd.DataFrame, process: pd.Series, instants: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return the row of the step that each instant of a process lies in, -1 where in none."""
    owner = np.full(len(instants), -1, np.int64)
    starts, ends = steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy()
    of_process = process.groupby(process.to_numpy()).indices
    for key, rows in steps.groupby("process").indices.items():
        mine = of_process.get(key)
        if mine is None:
            continue
        place = np.searchsorted(starts[rows], instants[mine], side="right") - 1
        inside = (place >= 0) & (instants[mine] < ends[rows][np.maximum(place, 0)])
        owner[mine[inside]] = rows[place[inside]]
    return owner


def phases_of_host(trace: Trace, steps: pd.DataFrame) -> Mapping[str, _Float64Array]:
    """Return the host time per phase of each step; NaN where its process names no phases."""
    columns: dict[str, _Float64Array] = {}
    indices = steps.groupby("process").indices
    for phases in find_host_phases(trace):
        rows = indices.get(phases.process)
        if rows is None:
            continue
        mine = steps.iloc[rows]
        for phase, time in phases.times.items():
            column = columns.setdefault(f"{phase}_ns", np.full(len(steps), np.nan))
            column[rows] = time.covered_ns(mine["start_ns"], mine["end_ns"])
    return columns


def profiler_in_steps(trace: Trace, steps: pd.DataFrame) -> Mapping[str, _Float64Array]:
    """Return the host time of each step that the profiler took for itself, where it took any.

    Its overheads, and the beginning and end of windows of the embedded recorder.
    """
    ranges = trace.ranges
    own = ranges[(ranges["domain"] == OWN_DOMAIN) & ranges["name"].isin(_WINDOW_WORK)]
    busy = np.zeros(len(steps))
    for process, rows in steps.groupby("process").indices.items():
        spans = [frame[frame["process"] == process] for frame in (own, trace.overheads)]
        starts, ends = (np.concatenate([f[at] for f in spans]) for at in ("start_ns", "end_ns"))
        mine = steps.iloc[rows]
        time = Intervals.union_of(starts, ends)
        busy[rows] = time.covered_ns(mine["start_ns"], mine["end_ns"])
    return {"profiler_ns": busy} if busy.any() else {}


def sums_in_steps(trace: Trace, steps: pd.DataFrame) -> Mapping[str, _Float64Array]:
    """Return the bytes of the copies that start in each step, and the samples of its batches.

    Only what was recorded: without marks of batches there is no column of samples.
    """
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


def sums_of_gaps(trace: Trace, steps: pd.DataFrame, gaps: pd.DataFrame) -> _Float64Array:
    """Return the ns that devices waited in each step, the mean over those of its process.

    ``gaps`` are those of all devices with a column ``waited`` of ns; a gap counts for the step
    in which it ends.
    """
    waited = np.zeros(len(steps))
    for process, rows in steps.groupby("process").indices.items():
        mine = gaps[gaps["device"].isin(_devices_of(trace, process))]
        place = np.searchsorted(steps["start_ns"].to_numpy()[rows], mine["end_ns"], side="left") - 1
        inside = (place >= 0) & (
            mine["end_ns"].to_numpy() <= steps["end_ns"].to_numpy()[rows][np.maximum(place, 0)]
        )
        np.add.at(waited, rows[place[inside]], mine["waited"].to_numpy(np.float64)[inside])
        waited[rows] /= max(1, len(_devices_of(trace, process)))
    return waited
