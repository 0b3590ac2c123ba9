"""Time in a trace: windows, steps, and what a clock shows too much."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.model.table import Table

OWN_DOMAIN: Final = "traceprof"
"""The NVTX domain of the ranges that `traceprof record` injects."""
STEP_COLUMNS: Final = ("process", "thread", "step", "start_ns", "end_ns", "declared_warmup")
"""What is read from ranges, or inferred from kernels: those have no thread (-1)."""
_Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, order=True)
class TimeWindow:
    """The instants from ``start_ns`` up to but not including ``end_ns``, on a trace's clock."""

    start_ns: int
    end_ns: int

    @property
    def duration_ns(self) -> int:
        """Its length; 0 for an empty window, never negative."""
        return max(0, self.end_ns - self.start_ns)

    def __and__(self, other: TimeWindow) -> TimeWindow:
        """Return the time in both windows (empty where they do not meet)."""
        start = max(self.start_ns, other.start_ns)
        return TimeWindow(start, max(start, min(self.end_ns, other.end_ns)))

    def __or__(self, other: TimeWindow) -> TimeWindow:
        """Return the time from the beginning of the first of the windows to the end of the last."""
        return TimeWindow(min(self.start_ns, other.start_ns), max(self.end_ns, other.end_ns))

    def moved(self, ns: int) -> TimeWindow:
        """Return the window ``ns`` later."""
        return TimeWindow(self.start_ns + ns, self.end_ns + ns)

    def overlaps(
        self, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        """Return which rows ``[starts[i], ends[i])`` have a part inside.

        A row without duration is inside if its instant is.
        """
        lasting = np.minimum(ends, self.end_ns) > np.maximum(starts, self.start_ns)
        inside: npt.NDArray[np.bool_] = lasting | ((starts == ends) & self.holds(starts))
        return inside

    def holds(self, instants: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which instants are inside."""
        return (instants >= self.start_ns) & (instants < self.end_ns)


def empty_steps() -> Table:
    """Return a table of no steps."""
    columns = dict.fromkeys(STEP_COLUMNS, np.empty(0, np.int64))
    return Table({**columns, "declared_warmup": np.empty(0, np.bool_)})


def steps_between(process: int, thread: int, ends: npt.NDArray[np.int64]) -> Table:
    """Return the steps of a process from each of ``ends`` to the next, numbered from 1."""
    numbers, declared = np.arange(1, len(ends)), np.zeros(len(ends) - 1, np.bool_)
    place = (np.full(len(numbers), number) for number in (process, thread))
    columns = (*place, numbers, ends[:-1], ends[1:], declared)
    return Table(dict(zip(STEP_COLUMNS, columns, strict=True)))


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """The steps of a trace.

    ``table`` has one row per process and step, sorted by process and start:

    - process, thread (that of its loop; -1 where it is not known), step (its number);
    - start_ns, end_ns: its borders on the host;
    - next_ns: where the next step of the process starts on the host, of the last one its own end:
      from start to next, without recorder_ns, is its period;
    - recorder_ns: what the embedded recorder took for itself in that time;
    - launched_ns: when it had launched its last work (its end, where that is not known);
    - device_start_ns, device_end_ns: the step itself. From the end of the last work that the step
      before launched to the end of the last work that it launched. The first step begins as late
      after its start on the host as it ends after its end, at most with its first work. Where its
      launches are not known, its period;
    - on_device: whether these are known from launches, or are times of kernels;
    - declared_warmup (whether its name says so), is_warmup (as found in, or said of, the whole).

    ``source`` says what they were read from ("" where there are none); ``confidence_ratio`` is 1
    unless they were inferred, then the share of the kernel sequence that repeats. ``is_pattern``:
    they are no steps, but iterations of a pattern that repeats, and nobody knows what it is.
    """

    table: Table
    source: str
    confidence_ratio: float = 1.0
    is_pattern: bool = False

    def __len__(self) -> int:
        return len(self.table)

    @property
    def is_inferred(self) -> bool:
        """Whether nobody named the steps: they were seen in the sequence of kernels."""
        return self.confidence_ratio < 1

    @property
    def durations_ns(self) -> npt.NDArray[np.int64]:
        """The length of each step: on the devices where that is known, else its period."""
        left_out = np.where(self.table["on_device"], 0, self.table["recorder_ns"])
        whole = self.table["device_end_ns"] - self.table["device_start_ns"]
        return np.asarray(whole - left_out, np.int64)

    @property
    def whole_lengths_ns(self) -> npt.NDArray[np.int64]:
        """The length of each step; the first of a process has what its host did before any work."""
        table, process = self.table, self.table["process"]
        is_first = np.append(True, process[1:] != process[:-1])[: len(process)]
        before = np.maximum(table["device_start_ns"] - table["start_ns"], 0)
        return self.durations_ns + np.where(is_first & table["on_device"], before, 0)

    @property
    def periods_ns(self) -> npt.NDArray[np.int64]:
        """From the start of each step to the next on the host, without the recorder's own time."""
        whole = self.table["next_ns"] - self.table["start_ns"]
        return np.asarray(whole - self.table["recorder_ns"], np.int64)

    def warmup(self) -> npt.NDArray[np.bool_]:
        """Return which rows are warm-up: the same number of leading steps in every process."""
        return np.asarray(self.table["is_warmup"], np.bool_)


@dataclass(frozen=True, slots=True)
class ClockCorrection:
    """What a clock shows too much: ``offset_ns`` at ``at_ns``, growing by ``drift_ratio``."""

    offset_ns: float = 0.0
    drift_ratio: float = 0.0
    at_ns: int = 0

    def error_ns(self, instants: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Return what the clock shows too much at each instant (on that clock)."""
        return np.asarray(self.offset_ns + self.drift_ratio * (instants - self.at_ns), np.float64)

    def apply(self, instants: _Int64Array) -> _Int64Array:
        """Return the instants on the common clock, rounded to whole nanoseconds."""
        return instants - np.rint(self.error_ns(instants)).astype(np.int64)


_UNITS: Final = (("s", 9), ("ms", 6), ("us", 3))


def typed_window(start_ns: int, end_ns: int) -> str:
    """Return a window as ``--window`` takes it, to a thousandth of its length: "1.25ms..1.75ms".

    It holds all of the time from ``start_ns`` to ``end_ns``, both not negative.
    """
    unit, digits = next((one for one in _UNITS if end_ns >= 10 ** one[1]), _UNITS[-1])
    grain = 10 ** max(0, len(str(end_ns - start_ns)) - 4)
    ends = start_ns // grain * grain, -(-end_ns // grain) * grain
    texts = (f"{Decimal(end).scaleb(-digits):f}" for end in ends)
    short = (text.rstrip("0").rstrip(".") if "." in text else text for text in texts)
    return "..".join(f"{text}{unit}" for text in short)
