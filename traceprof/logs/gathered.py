"""What is gathered of a run while its log is read: values of metrics, epochs, events."""

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
_RECENT: Final = 32
_MOST_POINTS: Final = 400_000
_FEWEST_POINTS: Final = 256
_POINTS_OF_A_SERIES: Final = 2_000
_MOST_SERIES: Final = 3_000
_MOST_ROWS: Final = 20_000
_COPIES_REACH: Final = 2
_LARGEST: Final = 1 << 53
"""What is larger is no counter: floats hold it in part."""
_SUFFIXES: Final = (
    ("_per_s", Unit.PER_S),
    ("_ns", Unit.NS),
    ("_bytes", Unit.BYTES),
    ("_ratio", Unit.RATIO),
    ("_count", Unit.COUNT),
)
_BETTER: Final = {Unit.PER_S: "higher", Unit.NS: "lower"}


class Key(NamedTuple):
    """What a series is of; rank −1: of the run, or not known."""

    metric: str
    attempt: int
    rank: int
    scope: str
    over: str


class LogPoint(NamedTuple):
    """Where in the run a value belongs; NaN: not known."""

    step: float = math.nan
    epoch: float = math.nan
    at_s: float = math.nan
    samples: float = math.nan


@dataclass(slots=True)
class Series:
    """Values of one metric. ``is_elapsed``: times count from the start of training.

    What several ranks print of the same place without saying who they are are *copies*: their mean
    is kept, and ``copies`` is the most that were seen of one place.
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
        """Add a value; ``is_redrawn``: it takes the place of an earlier one of the same place."""
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
        if len(self._recent) > _RECENT:
            self._recent.popitem(last=False)
        self._append(point, value)
        if len(self.values) > limit:
            for column in (self.steps, self.epochs, self.at_s, self.samples, self.values):
                del column[1::2]
            self._recent.clear()
            self.stride *= 2

    def _merge(self, seen: list[int], value: float, *, is_redrawn: bool) -> None:
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
        """Note that nothing follows: the last value is kept whatever was thinned."""
        if self._last is not None and (self.total - 1) % self.stride:
            self._append(*self._last)
            self._last = None

    @property
    def begins(self) -> bool:
        """Whether its first value is about the first steps of the run."""
        steps = np.asarray(self.steps)
        if len(steps) < 2 or math.isnan(steps[0]) or math.isnan(steps[1]):
            return False
        return bool(0 <= steps[0] <= max(1.0, (steps[1] - steps[0]) / self.stride))

    def steady(self, *, has_warmup: bool = True) -> npt.NDArray[np.float64]:
        """Return its finite values, without the first where that is of the first steps."""
        values = np.asarray(self.values, np.float64)
        if has_warmup and len(values) >= 3 and self.begins:
            values = values[1:]
        return values[np.isfinite(values)]


class When(NamedTuple):
    """A time: of the log's clock, or (``is_elapsed``) since training began; NaN: not known."""

    seconds: float = math.nan
    is_elapsed: bool = False


NOWHERE: Final = LogPoint()
NEVER: Final = When()


class Of(TypedDict, total=False):
    """What a value of a metric is of: the run and one step unless said otherwise.

    ``is_elapsed``: the time of its point counts from the start of training. ``is_redrawn``: it
    takes the place of an earlier value of the same step.
    """

    scope: str
    over: str
    rank: int | None
    is_elapsed: bool
    is_redrawn: bool


class OfMeasure(TypedDict, total=False):
    """What a measure is of: the run, and printed, unless said otherwise.

    Rates are the better the higher, lengths the lower, and of others it is not known.
    """

    unit: Unit
    scope: str
    better: str
    source: str
    over: str


def unit_of(name: str) -> Unit:
    """Return the unit that the name of a measure or a metric ends with."""
    for each in ("_per_device", "_per_rank"):
        name = name.removesuffix(each)
    return next((unit for suffix, unit in _SUFFIXES if name.endswith(suffix)), Unit.NUMBER)


@dataclass(slots=True)
class Facts:
    """What readers learn of a run beside its numbers; None: not known.

    ``batch_per_process`` is what one process takes at a time, on all its devices. ``train_samples``
    is the size of the data set, ``sequence`` how many tokens a sample has. ``has_warmup``: rates
    that are printed hold the first steps.
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

    @property
    def size(self) -> int | None:
        """On how many devices the run trains, where one process has one device or more."""
        return self.devices or self.world_size

    @property
    def tokens(self) -> float | None:
        """Tokens of a step on all devices."""
        if self.tokens_per_step or not (self.global_batch and self.sequence):
            return self.tokens_per_step
        return self.global_batch * self.sequence

    @property
    def batch(self) -> float | None:
        """Samples of a step on all devices."""
        if self.global_batch:
            return self.global_batch
        each, size = self.batch_per_device, self.size
        if self.batch_per_process:
            each, size = self.batch_per_process, self.world_size
        return each * size * (self.accumulation or 1) if each and size else None


@dataclass(slots=True)
class Gathered:
    """One run of a log."""

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
    computed: set[str] = field(default_factory=set)

    def metric(
        self, name: str, value: float | None, point: LogPoint = NOWHERE, **of: Unpack[Of]
    ) -> None:
        """Note a value of a metric, in the unit of its name."""
        if value is None:
            return
        over, rank = of.get("over", "step"), of.get("rank")
        key = Key(name, self.attempt, -1 if rank is None else rank, of.get("scope", "run"), over)
        series = self.series.get(key)
        if series is None:
            if len(self.series) >= _MOST_SERIES:
                self.left_out += 1
                return
            series = self.series[key] = Series(of.get("is_elapsed", False))
        most = _POINTS_OF_A_SERIES if over in ("step", "interval", "ema") else _MOST_ROWS
        limit = min(most, max(_FEWEST_POINTS, _MOST_POINTS // len(self.series)))
        series.add(point, value, limit, is_redrawn=of.get("is_redrawn", False))

    def epoch(self, number: int, **values: float | None) -> None:
        """Note what is known of an epoch: seconds, at_s, steps, samples, ranks, is_elapsed."""
        is_new = (self.attempt, number) not in self.epochs
        if number > _LARGEST or (is_new and len(self.epochs) >= _MOST_ROWS):
            self.left_out += 1
            return
        own = self.epochs.setdefault((self.attempt, number), {})
        own.update({name: value for name, value in values.items() if value is not None})

    def event(
        self, kind: str, when: When = NEVER, seconds: float | None = None, **about: Any
    ) -> None:
        """Note what happened; ``about``: rank, node, epoch, value, text."""
        if len(self.events) >= _MOST_ROWS:
            self.left_out += 1
            return
        event = {"kind": kind, "when": when, "seconds": seconds, "attempt": self.attempt}
        self.events.append(event | about)

    def measure(self, name: str, value: float | None, **of: Unpack[OfMeasure]) -> None:
        """Note the run in one number, in the unit of its name; the last one of a name counts."""
        if value is None or not math.isfinite(value):
            return
        unit = unit_of(name)
        self.measures[name] = {
            "measure": name,
            "value": float(value),
            "unit": str(of.get("unit", unit)),
            "scope": of.get("scope", "run"),
            "better": of.get("better", _BETTER.get(unit, "")),
            "source": of.get("source", "printed"),
            "over": of.get("over", ""),
        }

    def say(self, text: str, **values: Any) -> None:
        """Note what must be read with the numbers, once."""
        note = Note.of(text, **values)
        if all((other.text, other.values) != (text, values) for other in self.notes):
            self.notes.append(note)

    def of(self, metric: str) -> Iterator[tuple[Key, Series]]:
        """Yield the series of a metric, attempt by attempt."""
        for key, series in self.series.items():
            if key.metric == metric:
                yield key, series

    def renamed(self, metric: str, name: str) -> None:
        """Call a metric otherwise, once all of it is known."""
        for key, series in list(self.of(metric)):
            del self.series[key]
            self.series[key._replace(metric=name)] = series

    @property
    def is_empty(self) -> bool:
        """Whether nothing is known of it."""
        return not (self.series or self.epochs or self.events or self.measures)


class Book:
    """The runs of one log: readers write to ``run``, the one that is at work."""

    def __init__(self) -> None:
        self.clock = LogClock()
        self.runs: list[Gathered] = [Gathered()]
        self._is_restarting = False
        self.at_end: list[Callable[[], None]] = []
        self._last: dict[int, list[tuple[float, float]]] = {}
        self._first: tuple[float, float] | None = None
        self._top: tuple[float, float] | None = None

    @property
    def run(self) -> Gathered:
        """The run that is at work."""
        return self.runs[-1]

    def when(self, line: LogLine) -> When:
        """Return when ``line`` was written, as far as it says so."""
        found = self.clock.read(line.raw)
        return When() if found is None else When(found)

    def restarting(self) -> None:
        """Note that the program is started again: what follows is its next attempt."""
        self._is_restarting = self._top is not None

    def begin_run(self) -> Gathered:
        """Begin another run, if anything is known of the one at work: readers end that one."""
        if not self.run.is_empty:
            for end in self.at_end:
                end()
            self.runs.append(Gathered())
            self.run.environment.update(self.runs[-2].environment)
            self._forget()
            self._first, self._is_restarting = None, False
        return self.run

    def position(self, step: float, epoch: float = 0.0, rank: int | None = None) -> None:
        """Note how far the program is, before what it says is noted.

        Going back by more than what ranks are apart is another attempt of the run; going back to
        where the run began, without a launcher that starts it again, another run.
        """
        place = (epoch, step)
        recent = self._last.setdefault(-1 if rank is None else rank, [])
        reach = _COPIES_REACH if rank is None else 1
        went_back = bool(recent) and place < recent[-1] and place not in recent[-reach:]
        if self._is_restarting or went_back:
            self._began_again(place)
            recent = self._last.setdefault(-1 if rank is None else rank, [])
        if not recent or place > recent[-1]:
            recent.append(place)
            del recent[:-_COPIES_REACH]
        self._first = place if self._first is None else self._first
        self._top = place if self._top is None else max(self._top, place)

    def _began_again(self, place: tuple[float, float]) -> None:
        top = self._top
        if not self._is_restarting and self._first is not None and place <= self._first:
            facts = self.run.facts
            self.begin_run().facts = facts
            return
        self._forget()
        self._is_restarting = False
        self.run.attempt += 1
        if top is not None and place <= top:
            self._say_where(place, top)
        self._top = place

    def _say_where(self, place: tuple[float, float], top: tuple[float, float]) -> None:
        """Note from where the program went on, with the restart that its launcher told of."""
        text = f"resumes at step {place[1]:g} after step {top[1]:g}"
        if place[0] != top[0]:
            text = f"resumes at epoch {place[0]:g}, step {place[1]:g} after {top[0]:g}, {top[1]:g}"
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

    def _forget(self) -> None:
        self._last, self._top = {}, None
