"""Collect the metrics, epochs, and events of a run while its log is read."""

from __future__ import annotations

import math
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from traceprof.logs.lines import LogClock, LogLine
from traceprof.model.results import Note, Unit

INTERVALS: Final = ("step", "interval")
CUMULATIVE: Final = ("ema", "run")
_MAX_RECENT_PLACES: Final = 32
_MAX_POINTS: Final = 400_000
_MIN_POINTS_PER_SERIES: Final = 256
_MAX_POINTS_PER_SERIES: Final = 2_000
_MAX_SERIES: Final = 3_000
_MAX_ROWS: Final = 20_000
_MAX_COPY_DISTANCE: Final = 2
_MAX_COUNTER: Final = 1 << 53
"""Larger numbers are not treated as counters, because floats represent them inexactly."""
_SUFFIXES: Final = (
    ("_per_s", Unit.PER_S),
    ("_ns", Unit.NS),
    ("_bytes", Unit.BYTES),
    ("_ratio", Unit.RATIO),
    ("_count", Unit.COUNT),
)
_BETTER: Final = {Unit.PER_S: "higher", Unit.NS: "lower"}


class Key(NamedTuple):
    """Identity of a series; rank −1 means the whole run, or an unknown rank."""

    metric: str
    attempt: int
    rank: int
    scope: str
    over: str


class LogPoint(NamedTuple):
    """The position of a value in the run; NaN if unknown."""

    step: float = math.nan
    epoch: float = math.nan
    at_s: float = math.nan
    samples: float = math.nan


@dataclass(slots=True)
class Series:
    """The values of one metric.

    ``is_elapsed`` means that times count from the start of training. If several ranks print a value
    for the same place without their rank, the values are *copies*: the series stores their mean,
    and ``copies`` is the highest number seen at one place. A long series is thinned: it keeps every
    ``stride``-th value, and ``total`` is the number of values before thinning.
    """

    is_elapsed: bool = False
    steps: array[float] = field(default_factory=lambda: array("d"))
    epochs: array[float] = field(default_factory=lambda: array("d"))
    at_s: array[float] = field(default_factory=lambda: array("d"))
    samples: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("d"))
    copies: int = 1
    stride: int = 1
    total: int = 0
    _last: tuple[LogPoint, float] | None = None
    _recent: OrderedDict[tuple[float, float], list[int]] = field(default_factory=OrderedDict)

    def add(self, point: LogPoint, value: float, limit: int, *, is_redrawn: bool = False) -> None:
        """Add a value; thin the series if it exceeds ``limit`` values.

        With ``is_redrawn`` the value replaces an earlier value of the same place.
        """
        place = (point.step, point.epoch)
        if not (math.isnan(point.step) and math.isnan(point.epoch)):
            seen = self._recent.get(place)
            if seen is not None:
                self._merge(seen, value, is_redrawn=is_redrawn)
                return
        self.total += 1
        self._last = (point, value)
        if (self.total - 1) % self.stride:
            return
        self._recent[place] = [len(self.values), 1]
        if len(self._recent) > _MAX_RECENT_PLACES:
            self._recent.popitem(last=False)
        self._append(point, value)
        if len(self.values) > limit:
            for column in (self.steps, self.epochs, self.at_s, self.samples, self.values):
                del column[1::2]
            self._recent.clear()
            self.stride *= 2

    def _merge(self, seen: list[int], value: float, *, is_redrawn: bool) -> None:
        """Replace the value of a place, or update the mean of its copies.

        ``seen`` is (row, copies).
        """
        at = seen[0]
        if is_redrawn:
            self.values[at] = value
            return
        seen[1] += 1
        self.copies = max(self.copies, seen[1])
        self.values[at] += (value - self.values[at]) / seen[1]

    def _append(self, point: LogPoint, value: float) -> None:
        self.steps.append(point.step)
        self.epochs.append(point.epoch)
        self.at_s.append(point.at_s)
        self.samples.append(point.samples)
        self.values.append(value)

    def end(self) -> None:
        """Store the last value even if thinning dropped it; no value follows."""
        if self._last is not None and (self.total - 1) % self.stride:
            self._append(*self._last)
            self._last = None

    @property
    def begins(self) -> bool:
        """Whether the first value covers the first steps of the run."""
        steps = np.asarray(self.steps)
        if len(steps) < 2 or math.isnan(steps[0]) or math.isnan(steps[1]):
            return False
        return bool(0 <= steps[0] <= max(1.0, (steps[1] - steps[0]) / self.stride))

    def steady(self, *, has_warmup: bool = True) -> npt.NDArray[np.float64]:
        """Return the finite values, without a first one that covers the first steps of the run."""
        values = np.asarray(self.values, np.float64)
        if has_warmup and len(values) >= 3 and self.begins:
            values = values[1:]
        return values[np.isfinite(values)]


class When(NamedTuple):
    """A time on the log's clock or since the start of training (``is_elapsed``); NaN: unknown."""

    seconds: float = math.nan
    is_elapsed: bool = False


NOWHERE: Final = LogPoint()
NEVER: Final = When()


class MetricOptions(TypedDict, total=False):
    """What a metric value refers to; default: the whole run, over one step.

    ``is_elapsed`` means that the time of its point counts from the start of training. With
    ``is_redrawn`` the value replaces an earlier value of the same step.
    """

    scope: str
    over: str
    rank: int | None
    is_elapsed: bool
    is_redrawn: bool


class MeasureOptions(TypedDict, total=False):
    """What a measure refers to; default: the whole run, as printed.

    ``better`` defaults to "higher" for rates, "lower" for durations, and "" (unknown) for the rest.
    """

    unit: Unit
    scope: str
    better: str
    source: str
    over: str


def unit_of(name: str) -> Unit:
    """Return the unit that the suffix of a measure or metric name defines."""
    for each in ("_per_device", "_per_rank"):
        name = name.removesuffix(each)
    return next((unit for suffix, unit in _SUFFIXES if name.endswith(suffix)), Unit.NUMBER)


@dataclass(slots=True)
class Facts:
    """Properties of a run that readers find besides its metrics; None if unknown.

    ``batch_per_process`` counts the samples that one process takes at a time, on all its devices.
    ``train_samples`` is the size of the data set, ``sequence`` the number of tokens per sample.
    ``has_warmup`` means that printed rates include the first steps. Without ``has_step_counter``,
    lines count something else, such as episodes.
    """

    world_size: int | None = None
    devices: int | None = None
    nodes: int | None = None
    global_batch: float | None = None
    batch_per_device: float | None = None
    batch_per_process: float | None = None
    accumulation: int | None = None
    tokens_per_step: float | None = None
    sequence: float | None = None
    train_samples: float | None = None
    has_warmup: bool = True
    has_step_counter: bool = True

    @property
    def size(self) -> int | None:
        """The number of devices on which the run trains; each process has one device or more."""
        return self.devices or self.world_size

    @property
    def tokens(self) -> float | None:
        """Tokens per step on all devices."""
        if self.tokens_per_step or not (self.global_batch and self.sequence):
            return self.tokens_per_step
        return self.global_batch * self.sequence

    @property
    def batch(self) -> float | None:
        """Samples per step on all devices."""
        if self.global_batch:
            return self.global_batch
        each, size = self.batch_per_device, self.size
        if self.batch_per_process:
            each, size = self.batch_per_process, self.world_size
        return each * size * (self.accumulation or 1) if each and size else None


@dataclass(slots=True)
class CollectedRun:
    """Everything collected about one run of a log."""

    facts: Facts = field(default_factory=Facts)
    series: dict[Key, Series] = field(default_factory=dict)
    epochs: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    measures: dict[str, dict[str, Any]] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    command: str = ""
    workload: str = ""
    attempt: int = 0
    training_from_s: float | None = None
    utc_of_zero_s: int | None = None
    left_out: int = 0
    impossible: int = 0
    computed: set[str] = field(default_factory=set)

    def metric(
        self,
        name: str,
        value: float | None,
        point: LogPoint = NOWHERE,
        **options: Unpack[MetricOptions],
    ) -> None:
        """Add a value of a metric, in the unit that its name defines."""
        if value is None or self._is_impossible(name, value):
            return
        over, rank = options.get("over", "step"), options.get("rank")
        key = Key(
            name, self.attempt, -1 if rank is None else rank, options.get("scope", "run"), over
        )
        series = self.series.get(key)
        if series is None:
            if len(self.series) >= _MAX_SERIES:
                self.left_out += 1
                return
            series = self.series[key] = Series(options.get("is_elapsed", False))
        max_points = _MAX_POINTS_PER_SERIES if over in ("step", "interval", "ema") else _MAX_ROWS
        limit = min(max_points, max(_MIN_POINTS_PER_SERIES, _MAX_POINTS // len(self.series)))
        series.add(point, value, limit, is_redrawn=options.get("is_redrawn", False))

    def epoch(self, number: int, **values: float | None) -> None:
        """Store properties of an epoch: seconds, at_s, steps, samples, ranks, is_elapsed."""
        is_new = (self.attempt, number) not in self.epochs
        if number > _MAX_COUNTER or (is_new and len(self.epochs) >= _MAX_ROWS):
            self.left_out += 1
            return
        known = self.epochs.setdefault((self.attempt, number), {})
        known.update({name: value for name, value in values.items() if value is not None})

    def event(
        self, kind: str, when: When = NEVER, seconds: float | None = None, **about: Any
    ) -> None:
        """Add an event; ``about`` holds its rank, node, epoch, value, and text."""
        if len(self.events) >= _MAX_ROWS:
            self.left_out += 1
            return
        event = {"kind": kind, "when": when, "seconds": seconds, "attempt": self.attempt}
        self.events.append(event | about)

    def measure(self, name: str, value: float | None, **options: Unpack[MeasureOptions]) -> None:
        """Store one number of the run, in the unit that its name defines; the last value wins."""
        if value is None or not math.isfinite(value) or self._is_impossible(name, value):
            return
        unit = unit_of(name)
        self.measures[name] = {
            "measure": name,
            "value": float(value),
            "unit": str(options.get("unit", unit)),
            "scope": options.get("scope", "run"),
            "better": options.get("better", _BETTER.get(unit, "")),
            "source": options.get("source", "printed"),
            "over": options.get("over", ""),
        }

    def _is_impossible(self, name: str, value: float) -> bool:
        """Return whether a time or rate is below 0, and count it."""
        is_impossible = value < 0 and unit_of(name) in _BETTER
        self.impossible += is_impossible
        return is_impossible

    def say(self, text: str, **values: Any) -> None:
        """Add a note that a reader of the numbers needs, unless it exists already."""
        note = Note.of(text, **values)
        if all((other.text, other.values) != (text, values) for other in self.notes):
            self.notes.append(note)

    def of(self, metric: str) -> Iterator[tuple[Key, Series]]:
        """Yield the series of a metric, with their keys."""
        for key, series in self.series.items():
            if key.metric == metric:
                yield key, series

    def renamed(self, metric: str, name: str) -> None:
        """Rename a metric after all its values were read."""
        for key, series in list(self.of(metric)):
            del self.series[key]
            self.series[key._replace(metric=name)] = series

    @property
    def is_empty(self) -> bool:
        """Whether nothing was collected."""
        return not (self.series or self.epochs or self.events or self.measures)


class LogRuns:
    """All runs of one log; readers write to ``run``, the current one."""

    def __init__(self) -> None:
        self.clock = LogClock()
        self.runs: list[CollectedRun] = [CollectedRun()]
        self._is_restarting = False
        self.at_end: list[Callable[[], None]] = []
        self._last: dict[int, list[tuple[float, float]]] = {}
        self._first: tuple[float, float] | None = None
        self._furthest: tuple[float, float] | None = None

    @property
    def run(self) -> CollectedRun:
        """The current run."""
        return self.runs[-1]

    def when(self, line: LogLine) -> When:
        """Return the timestamp of ``line``; unknown (NaN) if it has none."""
        found = self.clock.read(line.raw)
        return When() if found is None else When(found)

    def restarting(self) -> None:
        """Record that the program restarts; the lines that follow belong to its next attempt."""
        self._is_restarting = self._furthest is not None

    def begin_run(self) -> CollectedRun:
        """Start another run if the current one is not empty, and return the current run.

        The readers of the current run finish first (``at_end``).
        """
        if not self.run.is_empty:
            for end in self.at_end:
                end()
            self.runs.append(CollectedRun())
            self.run.environment.update(self.runs[-2].environment)
            self._forget_positions()
            self._first, self._is_restarting = None, False
        return self.run

    def position(self, step: float, epoch: float = 0.0, rank: int | None = None) -> None:
        """Record how far training is, before values of that position are stored.

        A position behind an earlier one by more than the distance between ranks starts another
        attempt of the run. A return to the first position, without a restart by a launcher, starts
        another run.
        """
        place = (epoch, step)
        recent = self._last.setdefault(-1 if rank is None else rank, [])
        reach = _MAX_COPY_DISTANCE if rank is None else 1
        went_back = bool(recent) and place < recent[-1] and place not in recent[-reach:]
        if self._is_restarting or went_back:
            self._note_restart(place)
            recent = self._last.setdefault(-1 if rank is None else rank, [])
        if not recent or place > recent[-1]:
            recent.append(place)
            del recent[:-_MAX_COPY_DISTANCE]
        self._first = place if self._first is None else self._first
        self._furthest = place if self._furthest is None else max(self._furthest, place)

    def _note_restart(self, place: tuple[float, float]) -> None:
        """Start the next run or the next attempt, after training went back to ``place``."""
        furthest = self._furthest
        if not self._is_restarting and self._first is not None and place <= self._first:
            facts = self.run.facts
            self.begin_run().facts = facts
            return
        self._forget_positions()
        self._is_restarting = False
        self.run.attempt += 1
        if furthest is not None and place <= furthest:
            self._note_resume(place, furthest)
        self._furthest = place

    def _note_resume(self, place: tuple[float, float], furthest: tuple[float, float]) -> None:
        """Add the resume position to the restart event of the launcher, or add a new event."""
        text = f"resumes at step {place[1]:g} after step {furthest[1]:g}"
        if place[0] != furthest[0]:
            after = f"{furthest[0]:g}, {furthest[1]:g}"
            text = f"resumes at epoch {place[0]:g}, step {place[1]:g} after {after}"
        last = next((e for e in reversed(self.run.events) if e["kind"] == "restart"), None)
        if (
            last is not None
            and last["attempt"] == self.run.attempt - 1
            and "resumes" not in last["text"]
        ):
            last["text"] = f"{last['text']}; {text}".removeprefix("; ")
            last["attempt"] = self.run.attempt
        else:
            self.run.event("restart", text=text)

    def _forget_positions(self) -> None:
        self._last, self._furthest = {}, None
