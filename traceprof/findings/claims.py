"""Claims: which finding covers which GPU time. At most one finding claims each nanosecond.

The analyzed time of each device is split into three grounds: time that is not compute, compute, and
whole slow steps. A rule asks which part of a time is still unclaimed. The claims of its finding are
then removed from the claim_kind, so savings never add up to more than the available time.

If steps get slower, their growth is part of these grounds. A claim on it has no times. Instead, the
savings of the other claims exclude the growth in proportion.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import numpy as np

from traceprof.measures.facts import kept_on_disk
from traceprof.model.intervals import Intervals
from traceprof.model.results import Note
from traceprof.model.table import Bools, Table

Times = Mapping[int, Intervals]
"""Time intervals by device number."""


def union_by_device(many: Iterable[Times]) -> dict[int, Intervals]:
    """Return the union of the intervals in ``many``, by device."""
    found: dict[int, Intervals] = {}
    for times in many:
        for device, time in times.items():
            found[device] = found[device] | time if device in found else time
    return found


def starts_within(rows: Table, time: Intervals) -> Bools:
    """Return which ``rows`` start in ``time``."""
    starts = rows["start_ns"]
    return np.asarray(time.covered_ns(starts, starts + 1) > 0, np.bool_)


class ClaimKind(StrEnum):
    """The type of time that a claim takes."""

    LOST = "lost"  # not compute: exposed communication and copies, idle
    COMPUTE = "compute"
    SLOW = "slow steps"
    DRIFT = "slower steps"  # the growth of lost time and compute; it has no times
    PERIODIC = (
        "periodic costs"  # the excess of steps with checkpoints or compilation; it has no times
    )


class Kind(StrEnum):
    """How certain a saving is."""

    MEASURED = "measured"  # the time was measured and would disappear
    BOUNDED = "bounded"  # a proven upper bound
    ESTIMATED = "estimated"  # a model estimates the saving and its range
    ONCE = "once"  # a one-time cost, whatever the number of steps
    NONE = "none"  # no known saving


@dataclass(frozen=True, slots=True, eq=False)
class Excess:
    """The time of a claim without times of its own: a share of a base of ``base_ns``."""

    base: str
    base_ns: float
    ratio: float


@dataclass(frozen=True, slots=True, eq=False)
class Claim:
    """Time that a finding claims, and the ratio of it (0 to 1) that could be saved.

    ``attributed_ratio`` is the ratio of the time that the finding is about. The finding does not
    count the rest, and no other finding can claim the rest. ``saved_ratio`` is the ratio of the
    attributed time that could be saved. ``between`` is the range of ``saved_ratio`` for an estimate
    (None: no range). The upper end may exceed 1 if other time shrinks as well.
    ``excess`` replaces ``times`` in claims of `ClaimKind.PERIODIC`.
    """

    times: Times
    claim_kind: ClaimKind = ClaimKind.LOST
    saved_ratio: float = 1.0
    between: tuple[float, float] | None = None
    attributed_ratio: float = 1.0
    excess: Excess | None = None

    @property
    def total_ns(self) -> int:
        """The length in ns, summed over all devices."""
        return sum(time.total_ns for time in self.times.values())


LATER_LAUNCHES_NOTE: Final = Note(
    "The GPU is idle until the CPU launches work again. Upper bound: also later idle time, up to "
    "the length of each of these calls, because the CPU would be that far ahead."
)
"""The model of the cost of a call that blocks the CPU."""
_MIN_RANGE_FACTOR: Final = 1.01


def with_upper_bound(claim: Claim, most: Times) -> Claim:
    """Return ``claim`` with a range if the intervals ``most`` could be saved as well.

    The upper end of the range is the length of the union of ``claim`` and ``most``, divided by the
    length of ``claim``. If the union is at most 1% longer, return ``claim`` unchanged: its saving
    is a bound.
    """
    nothing = Intervals.empty()
    unions = [time | most.get(device, nothing) for device, time in claim.times.items()]
    ratio = sum(time.total_ns for time in unions) / max(1, claim.total_ns)
    return replace(claim, between=(1.0, ratio)) if ratio > _MIN_RANGE_FACTOR else claim


def kind_and_model(claims: Iterable[Claim], model: Note) -> tuple[Kind, Note | None]:
    """Return the kind and the model of a saving.

    The saving is a bound without a model, unless a claim has a range. Then it is an estimate by
    ``model``.
    """
    is_bound = all(claim.between is None for claim in claims)
    return (Kind.BOUNDED, None) if is_bound else (Kind.ESTIMATED, model)


class Ledger:
    """The unclaimed time of each kind of claim, by device."""

    def __init__(self, free: Mapping[ClaimKind, Times]) -> None:
        # `apart` may move the intervals to disk until a rule asks for them.
        self._free = {
            claim_kind: {device: kept_on_disk(time) for device, time in times.items()}
            for claim_kind, times in free.items()
        }

    def unclaimed(self, claim: Claim) -> Claim:
        """Return the part of ``claim`` that no finding has claimed yet."""
        free = self._free.get(claim.claim_kind, {})
        left = {d: free[d]() & time for d, time in claim.times.items() if d in free}
        return replace(claim, times={device: time for device, time in left.items() if len(time)})

    def take(self, claims: Iterable[Claim]) -> tuple[Claim, ...]:
        """Remove ``claims`` from the unclaimed time in this order, and return the parts taken."""
        taken = []
        for claim in claims:
            unclaimed = self.unclaimed(claim)
            free = self._free.get(claim.claim_kind, {})
            for device, time in unclaimed.times.items():
                free[device] = kept_on_disk(free[device]() - time)
            taken.append(unclaimed)
        return tuple(taken)
