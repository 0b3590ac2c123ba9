"""What the host of a process was doing: fetching data, synchronising, disturbed by a profiler."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.facts.cache import of_window
from traceprof.facts.host.phases import find_host_phases
from traceprof.model.grouping import rows_by_value, rows_by_values
from traceprof.model.intervals import Intervals
from traceprof.model.trace import Trace
from traceprof.values import dataclass

__all__ = [
    "HostState",
    "find_host_states",
    "hold_devices_up",
    "is_blocking_copy",
    "is_launch",
    "is_synchronisation",
]

_SYNCHRONISES: Final = re.compile(
    r"(cuda|cu|hip)(Device|Stream|Event|Ctx)Synchronize", re.IGNORECASE
)
_BLOCKING_COPY: Final = re.compile(
    r"(cuda|cu|hip)Mem(cpy|set)(?!.*Async)(?!.*Batch)\w*", re.IGNORECASE
)
_LAUNCHES: Final = re.compile(r"(cuda|cu|hip)\w*Launch\w*", re.IGNORECASE)

_BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class HostState:
    """When the threads of a process that launch work waited, and why."""

    data: Intervals
    synchronising: Intervals
    profiler: Intervals

    def alone(self) -> dict[str, Intervals]:
        """Return the three times where they count: the profiler's first, then data."""
        disturbed = self.profiler | self.data
        return {
            "profiler": self.profiler,
            "data": self.data - self.profiler,
            "synchronising": self.synchronising - disturbed,
        }


def is_synchronisation(names: pd.Series) -> _BoolArray:
    """Return which API calls wait for the device."""
    return _matches(names, _SYNCHRONISES)


def is_blocking_copy(names: pd.Series) -> _BoolArray:
    """Return which API calls are copies or memsets that return only when they are done."""
    return _matches(names, _BLOCKING_COPY)


def is_launch(names: pd.Series) -> _BoolArray:
    """Return which API calls launch a kernel, a graph or a host function."""
    return _matches(names, _LAUNCHES)


def _matches(names: pd.Series, pattern: re.Pattern[str]) -> _BoolArray:
    matches = [pattern.fullmatch(str(name)) is not None for name in names.cat.categories]
    return np.array([*matches, False], np.bool_)[names.cat.codes.to_numpy()]


@of_window
def find_host_states(trace: Trace) -> dict[int, HostState]:
    """Return the state of the host for each process that calls the API or names phases."""
    data = {
        phases.process: phases.times.get("data", Intervals.empty())
        for phases in find_host_phases(trace)
    }
    waits = _unions(trace.api_calls[hold_devices_up(trace.api_calls)])
    profiler = _unions(trace.overheads)
    nothing = Intervals.empty()
    return {
        process: HostState(
            data=data.get(process, nothing),
            synchronising=waits.get(process, nothing),
            profiler=profiler.get(process, nothing),
        )
        for process in {*np.unique(trace.api_calls["process"]).tolist(), *data}
    }


def hold_devices_up(calls: pd.DataFrame) -> _BoolArray:
    """Return which calls wait, of the threads that launch work; of all where none does."""
    launches = is_launch(calls["name"])
    waits = is_synchronisation(calls["name"]) | is_blocking_copy(calls["name"])
    lanes = rows_by_values(calls["process"], calls["thread"])
    launching = {lane for lane, rows in lanes.items() if launches[rows].any()}
    processes = {process for process, _ in launching}
    for lane, rows in lanes.items():
        if lane not in launching and lane[0] in processes:
            waits[rows] = False
    return waits


def _unions(frame: pd.DataFrame) -> dict[int, Intervals]:
    """Return the time that the rows of each process cover."""
    starts, ends = frame["start_ns"].to_numpy(np.int64), frame["end_ns"].to_numpy(np.int64)
    return {
        process: Intervals.union_of(starts[rows], ends[rows])
        for process, rows in rows_by_value(frame["process"]).items()
    }
