"""Which runs are held against one another, and each size of a group against its base."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isclose, isfinite, nan
from statistics import fmean
from typing import Final

from traceprof.comparison.scaling.laws import (
    PrintedRates,
    Rate,
    judge_printed,
    karp_flatt,
    mean_rate,
    ratio_of,
)
from traceprof.comparison.scaling.points import (
    INDEPENDENT,
    SYNCHRONISED,
    Loss,
    ScalingPoint,
    or_nan,
    shared_out,
    split_losses,
)
from traceprof.model.results import Note

BASE: Final = "base"
WEAK: Final = "weak"
STRONG: Final = "strong"
MIXED: Final = "mixed"
UNKNOWN: Final = "unknown"
_BATCH_TOLERANCE: Final = 0.01
"""Batches that differ by less are the same: those of traces are means over steps."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Repeats: runs of one group, size and global batch."""

    points: tuple[ScalingPoint, ...]

    @property
    def first(self) -> ScalingPoint:
        """One of them, for what all have in common."""
        return self.points[0]

    @property
    def size(self) -> float:
        """Devices, or nodes."""
        return self.first.size

    @property
    def batch(self) -> float:
        """Samples of a step on all devices."""
        return fmean(point.batch for point in self.points)

    @property
    def per_device(self) -> float:
        """Samples of a step on one device."""
        return self.batch / self.size

    @property
    def rate(self) -> Rate:
        """The throughput: the mean of the repeats."""
        return mean_rate([point.rate for point in self.points])

    @property
    def time_ns(self) -> float:
        """The time to train, the mean of the repeats; NaN where one does not say it."""
        return fmean(or_nan(point.run.measure("time_to_train_ns")) for point in self.points)

    @property
    def mfu(self) -> float:
        """The share of the peak, the mean of the repeats; NaN where one does not know it."""
        return fmean(or_nan(point.run.measure("mfu_ratio")) for point in self.points)

    def of_step(self, name: str) -> float:
        """Return what a step takes on all devices, the mean of the repeats; NaN as for `mfu`."""
        return fmean(point.of_step(name) for point in self.points)

    @property
    def parts(self) -> dict[str, int]:
        """The ns of the parts of a step of one device, the mean of the repeats; {}: not known."""
        if not all(point.parts for point in self.points):
            return {}
        names = dict.fromkeys(name for point in self.points for name in point.parts)
        sums = {name: sum(point.parts.get(name, 0) for point in self.points) for name in names}
        return shared_out(sums, len(self.points))


def cells_of(points: Iterable[ScalingPoint]) -> list[Cell]:
    """Return the runs of each size and batch together, by size and batch; sizes must be known."""
    found: list[list[ScalingPoint]] = []
    for point in (one for one in points if isfinite(one.size)):
        repeats = next((repeats for repeats in found if _is_repeat(repeats[0], point)), None)
        if repeats is None:
            found.append([point])
        else:
            repeats.append(point)
    cells = [Cell(tuple(repeats)) for repeats in found]
    return sorted(cells, key=lambda cell: (cell.size, cell.batch if isfinite(cell.batch) else 0))


def _is_repeat(one: ScalingPoint, other: ScalingPoint) -> bool:
    if one.size != other.size or one.counts != other.counts:
        return False
    if one.devices != other.devices and isfinite(one.devices) and isfinite(other.devices):
        return False
    return _are_close(one.batch, other.batch) or isfinite(one.batch) == isfinite(other.batch) == 0


def _are_close(one: float, other: float) -> bool:
    return isfinite(one) and isfinite(other) and isclose(one, other, rel_tol=_BATCH_TOLERANCE)


def base_of(cell: Cell, cells: Sequence[Cell], size: float) -> Cell | None:
    """Return what ``cell`` is held against: of size ``size``, with as many samples per device.

    Else with as many in all, else with the nearest number per device; None: nothing has that size
    and counts the same.
    """
    known = [
        one
        for one in cells
        if one.size == size and one.first.counts == cell.first.counts and not one.first.is_factor
    ]
    if cell in known:
        return cell
    if not isfinite(cell.batch):
        return known[0] if known else None
    same_share = [one for one in known if _are_close(one.per_device, cell.per_device)]
    same_whole = [one for one in known if _are_close(one.batch, cell.batch)]
    nearest = sorted(known, key=lambda one: abs(one.per_device - cell.per_device))
    return next(iter([*same_share, *same_whole, *nearest]), None)


def kind_of(cell: Cell, base: Cell, assumed: str) -> str:
    """Return whether it is weak or strong scaling, by the batches; ``assumed`` if unknown."""
    if cell is base:
        return BASE
    if not (isfinite(cell.batch) and isfinite(base.batch)):
        return assumed or UNKNOWN
    if _are_close(cell.per_device, base.per_device):
        return WEAK
    return STRONG if _are_close(cell.batch, base.batch) else MIXED


BY_GPUS: Final = "gpus"
BY_NODES: Final = "nodes"
SIZES: Final = (BY_GPUS, BY_NODES)
_SIZE_LABELS: Final = frozenset({"gpus", "nodes", "devices", "ranks", "world_size", "nnodes"})
_BATCH: Final = "batch"
SYNCHRONISATION: Final = "synchronisation"
"""Stands for a label: whether ranks wait for one another, where some runs do and others do not."""


@dataclass(frozen=True, slots=True)
class RunGroup:
    """Runs of several sizes that agree in their labels; ``name`` says those that differ."""

    name: str
    labels: Mapping[str, str]
    points: tuple[ScalingPoint, ...]


def groups_of(
    points: Sequence[ScalingPoint], by: Sequence[str], ignored: Sequence[str]
) -> list[RunGroup]:
    """Return the groups, those of the labels ``by`` beside one another.

    A run that does not say a label stands in for the sizes which the groups of that label lack:
    one GPU has no network, and is the base of every network.
    """
    names = _label_names(points, by, ignored)
    keys = [tuple(_label_value(point, name) for name in names) for point in points]
    distinct = list(dict.fromkeys(keys))
    complete = [
        key for key in distinct if not any(_is_less_specific(key, other) for other in distinct)
    ]
    found: dict[tuple[str, ...], list[int]] = {key: [] for key in complete}
    for i, key in enumerate(keys):
        found.get(key, []).append(i)
    used = {i for rows in found.values() for i in rows}
    for key, rows in list(found.items()):
        sizes = {points[i].size for i in rows}
        shared = [
            i
            for i, other_key in enumerate(keys)
            if _is_less_specific(other_key, key) and points[i].size not in sizes
        ]
        found[key] = [*rows, *shared]
        used |= set(shared)
    for i, key in enumerate(keys):
        if i not in used:
            found.setdefault(key, []).append(i)
    distinguishing = [i for i, _ in enumerate(names) if len({key[i] for key in found}) > 1]
    groups = []
    for key, rows in sorted(found.items(), key=lambda item: _sort_key(item[0], names, by)):
        name = ", ".join(key[i] for i in distinguishing if key[i])
        labels = dict(zip(names, key, strict=True))
        groups.append(RunGroup(name, labels, tuple(points[i] for i in rows)))
    return groups


def _label_names(
    points: Sequence[ScalingPoint], by: Sequence[str], ignored: Sequence[str]
) -> list[str]:
    labels = dict.fromkeys(name for point in points for name in point.run.labels)
    requested = [name for name in by if name not in SIZES]
    left_out = _SIZE_LABELS | set(ignored)
    known = list(dict.fromkeys(name for name in (*labels, *requested) if name not in left_out))
    kinds = {point.ranks for point in points}
    is_separated = SYNCHRONISATION in (*known, *ignored) or not {INDEPENDENT, SYNCHRONISED} <= kinds
    return known if is_separated else [*known, SYNCHRONISATION]


def _label_value(point: ScalingPoint, name: str) -> str:
    """Return a label of a run, else what its environment or its measures say of that name."""
    run = point.run
    if name in run.labels:
        return str(run.labels[name])
    if name in run.environment:
        return str(run.environment[name])
    if name == SYNCHRONISATION:
        return point.ranks if point.ranks in (INDEPENDENT, SYNCHRONISED) else ""
    if name == _BATCH and isfinite(point.batch) and isfinite(point.devices):
        return f"{point.batch / point.devices:g}"
    value = run.measure(name)
    return "" if value is None else f"{value:g}"


def _is_less_specific(key: Sequence[str], other: Sequence[str]) -> bool:
    """Return whether ``other`` says all that ``key`` says, and more."""
    return key != other and all(not a or a == b for a, b in zip(key, other, strict=True))


def _sort_key(key: Sequence[str], names: Sequence[str], by: Sequence[str]) -> tuple[str, ...]:
    """Return what to sort by: what was asked for last, so that its groups are neighbours."""
    requested = [i for i, name in enumerate(names) if name in by]
    others = [i for i, _ in enumerate(names) if i not in requested]
    return tuple(key[i] for i in (*others, *requested))


_MAX_LOSSES: Final = 3
_MIN_LOSS_RATIO: Final = 0.01
_ONE_DEVICE: Final = 1.0


@dataclass(frozen=True)
class Measured:
    """A size of a group, the base that it is held against (None: there is none), and how.

    ``base`` may be of size 1 without runs: a source that prints speed-ups says them of it.
    """

    group: RunGroup
    cell: Cell
    base: Cell | None
    kind: str

    @property
    def is_base(self) -> bool:
        """Whether it is a base itself."""
        return self.base is self.cell

    @property
    def has_other(self) -> bool:
        """Whether it is held against another size."""
        return self.cell.first.is_factor or (self.base is not None and not self.is_base)

    @property
    def is_reported(self) -> bool:
        """Whether it is, and with what comes out known."""
        return self.has_other and isfinite(self.efficiency.value)

    @property
    def base_size(self) -> float:
        """The size of the base."""
        if self.base is None:
            return _ONE_DEVICE if self.cell.first.is_factor else nan
        return self.base.size

    @cached_property
    def efficiency(self) -> Rate:
        """What of ideal is reached, with its interval; NaN: not known."""
        rate = self.cell.rate
        if self.cell.first.is_factor:
            return ratio_of(rate, Rate(1.0, 1.0, 1.0), 1 / self.cell.size)
        if self.base is None:
            return Rate(nan)
        if self.is_base:
            return Rate(1.0)
        factor = self.base.size / self.cell.size
        if not self.cell.first.counts_samples:
            if self.kind not in (WEAK, STRONG):
                return Rate(nan)
            factor *= self.cell.size / self.base.size if self.kind == WEAK else 1.0
        return ratio_of(rate, self.base.rate, factor)

    @property
    def speedup(self) -> float:
        """The throughput over that of the base."""
        return self.efficiency.value * self.cell.size / self.base_size

    @property
    def time_speedup(self) -> float:
        """The time to train of the base over the own; it holds how many epochs each needs."""
        if self.base is None or self.is_base:
            return nan
        return self.base.time_ns / self.cell.time_ns

    @property
    def karp_flatt(self) -> float:
        """The serial share that explains the speed-up."""
        return karp_flatt(self.speedup, self.cell.size / self.base_size)

    @cached_property
    def losses(self) -> list[Loss]:
        """The lost efficiency, split: the lost ns over ``step_ns`` are its shares."""
        if (
            self.base is None
            or self.is_base
            or self.cell.first.of_hosts != self.base.first.of_hosts
        ):
            return []
        share = self._share_of_samples()
        return split_losses(self.cell.parts, self.base.parts, share, self.efficiency.value)

    def _share_of_samples(self) -> float:
        """Return how many samples a device has in a step, of those of the base."""
        assert self.base is not None
        if self.cell.first.counts_samples:
            return self.cell.per_device / self.base.per_device
        if self.kind == STRONG:
            return self.base.size / self.cell.size
        return 1.0 if self.kind == WEAK else nan

    @property
    def step_ns(self) -> int:
        """The time of a step of one device, as its parts add up to it."""
        return sum(loss.actual_ns for loss in self.losses)

    @property
    def largest_losses(self) -> tuple[Note, ...]:
        """The largest losses in % of ideal, the largest first."""
        whole = self.step_ns or 1
        shares = sorted(((loss.lost_ns / whole, loss.name) for loss in self.losses), reverse=True)
        large = [pair for pair in shares if pair[0] >= _MIN_LOSS_RATIO][:_MAX_LOSSES]
        return tuple(Note.of("{loss} {lost:ratio}", loss=name, lost=lost) for lost, name in large)

    @property
    def expected_ratio(self) -> float:
        """The throughput over the one that was expected; NaN: no such thing is said."""
        name = f"expected_{self.cell.first.counts}_per_s"
        known = [point.run.measure(name) for point in self.cell.points]
        return self.cell.rate.value / fmean(nan if one is None else one for one in known)

    @property
    def _rates(self) -> PrintedRates:
        if self.cell.first.is_factor:
            return PrintedRates(self.cell.rate.value, 1.0, self.cell.size)
        base = nan if self.base is None else self.base.rate.value
        return PrintedRates(self.cell.rate.value, base, self.cell.size / self.base_size)

    @property
    def printed_is(self) -> str:
        """How the printed efficiency follows from the rates; "" where there is none.

        Of a base nothing but 100 % follows: what else is printed is of another base.
        """
        if self.is_base and not isclose(self.cell.first.printed_percent, 100):
            return ""
        return judge_printed(self.cell.first.printed_percent, self._rates)

    @property
    def extremes(self) -> tuple[float, float]:
        """The efficiencies that rates give which would be printed like these: least and most."""
        low, high = self._rates.extremes
        return low / 100, high / 100


def measured_group(group: RunGroup, base_size: float | None, assumed: str) -> Iterator[Measured]:
    """Yield the sizes of a group, each held against the base of its batch, the smallest first."""
    cells = cells_of(group.points)
    if not cells:
        return
    size = cells[0].size if base_size is None else base_size
    for cell in cells:
        base = None if cell.first.is_factor else base_of(cell, cells, size)
        yield Measured(group, cell, base, "" if base is None else kind_of(cell, base, assumed))
