"""The state of the machine beside each step: clocks, what held them down, memory asked of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.facts.device.times import devices_of_processes
from traceprof.facts.steps.spans import rows_by
from traceprof.model.ranks import Ranks
from traceprof.model.trace import Trace

__all__ = ["MACHINE", "machine_in_steps"]

_CLOCK: Final = "sm_clock_mhz"
_THROTTLED: Final = ("throttled_by_power", "throttled_by_heat")
_COUNTERS: Final[Mapping[str, str]] = {
    "torch_alloc_retries": "alloc_retries_count",
    "torch_device_alloc": "device_alloc_count",
}
MACHINE: Final = (_CLOCK, "throttled_ratio", *_COUNTERS.values())
_PERIOD_NS: Final = 1_000_000_000
"""Clocks are sampled once a second, so that most steps have no sample of their own."""

_Series = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]
_Float64Array = npt.NDArray[np.float64]


def machine_in_steps(ranks: Ranks, steps: pd.DataFrame) -> dict[str, _Float64Array]:
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
    samples = part.samples
    own = samples[samples["metric"].isin((_CLOCK, *_THROTTLED, *_COUNTERS))]
    return own.astype({"source": object, "metric": object})


def _means(
    series: _Series | None, start: npt.NDArray[np.int64], end: npt.NDArray[np.int64]
) -> _Float64Array:
    if series is None:
        return np.full(len(start), np.nan)
    times, values = series
    sums = np.concatenate(([0.0], np.cumsum(values)))
    first = np.searchsorted(times, start - _PERIOD_NS, side="left")
    last = np.searchsorted(times, end, side="left")
    n = np.maximum(last - first, 0)
    return np.where(n > 0, (sums[last] - sums[first]) / np.maximum(n, 1), np.nan)


def _last_before(series: _Series, instants: npt.NDArray[np.int64]) -> _Float64Array:
    times, values = series
    place = np.searchsorted(times, instants, side="left")
    return np.concatenate(([0.0], values))[place]
