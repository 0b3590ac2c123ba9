"""Group runs for scaling, and compare each size of a group with its base."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isclose, isfinite, nan
from statistics import fmean
from typing import Final

from traceprof.comparison.scaling.laws import (
    ABSENT_BASE,
    NOT_FROM_RATES,
    PrintedRates,
    Rate,
    base_range,
    check_printed,
    find_absent_base,
    karp_flatt,
    mean_rate,
    ratio_of,
)
from traceprof.comparison.scaling.points import (
    Loss,
    ScalingPoint,
    or_nan,
    shared_out,
    split_losses,
)
from traceprof.comparison.scaling.run_groups import RunGroup
from traceprof.model.results import Note

BASE: Final = "base"
WEAK: Final = "weak"
STRONG: Final = "strong"
MIXED: Final = "mixed"
UNKNOWN: Final = "unknown"
_BATCH_TOLERANCE: Final = 0.01
"""Relative tolerance of equal batches: batches of traces are means over steps."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Repeated runs: the same group, size and global batch."""

    points: tuple[ScalingPoint, ...]

    @property
    def first(self) -> ScalingPoint:
        """The first run, for properties that all repeats share."""
        return self.points[0]

    @property
    def size(self) -> float:
        """Number of devices or nodes."""
        return self.first.size

    @property
    def batch(self) -> float:
        """Samples per step on all devices."""
        return fmean(point.batch for point in self.points)

    @property
    def per_device(self) -> float:
        """Samples per step and device (or node)."""
        return self.batch / self.size

    @property
    def rate(self) -> Rate:
        """The throughput, averaged over the repeats."""
        return mean_rate([point.rate for point in self.points])

    @property
    def time_ns(self) -> float:
        """The time to train, averaged over the repeats; NaN if one repeat does not have it."""
        return fmean(or_nan(point.run.measure("time_to_train_ns")) for point in self.points)

    @property
    def mfu(self) -> float:
        """The model FLOPs utilization, averaged over the repeats; NaN if one does not have it."""
        return fmean(or_nan(point.run.measure("mfu_ratio")) for point in self.points)

    def of_step(self, name: str) -> float:
        """Return a measure per step over all devices, averaged over repeats; NaN as for `mfu`."""
        return fmean(point.of_step(name) for point in self.points)

    @property
    def parts(self) -> dict[str, int]:
        """The parts of a step of one device in ns, averaged over the repeats; {} if unknown."""
        if not all(point.parts for point in self.points):
            return {}
        names = dict.fromkeys(name for point in self.points for name in point.parts)
        sums = {name: sum(point.parts.get(name, 0) for point in self.points) for name in names}
        return shared_out(sums, len(self.points))


def group_repeats(points: Iterable[ScalingPoint]) -> list[Cell]:
    """Group runs of the same size and batch, sorted by both; runs of unknown size are dropped."""
    found: list[list[ScalingPoint]] = []
    for point in points:
        if isfinite(point.size):
            repeats = next((repeats for repeats in found if _is_repeat(repeats[0], point)), None)
            if repeats is None:
                found.append([point])
            else:
                repeats.append(point)
    return sorted(
        [Cell(tuple(repeats)) for repeats in found],
        key=lambda cell: (cell.size, cell.batch if isfinite(cell.batch) else 0),
    )


def _is_repeat(first: ScalingPoint, second: ScalingPoint) -> bool:
    """Return whether two runs have the same size, unit of throughput, devices and batch."""
    if first.size != second.size or first.counts != second.counts:
        return False
    if first.devices != second.devices and isfinite(first.devices) and isfinite(second.devices):
        return False
    return (
        _are_close(first.batch, second.batch)
        or isfinite(first.batch) == isfinite(second.batch) == 0
    )


def _are_close(first: float, second: float) -> bool:
    return isfinite(first) and isfinite(second) and isclose(first, second, rel_tol=_BATCH_TOLERANCE)


def base_of(cell: Cell, cells: Sequence[Cell], size: float) -> Cell | None:
    """Return the base of ``cell``: a cell of size ``size`` with the same samples per device.

    Otherwise, the base has the same samples in total, or the nearest number per device. None: no
    cell of that size counts the same unit.
    """
    known = [
        candidate
        for candidate in cells
        if candidate.size == size
        and candidate.first.counts == cell.first.counts
        and not candidate.first.is_factor
    ]
    if cell in known:
        return cell
    if not isfinite(cell.batch):
        return known[0] if known else None
    same_share = [
        candidate for candidate in known if _are_close(candidate.per_device, cell.per_device)
    ]
    same_whole = [candidate for candidate in known if _are_close(candidate.batch, cell.batch)]
    nearest = sorted(known, key=lambda candidate: abs(candidate.per_device - cell.per_device))
    return next(iter([*same_share, *same_whole, *nearest]), None)


def kind_of(cell: Cell, base: Cell, assumed: str) -> str:
    """Return whether scaling is weak, strong or mixed by the batches; ``assumed`` if unknown."""
    if cell is base:
        return BASE
    if not (isfinite(cell.batch) and isfinite(base.batch)):
        return assumed or UNKNOWN
    if _are_close(cell.per_device, base.per_device):
        return WEAK
    return STRONG if _are_close(cell.batch, base.batch) else MIXED


_MAX_LOSSES: Final = 3
_MIN_LOSS_RATIO: Final = 0.01


@dataclass(frozen=True)
class Measured:
    """A size of a group, its base (None: there is none), and the kind of scaling.

    A source that prints speedups gives them relative to size 1, which may have no run.
    """

    group: RunGroup
    cell: Cell
    base: Cell | None
    kind: str

    @property
    def is_base(self) -> bool:
        """Whether the cell is its own base."""
        return self.base is self.cell

    @property
    def is_compared(self) -> bool:
        """Whether the cell is compared with another size."""
        return self.cell.first.is_factor or (self.base is not None and not self.is_base)

    @property
    def is_reported(self) -> bool:
        """Whether the cell is compared with another size, and its efficiency is known."""
        return self.is_compared and isfinite(self.efficiency.value)

    @property
    def base_size(self) -> float:
        """The size of the base."""
        if self.base is None:
            return 1.0 if self.cell.first.is_factor else nan
        return self.base.size

    @cached_property
    def efficiency(self) -> Rate:
        """The scaling efficiency with its interval; NaN if unknown."""
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
        """The throughput divided by that of the base."""
        return self.efficiency.value * self.cell.size / self.base_size

    @property
    def time_speedup(self) -> float:
        """The time to train of the base divided by that of the cell.

        It includes a change of the number of epochs.
        """
        if self.base is None or self.is_base:
            return nan
        return self.base.time_ns / self.cell.time_ns

    @property
    def karp_flatt(self) -> float:
        """The serial share that explains the speedup."""
        return karp_flatt(self.speedup, self.cell.size / self.base_size)

    @cached_property
    def losses(self) -> list[Loss]:
        """The lost efficiency by cause; lost ns divided by ``step_ns`` are shares of it."""
        if (
            self.base is None
            or self.is_base
            or self.cell.first.of_hosts != self.base.first.of_hosts
        ):
            return []
        return split_losses(
            self.cell.parts, self.base.parts, self._share_of_samples(), self.efficiency.value
        )

    def _share_of_samples(self) -> float:
        """Return the samples per device and step, as a ratio of those of the base."""
        assert self.base is not None
        if self.cell.first.counts_samples:
            return self.cell.per_device / self.base.per_device
        if self.kind == STRONG:
            return self.base.size / self.cell.size
        return 1.0 if self.kind == WEAK else nan

    @property
    def step_ns(self) -> int:
        """The step time of one device: the sum of its parts."""
        return sum(loss.actual_ns for loss in self.losses)

    @property
    def largest_losses(self) -> tuple[Note, ...]:
        """The largest losses as shares of the step time, the largest first."""
        whole = self.step_ns or 1
        shares = sorted(((loss.lost_ns / whole, loss.name) for loss in self.losses), reverse=True)
        large = [pair for pair in shares if pair[0] >= _MIN_LOSS_RATIO][:_MAX_LOSSES]
        return tuple(Note.of("{loss} {lost:ratio}", loss=name, lost=lost) for lost, name in large)

    @property
    def expected_ratio(self) -> float:
        """The throughput divided by the expected throughput; NaN if none is given."""
        name = f"expected_{self.cell.first.counts}_per_s"
        known = [point.run.measure(name) for point in self.cell.points]
        return self.cell.rate.value / fmean(nan if rate is None else rate for rate in known)

    @property
    def printed_rates(self) -> PrintedRates:
        """The rate, the rate of the base of the printed efficiencies, and the ratio of sizes."""
        if self.cell.first.is_factor:
            return PrintedRates(self.cell.rate.value, 1.0, self.cell.size)
        absent = self.absent_base
        if absent is not None:
            return PrintedRates(self.cell.rate.value, absent.value, self.cell.size)
        base = nan if self.base is None else self.base.rate.value
        return PrintedRates(self.cell.rate.value, base, self.cell.size / self.base_size)

    @property
    def printed_is(self) -> str:
        """How the printed efficiency follows from the rates; "" if none is printed.

        A base has an efficiency of 100%. If the base of the runs has another printed value, all
        values refer to a base that is not among the runs.
        """
        percent = self.cell.first.printed_percent
        if not self._is_base_absent:
            return check_printed(percent, self.printed_rates)
        base = self.absent_base
        if base is None or not isfinite(percent):
            return ""
        low, high = base_range(percent, self.cell.first.rate.value, self.cell.size)
        is_explained = low <= base.high and high >= base.low
        return ABSENT_BASE if is_explained else NOT_FROM_RATES

    @property
    def _is_base_absent(self) -> bool:
        """Whether the printed efficiencies refer to another run than the base."""
        printed = nan if self.base is None else self.base.first.printed_percent
        return isfinite(printed) and not isclose(printed, 100)

    @property
    def absent_base(self) -> Rate | None:
        """The rate on one device that explains most printed efficiencies of the group.

        None if the base is among the runs, or if there is no such rate.
        """
        printed = [
            (point.printed_percent, point.rate.value, point.size)
            for point in self.group.points
            if isfinite(point.printed_percent + point.rate.value + point.size)
        ]
        return find_absent_base(printed) if self._is_base_absent else None

    @property
    def extremes(self) -> tuple[float, float]:
        """The lowest and highest efficiency of rates that round to the printed rates."""
        low, high = self.printed_rates.extremes
        return low / 100, high / 100


def measured_group(group: RunGroup, base_size: float | None, assumed: str) -> Iterator[Measured]:
    """Yield the sizes of a group, each compared with the base of its batch, the smallest first."""
    cells = group_repeats(group.points)
    if not cells:
        return
    size = cells[0].size if base_size is None else base_size
    for cell in cells:
        base = None if cell.first.is_factor else base_of(cell, cells, size)
        yield Measured(group, cell, base, "" if base is None else kind_of(cell, base, assumed))
