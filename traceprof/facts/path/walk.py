"""The chain of work and waiting that decides how long a window takes, found backwards.

From the end of the window: a piece of device work could not start before the work ahead of it on
its stream had ended, nor before its launch; the later of the two is what it waited for. The host
goes on by itself until it waits for the device, and then depends on the work that it waited for.
Where work on another stream ended right before a start, that is taken for a dependency.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.facts.gaps import LATENCY_NS
from traceprof.facts.host.states import is_blocking_copy, is_synchronisation
from traceprof.facts.launches import find_launches
from traceprof.model.activity import Activity
from traceprof.model.trace import Trace

__all__ = ["DEVICE_KINDS", "HOST", "LATENCY", "SYNC", "Segments", "walk_back"]

_Int64Array = npt.NDArray[np.int64]

DEVICE_KINDS: Final = ("compute", "communication", "transfer", "device_memory")
HOST: Final = 4
"""The host runs code or launches; which of them is told apart later."""
LATENCY: Final = 5
"""Between a launch, or the work ahead, and the start of work."""
SYNC: Final = 6
"""Between the end of work and the end of the call that waited for it."""

_DEPENDS_NS: Final = 10_000
"""Work that starts this soon after work on another stream ended is taken to depend on it."""
_NONE: Final = -1
_MOST_STILL: Final = 8


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """The path of one process, latest first: segments that fill the window without gaps.

    ``kind`` is the place in `DEVICE_KINDS`, or HOST, LATENCY, SYNC; ``row`` the row of the work
    in ``work`` (-1 for the host).
    """

    start_ns: _Int64Array
    end_ns: _Int64Array
    kind: _Int64Array
    row: _Int64Array
    work: pd.DataFrame


def walk_back(trace: Trace, process: int) -> Segments:
    """Return the path of ``process`` through the window of ``trace``."""
    work = _work_of(trace, process)
    walk = _Walk(work, _waits_of(trace, process), _predecessors(work), trace.span.start_ns)
    walk.run(trace.span.end_ns)
    columns = np.array(walk.segments, np.int64).reshape(-1, 4)
    return Segments(columns[:, 0], columns[:, 1], columns[:, 2], columns[:, 3], work)


def _work_of(trace: Trace, process: int) -> pd.DataFrame:
    """Return the work of the process in the window, by start, with kind and launch."""
    parts = []
    for name in ("kernels", "copies"):
        frame = trace.table(name)
        frame = frame[frame["process"] == process]
        launches = find_launches(trace, frame)
        part = frame[["start_ns", "end_ns", "device", "stream"]].assign(
            kind=_kinds(frame, name),
            launch_ns=np.where(launches.is_known, launches.start_ns, _NONE),
            launched_ns=np.where(launches.is_known, launches.end_ns, _NONE),
            n_bytes=frame["n_bytes"] if name == "copies" else 0,
            name=frame["name" if name == "kernels" else "direction"].to_numpy(object),
        )
        parts.append(part)
    return pd.concat(parts, ignore_index=True).sort_values(
        "start_ns", kind="stable", ignore_index=True
    )


def _kinds(frame: pd.DataFrame, table: str) -> _Int64Array:
    if table == "copies":
        inside = frame["direction"].isin(["d2d", "memset"])
        return np.where(inside, DEVICE_KINDS.index("device_memory"), DEVICE_KINDS.index("transfer"))
    activities = frame["activity"].cat
    places = [DEVICE_KINDS.index(Activity(name).part.value) for name in activities.categories]
    return np.array([*places, 0], np.int64)[activities.codes]


def _waits_of(trace: Trace, process: int) -> tuple[_Int64Array, _Int64Array]:
    """Return starts and ends of the calls in which the host waits for the device, by end."""
    calls = trace.api_calls
    calls = calls[calls["process"] == process]
    waits = calls[is_synchronisation(calls["name"]) | is_blocking_copy(calls["name"])]
    waits = waits.sort_values("end_ns", kind="stable")
    return waits["start_ns"].to_numpy(np.int64), waits["end_ns"].to_numpy(np.int64)


def _predecessors(work: pd.DataFrame) -> _Int64Array:
    """Return the row that each piece of work waited for, -1 where it was its launch."""
    starts, ends = work["start_ns"].to_numpy(), work["end_ns"].to_numpy()
    ahead = np.full(len(work), _NONE, np.int64)
    for rows in work.groupby(["device", "stream"]).indices.values():
        ahead[rows[1:]] = rows[:-1]
    ahead_end = np.where(ahead >= 0, np.minimum(ends[np.maximum(ahead, 0)], starts), _NONE)
    other = _latest_ended(starts, ends)
    other_end = np.where(other >= 0, ends[np.maximum(other, 0)], _NONE)
    is_dependency = (other >= 0) & (starts - other_end <= _DEPENDS_NS) & (other_end > ahead_end)
    best = np.where(is_dependency, other, ahead)
    best_end = np.where(is_dependency, other_end, ahead_end)
    # A blocking copy is launched long before its call returns.
    launch, returned = work["launch_ns"].to_numpy(), work["launched_ns"].to_numpy()
    launched = np.minimum(np.minimum(returned, launch + LATENCY_NS), starts)
    return np.where((launched >= best_end) & (launched >= 0), _NONE, best)


def _latest_ended(starts: _Int64Array, ends: _Int64Array) -> _Int64Array:
    """Return the row of the work that ended last at or before each start."""
    if not len(ends):
        return np.empty(0, np.int64)
    order = np.argsort(ends, kind="stable")
    place = np.searchsorted(ends[order], starts, side="right") - 1
    found = np.where(place >= 0, order[np.maximum(place, 0)], _NONE)
    return np.where(found == np.arange(len(starts)), _NONE, found)


class _Walk:
    """Goes from the end of the window to its start and notes the segments of the path."""

    def __init__(
        self,
        work: pd.DataFrame,
        waits: tuple[_Int64Array, _Int64Array],
        predecessor: _Int64Array,
        start_ns: int,
    ) -> None:
        self.segments: list[tuple[int, int, int, int]] = []
        self._first_ns = start_ns
        self._starts = work["start_ns"].tolist()
        self._ends = work["end_ns"].tolist()
        self._kinds = work["kind"].tolist()
        self._launches = work["launch_ns"].tolist()
        self._predecessor = predecessor.tolist()
        self._waits = waits
        self._by_end = np.argsort(work["end_ns"].to_numpy(), kind="stable")
        self._ends_sorted = work["end_ns"].to_numpy()[self._by_end]

    def run(self, end_ns: int) -> None:
        """Walk back from ``end_ns`` to the start of the window."""
        at, row = end_ns, self._last_work(end_ns, end_ns - _DEPENDS_NS)
        n_still = 0
        while at > self._first_ns:
            before = at
            at, row = self._on_host(at) if row < 0 else self._on_device(at, row)
            n_still = n_still + 1 if at == before else 0
            if n_still > _MOST_STILL:
                # Work without duration can point at each other; the host goes on.
                self._note(at - 1, at, HOST)
                at, row, n_still = at - 1, _NONE, 0

    def _note(self, start: int, end: int, kind: int, row: int = _NONE) -> None:
        start = max(start, self._first_ns)
        if end > start:
            self.segments.append((start, end, kind, row))

    def _last_work(self, until_ns: int, since_ns: int) -> int:
        """Return the work that ended last, after ``since_ns`` and not after ``until_ns``."""
        place = int(np.searchsorted(self._ends_sorted, until_ns, side="right")) - 1
        if place < 0 or self._ends_sorted[place] <= since_ns:
            return _NONE
        return int(self._by_end[place])

    def _on_device(self, at: int, row: int) -> tuple[int, int]:
        """Note the work ``row`` up to ``at``, and go to what it waited for."""
        end = min(self._ends[row], at)
        self._note(end, at, LATENCY)
        start = min(self._starts[row], end)
        self._note(start, end, self._kinds[row], row)
        before = self._predecessor[row]
        if before >= 0:
            return start, before
        launch = self._launches[row]
        if launch < 0:
            return start, self._last_work(start, self._first_ns) if start < at else _NONE
        launch = min(launch, start)
        self._note(launch, start, LATENCY)
        return launch, _NONE

    def _on_host(self, at: int) -> tuple[int, int]:
        """Note the host up to ``at``, back to where it last waited for the device."""
        starts, ends = self._waits
        place = int(np.searchsorted(ends, at, side="right")) - 1
        if place < 0 or int(ends[place]) <= self._first_ns:
            self._note(self._first_ns, at, HOST)
            return self._first_ns, _NONE
        wait_start, wait_end = int(starts[place]), int(ends[place])
        self._note(wait_end, at, HOST)
        released_by = self._last_work(wait_end, wait_start)
        if released_by < 0:
            before = min(wait_start, wait_end - 1)
            self._note(before, wait_end, SYNC)
            return before, _NONE
        released = self._ends[released_by]
        self._note(released, wait_end, SYNC)
        return released, released_by
