"""Time in a trace: windows, steps, and clock corrections."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.model.intervals import Intervals
from traceprof.model.table import Table

TRACEPROF_DOMAIN: Final = "traceprof"
PYTHON_SAMPLES_DOMAIN: Final = "Python Backtrace"
"""Domain of the marks of nsys with ``--python-sampling=true``: one per sampled Python stack."""
"""The NVTX domain of the ranges that `traceprof record` adds."""
STEP_COLUMNS: Final = ("process", "thread", "step", "start_ns", "end_ns", "declared_warmup")
"""Columns of steps read from ranges or detected from kernels. Detected steps have thread -1."""
_Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, order=True)
class TimeWindow:
    """A set of instants on the clock of a trace: from ``start_ns`` to ``end_ns``, without ``gaps``.

    ``gaps`` are pairs of start and end: sorted, disjoint, and inside the window. Steps that an
    answer omits are gaps of its window. ``is_of_steps``: the user asked for steps, not times, so
    that shares refer to a step.
    """

    start_ns: int
    end_ns: int
    gaps: tuple[tuple[int, int], ...] = ()
    is_of_steps: bool = False

    @classmethod
    def of(
        cls, times: Intervals, hull: TimeWindow | None = None, *, is_of_steps: bool = False
    ) -> TimeWindow:
        """Return the window that contains exactly ``times`` (0 to 0 if empty).

        It lasts from the first to the last of these instants, or as long as ``hull``, which
        contains them. Then it may begin or end with a gap.
        """
        if not len(times):
            return cls(0, 0)
        start, end = int(times.starts[0]), int(times.ends[-1])
        if hull is not None:
            start, end = hull.start_ns, hull.end_ns
        gaps = times.gaps(start, end)
        pairs = zip(gaps.starts.tolist(), gaps.ends.tolist(), strict=True)
        return cls(start, end, tuple(pairs), is_of_steps)

    @property
    def times(self) -> Intervals:
        """The instants as a set of intervals."""
        if not self.gaps:
            return Intervals.single(self.start_ns, self.end_ns)
        starts = np.array([self.start_ns, *(end for _, end in self.gaps)], np.int64)
        ends = np.array([*(start for start, _ in self.gaps), self.end_ns], np.int64)
        return Intervals.union_of(starts, ends)

    @property
    def hull(self) -> TimeWindow:
        """The window without gaps."""
        return TimeWindow(self.start_ns, self.end_ns, (), self.is_of_steps) if self.gaps else self

    @property
    def duration_ns(self) -> int:
        """The length without gaps; 0 for an empty window, never negative."""
        left_out_ns = sum(end - start for start, end in self.gaps)
        return max(0, self.end_ns - self.start_ns - left_out_ns)

    def __and__(self, other: TimeWindow) -> TimeWindow:
        """Return the time in both windows (empty if they do not overlap)."""
        start = max(self.start_ns, other.start_ns)
        is_of_steps = self.is_of_steps or other.is_of_steps
        end = max(start, min(self.end_ns, other.end_ns))
        hull = TimeWindow(start, end, is_of_steps=is_of_steps)
        if not self.gaps and not other.gaps:
            return hull
        both = self.times & other.times
        if not len(both):
            return TimeWindow(start, start)
        return TimeWindow.of(both, hull, is_of_steps=is_of_steps)

    def __or__(self, other: TimeWindow) -> TimeWindow:
        """Return the window from the earliest start to the latest end."""
        return TimeWindow(min(self.start_ns, other.start_ns), max(self.end_ns, other.end_ns))

    def moved(self, ns: int) -> TimeWindow:
        """Return the window shifted by ``ns``."""
        gaps = tuple((start + ns, end + ns) for start, end in self.gaps)
        return TimeWindow(self.start_ns + ns, self.end_ns + ns, gaps, self.is_of_steps)

    def overlaps(
        self, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        """Return which rows ``[starts[i], ends[i])`` have a part inside the window.

        A row without duration counts if its instant is inside.
        """
        lasting = np.minimum(ends, self.end_ns) > np.maximum(starts, self.start_ns)
        if self.gaps:
            lasting &= self.times.covered_ns(starts, ends) > 0
        return np.asarray(lasting | ((starts == ends) & self.holds(starts)), np.bool_)

    def elapsed_ns(self, instants: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the ns of the window before each instant."""
        inside = np.clip(instants, self.start_ns, self.end_ns)
        if not self.gaps:
            return inside - self.start_ns
        return self.times.covered_ns(np.full_like(inside, self.start_ns), inside)

    def holds(self, instants: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which instants are inside the window."""
        inside = (instants >= self.start_ns) & (instants < self.end_ns)
        return inside & (self.times.covered_ns(instants, instants + 1) > 0) if self.gaps else inside


def empty_steps() -> Table:
    """Return a table without steps."""
    columns = dict.fromkeys(STEP_COLUMNS, np.empty(0, np.int64))
    return Table({**columns, "declared_warmup": np.empty(0, np.bool_)})


def steps_between(process: int, thread: int, ends: npt.NDArray[np.int64]) -> Table:
    """Return the steps of a process between consecutive ``ends``, numbered from 1."""
    numbers, declared = np.arange(1, len(ends)), np.zeros(len(ends) - 1, np.bool_)
    place = (np.full(len(numbers), number) for number in (process, thread))
    columns = (*place, numbers, ends[:-1], ends[1:], declared)
    return Table(dict(zip(STEP_COLUMNS, columns, strict=True)))


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """The steps of a trace.

    ``table`` has one row per process and step, sorted by process and start:

    - process, thread (of the training loop; -1 if unknown), step (its number);
    - start_ns, end_ns: its borders on the host;
    - next_ns: start of the next step of the process on the host; for the last step, its own end.
      The period is the time from start_ns to next_ns without recorder_ns;
    - recorder_ns: time in the period that the embedded recorder took for itself;
    - launched_ns: time when it had launched its last work (its end if unknown);
    - device_start_ns, device_end_ns: the step on the devices, from the end of the last work that
      the previous step launched to the end of the last work that this step launched. The first step
      starts as late after its host start as it ends after its host end, but not after its first
      work. Without known launches, this is the period;
    - on_device: whether these times are known from launches, or are times of kernels;
    - declared_warmup (whether its name says so), is_warmup (detected in, or given for, the whole
      trace).

    ``source`` names what the steps were read from ("" without steps). ``confidence_ratio`` is 1
    unless the steps were detected; then it is the share of the kernel sequence that repeats.
    ``is_pattern``: the rows are iterations of a repeating pattern whose meaning is unknown, not
    steps.
    """

    table: Table
    source: str
    confidence_ratio: float = 1.0
    is_pattern: bool = False

    def __len__(self) -> int:
        return len(self.table)

    @property
    def is_inferred(self) -> bool:
        """Whether the steps were detected in the kernel sequence, without step markers."""
        return self.confidence_ratio < 1

    @property
    def durations_ns(self) -> npt.NDArray[np.int64]:
        """The length of each step: on the devices if known, otherwise its period."""
        whole = self.table["device_end_ns"] - self.table["device_start_ns"]
        return np.asarray(np.where(self.table["on_device"], whole, self.periods_ns), np.int64)

    @property
    def whole_lengths_ns(self) -> npt.NDArray[np.int64]:
        """The length of each step; the first of a process includes host time before GPU work."""
        table, process = self.table, self.table["process"]
        is_first = np.append(True, process[1:] != process[:-1])[: len(process)]
        before = np.maximum(table["device_start_ns"] - table["start_ns"], 0)
        return self.durations_ns + np.where(is_first & table["on_device"], before, 0)

    @property
    def periods_ns(self) -> npt.NDArray[np.int64]:
        """The time from each step to the next on the host, without the recorder's own time."""
        whole = self.table["next_ns"] - self.table["start_ns"]
        return np.asarray(whole - self.table["recorder_ns"], np.int64)

    def warmup(self) -> npt.NDArray[np.bool_]:
        """Return which rows are warm-up: the same number of leading steps in every process."""
        return np.asarray(self.table["is_warmup"], np.bool_)


@dataclass(frozen=True, slots=True)
class ClockCorrection:
    """Clock error: ahead by ``offset_ns`` at the instant ``at_ns``, growing by ``drift_ratio``."""

    offset_ns: float = 0.0
    drift_ratio: float = 0.0
    at_ns: int = 0

    def error_ns(self, instants: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Return how far the clock is ahead at each instant (on that clock)."""
        return np.asarray(self.offset_ns + self.drift_ratio * (instants - self.at_ns), np.float64)

    def apply(self, instants: _Int64Array) -> _Int64Array:
        """Return the instants on the common clock, rounded to whole nanoseconds."""
        return instants - np.rint(self.error_ns(instants)).astype(np.int64)


_UNITS: Final = (("s", 9), ("ms", 6), ("us", 3))


def typed_window(start_ns: int, end_ns: int) -> str:
    """Return a window for ``--window``, to a thousandth of its length: "1.25ms..1.75ms".

    It contains the whole time from ``start_ns`` to ``end_ns``, neither of which is negative.
    """
    unit, digits = next(
        (unit_digits for unit_digits in _UNITS if end_ns >= 10 ** unit_digits[1]), _UNITS[-1]
    )
    grain = 10 ** max(0, len(str(end_ns - start_ns)) - 4)
    ends = start_ns // grain * grain, -(-end_ns // grain) * grain
    texts = (f"{Decimal(end).scaleb(-digits):f}" for end in ends)
    short = (text.rstrip("0").rstrip(".") if "." in text else text for text in texts)
    return "..".join(f"{text}{unit}" for text in short)
