"""Rules that decide which events of a Kineto trace belong to a window."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.formats.kineto import rows as kineto
from traceprof.formats.kineto.collectives import is_collective_event
from traceprof.formats.kineto.parse import NO_TIME, Batch, KinetoEvent, whole
from traceprof.formats.kineto.stacks import FUNCTIONS
from traceprof.model.cutting import CutRequest
from traceprof.model.tables import ABSENT
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import DEVICE_TABLES

DEVICE: Final = frozenset((*kineto.KERNELS, *kineto.COPIES, *kineto.SYNCS, "gpu_user_annotation"))
"""Categories of events on GPUs."""
_LAUNCHES: Final = frozenset(kineto.API_CALLS)
_WORK: Final = frozenset((*kineto.KERNELS, *kineto.COPIES, *kineto.SYNCS))
_TABLES: Final = {
    **dict.fromkeys(kineto.KERNELS, ("kernels",)),
    **dict.fromkeys(kineto.COPIES, ("copies",)),
    **dict.fromkeys(kineto.API_CALLS, ("api_calls",)),
    **dict.fromkeys(kineto.OPERATORS, ("host_ops", "ranges", "collectives")),
    **dict.fromkeys(kineto.HOST_SOURCES, ("host_ops",)),
    **dict.fromkeys(kineto.COLLECTIVES, ("collectives",)),
    **dict.fromkeys(kineto.ANNOTATIONS, ("ranges",)),
    **dict.fromkeys(FUNCTIONS, ("ranges", "functions")),
    **dict.fromkeys(kineto.SYNCS, ("syncs",)),
    **dict.fromkeys(kineto.OVERHEADS, ("overheads",)),
    **dict.fromkeys(kineto.MEMORY, ("samples",)),
}
_MAIN_TABLES: Final = {category: tables[0] for category, tables in _TABLES.items()}
_ARROWS: Final = ("s", "t", "f")
_LAUNCH_ARROWS: Final = frozenset({"ac2g", "async_cpu_to_gpu", "async_gpu"})
_STARTS_INSIDE: Final = 1
_ENDS_INSIDE: Final = 2


@dataclass(slots=True)
class Related:
    """Relations between events: launches of kept GPU events, and flow arrows with both ends kept.

    ``recorded`` are the tables for which the file contains a requested event. ``devices`` are the
    GPUs of requested kernels and copies. Before `settle` the object holds all launches before the
    window, 24 bytes each.
    """

    launched: set[int] = field(default_factory=set)
    arrows: dict[Any, int] = field(default_factory=dict)
    early: dict[str, list[int]] = field(default_factory=dict)
    first_ns: int | None = None
    recorded: set[str] = field(default_factory=set)
    devices: set[int] = field(default_factory=set)
    _threads: dict[str, int] = field(default_factory=dict)
    _calls: list[npt.NDArray[np.int64]] = field(default_factory=list)

    def add(self, batch: Batch, rules: Rules) -> None:
        """Add the events of a run."""
        calls: list[tuple[int, int, int]] = []
        self._note(batch, rules)
        starts, overlaps = batch.start_ns.tolist(), rules.overlaps(batch).tolist()
        for event, start, overlaps_window in zip(batch.events, starts, overlaps, strict=True):
            category = event.cat or ""
            if event.ph == "X":
                if overlaps_window and category in _WORK:
                    if rules.is_on_requested_device(event):
                        self.launched.add(whole(event.arguments.correlation))
                elif category in _LAUNCHES and NO_TIME != start < rules.window.start_ns:
                    thread = self._threads.setdefault(_thread(event), len(self._threads))
                    calls.append((whole(event.arguments.correlation), thread, start))
            elif event.ph in _ARROWS and overlaps_window:
                side = _STARTS_INSIDE if event.ph == "s" else _ENDS_INSIDE
                key = _arrow(event)
                self.arrows[key] = self.arrows.get(key, 0) | side
        if calls:
            self._calls.append(np.array(calls, np.int64))

    def _note(self, batch: Batch, rules: Rules) -> None:
        """Collect which tables were recorded, and on which devices."""
        for event, start in zip(batch.events, batch.start_ns.tolist(), strict=True):
            table = _MAIN_TABLES.get(event.cat or "") if event.ph in ("X", "i") else None
            if start == NO_TIME or table is None or not rules.is_requested(event):
                continue
            self.recorded.add(table)
            if table == "kernels" and event.arguments.grid is not None:
                self.recorded.add("kernel_shapes")
            if "collectives" not in self.recorded and is_collective_event(event):
                self.recorded.add("collectives")
            if table in DEVICE_TABLES:
                self.devices.add(device_of(event))

    def settle(self) -> None:
        """Find the launches that precede the window."""
        self.launched.discard(ABSENT)
        launched = np.fromiter(self.launched, np.int64, len(self.launched))
        names = list(self._threads)
        for calls in self._calls:
            for _, thread, start in calls[np.isin(calls[:, 0], launched)].tolist():
                self.early.setdefault(names[thread], []).append(start)
        self._calls.clear()
        for starts in self.early.values():
            starts.sort()
        self.first_ns = min((starts[0] for starts in self.early.values()), default=None)

    def encloses_launch(self, event: KinetoEvent, start: int, end: int) -> bool:
        """Return whether the event encloses a launch before the window on its thread."""
        starts = self.early.get(_thread(event))
        if not starts:
            return False
        place = bisect_left(starts, start)
        return place < len(starts) and starts[place] <= end


@dataclass(frozen=True, slots=True)
class Rules:
    """The request, and the window in ns since the base of the file's times."""

    request: CutRequest
    window: TimeWindow

    def overlaps(self, batch: Batch) -> npt.NDArray[np.bool_]:
        """Return which events overlap the window."""
        starts = batch.start_ns
        ends = starts + np.where(batch.duration_ns > 0, batch.duration_ns, 0)
        overlaps: npt.NDArray[np.bool_] = (starts != NO_TIME) & self.window.overlaps(starts, ends)
        return overlaps

    def is_on_requested_device(self, event: KinetoEvent) -> bool:
        """Return whether a GPU event is on a requested device."""
        devices = self.request.devices
        return devices is None or device_of(event) in devices

    def kept(self, batch: Batch, related: Related) -> Iterator[int]:
        """Yield the indices of the events of a run that are kept."""
        starts, overlaps = batch.start_ns.tolist(), self.overlaps(batch).tolist()
        durations = batch.duration_ns.tolist()
        for index, event in enumerate(batch.events):
            start = starts[index]
            if start == NO_TIME or event.ph == "M":
                yield index
            elif event.ph in _ARROWS:
                if self._keeps_arrow(event, related):
                    yield index
            elif self.is_requested(event):
                end = start + max(durations[index], 0)
                if (
                    event.cat not in DEVICE or self.is_on_requested_device(event)
                    if overlaps[index]
                    else self._launched(event, related, start, end)
                ):
                    yield index

    def _launched(self, event: KinetoEvent, related: Related, start: int, end: int) -> bool:
        """Return whether an earlier event launched a kept one, or encloses such a launch."""
        if event.ph != "X" or start >= self.window.start_ns or event.cat in DEVICE:
            return False
        if event.cat in _LAUNCHES and whole(event.arguments.correlation) in related.launched:
            return True
        return related.encloses_launch(event, start, end)

    def _keeps_arrow(self, event: KinetoEvent, related: Related) -> bool:
        """Return whether both ends of a flow arrow are kept."""
        if self.request.tables is not None:
            return False
        if event.cat in _LAUNCH_ARROWS:
            return whole(event.id) in related.launched
        return related.arrows.get(_arrow(event)) == _STARTS_INSIDE | _ENDS_INSIDE

    def is_requested(self, event: KinetoEvent) -> bool:
        """Return whether the request includes events of this category."""
        category = event.cat or ""
        tables: tuple[str, ...] = _TABLES.get(category, ())
        return self.request.takes(frozenset({*tables, category}))


def device_of(event: KinetoEvent) -> int:
    """Return the device of a GPU event."""
    device = whole(event.arguments.device)
    return whole(event.pid) if device == ABSENT else device


def _thread(event: KinetoEvent) -> str:
    return f"{event.pid}/{event.tid}"


def _arrow(event: KinetoEvent) -> Any:
    """Return the key that the two ends of a flow arrow share."""
    return event.cat, str(event.id)
