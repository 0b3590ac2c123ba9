"""Compute the throughput of an MLPerf run from blocks, epochs, or evaluations, and batch size.

``epoch_num`` counts epochs in most logs, samples in some, tokens in others. ``train_samples`` is
the size of the data set, its number of batches, or a setting. Each number is therefore compared
with the rest of the log. Without agreement there is no throughput.
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

MIN_SAMPLE_COUNT: Final = 10_000
"""Smallest ``epoch_num`` that counts samples or tokens, because no run has this many epochs."""
_MAX_SIZE_DEVIATION_RATIO: Final = 0.03
"""Largest deviation of a size from a size in the benchmark rules."""
_MAX_EPOCH_DEVIATION_RATIO: Final = 0.1
_MAX_RATE_DEVIATION_RATIO: Final = 0.3
_MAX_SIZE_FACTOR: Final = 10.0
_MIN_STEPS_PER_EPOCH: Final = 5
_MIN_SPANS: Final = 3
_MAX_END_GAP_RATIO: Final = 0.02
_MAX_END_GAP_S: Final = 0.002
_MIN_STEP_S: Final = 1e-4


class LogCounter(NamedTuple):
    """Progress of training at an event: in samples, steps, and epochs.

    NaN if the event has no counter.
    """

    samples: float = math.nan
    steps: float = math.nan
    epochs: float = math.nan

    @classmethod
    def of(cls, about: Mapping[str, Any]) -> LogCounter:
        """Return the counters in the metadata of an event."""
        epochs = about.get("epoch_num", about.get("first_epoch_num"))
        texts = (about.get("samples_count"), about.get("step_num", about.get("step")), epochs)
        numbers = [number(value) for value in texts]
        return cls(
            *(
                value if value is not None and abs(value) < math.inf else math.nan
                for value in numbers
            )
        )


class TrainedSpan(NamedTuple):
    """A block, an epoch, or an evaluation.

    ``epochs`` is the number of epochs that a block declares.
    """

    start_s: float
    stop_s: float
    start: LogCounter
    stop: LogCounter
    epochs: float = math.nan


class Amount(NamedTuple):
    """A number of samples, and the seconds in which they were trained."""

    samples: float
    seconds: float


class Throughput(NamedTuple):
    """The samples and seconds of each span; ``what`` names the spans."""

    what: str
    amounts: tuple[Amount, ...]

    @property
    def is_without_first(self) -> bool:
        """Whether there are enough spans to omit the first one, which contains warm-up."""
        return len(self.amounts) >= _MIN_SPANS

    @property
    def per_s(self) -> float:
        """Samples per second."""
        steady = self.amounts[1:] if self.is_without_first else self.amounts
        return sum(n for n, _ in steady) / sum(s for _, s in steady)

    @property
    def whole(self) -> Amount:
        """The total of all spans, including the first one."""
        return Amount(sum(n for n, _ in self.amounts), sum(s for _, s in self.amounts))


@dataclass
class Progress:
    """The progress of training over time, from the events of one run.

    ``sizes`` are the data set sizes in the benchmark rules, ``sequence`` the tokens per sample if
    all samples are full, ``printed`` the rate that the program prints, ``iterations`` the finished
    steps and epochs. Do not change the fields after a property was read, because properties are
    cached.
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
        """Return the number of trained samples at ``at``; NaN if unknown."""
        if math.isfinite(at.samples):
            return at.samples
        if math.isfinite(at.steps) and self.batch:
            return at.steps * self.batch
        return at.epochs * (self.unit or math.nan)

    @cached_property
    def unit(self) -> float | None:
        """The number of samples per unit of ``epoch_num``; None if unknown."""
        positions = [
            span.stop.epochs for span in self.evaluations if math.isfinite(span.stop.epochs)
        ]
        positions = positions or [span.epochs for span in self.blocks if math.isfinite(span.epochs)]
        if max(positions, default=0.0) < MIN_SAMPLE_COUNT:
            return self.epoch_samples
        counts = [b - a for a, b in pairwise(positions) if b > a] or positions
        tokens = (self.batch or 0) * (self.sequence or 0)
        is_tokens = tokens and all(count % tokens == 0 for count in counts)
        return 1 / self.sequence if is_tokens and self.sequence else 1.0

    @cached_property
    def epoch_samples(self) -> float | None:
        """The number of samples per epoch; None if unknown."""
        declared, batch, sizes = self.train_samples, self.batch, self.sizes
        if self.samples_per_epoch or not batch:
            return self.samples_per_epoch
        steps, epochs = self.iterations
        if steps > _MIN_STEPS_PER_EPOCH * epochs > 0:
            measured = steps * batch / epochs
            return (
                _find_near(measured, [declared or 0.0, *sizes], _MAX_EPOCH_DEVIATION_RATIO)
                or measured
            )
        if declared is None:
            is_one = sizes and all(
                _find_near(sizes[0], [size], _MAX_SIZE_DEVIATION_RATIO) for size in sizes
            )
            return sizes[0] if is_one else None
        for found in (declared, declared * batch):
            if _find_near(found, sizes, _MAX_SIZE_DEVIATION_RATIO):
                return found
        by_rate = self._find_size_by_rate([declared, declared * batch, *sizes])
        plausible = [
            size for size in sizes if 1 / _MAX_SIZE_FACTOR < declared / size < _MAX_SIZE_FACTOR
        ]
        of_ranks = _find_near(declared * (self.world_size or 1), sizes, _MAX_SIZE_DEVIATION_RATIO)
        return of_ranks or by_rate or next(iter(plausible), declared)

    def _find_size_by_rate(self, sizes: Sequence[float]) -> float | None:
        """Return the first of ``sizes`` with which the computed rate matches the printed rate."""
        amounts = [Amount(1.0, seconds) for _, seconds in self._time_training(self.epochs)]
        amounts = (
            amounts
            if len(amounts) >= _MIN_SPANS
            else self._measure_between_evaluations(itemgetter(2))
        )
        if not (amounts and self.printed):
            return None
        per_s = Throughput("", tuple(amounts)).per_s
        return next(
            (n for n in sizes if _find_near(n * per_s, [self.printed], _MAX_RATE_DEVIATION_RATIO)),
            None,
        )

    def throughput(self) -> Throughput | None:
        """Return the samples and seconds of each block, epoch, or span between evaluations."""
        found = [
            ("the blocks", self._measure_counted_blocks() or self._measure_by_epochs(self.blocks)),
            ("the epochs", self._measure_by_epochs(self.epochs)),
            ("the time between evaluations", self._measure_between_evaluations(self.position)),
        ]
        enough = [pair for pair in found if len(pair[1]) >= _MIN_SPANS]
        what, amounts = enough[0] if enough else max(found, key=lambda pair: len(pair[1]))
        rate = Throughput(what, tuple(amounts))
        is_possible = amounts and (not self.batch or self.batch > rate.per_s * _MIN_STEP_S)
        return rate if is_possible else None

    def prints_tokens(self, rate: Throughput) -> bool:
        """Return whether the printed rate counts tokens."""
        tokens = rate.per_s * (self.sequence or 0)
        return (
            self.printed is not None
            and _find_near(self.printed, [tokens], _MAX_RATE_DEVIATION_RATIO) is not None
        )

    def _time_training(self, spans: Sequence[TrainedSpan]) -> Iterator[tuple[TrainedSpan, float]]:
        """Yield training spans with their seconds, without the evaluations that end them.

        Evaluations elsewhere in a span run in parallel with training, on other devices.
        """
        starts = np.array([evaluation.start_s for evaluation in self.evaluations])
        stops = np.array([evaluation.stop_s for evaluation in self.evaluations])
        for span in spans:
            whole = span.stop_s - span.start_s
            is_inside = (starts > span.start_s) & (stops <= span.stop_s)
            is_at_end = span.stop_s - stops <= max(_MAX_END_GAP_S, _MAX_END_GAP_RATIO * whole)
            seconds = whole - float(np.sum((stops - starts)[is_inside & is_at_end]))
            if seconds > 0:
                yield span, seconds

    def _measure_counted_blocks(self) -> list[Amount]:
        """Return the blocks that count steps or samples."""
        found, before = [], 0.0
        for span, seconds in self._time_training(self.blocks):
            steps, at = span.stop.steps - span.start.steps, span.stop.samples
            if steps > 0 and self.batch:
                found.append(Amount(steps * self.batch, seconds))
            elif at > 0:
                # The counter is the position of training, or (if it never grows) the block length.
                found.append(Amount(at - before if at > before else at, seconds))
                before = at
        return found

    def _measure_by_epochs(self, spans: Sequence[TrainedSpan]) -> list[Amount]:
        """Return the spans that count epochs, in the unit that matches the evaluations."""
        counted = [span for span in spans if span.epochs > 0]
        if not counted or self.unit is None:
            return []
        unit: float | None = self.unit
        placed = [span for span in self.evaluations if self.position(span.stop) > 0]
        if placed:
            # A span that starts after the last evaluation was interrupted.
            last = placed[-1]
            counted = [span for span in counted if span.start_s < last.start_s]
            epochs_begun = sum(span.epochs for span in counted)
            epochs_done = sum(span.epochs for span in counted if span.stop_s <= last.start_s)
            units = [self.unit, self.batch or 0.0, 1.0, 1 / (self.sequence or 1)]
            # An evaluation may be the end of a block, or follow it.
            at = self.position(last.stop)
            found = [
                _find_near(at / n_epochs, units, _MAX_EPOCH_DEVIATION_RATIO)
                for n_epochs in (epochs_begun, epochs_done)
                if n_epochs
            ]
            unit = next((match for match in found if match is not None), None)
        if unit is None:
            return []
        return [
            Amount(span.epochs * unit, seconds) for span, seconds in self._time_training(counted)
        ]

    def _measure_between_evaluations(self, place: Callable[[LogCounter], float]) -> list[Amount]:
        """Return the samples and seconds between successive evaluations."""
        found, before, since = [], 0.0, self.began_s
        for evaluation in self.evaluations:
            at, seconds = place(evaluation.stop), evaluation.start_s - since
            if evaluation.start_s > self.ended_s or not at > before:
                continue
            if seconds > 0:
                found.append(Amount(at - before, seconds))
            before, since = at, evaluation.stop_s
        return found


def _find_near(value: float, others: Sequence[float], max_deviation: float) -> float | None:
    """Return the first of ``others`` within ``max_deviation`` (relative) of ``value``, or None."""
    return next(
        (other for other in others if other and abs(value / other - 1) <= max_deviation), None
    )
