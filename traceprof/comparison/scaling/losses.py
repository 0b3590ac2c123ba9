"""The efficiency that was lost, split by what took longer: it adds up to the ns."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate, pairwise
from math import isfinite

from traceprof.comparison.scaling.makeup import LOSSES, OUTSIDE
from traceprof.values import dataclass

__all__ = ["Loss", "split_losses"]


@dataclass(frozen=True, slots=True)
class Loss:
    """What took longer: ns of a step of one device, and of the base for as many samples."""

    name: str
    own_ns: int
    base_ns: int

    @property
    def lost_ns(self) -> int:
        """How much longer."""
        return self.own_ns - self.base_ns


def split_losses(
    own: Mapping[str, int], base: Mapping[str, int], share: float, efficiency: float
) -> list[Loss]:
    """Return what a step takes longer than the base's for as many samples, by what it is.

    ``own`` and ``base`` are the ns of a step's parts. ``share`` is how many samples a device has in
    a step, of those in the base: 1 in weak scaling, the fewer the more devices in strong scaling.
    All together are 1 - ``efficiency`` of the own step; what the throughputs differ in and the
    steps of the windows do not is `OUTSIDE`. Nothing where one of them is not known.
    """
    if not (own and base and isfinite(share) and isfinite(efficiency)):
        return []
    names = [name for name in LOSSES if name in own or name in base]
    reached = accumulate((base.get(name, 0) for name in names), initial=0)
    # Rounded where they are added up, so that the parts are the whole.
    ends = [round(share * ns) for ns in reached]
    usual = [after - before for before, after in pairwise(ends)]
    found = [Loss(name, own.get(name, 0), ns) for name, ns in zip(names, usual, strict=True)]
    outside = Loss(OUTSIDE, 0, round(efficiency * sum(own.values())) - ends[-1])
    return [*found, outside] if outside.base_ns else found
