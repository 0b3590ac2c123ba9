"""The efficiency that was lost, split by what took longer: it adds up to the ns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import isfinite

from traceprof.comparison.scaling.makeup import LOSSES, OUTSIDE

__all__ = ["Loss", "Step", "split_losses"]


@dataclass(frozen=True, slots=True)
class Step:
    """A step of one device: how long it takes by the throughput, and the ns of its parts."""

    step_ns: float
    parts: Mapping[str, int]


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


def split_losses(own: Step, base: Step, share: float) -> list[Loss]:
    """Return what the own step takes longer than the base's for as many samples, by what it is.

    ``share`` is how many samples a device has in a step, of those in the base: 1 in weak scaling,
    the fewer the more devices in strong scaling. What the throughput tells of and the window
    does not hold is `OUTSIDE`. Nothing where the contents of one of the two are not known.
    """
    if not (own.parts and base.parts and isfinite(own.step_ns) and isfinite(base.step_ns)):
        return []
    names = [name for name in LOSSES if name in own.parts or name in base.parts]
    reached = accumulate((base.parts.get(name, 0) for name in names), initial=0)
    # Rounded where they are added up, so that the parts are the whole.
    ends = [round(share * ns) for ns in reached]
    usual = [after - before for before, after in pairwise(ends)]
    found = [Loss(name, own.parts.get(name, 0), ns) for name, ns in zip(names, usual, strict=True)]
    outside = Loss(
        OUTSIDE,
        round(own.step_ns) - sum(own.parts.values()),
        round(share * base.step_ns) - ends[-1],
    )
    return [*found, outside] if outside.own_ns or outside.base_ns else found
