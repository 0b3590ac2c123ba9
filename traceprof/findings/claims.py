"""Which finding claims which time of which device: every nanosecond goes to one at most.

Three grounds share the time that is judged, device by device: what is not compute, compute, and
the slow steps whole. A rule asks what of some time nobody has claimed yet; what its finding
claims is taken off the ground. So savings never add up to more than there is to save.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from traceprof.measures.facts import apart
from traceprof.model.intervals import Intervals
from traceprof.model.results import Note

Times = Mapping[int, Intervals]
"""When, by device."""


def union_by_device(many: Iterable[Times]) -> dict[int, Intervals]:
    """Return when any of ``many`` is, device by device."""
    found: dict[int, Intervals] = {}
    for times in many:
        for device, time in times.items():
            found[device] = found[device] | time if device in found else time
    return found


class Ground(StrEnum):
    """Where a claim lies."""

    LOST = "lost"  # not compute: exposed communication and copies, idle
    COMPUTE = "compute"
    SLOW = "slow steps"


class Kind(StrEnum):
    """How sure a saving is."""

    MEASURED = "measured"  # the time is there and would be gone
    BOUNDED = "bounded"  # provably at most this much
    ESTIMATED = "estimated"  # a model says so, which tells the range, too
    ONCE = "once"  # a cost that occurs once, whatever the number of steps
    NONE = "none"  # nothing is known to be saved


@dataclass(frozen=True, slots=True, eq=False)
class Claim:
    """Time that a finding claims, and how much of it (0 to 1) could be saved.

    ``attributed_ratio`` is how much of the time the finding is about: the rest is not its, and nobody
    else's either. ``saved_ratio`` is the part of that which could be saved. Of an estimate
    ``between`` is the range in which that lies: the most may be more than all of it, where
    something else gets faster, too.
    """

    times: Times
    ground: Ground = Ground.LOST
    saved_ratio: float = 1.0
    between: tuple[float, float] | None = None
    attributed_ratio: float = 1.0

    @property
    def total_ns(self) -> int:
        """The ns of all devices together."""
        return sum(time.total_ns for time in self.times.values())


LATER: Final = Note(
    "The GPU is idle until the CPU launches work again. Upper bound: also later idle time, up to "
    "the length of each of these calls, because the CPU would be that far ahead."
)
"""The model of what a call costs that holds the host up."""
_NEARLY_ALL: Final = 1.01


def up_to(claim: Claim, most: Times) -> Claim:
    """Return ``claim`` with a range where ``most`` could be saved, too; else it is a bound."""
    nothing = Intervals.empty()
    whole = [time | most.get(device, nothing) for device, time in claim.times.items()]
    ratio = sum(time.total_ns for time in whole) / max(1, claim.total_ns)
    return replace(claim, between=(1.0, ratio)) if ratio > _NEARLY_ALL else claim


def kind_and_model(claims: Iterable[Claim], model: Note) -> tuple[Kind, Note | None]:
    """Return how sure a saving is: a bound, unless a claim has a range, which ``model`` says."""
    is_bound = all(claim.between is None for claim in claims)
    return (Kind.BOUNDED, None) if is_bound else (Kind.ESTIMATED, model)


class Ledger:
    """What of each ground nobody has claimed yet."""

    def __init__(self, free: Mapping[Ground, Times]) -> None:
        # Much later somebody asks for what is on the disk meanwhile.
        self._free = {
            ground: {device: apart(time) for device, time in times.items()}
            for ground, times in free.items()
        }

    def unclaimed(self, claim: Claim) -> Claim:
        """Return what of ``claim`` is free."""
        free = self._free.get(claim.ground, {})
        known = [(device, time) for device, time in claim.times.items() if device in free]
        found = {device: free[device]() & time for device, time in known}
        return replace(claim, times={device: time for device, time in found.items() if len(time)})

    def take(self, claims: Iterable[Claim]) -> tuple[Claim, ...]:
        """Take what is free of ``claims``, and return it."""
        taken = []
        for claim in claims:
            unclaimed = self.unclaimed(claim)
            free = self._free[claim.ground]
            for device, time in unclaimed.times.items():
                free[device] = apart(free[device]() - time)
            taken.append(unclaimed)
        return tuple(taken)
