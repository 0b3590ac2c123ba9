"""The five parts of the time of each rank's devices."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from traceprof.analysis.device.breakdown import DeviceBreakdown, add_up, measure_breakdown
from traceprof.facts.collectives.members import Member
from traceprof.model.run import of_process
from traceprof.model.tables import ABSENT
from traceprof.model.trace import DEVICE_TABLES, Trace

__all__ = ["measure_parts"]


def measure_parts(trace: Trace, members: Sequence[Member]) -> dict[Member, DeviceBreakdown]:
    """Return the parts of each member's device, or of its devices added up.

    A member that uses no device, or of which device work was not recorded, is left out.
    """
    if not trace.recorded & set(DEVICE_TABLES):
        return {}
    used = _users(trace)
    if used["device"].duplicated().any():
        # Several processes work on one device: each has only its own rows.
        each = [list(measure_breakdown(of_process(trace, m.process)).devices) for m in members]
    else:
        owner = dict(zip(used["device"], used["process"], strict=True))
        by_process: dict[int, list[DeviceBreakdown]] = {}
        for device in measure_breakdown(trace).devices:
            by_process.setdefault(owner.get(int(device.device), ABSENT), []).append(device)
        each = [by_process.get(member.process, []) for member in members]
    parts = {}
    for member, own in zip(members, each, strict=True):
        wanted = [d for d in own if member.device in (ABSENT, int(d.device))]
        if wanted:
            parts[member] = wanted[0] if len(wanted) == 1 else add_up(wanted)
    return parts


def _users(trace: Trace) -> pd.DataFrame:
    """Return each pair of a process and a device that it uses, anywhere in the recording."""
    frames = [trace.whole.table(name)[["process", "device"]] for name in DEVICE_TABLES]
    return pd.concat([frame.drop_duplicates() for frame in frames]).drop_duplicates()
