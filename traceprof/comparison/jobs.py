"""Analyze one job: compare each epoch with a typical epoch, and explain the cost of restarts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan, nan
from typing import Any, Final

import numpy as np

from traceprof.comparison.sides import table_of
from traceprof.measures.rows import Bools, Floats, Ints, floats
from traceprof.model.grouping import grouped_by
from traceprof.model.summary import Summary
from traceprof.model.table import Table, is_known, is_unknown

PARTS: Final = (
    *("redone", "noticing", "down", "rendezvous", "failed", "initialization", "loading", "setup"),
)
"""The parts of the time lost at a restart, in the order in which they occur."""

_TOTALS: Final = ("total_ns", "train_ns", "time_to_train_ns")
_MAX_LOST_RATIO: Final = 0.01
_NUMBERS: Final = ("attempt", "rank", "epoch", "at_ns", "duration_ns", "value")


@dataclass(frozen=True, slots=True)
class LostTime:
    """The time lost at one restart or rescaling, in ns; ``parts`` explain some of it.

    ``inside_ns`` of ``lost_ns`` are within the duration of ``epoch``, the epoch in which training
    resumed.
    """

    number: int
    attempt: float
    epoch: float
    at_ns: float
    lost_ns: float
    parts: Mapping[str, float]
    redone_count: float
    why: str
    ranks_before: float
    ranks_after: float
    inside_ns: float

    @property
    def explained_ns(self) -> float:
        """The lost time that the parts explain, at most the lost time."""
        return min(self.lost_ns, sum(self.parts.values()))

    @property
    def unexplained_ns(self) -> float:
        """The lost time without a known cause."""
        return self.lost_ns - self.explained_ns


@dataclass(frozen=True, slots=True, eq=False)
class ElasticJob:
    """A job; durations in ns, NaN if unknown.

    ``epochs`` has one row per epoch number, for the attempt whose work was kept. Its columns are
    epoch, attempt, at_ns, duration_ns, lost_ns (lost time within the epoch), typical_ns (the
    median of nearby undisturbed epochs), typical_of (the numbers of these epochs), beyond_ns (the
    remaining duration), steps_count, ranks_count, is_first and is_restart. ``cut_count`` epochs
    were started again.
    """

    name: str
    total_ns: float
    setup_ns: float
    initialization_ns: float
    epochs: Table
    lost: Sequence[LostTime]
    cut_count: int = 0
    restarts_count: int = 0
    accuracy: Mapping[float, float] = field(default_factory=dict)
    accuracy_name: str = ""
    top5: Mapping[float, float] = field(default_factory=dict)

    @property
    def lost_ns(self) -> float:
        """The time lost at all restarts."""
        return float(sum(restart.lost_ns for restart in self.lost))

    def beyond_ns(self, epoch: float) -> float:
        """Return the duration of an epoch minus its typical duration and its recorded lost time."""
        found = self.epochs["beyond_ns"][self.epochs["epoch"] == epoch]
        return float(found[0]) if len(found) else nan

    def accuracy_after(self, epoch: float) -> float:
        """Return the accuracy after an epoch, for metrics that count epochs from 0 or from 1."""
        return self._after(self.accuracy, epoch)

    def top5_after(self, epoch: float) -> float:
        """Return the top-5 accuracy after an epoch."""
        return self._after(self.top5, epoch)

    def _after(self, metric: Mapping[float, float], epoch: float) -> float:
        counts = bool(metric) and max(metric) > max(self.epochs["epoch"], default=0)
        return metric.get(epoch + 1 if counts else epoch, nan)


def elastic_job(run: Summary) -> ElasticJob:
    """Return the epochs, restarts and accuracies of a job from its summary."""
    epochs_of_attempts = table_of(run, "epochs")
    events = table_of(run, "events").in_order("event")
    events = events.assign(**dict(zip(_NUMBERS, floats(events, *_NUMBERS), strict=True)))
    lost = _lost(events, epochs_of_attempts, is_recorded=len(table_of(run, "attempts")) > 0)
    by_life = epochs_of_attempts.in_order("attempt")
    _, groups = grouped_by(by_life, "epoch")
    kept = by_life.take(groups.order[groups.first + groups.counts - 1])
    first = _first_events(events)
    metrics = table_of(run, "metrics")
    name, accuracy = _accuracy(metrics, ("top1", "acc"))
    return ElasticJob(
        name=run.name,
        total_ns=_total_ns(run),
        setup_ns=first.get("setup", nan),
        initialization_ns=first.get("initialization", nan),
        epochs=_with_typical(kept, lost),
        lost=lost,
        cut_count=len(epochs_of_attempts) - len(kept),
        restarts_count=int((events["kind"] == "restart").sum()),
        accuracy=accuracy,
        accuracy_name=name,
        top5=_accuracy(metrics, ("top5",))[1],
    )


def _total_ns(run: Summary) -> float:
    """Return the job duration: from its first to its last process, otherwise the printed total."""
    attempts = table_of(run, "attempts")
    if len(attempts) and is_known(attempts["end_ns"]).all():
        begins, ends = floats(attempts, "at_ns", "end_ns")
        return float(ends.max() - np.nanmin(begins))
    found = (run.measure(name) for name in _TOTALS)
    return next((value for value in found if value is not None), nan)


def _first_events(events: Table) -> dict[str, float]:
    """Return the durations of setup and initialization before the first training."""
    found: dict[str, float] = {}
    for row in events.rows():
        kind = str(row["kind"])
        if kind == "time_lost":
            break
        is_start = isnan(row["epoch"]) or (row["epoch"] == 0 and kind not in found)
        is_first = isnan(row["attempt"]) or row["attempt"] == 0
        if kind in ("setup", "initialization") and is_start and is_first:
            found.setdefault(kind, row["duration_ns"])
    return found


def _lost(events: Table, epochs: Table, *, is_recorded: bool) -> list[LostTime]:
    """Return the restarts, each with the events that explain its lost time.

    These are the job-wide events with the same attempt and epoch (NaN matches NaN). If several
    restarts have the same, as in logs without both, each has the events since the one before it.
    """
    rows = [row for row in events.rows() if isnan(row["rank"]) and not _text(row["node"])]
    keys = [(str(row["attempt"]), str(row["epoch"])) for row in rows]
    found: list[LostTime] = []
    for place, row in enumerate(rows):
        lost_ns = row["duration_ns"]
        if row["kind"] != "time_lost" or isnan(lost_ns):
            continue
        same = [other for other, key in enumerate(keys) if key == keys[place]]
        restarts = [other for other in same if rows[other]["kind"] == "time_lost"]
        previous = max((other for other in restarts if other < place), default=-1)
        same = [other for other in same if len(restarts) == 1 or previous < other < place]
        parts: dict[str, float] = {}
        for other in same:
            kind, ns = str(rows[other]["kind"]), rows[other]["duration_ns"]
            if kind in PARTS and not isnan(ns):
                parts[kind] = parts.get(kind, 0.0) + ns
        before, after = _ranks_before_and_after(rows, place) if is_recorded else (nan, nan)
        found.append(
            LostTime(
                number=len(found) + 1,
                attempt=row["attempt"],
                epoch=row["epoch"],
                at_ns=row["at_ns"],
                lost_ns=lost_ns,
                parts=parts,
                redone_count=row["value"],
                why=_text(row["text"]) if is_recorded else "",
                ranks_before=before,
                ranks_after=after,
                inside_ns=_lost_inside_ns(row, epochs),
            )
        )
    return found


def _text(value: Any) -> str:
    return "" if is_unknown(value) else str(value)


def _ranks_before_and_after(rows: Sequence[Mapping[str, Any]], place: int) -> tuple[float, float]:
    """Return the number of ranks before and after a restart; NaN if unknown."""
    attempt = rows[place]["attempt"]
    sized = [row for row in rows if row["kind"] in ("start", "restart") and not isnan(row["value"])]
    before = [row["value"] for row in sized if row["attempt"] < attempt]
    after = [row["value"] for row in sized if row["attempt"] == attempt]
    return (before or [nan])[-1], (after or [nan])[-1]


def _lost_inside_ns(row: Mapping[str, Any], epochs: Table) -> float:
    """Return the part of the lost time that is within the duration of its epoch.

    This is the overlap of both time spans. Without times, programs that print the lost time before
    the epoch include all of it.
    """
    is_epoch = epochs["epoch"] == row["epoch"]
    if not isnan(row["attempt"]):
        is_epoch = is_epoch & (epochs["attempt"] == row["attempt"])
    starts, durations = floats(epochs, "at_ns", "duration_ns", rows=is_epoch)
    if not len(starts):
        return 0.0
    start, lost = float(starts[-1]), float(row["duration_ns"])
    if isnan(start) or isnan(row["at_ns"]):
        return lost if durations[-1] >= lost else 0.0
    return min(lost, max(0.0, float(row["at_ns"]) + lost - start))


def _with_typical(epochs: Table, lost: Sequence[LostTime]) -> Table:
    """Return the epochs with their typical duration and the remaining duration."""
    numbers, durations = floats(epochs, "epoch", "duration_ns")
    lost_inside = np.zeros(len(epochs))
    for restart in lost:
        lost_inside[numbers == restart.epoch] += restart.inside_ns
    undisturbed_ns = durations - lost_inside
    is_first = np.arange(len(epochs)) == 0
    is_restart = np.isin(numbers, [restart.epoch for restart in lost])
    segment = np.cumsum(is_restart, dtype=np.int64)
    # A first epoch includes warm-up. An epoch with lost time may include more than is recorded.
    disturbed = is_first | (lost_inside > _MAX_LOST_RATIO * durations) | np.isnan(undisturbed_ns)
    typical, names = _typical(numbers, undisturbed_ns, segment, disturbed)
    # An epoch that would be far too short without the lost time does not include it.
    is_outside = (lost_inside > 0) & ((typical - undisturbed_ns) > lost_inside / 2)
    lost_inside = np.where(is_outside, 0.0, lost_inside)
    undisturbed_ns = durations - lost_inside
    return epochs.assign(
        lost_ns=lost_inside,
        typical_ns=typical,
        typical_of=names,
        beyond_ns=undisturbed_ns - typical,
        is_first=is_first,
        is_restart=is_restart,
    )


def _typical(
    numbers: Floats, lengths: Floats, segment: Ints, disturbed: Bools
) -> tuple[Floats, list[str]]:
    """Return the typical epoch duration for each epoch, and the numbers of the epochs behind it.

    It is the median of the undisturbed epochs in the same segment, that is, until the next restart.
    A segment without an undisturbed epoch uses the previous segment that has one, otherwise the
    first.
    """
    typical, names = np.full(len(lengths), nan), [""] * len(lengths)
    known = sorted(set(segment[~disturbed].tolist()))
    for place, segment_number in enumerate(segment.tolist()):
        if not known:
            break
        earlier = [number for number in known if number <= segment_number]
        nearest = (
            segment_number if segment_number in known else (earlier[-1] if earlier else known[0])
        )
        rows = np.flatnonzero((segment == nearest) & ~disturbed)
        typical[place] = float(np.median(lengths[rows]))
        first, last = numbers[rows[0]], numbers[rows[-1]]
        names[place] = f"{first:g}" if first == last else f"{first:g}–{last:g}"
    return typical, names


def _accuracy(metrics: Table, words: Sequence[str]) -> tuple[str, dict[float, float]]:
    """Return the name of the accuracy metric and its value by epoch; "" and {} if there is none."""
    names = [
        str(metric) for metric in dict.fromkeys(metrics["metric"]) if "train" not in metric.lower()
    ]
    ranked = [name for word in words for name in names if word in name.lower()]
    if not ranked:
        return "", {}
    epochs, values = floats(metrics, "epoch", "value", rows=metrics["metric"] == ranked[0])
    pairs = zip(epochs.tolist(), values.tolist(), strict=True)
    return ranked[0], {epoch: value for epoch, value in pairs if not isnan(epoch)}
