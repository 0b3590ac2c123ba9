"""Efficiencies that a source prints, held against what its own rates give."""

from __future__ import annotations

from decimal import Decimal
from math import isfinite
from typing import Final

from traceprof.values import dataclass

__all__ = ["CUT_OFF", "NOT_FROM_RATES", "ROUNDED", "Rates", "judge_printed"]

ROUNDED: Final = "rounded"
CUT_OFF: Final = "cut off, not rounded"
NOT_FROM_RATES: Final = "does not follow from the rates"

_EDGE: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Rates:
    """A rate and that of the base as they are printed; ``n``: how many times as many devices."""

    own: float
    base: float
    n: float

    @property
    def efficiency(self) -> float:
        """What of ideal they give, in %."""
        return 100 * self.own / self.base / self.n

    @property
    def extremes(self) -> tuple[float, float]:
        """The least and the most, in %, that rates give which would be printed like these."""
        own, base = (last_digit(value) / 2 for value in (self.own, self.base))
        return (
            100 * (self.own - own) / (self.base + base) / self.n,
            100 * (self.own + own) / (self.base - base) / self.n,
        )


def judge_printed(percent: float, rates: Rates) -> str:
    """Return how a printed efficiency follows from the printed rates; "" where one is not known."""
    if not all(map(isfinite, (percent, rates.own, rates.base, rates.n))):
        return ""
    unit, more = last_digit(percent), rates.efficiency - percent
    if abs(more) <= unit / 2 + _EDGE:
        return ROUNDED
    return CUT_OFF if 0 < more < unit else NOT_FROM_RATES


def last_digit(value: float) -> float:
    """Return the value of the last digit that is written of a number: 0.1 of 99.5, 1 of 100."""
    exponent = Decimal(repr(float(value))).normalize().as_tuple().exponent
    return 10.0 ** min(0, int(exponent))
