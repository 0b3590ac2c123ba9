"""What devices lose: when each did not compute, and to what.

Exposed communication and copies, work on its own memory, and idle time by cause: with compute
they fill the time of a device exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from traceprof.facts.cache import of_window
from traceprof.facts.device.times import device_times, used_devices
from traceprof.facts.gaps import CAUSES, find_gap_parts
from traceprof.facts.idle.after_waits import times_of_causes
from traceprof.model.activity import BUSY_PARTS
from traceprof.model.intervals import Intervals
from traceprof.model.ranks import Ranks
from traceprof.model.trace import Trace

__all__ = ["LOSSES", "Times", "find_losses", "within"]

Times: TypeAlias = Mapping[int, Intervals]
"""When, by device."""

LOSSES: Final = (*BUSY_PARTS[1:], *CAUSES)
"""The parts of a device's time that are no compute, as `breakdown` has them, idle by cause."""


@of_window
def find_losses(ranks: Ranks) -> Mapping[str, Times]:
    """Return, for each of `LOSSES`, when each device that ever worked lost time of the window."""
    busy: dict[str, dict[int, Intervals]] = {name: {} for name in BUSY_PARTS[1:]}
    for own in ranks.each(_lost_by_work):
        for name, times in own.items():
            busy[name] |= times
    return {**busy, **times_of_causes(ranks, find_gap_parts, CAUSES)}


def _lost_by_work(part: Trace) -> dict[str, dict[int, Intervals]]:
    times = device_times(part)
    parts = {d: times[d].parts() if d in times else {} for d in used_devices(part)}
    return {
        name: {device: own.get(name, Intervals.empty()) for device, own in parts.items()}
        for name in BUSY_PARTS[1:]
    }


def within(times: Times, judged: Times) -> Times:
    """Return what of ``times`` lies in the ``judged`` time of each device."""
    return {device: time & judged[device] for device, time in times.items() if device in judged}
