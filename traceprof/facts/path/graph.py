"""What each piece of device work, and each wait of the host, had to wait for.

A piece of work could not start before the work ahead of it on its stream had ended, nor before
its launch; the later of the two is what it waited for. Where work on another stream ended right
before a start, that is taken for a dependency. A wait of the host ends with the work that it
waited for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.facts.cache import fact
from traceprof.facts.gaps import LATENCY_NS
from traceprof.facts.host.states import is_blocking_copy, is_synchronisation
from traceprof.facts.launches import launches_of
from traceprof.model.activity import Activity, Part
from traceprof.model.grouping import groups_of, places_of
from traceprof.model.trace import DEVICE_TABLES, Trace
from traceprof.values import dataclass

__all__ = ["DEPENDS_NS", "DEVICE_KINDS", "Graph", "dependencies"]

_Int64Array = npt.NDArray[np.int64]
_Columns = Mapping[str, npt.NDArray[Any]]

DEVICE_KINDS: Final = ("compute", "communication", "transfer", "device_memory")
DEPENDS_NS: Final = 10_000
"""Work that starts this soon after work on another stream ended is taken to depend on it."""
_NONE: Final = -1
_NEVER: Final = np.iinfo(np.int64).min
_INSIDE: Final = ("d2d", "memset")


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """The work of a process and the waits of its host in the whole recording.

    Work, by start: ``starts``, ``ends``, ``kinds`` (its place in `DEVICE_KINDS`), ``n_bytes`` and
    ``directions`` (of a copy, its place in ``direction_names``; -1 of a kernel), ``launched`` (when
    the host launched it, its start where that is not known), ``work_before`` (the row that it
    waited for, -1 where it was its launch) and ``wait_before`` (the last wait of the host before
    the launch, -1: none). ``reach`` is the latest end so far.

    Waits, by end: ``wait_starts``, ``wait_ends``, ``released_by`` (the row of the work that ended
    each, -1: none), ``left`` (when the host began to wait for it: the end of that work, else the
    start of the wait), ``earlier_wait`` (the last wait before that).
    """

    starts: _Int64Array
    ends: _Int64Array
    kinds: npt.NDArray[np.int8]
    n_bytes: _Int64Array
    directions: npt.NDArray[np.int8]
    direction_names: pd.Index
    launched: _Int64Array
    work_before: _Int64Array
    wait_before: _Int64Array
    reach: _Int64Array
    wait_starts: _Int64Array
    wait_ends: _Int64Array
    released_by: _Int64Array
    left: _Int64Array
    earlier_wait: _Int64Array

    def wait_until(self, instants: npt.ArrayLike) -> _Int64Array:
        """Return the last wait that had ended at each instant, -1 where none had."""
        return np.asarray(np.searchsorted(self.wait_ends, instants, side="right") - 1, np.int64)


@fact
def dependencies(trace: Trace) -> Mapping[int, Graph]:
    """Return the work and waits of each process with device work."""
    work = _work(trace)
    calls = trace.api_calls
    waits = calls[is_synchronisation(calls["name"]) | is_blocking_copy(calls["name"])]
    waits = waits.sort_values(["process", "end_ns"], kind="stable", ignore_index=True)
    columns = {name: waits[name].to_numpy(np.int64) for name in ("process", "start_ns", "end_ns")}
    work_of, waits_of = _by_process(work), _by_process(columns)
    nothing = {name: np.empty(0, np.int64) for name in ("start_ns", "end_ns")}
    directions = trace.copies["direction"].cat.categories
    return {
        process: _graph(own, waits_of.get(process, nothing), directions)
        for process, own in work_of.items()
    }


def _by_process(columns: _Columns) -> dict[int, _Columns]:
    """Return the columns of a table that is sorted by process, for each: views, no copies."""
    number, processes = places_of(columns["process"])
    firsts = np.searchsorted(number, np.arange(len(processes)))
    lasts = np.append(firsts[1:], len(number))
    return {
        process: {name: column[first:last] for name, column in columns.items()}
        for process, first, last in zip(processes, firsts.tolist(), lasts.tolist(), strict=False)
    }


def _work(trace: Trace) -> dict[str, _Int64Array]:
    """Return the work of the devices by process and start, ``lane`` being the stream of each."""
    parts = [_work_of(trace, name) for name in DEVICE_TABLES]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    del parts
    columns["lane"] = groups_of(columns.pop("device"), columns.pop("stream")).number
    order = np.argsort(columns["start_ns"], kind="stable")
    order = order[np.argsort(places_of(columns["process"])[0][order], kind="stable")]
    for name, column in columns.items():
        columns[name] = column[order]
    return columns


def _work_of(trace: Trace, name: str) -> dict[str, npt.NDArray[Any]]:
    """Return the rows of a device table with kind and launch (`_NEVER` where it is not known)."""
    frame, launches = trace.table(name), launches_of(trace, name)
    known = launches.is_known
    is_copy = name == "copies"
    columns = ("start_ns", "end_ns", "device", "stream", "process")
    nothing = np.zeros(len(frame), np.int8)
    return {
        **{column: frame[column].to_numpy(np.int64) for column in columns},
        "kind": _kinds_of_copies(frame) if is_copy else _kinds_of_kernels(frame),
        "launch_ns": np.where(known, launches.start_ns, _NEVER),
        "launched_ns": np.where(known, launches.end_ns, _NEVER),
        "n_bytes": frame["n_bytes"].to_numpy(np.int64) if is_copy else nothing,
        "direction": frame["direction"].cat.codes.to_numpy() if is_copy else nothing + _NONE,
    }


def _kinds_of_copies(copies: pd.DataFrame) -> npt.NDArray[np.int8]:
    directions = copies["direction"].cat
    places = [
        DEVICE_KINDS.index("device_memory" if name in _INSIDE else "transfer")
        for name in (*directions.categories, "")
    ]
    return np.array(places, np.int8)[directions.codes]


def _kinds_of_kernels(kernels: pd.DataFrame) -> npt.NDArray[np.int8]:
    activities = kernels["activity"].cat
    places = [_place(Activity(name).part) for name in activities.categories]
    return np.array([*places, 0], np.int8)[activities.codes]


def _place(part: Part) -> int:
    return DEVICE_KINDS.index(part.value)


def _graph(work: _Columns, waits: _Columns, directions: pd.Index) -> Graph:
    starts, ends = work["start_ns"], work["end_ns"]
    wait_starts, wait_ends = waits["start_ns"], waits["end_ns"]
    launch = work["launch_ns"]
    launched = np.where(launch == _NEVER, starts, np.minimum(launch, starts))
    by_end = np.argsort(ends, kind="stable")
    released_by = _last(by_end, ends, wait_ends)
    # What ended before the wait began, or takes no time, releases nobody.
    is_released = (released_by >= 0) & (ends[released_by] > wait_starts)
    is_released &= starts[released_by] < wait_ends
    left = np.where(is_released, ends[released_by], np.minimum(wait_starts, wait_ends - 1))
    return Graph(
        starts=starts,
        ends=ends,
        kinds=work["kind"],
        n_bytes=work["n_bytes"],
        directions=work["direction"],
        direction_names=directions,
        launched=launched,
        work_before=_predecessors(work, by_end),
        wait_before=np.searchsorted(wait_ends, launched, side="right") - 1,
        reach=np.maximum.accumulate(ends),
        wait_starts=wait_starts,
        wait_ends=wait_ends,
        released_by=np.where(is_released, released_by, _NONE),
        left=left,
        earlier_wait=np.searchsorted(wait_ends, left, side="right") - 1,
    )


def _predecessors(work: _Columns, by_end: _Int64Array) -> _Int64Array:
    """Return the row that each piece of work waited for, -1 where it was its launch."""
    starts, ends = work["start_ns"], work["end_ns"]
    ahead = _ahead(work["lane"])
    ahead_end = np.where(ahead >= 0, np.minimum(ends[ahead], starts), _NEVER)
    other = _last(by_end, ends, starts)
    # Of work that takes no time and begins together the first waits for none of the others.
    other = np.where(other < np.arange(len(starts)), other, _NONE)
    other_end = np.where(other >= 0, ends[other], _NEVER)
    is_dependency = (other >= 0) & (other_end > ahead_end) & (starts <= other_end + DEPENDS_NS)
    best = np.where(is_dependency, other, ahead)
    best_end = np.where(is_dependency, other_end, ahead_end)
    # A blocking copy is launched long before its call returns.
    launch, returned = work["launch_ns"], work["launched_ns"]
    is_known = launch != _NEVER
    launched = np.minimum(np.minimum(returned, launch + LATENCY_NS), starts)
    best = np.where(is_known & (launched >= best_end), _NONE, best)
    return np.where(~is_known & (best < 0), other, best)


def _ahead(lane: _Int64Array) -> _Int64Array:
    """Return the row right before each one in its lane, -1 for the first."""
    order = np.argsort(lane, kind="stable")
    ahead = np.full(len(lane), _NONE, np.int64)
    together = lane[order[1:]] == lane[order[:-1]]
    ahead[order[1:]] = np.where(together, order[:-1], _NONE)
    return ahead


def _last(by_end: _Int64Array, ends: _Int64Array, instants: _Int64Array) -> _Int64Array:
    """Return the row of the work that ended last at or before each instant, -1: none."""
    place = np.searchsorted(ends[by_end], instants, side="right") - 1
    return np.where(place >= 0, by_end[place], _NONE)
