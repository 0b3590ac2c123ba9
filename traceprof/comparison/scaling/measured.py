"""Each size of a group against its base."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from math import isfinite, nan
from typing import Final

from traceprof.comparison.scaling.cells import (
    STRONG,
    WEAK,
    Cell,
    base_of,
    cells_of,
    kind_of,
)
from traceprof.comparison.scaling.groups import Group
from traceprof.comparison.scaling.laws import Rate, karp_flatt, ratio_of
from traceprof.comparison.scaling.losses import Loss, split_losses
from traceprof.comparison.scaling.printed import Rates, judge_printed
from traceprof.model.results import Note
from traceprof.values import dataclass

__all__ = ["Measured", "measured_group"]

_MOST_LOSSES: Final = 3
_LEAST_LOSS: Final = 0.01
_ONE_DEVICE: Final = 1.0


@dataclass(frozen=True)
class Measured:
    """A size of a group, the base that it is held against (None: there is none), and how.

    ``base`` may be of size 1 without runs: a source that prints speed-ups says them of it.
    """

    group: Group
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
        return self.cell.is_factor or (self.base is not None and not self.is_base)

    @property
    def is_told(self) -> bool:
        """Whether it is, and with what comes out known."""
        return self.has_other and isfinite(self.efficiency.value)

    @property
    def base_size(self) -> float:
        """The size of the base."""
        if self.base is None:
            return _ONE_DEVICE if self.cell.is_factor else nan
        return self.base.size

    @cached_property
    def efficiency(self) -> Rate:
        """What of ideal is reached, with its interval; NaN: not known."""
        own = self.cell.rate
        if self.cell.is_factor:
            return ratio_of(own, Rate(1.0, 1.0, 1.0), 1 / self.cell.size)
        if self.base is None:
            return Rate(nan)
        if self.is_base:
            return Rate(1.0)
        factor = self.base.size / self.cell.size
        if not self.cell.counts_samples:
            if self.kind not in (WEAK, STRONG):
                return Rate(nan)
            factor *= self.cell.size / self.base.size if self.kind == WEAK else 1.0
        return ratio_of(own, self.base.rate, factor)

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
        if self.base is None or self.is_base or self.cell.of_hosts != self.base.of_hosts:
            return []
        share = self._share_of_samples()
        return split_losses(self.cell.parts, self.base.parts, share, self.efficiency.value)

    def _share_of_samples(self) -> float:
        """Return how many samples a device has in a step, of those of the base."""
        assert self.base is not None
        if self.cell.counts_samples:
            return self.cell.per_device / self.base.per_device
        if self.kind == STRONG:
            return self.base.size / self.cell.size
        return 1.0 if self.kind == WEAK else nan

    @property
    def step_ns(self) -> int:
        """The time of a step of one device, as its parts add up to it."""
        return sum(loss.own_ns for loss in self.losses)

    @property
    def largest_losses(self) -> tuple[Note, ...]:
        """The largest losses in % of ideal, the largest first."""
        whole = self.step_ns or 1
        large = [(one.lost_ns / whole, one.name) for one in self.losses]
        large = sorted((pair for pair in large if pair[0] >= _LEAST_LOSS), reverse=True)
        return tuple(
            Note.of("{loss} {lost:ratio}", loss=name, lost=lost)
            for lost, name in large[:_MOST_LOSSES]
        )

    @property
    def printed_ratio(self) -> float:
        """The efficiency that the source prints."""
        return self.cell.first.printed_percent / 100

    @property
    def _rates(self) -> Rates:
        if self.cell.is_factor:
            return Rates(self.cell.rate.value, 1.0, self.cell.size)
        base = nan if self.base is None else self.base.rate.value
        return Rates(self.cell.rate.value, base, self.cell.size / self.base_size)

    @property
    def printed_is(self) -> str:
        """How the printed efficiency follows from the rates; "" where there is none."""
        return judge_printed(self.cell.first.printed_percent, self._rates)

    @property
    def extremes(self) -> tuple[float, float]:
        """The efficiencies that rates give which would be printed like these: least and most."""
        low, high = self._rates.extremes
        return low / 100, high / 100


def measured_group(
    group: Group, base_size: float | None, assumed: str, *, by_nodes: bool
) -> Iterator[Measured]:
    """Yield the sizes of a group, each held against the base of its batch, the smallest first."""
    cells: Sequence[Cell] = cells_of(group.points, by_nodes=by_nodes)
    if not cells:
        return
    size = cells[0].size if base_size is None else base_size
    for cell in cells:
        base = None if cell.is_factor else base_of(cell, cells, size)
        yield Measured(group, cell, base, "" if base is None else kind_of(cell, base, assumed))
