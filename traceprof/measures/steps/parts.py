"""What the time of each step consists of, the state of the machine beside it, and what grew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import pandas as pd

from traceprof.measures.device.times import device_time, devices_of_processes
from traceprof.measures.facts import fact
from traceprof.measures.host.states import find_host_phases
from traceprof.measures.rows import Array, Floats, Ints, Texts, covered_ns, ints, rows_by, unions_by
from traceprof.measures.steps.epochs import are_of_training
from traceprof.measures.steps.find import find_steps, owner_of, rows_of_steps
from traceprof.model.activity import PARTS
from traceprof.model.intervals import Intervals
from traceprof.model.ranks import Ranks
from traceprof.model.timing import OWN_DOMAIN
from traceprof.model.trace import Trace
from traceprof.names.ranges import PHASES, PROFILER, PROFILER_RANGES

DEVICE_PARTS: Final = tuple(f"{part}_ns" for part in PARTS)
_COUNTED: Final = ("h2d", "d2h", "p2p")


def parts_of_devices(trace: Trace, steps: pd.DataFrame) -> Mapping[str, Floats]:
    """Return the five parts of each step, the mean over the devices that its process uses.

    They add up to the length of the step (see `traceprof.model.activity`); NaN where the process
    uses no device.
    """
    starts, ends = ints(steps, "device_start_ns", "device_end_ns")
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


def phases_of_host(trace: Trace, steps: pd.DataFrame) -> Mapping[str, Floats]:
    """Return the host time per phase of each step; NaN where its process names no phases.

    Between its borders on the host: what lies between two steps is told apart.
    """
    times: dict[str, dict[int, Intervals]] = {}
    processes = set(steps["process"].tolist())
    for host in find_host_phases(trace):
        for phase, time in host.times.items() if host.process in processes else ():
            times.setdefault(phase, {})[host.process] = time
    times.pop(PROFILER, None)  # which takes more than its ranges: see `profiler_in_steps`
    return {f"{phase}_ns": covered_ns(steps, own) for phase, own in times.items()}


def profiler_in_steps(trace: Trace, steps: pd.DataFrame) -> Mapping[str, Floats]:
    """Return the host time of each step that the profiler took for itself, where it took any.

    Its overheads, and the beginning and end of windows of the embedded recorder.
    """
    ranges = trace.ranges.to_frame()
    own = ranges[(ranges["domain"] == OWN_DOMAIN) & ranges["name"].isin(PROFILER_RANGES)]
    columns = ["process", "start_ns", "end_ns"]
    spans = pd.concat([own[columns], trace.overheads.to_frame()[columns]], ignore_index=True)
    busy = np.nan_to_num(covered_ns(steps, unions_by(spans)))
    return {"profiler_ns": busy} if busy.any() else {}


def sums_in_steps(trace: Trace, steps: pd.DataFrame) -> Mapping[str, Floats]:
    """Return the bytes of the copies that start in each step, and the samples of its batches.

    Only what was recorded: without marks of batches there is no column of samples, and a step
    without a batch of its own has NaN there.
    """
    columns: dict[str, Floats] = {}
    copies = trace.copies.to_frame()
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
    elif len(batches):  # of iterations of a pattern
        on_host = _bordered(steps, "start_ns", "next_ns")
        columns["samples_count"] = _unless_zero(_sums(on_host, batches, batches["payload"]))
    return columns


def _unless_zero(values: Floats) -> Floats:
    return np.where(values > 0, values, np.nan)


def _batches(trace: Trace) -> pd.DataFrame:
    """Return the marks of batches, without those of loaders that evaluate."""
    marks = trace.marks.to_frame()
    batches = marks[((marks["domain"] == OWN_DOMAIN) & (marks["name"] == "batch")).to_numpy()]
    batches = batches[(batches["payload"] > 0).to_numpy()]
    return batches[are_of_training(trace, batches)] if len(batches) else batches


@fact
def batches_of_steps(trace: Trace) -> pd.DataFrame:
    """Return the marks of batches that were trained with, and in which ``row`` of the steps.

    One that was fetched in no step, as by a thread that fetches ahead, is of the next one.
    """
    batches, steps = _batches(trace), find_steps(trace).table.to_frame()
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


def _sums(steps: pd.DataFrame, rows: pd.DataFrame, values: pd.Series) -> Floats:
    owner = owner_of(steps, rows["process"], rows["start_ns"].to_numpy())
    inside = owner >= 0
    sums = np.bincount(owner[inside], values.to_numpy(np.float64)[inside], len(steps))
    return sums.astype(np.float64)


BETWEEN_STEPS: Final = "between_steps"
"""Stands for a phase where it was the time between two steps."""

_PHASES: Final = tuple(f"{name}_ns" for name in (*PHASES, BETWEEN_STEPS))
_EXPLAINS: Final = 0.5


def excess_of_steps(table: pd.DataFrame, outliers: Ints) -> Mapping[str, Array]:
    """Return, for each outlier among the steps, what it took more than the typical ones.

    ``outliers`` is 1 for slow rows of ``table``, -1 for fast ones, else 0. Typical are the medians
    over the other steady steps of the process. Columns: excess_ns (below 0 for fast ones; NaN for
    steps that are no outliers), grown_part and grown_phase (the part of the device, and the phase
    of the host, that explains the most of it, at least half; "" where none does) with their
    own growth, grown_part_ns and grown_phase_ns.
    """
    rows = np.flatnonzero(outliers)
    process, owner = np.unique(table["process"].to_numpy(), return_inverse=True)
    typical = ~table["is_warmup"].to_numpy(np.bool_) & (outliers == 0)
    has_typical = np.bincount(owner[typical], minlength=len(process)) > 0
    chosen = typical | ~has_typical[owner]
    names = [name for name in ("duration_ns", *DEVICE_PARTS, *_PHASES) if name in table]
    medians = table.loc[chosen, names].groupby(owner[chosen]).median()
    change = table[names].to_numpy(np.float64)[rows] - medians.to_numpy(np.float64)[owner[rows]]
    excess = np.full(len(table), np.nan)
    excess[rows] = change[:, 0]
    columns: dict[str, Array] = {"excess_ns": excess}
    for column, group in (("grown_part", DEVICE_PARTS), ("grown_phase", _PHASES)):
        own = [i for i, name in enumerate(names) if name in group]
        name, grown_ns = _grown([names[i] for i in own], change[:, own], change[:, 0])
        columns[column] = np.full(len(table), "", object)
        columns[column][rows] = name
        columns[f"{column}_ns"] = np.full(len(table), np.nan)
        columns[f"{column}_ns"][rows] = grown_ns
    return columns


def _grown(names: Sequence[str], change: Floats, excess: Floats) -> tuple[Texts, Floats]:
    """Return which of ``names`` explains the most of each excess, and by how much it grew."""
    found, grown = np.full(len(excess), "", object), np.full(len(excess), np.nan)
    if not names or not len(excess):
        return found, grown
    share = change / np.where(excess == 0, np.nan, excess)[:, None]
    share = np.where(np.isnan(share), -np.inf, share)
    place = share.argmax(axis=1)
    best = np.arange(len(excess))
    explains = share[best, place] >= _EXPLAINS
    labels = np.array([name.removesuffix("_ns") for name in names], object)
    found[explains] = labels[place[explains]]
    grown[explains] = change[best, place][explains]
    return found, grown


_CLOCK: Final = "sm_clock_mhz"
_THROTTLED: Final = ("throttled_by_power", "throttled_by_heat")
_COUNTERS: Final[Mapping[str, str]] = {
    "torch_alloc_retries": "alloc_retries_count",
    "torch_device_alloc": "device_alloc_count",
}
MACHINE: Final = (_CLOCK, "throttled_ratio", *_COUNTERS.values())
_PERIOD_NS: Final = 1_000_000_000
"""Clocks are sampled once a second, so that most steps have no sample of their own."""

_Series = tuple[Ints, Floats]


def machine_in_steps(ranks: Ranks, steps: pd.DataFrame) -> dict[str, Floats]:
    """Return what of `MACHINE` was recorded, a value for each of ``steps``; NaN where it was not.

    ``steps`` is the table of `MeasuredSteps`. Clocks and throttling are the mean of the samples
    from a second before a step until its end, of the worst of the devices of its process; counts
    are what the allocator of the process counted in the step's period on the host.
    """
    series = _series(ranks.whole)
    if not series:
        return {}
    zero = ranks.whole.span.start_ns
    devices = {p: own for part in ranks.whole for p, own in devices_of_processes(part).items()}
    found = {name: np.full(len(steps), np.nan) for name in MACHINE}
    for process, rows in rows_by(steps, "process").items():
        own = steps.iloc[rows]
        start = own["at_ns"].to_numpy(np.int64) + zero
        end = start + own["duration_ns"].to_numpy(np.int64)
        on_devices = [f"gpu:{device}" for device in devices.get(process, ())]
        clocks = [_means(series.get((gpu, _CLOCK)), start, end) for gpu in on_devices]
        held = [
            _means(series.get((gpu, name)), start, end) for gpu in on_devices for name in _THROTTLED
        ]
        if on_devices:
            found[_CLOCK][rows] = np.fmin.reduce(clocks)
            found["throttled_ratio"][rows] = np.fmax.reduce(held)
        begin = own["host_at_ns"].to_numpy(np.int64) + zero
        until = begin + own["period_ns"].to_numpy(np.int64)
        for metric, name in _COUNTERS.items():
            counted = series.get((f"process:{process}", metric))
            if counted is not None:
                found[name][rows] = _last_before(counted, until) - _last_before(counted, begin)
    return {name: values for name, values in found.items() if not np.isnan(values).all()}


def _series(ranks: Ranks) -> dict[tuple[str, str], _Series]:
    """Return times and values of each source and metric that is asked for, in the order of time."""
    every = pd.concat(ranks.each(_samples_of_machine), ignore_index=True)
    every = every.sort_values("start_ns", kind="stable")
    return {
        (str(source), str(metric)): (
            rows["start_ns"].to_numpy(np.int64),
            rows["value"].to_numpy(np.float64),
        )
        for (source, metric), rows in every.groupby(["source", "metric"])
    }


def _samples_of_machine(part: Trace) -> pd.DataFrame:
    samples = part.samples.to_frame()
    own = samples[samples["metric"].isin((_CLOCK, *_THROTTLED, *_COUNTERS))]
    return own.astype({"source": object, "metric": object})


def _means(series: _Series | None, start: Ints, end: Ints) -> Floats:
    if series is None:
        return np.full(len(start), np.nan)
    times, values = series
    sums = np.concatenate(([0.0], np.cumsum(values)))
    first = np.searchsorted(times, start - _PERIOD_NS, side="left")
    last = np.searchsorted(times, end, side="left")
    n = np.maximum(last - first, 0)
    return np.where(n > 0, (sums[last] - sums[first]) / np.maximum(n, 1), np.nan)


def _last_before(series: _Series, instants: Ints) -> Floats:
    times, values = series
    place = np.searchsorted(times, instants, side="left")
    return np.concatenate(([0.0], values))[place]
