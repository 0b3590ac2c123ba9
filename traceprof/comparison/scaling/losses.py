"""What a step of one device is made of, and by that the efficiency that was lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import isfinite
from typing import Final

import numpy as np
import pandas as pd

from traceprof.comparison.sides import shares_of
from traceprof.measures.composition import NOT_IN_STEP, WAITING
from traceprof.model.activity import IDLE
from traceprof.model.summary import Summary
from traceprof.names.ranges import PHASES, UNCLAIMED

_OF_PART: Final = {
    "compute": "slower compute",
    "exposed_communication": "exposed communication",
    "exposed_transfer": "exposed transfers",
    "device_memory": "device memory",
    IDLE: "other idle",
}
_WAITS: Final = "waiting for stragglers"
_STARTING: Final = "ranks not in step yet"
_INPUT: Final = "waiting for input"
OUTSIDE: Final = "outside the window"
"""What the throughputs differ in and the steps of the windows do not."""

_HOST: Final = "host: {}"
LOSSES: Final = (
    *(_OF_PART["exposed_communication"], _WAITS, _STARTING, _OF_PART["compute"]),
    *(_OF_PART["exposed_transfer"], _OF_PART["device_memory"], _INPUT, _OF_PART[IDLE]),
    *(_HOST.format(phase) for phase in (*PHASES, UNCLAIMED)),
    OUTSIDE,
)
"""All that efficiency can be lost to."""


def parts_of_step(run: Summary, *, in_step: bool = True) -> tuple[Mapping[str, int], bool]:
    """Return ns of one device and step by what they are, and whether hosts stand for devices.

    Nothing where the contents of the window, or its steps, are not known. Of a run without
    devices it is the time of the hosts' phases, which add up to the window, too. Ranks that are
    not ``in_step`` do not fill the window that holds them all: what is at its edges is left out.
    """
    made, devices, steps = run.table("makeup"), run.devices_count, run.steps_count
    if not steps:
        return {}, False
    if devices and len(made):
        if not in_step:
            made = made[(made["kind"] != "edge").to_numpy()]
        totals = made["ns"].groupby(_losses(made)).sum()
        return shared_out(
            {str(name): int(ns) for name, ns in totals.items()}, devices * steps
        ), False
    phases = run.results.get("phases")
    if phases is None or phases.table.empty or "host_ns" not in phases.table:
        return {}, False
    table = phases.table
    if not in_step:
        table = table[(table["phase"] != UNCLAIMED).to_numpy()]
    totals = table.groupby("phase")["host_ns"].sum()
    n = steps * int(table["process"].nunique())
    named = {_HOST.format(phase): int(ns) for phase, ns in totals.items() if ns}
    return shared_out(named, n), True


def _losses(made: pd.DataFrame) -> pd.Series:
    """Return what each row of the composition would be lost to."""
    part, kind, name = (made[column].astype(object) for column in ("part", "kind", "name"))
    losses = part.map(_OF_PART).to_numpy(object)
    losses = np.where((kind == WAITING) | ((part == IDLE) & (kind == "peer")), _WAITS, losses)
    losses = np.where((kind == WAITING) & (name == NOT_IN_STEP), _STARTING, losses)
    losses = np.where((part == IDLE) & (kind == "data"), _INPUT, losses)
    return pd.Series(losses, made.index)


def shared_out(totals: Mapping[str, int], n: int) -> dict[str, int]:
    """Return the ``n``-th part of each, by floor of the cumulated share: sums stay exact."""
    shares = shares_of(np.array(list(totals.values()), np.int64), n)
    return dict(zip(totals, shares.tolist(), strict=True))


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
