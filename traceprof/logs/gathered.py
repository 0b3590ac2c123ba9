"""What is gathered of a run while its log is read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Any, Final, NamedTuple, TypedDict, Unpack

from traceprof.logs.cleaning import Line
from traceprof.logs.clock import Clock
from traceprof.logs.series import Key, Point, Series
from traceprof.model.results import Note, Unit
from traceprof.values import dataclass

__all__ = ["Book", "Facts", "Gathered", "Of", "When"]

_MOST_POINTS: Final = 400_000
_FEWEST_POINTS: Final = 256
_POINTS_OF_A_SERIES: Final = 2_000
_MOST_SERIES: Final = 3_000
_MOST_ROWS: Final = 20_000
_COPIES_REACH: Final = 2
_LARGEST: Final = 1 << 53
"""What is larger is no counter: floats hold it in part."""


class When(NamedTuple):
    """A time: of the log's clock, or (``is_elapsed``) since training began; NaN: not known."""

    seconds: float = math.nan
    is_elapsed: bool = False


NOWHERE: Final = Point()
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
    """What a measure is of: the run, and printed, unless said otherwise."""

    scope: str
    better: str
    source: str
    over: str


@dataclass(slots=True)
class Facts:
    """What readers learn of a run beside its numbers; None: not known.

    ``batch_per_process`` is what one process takes at a time, on all its devices. ``train_samples``
    is the size of the data set. ``has_warmup``: the rates that are printed hold the first steps.
    """

    world_size: int | None = None
    devices: int | None = None
    nodes: int | None = None
    global_batch: float | None = None
    batch_per_device: float | None = None
    batch_per_process: float | None = None
    accumulation: int | None = None
    tokens_per_step: float | None = None
    train_samples: float | None = None
    has_warmup: bool = True

    @property
    def size(self) -> int | None:
        """On how many devices the run trains, where one process has one device or more."""
        return self.devices or self.world_size

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
    life: int = 0
    training_from_s: float | None = None
    utc_of_zero_s: int | None = None
    left_out: int = 0
    computed: set[str] = field(default_factory=set)

    def metric(
        self, name: str, value: float | None, point: Point = NOWHERE, **of: Unpack[Of]
    ) -> None:
        """Note a value of a metric, in the unit of its name."""
        if value is None:
            return
        over, rank = of.get("over", "step"), of.get("rank")
        key = Key(name, self.life, -1 if rank is None else rank, of.get("scope", "run"), over)
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
        is_new = (self.life, number) not in self.epochs
        if number > _LARGEST or (is_new and len(self.epochs) >= _MOST_ROWS):
            self.left_out += 1
            return
        own = self.epochs.setdefault((self.life, number), {})
        own.update({name: value for name, value in values.items() if value is not None})

    def event(
        self, kind: str, when: When = NEVER, seconds: float | None = None, **about: Any
    ) -> None:
        """Note what happened; ``about``: rank, node, epoch, value, text."""
        if len(self.events) >= _MOST_ROWS:
            self.left_out += 1
            return
        self.events.append(
            {"kind": kind, "when": when, "seconds": seconds, "life": self.life, **about}
        )

    def measure(self, name: str, value: float | None, unit: Unit, **of: Unpack[OfMeasure]) -> None:
        """Note the run in one number; the last one of a name counts."""
        if value is None or not math.isfinite(value):
            return
        self.measures[name] = {
            "measure": name,
            "value": float(value),
            "unit": str(unit),
            "scope": of.get("scope", "run"),
            "better": of.get("better", ""),
            "source": of.get("source", "printed"),
            "over": of.get("over", ""),
        }

    def say(self, text: str, **values: Any) -> None:
        """Note what must be read with the numbers, once."""
        note = Note.of(text, **values)
        if all((other.text, other.values) != (text, values) for other in self.notes):
            self.notes.append(note)

    def of(self, metric: str) -> Iterator[tuple[Key, Series]]:
        """Yield the series of a metric, life by life."""
        for key, series in self.series.items():
            if key.metric == metric:
                yield key, series

    @property
    def is_empty(self) -> bool:
        """Whether nothing is known of it."""
        return not (self.series or self.epochs or self.events or self.measures)


class Book:
    """The runs of one log: readers write to ``run``, the one that is at work."""

    def __init__(self) -> None:
        self.clock = Clock()
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

    def when(self, line: Line) -> When:
        """Return when ``line`` was written, as far as it says so."""
        found = self.clock.read(line.raw)
        return When() if found is None else When(found)

    def restarting(self) -> None:
        """Note that the program is started again: what follows is its next life."""
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

        Going back by more than what ranks are apart is another life of the run; going back to
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
        self.run.life += 1
        if top is not None and place <= top:
            self._say_where(place, top)
        self._top = place

    def _say_where(self, place: tuple[float, float], top: tuple[float, float]) -> None:
        """Note from where the program went on, with the restart that its launcher told of."""
        text = f"goes on at step {place[1]:g} after step {top[1]:g}"
        if place[0] != top[0]:
            text = f"goes on at epoch {place[0]:g}, step {place[1]:g} after {top[0]:g}, {top[1]:g}"
        last = next((e for e in reversed(self.run.events) if e["kind"] == "restart"), None)
        if last is not None and last["life"] == self.run.life - 1 and "goes on" not in last["text"]:
            last["text"] = f"{last['text']}; {text}".removeprefix("; ")
            last["life"] = self.run.life
        else:
            self.run.event("restart", text=text)

    def _forget(self) -> None:
        self._last, self._top = {}, None
