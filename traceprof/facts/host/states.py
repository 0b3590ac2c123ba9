"""What the host of a process was doing: fetching data, synchronising, disturbed by a profiler."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.facts.cache import of_window
from traceprof.facts.host.phases import find_host_phases
from traceprof.model.intervals import Intervals
from traceprof.model.trace import Trace

__all__ = ["HostState", "find_host_states", "is_blocking_copy", "is_synchronisation"]

_SYNCHRONISES: Final = re.compile(
    r"(cuda|cu|hip)(Device|Stream|Event|Ctx)Synchronize", re.IGNORECASE
)
_BLOCKING_COPY: Final = re.compile(
    r"(cuda|cu|hip)Mem(cpy|set)(?!.*Async)(?!.*Batch)\w*", re.IGNORECASE
)
_LAUNCHES: Final = re.compile(r"(cuda|cu|hip)\w*Launch\w*", re.IGNORECASE)


@dataclass(frozen=True, slots=True, eq=False)
class HostState:
    """When the threads of a process that launch work waited, and why."""

    data: Intervals
    synchronising: Intervals
    profiler: Intervals


def is_synchronisation(names: pd.Series) -> npt.NDArray[np.bool_]:
    """Return which API calls wait for the device."""
    return _matches(names, _SYNCHRONISES)


def is_blocking_copy(names: pd.Series) -> npt.NDArray[np.bool_]:
    """Return which API calls are copies or memsets that return only when they are done."""
    return _matches(names, _BLOCKING_COPY)


def _matches(names: pd.Series, pattern: re.Pattern[str]) -> npt.NDArray[np.bool_]:
    codes = [i for i, name in enumerate(names.cat.categories) if pattern.fullmatch(str(name))]
    return np.isin(names.cat.codes, codes)


@of_window
def find_host_states(trace: Trace) -> dict[int, HostState]:
    """Return the state of the host for each process that calls the API or names phases."""
    calls = trace.api_calls
    launching = calls[_matches(calls["name"], _LAUNCHES)]
    waits = calls[is_synchronisation(calls["name"]) | is_blocking_copy(calls["name"])]
    data = {
        phases.process: phases.times.get("data", Intervals.empty())
        for phases in find_host_phases(trace)
    }
    overheads = trace.overheads
    processes = {*map(int, np.unique(calls["process"])), *data}
    return {
        process: HostState(
            data=data.get(process, Intervals.empty()),
            synchronising=_union(_on_threads_of(launching, waits, process)),
            profiler=_union(overheads[overheads["process"] == process]),
        )
        for process in processes
    }


def _on_threads_of(launching: pd.DataFrame, calls: pd.DataFrame, process: int) -> pd.DataFrame:
    threads = launching.loc[launching["process"] == process, "thread"].unique()
    mine = calls[calls["process"] == process]
    return mine[mine["thread"].isin(threads)] if len(threads) else mine


def _union(frame: pd.DataFrame) -> Intervals:
    return Intervals.union_of(frame["start_ns"], frame["end_ns"])
