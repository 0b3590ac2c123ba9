"""Runs of one group, size and batch taken together, and the base that each is held against."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isclose, isfinite, nan
from statistics import fmean
from typing import Final

from traceprof.comparison.scaling.laws import Rate, mean_rate
from traceprof.comparison.scaling.makeup import shared_out
from traceprof.comparison.scaling.points import Point
from traceprof.values import dataclass

__all__ = ["BASE", "MIXED", "STRONG", "UNKNOWN", "WEAK", "Cell", "base_of", "cells_of", "kind_of"]

BASE: Final = "base"
WEAK: Final = "weak"
STRONG: Final = "strong"
MIXED: Final = "mixed"
UNKNOWN: Final = "unknown"
_ALIKE: Final = 0.01
"""Batches that differ by less are the same: those of traces are means over steps."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Repeats: runs of one group, size and global batch."""

    size: float
    points: tuple[Point, ...]

    @property
    def first(self) -> Point:
        """One of them, for what all have in common."""
        return self.points[0]

    @property
    def batch(self) -> float:
        """Samples of a step on all devices."""
        return fmean(point.batch for point in self.points)

    @property
    def per_device(self) -> float:
        """Samples of a step on one device."""
        return self.batch / self.size

    @property
    def counts(self) -> str:
        """What the rate counts."""
        return self.first.counts

    @property
    def counts_samples(self) -> bool:
        """Whether the rate is of what the devices share out, whatever a step is."""
        return self.first.counts_samples

    @property
    def is_factor(self) -> bool:
        """Whether the rate is none: all that is known is a speed-up over one device."""
        return self.first.is_factor

    @property
    def rate(self) -> Rate:
        """The throughput: the mean of the repeats."""
        return mean_rate([point.rate for point in self.points])

    @property
    def time_ns(self) -> float:
        """The time to train, the mean of the repeats; NaN where one does not say it."""
        known = [point.run.measure("time_to_train_ns") for point in self.points]
        return fmean(nan if value is None else value for value in known)

    @property
    def of_hosts(self) -> bool:
        """Whether the parts of its steps are phases of the hosts."""
        return self.first.of_hosts

    @property
    def parts(self) -> dict[str, int]:
        """The ns of the parts of a step of one device, the mean of the repeats; {}: not known."""
        if not all(point.parts for point in self.points):
            return {}
        sums: dict[str, int] = {}
        for point in self.points:
            for name, ns in point.parts.items():
                sums[name] = sums.get(name, 0) + ns
        return shared_out(sums, len(self.points))


def cells_of(points: Iterable[Point], *, by_nodes: bool) -> list[Cell]:
    """Return the runs of each size and batch together, by size and batch; sizes must be known."""
    found: list[list[Point]] = []
    for point in points:
        if not isfinite(point.size(by_nodes)):
            continue
        for cell in found:
            if _is_repeat(cell[0], point, by_nodes=by_nodes):
                cell.append(point)
                break
        else:
            found.append([point])
    cells = [Cell(own[0].size(by_nodes), tuple(own)) for own in found]
    return sorted(cells, key=lambda cell: (cell.size, cell.batch if isfinite(cell.batch) else 0))


def _is_repeat(one: Point, other: Point, *, by_nodes: bool) -> bool:
    if one.size(by_nodes) != other.size(by_nodes) or one.counts != other.counts:
        return False
    if one.devices != other.devices and isfinite(one.devices) and isfinite(other.devices):
        return False
    return _are_alike(one.batch, other.batch) or isfinite(one.batch) == isfinite(other.batch) == 0


def _are_alike(one: float, other: float) -> bool:
    return isfinite(one) and isfinite(other) and isclose(one, other, rel_tol=_ALIKE)


def base_of(cell: Cell, cells: Sequence[Cell], size: float) -> Cell | None:
    """Return what ``cell`` is held against: of size ``size``, with as many samples per device.

    Else with as many in all, else with the nearest number per device; None: nothing has that size
    and counts the same.
    """
    known = [
        one for one in cells if one.size == size and one.counts == cell.counts and not one.is_factor
    ]
    if cell in known:
        return cell
    if not isfinite(cell.batch):
        return known[0] if known else None
    for alike in (
        [one for one in known if _are_alike(one.per_device, cell.per_device)],
        [one for one in known if _are_alike(one.batch, cell.batch)],
    ):
        if alike:
            return alike[0]
    return min(known, key=lambda one: abs(one.per_device - cell.per_device), default=None)


def kind_of(cell: Cell, base: Cell, assumed: str) -> str:
    """Return whether it is weak or strong scaling, by the batches; ``assumed`` if unknown."""
    if cell is base:
        return BASE
    if not (isfinite(cell.batch) and isfinite(base.batch)):
        return assumed or UNKNOWN
    if _are_alike(cell.per_device, base.per_device):
        return WEAK
    return STRONG if _are_alike(cell.batch, base.batch) else MIXED
