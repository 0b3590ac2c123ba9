"""The throughput of a run of MLPerf: what its blocks, epochs or evaluations and its batch give.

``epoch_num`` counts epochs in most logs, samples in some and tokens in others; ``train_samples``
is the size of the data set, or how many batches it has, or a setting. So each is held against what
else the log says, and there is no throughput where nothing settles it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np

from traceprof.logs.source import number

COUNTS_FROM: Final = 10_000
"""No run has so many epochs: such an ``epoch_num`` counts samples or tokens."""
_CLOSE: Final = 0.03
_SAME: Final = 0.1
_PRINTED: Final = 0.3
_OF_A_SIZE: Final = 10.0
_STEPS_OF_AN_EPOCH: Final = 5
_FEWEST: Final = 3
_AT_THE_END: Final = 0.02
_AT_THE_END_S: Final = 0.002
_SHORTEST_STEP_S: Final = 1e-4


class LogCounter(NamedTuple):
    """How far training was by one event: in samples, steps and epochs; NaN: it does not say."""

    samples: float = math.nan
    steps: float = math.nan
    epochs: float = math.nan

    @classmethod
    def of(cls, about: Mapping[str, Any]) -> LogCounter:
        """Return what the metadata of an event say."""
        epochs = about.get("epoch_num", about.get("first_epoch_num"))
        told = (about.get("samples_count"), about.get("step_num", about.get("step")), epochs)
        found = [number(one) for one in told]
        return cls(*(one if one is not None and abs(one) < math.inf else math.nan for one in found))


class TrainedSpan(NamedTuple):
    """A block, an epoch or an evaluation; ``epochs`` is how many a block says that it has."""

    start_s: float
    stop_s: float
    start: LogCounter
    stop: LogCounter
    epochs: float = math.nan


class Amount(NamedTuple):
    """So many samples in so many seconds."""

    samples: float
    seconds: float


class Throughput(NamedTuple):
    """What was trained, span by span; ``what`` they are; without the first where there are more."""

    what: str
    amounts: tuple[Amount, ...]

    @property
    def is_without_first(self) -> bool:
        """Whether there are enough spans to leave out the first, which holds warm-up."""
        return len(self.amounts) >= _FEWEST

    @property
    def per_s(self) -> float:
        """Samples per second."""
        steady = self.amounts[1:] if self.is_without_first else self.amounts
        return sum(n for n, _ in steady) / sum(s for _, s in steady)

    @property
    def whole(self) -> Amount:
        """All spans, with the first."""
        return Amount(sum(n for n, _ in self.amounts), sum(s for _, s in self.amounts))


@dataclass
class Progress:
    """What the events of one run say of how far training was, and when.

    ``sizes`` are those that the data set of the benchmark has by its rules, ``sequence`` the tokens
    of a sample where all are full, ``printed`` the rate that the program prints, ``iterations`` the
    steps and the epochs that were done. Nothing is added once a number was asked for.
    """

    batch: float | None = None
    sequence: float | None = None
    world_size: int | None = None
    train_samples: float | None = None
    samples_per_epoch: float | None = None
    sizes: Sequence[float] = ()
    printed: float | None = None
    began_s: float = math.nan
    ended_s: float = math.nan
    blocks: list[TrainedSpan] = field(default_factory=list)
    epochs: list[TrainedSpan] = field(default_factory=list)
    evaluations: list[TrainedSpan] = field(default_factory=list)
    iterations: tuple[float, float] = (0.0, 0.0)

    def position(self, at: LogCounter) -> float:
        """Return how many samples were trained at ``at``; NaN: not known."""
        if math.isfinite(at.samples):
            return at.samples
        if math.isfinite(at.steps) and self.batch:
            return at.steps * self.batch
        return at.epochs * (self.unit or math.nan)

    @cached_property
    def unit(self) -> float | None:
        """How many samples one of ``epoch_num`` is; None: not known."""
        told = [one.stop.epochs for one in self.evaluations if math.isfinite(one.stop.epochs)]
        told = told or [one.epochs for one in self.blocks if math.isfinite(one.epochs)]
        if max(told, default=0.0) < COUNTS_FROM:
            return self.epoch_samples
        counts = [b - a for a, b in pairwise(told) if b > a] or told
        tokens = (self.batch or 0) * (self.sequence or 0)
        is_tokens = tokens and all(count % tokens == 0 for count in counts)
        return 1 / self.sequence if is_tokens and self.sequence else 1.0

    @cached_property
    def epoch_samples(self) -> float | None:
        """How many samples an epoch has; None: nothing settles it."""
        said, batch, sizes = self.train_samples, self.batch, self.sizes
        if self.samples_per_epoch or not batch:
            return self.samples_per_epoch
        steps, epochs = self.iterations
        if steps > _STEPS_OF_AN_EPOCH * epochs > 0:
            own = steps * batch / epochs
            return _near(own, [said or 0.0, *sizes], _SAME) or own
        if said is None:
            is_one = sizes and all(_near(sizes[0], [size], _CLOSE) for size in sizes)
            return sizes[0] if is_one else None
        for found in (said, said * batch):
            if _near(found, sizes, _CLOSE):
                return found
        by_rate = self._by_printed_rate([said, said * batch, *sizes])
        alike = [size for size in sizes if 1 / _OF_A_SIZE < said / size < _OF_A_SIZE]
        of_ranks = _near(said * (self.world_size or 1), sizes, _CLOSE)
        return of_ranks or by_rate or next(iter(alike), said)

    def _by_printed_rate(self, sizes: Sequence[float]) -> float | None:
        """Return the first of ``sizes`` with which the rate is what the program prints."""
        amounts = [Amount(1.0, seconds) for _, seconds in self._trained(self.epochs)]
        amounts = amounts if len(amounts) >= _FEWEST else self._evaluated(itemgetter(2))
        if not (amounts and self.printed):
            return None
        per_s = Throughput("", tuple(amounts)).per_s
        return next((n for n in sizes if _near(n * per_s, [self.printed], _PRINTED)), None)

    def throughput(self) -> Throughput | None:
        """Return the samples of each block, epoch or part between evaluations, and their times."""
        found = [
            ("the blocks", self._exact_blocks() or self._of(self.blocks)),
            ("the epochs", self._of(self.epochs)),
            ("the time between evaluations", self._evaluated(self.position)),
        ]
        enough = [one for one in found if len(one[1]) >= _FEWEST]
        what, amounts = enough[0] if enough else max(found, key=lambda one: len(one[1]))
        rate = Throughput(what, tuple(amounts))
        is_possible = amounts and (not self.batch or self.batch > rate.per_s * _SHORTEST_STEP_S)
        return rate if is_possible else None

    def prints_tokens(self, rate: Throughput) -> bool:
        """Return whether the rate that the program prints is of tokens."""
        tokens = rate.per_s * (self.sequence or 0)
        return self.printed is not None and _near(self.printed, [tokens], _PRINTED) is not None

    def _trained(self, spans: Sequence[TrainedSpan]) -> Iterator[tuple[TrainedSpan, float]]:
        """Yield spans of training with their seconds, without evaluations that end them.

        Other evaluations run beside the training, on devices of their own.
        """
        starts = np.array([one.start_s for one in self.evaluations])
        stops = np.array([one.stop_s for one in self.evaluations])
        for span in spans:
            whole = span.stop_s - span.start_s
            is_inside = (starts > span.start_s) & (stops <= span.stop_s)
            is_at_end = span.stop_s - stops <= max(_AT_THE_END_S, _AT_THE_END * whole)
            seconds = whole - float(np.sum((stops - starts)[is_inside & is_at_end]))
            if seconds > 0:
                yield span, seconds

    def _exact_blocks(self) -> list[Amount]:
        """Return the blocks that count steps or samples."""
        found, before = [], 0.0
        for span, seconds in self._trained(self.blocks):
            steps, at = span.stop.steps - span.start.steps, span.stop.samples
            if steps > 0 and self.batch:
                found.append(Amount(steps * self.batch, seconds))
            elif at > 0:
                # Where training is, else the length of the block: then all say the same.
                found.append(Amount(at - before if at > before else at, seconds))
                before = at
        return found

    def _of(self, spans: Sequence[TrainedSpan]) -> list[Amount]:
        """Return spans that count epochs, in the unit that fits to the evaluations."""
        known = [span for span in spans if span.epochs > 0]
        if not known or self.unit is None:
            return []
        unit: float | None = self.unit
        placed = [one for one in self.evaluations if self.position(one.stop) > 0]
        if placed:
            # What begins behind the last evaluation is broken off.
            last = placed[-1]
            known = [span for span in known if span.start_s < last.start_s]
            begun = sum(span.epochs for span in known)
            done = sum(span.epochs for span in known if span.stop_s <= last.start_s)
            units = [self.unit, self.batch or 0.0, 1.0, 1 / (self.sequence or 1)]
            # An evaluation may end a block, or follow it.
            at = self.position(last.stop)
            found = [_near(at / told, units, _SAME) for told in (begun, done) if told]
            unit = next((one for one in found if one is not None), None)
        if unit is None:
            return []
        return [Amount(span.epochs * unit, seconds) for span, seconds in self._trained(known)]

    def _evaluated(self, place: Callable[[LogCounter], float]) -> list[Amount]:
        """Return what was trained before each evaluation and after the one before it."""
        found, before, since = [], 0.0, self.began_s
        for one in self.evaluations:
            at, seconds = place(one.stop), one.start_s - since
            if one.start_s > self.ended_s or not at > before:
                continue
            if seconds > 0:
                found.append(Amount(at - before, seconds))
            before, since = at, one.stop_s
        return found


def _near(value: float, others: Sequence[float], close: float) -> float | None:
    return next((one for one in others if one and abs(value / one - 1) <= close), None)
