"""Finds the idle time of a GPU in which it waits for ranks with another role.

Only all ranks together show it: a trainer whose GPU is idle looks bound by its own CPU, although it
waits for the rollouts of other ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from traceprof.measures.collectives.members import find_members
from traceprof.measures.device.times import device_times, devices_of_processes
from traceprof.measures.ranks.roles import TRAINER, find_roles
from traceprof.measures.steps.find import find_steps
from traceprof.model.intervals import Intervals
from traceprof.model.ranks import Ranks
from traceprof.model.trace import Trace

_MIN_GAP_RATIO: Final = 0.01
"""Shorter gaps, as a share of a step, are launches of a same role."""
_MIN_AT_WORK_RATIO: Final = 0.5
"""A GPU waits for another role in a gap if GPUs of that role work in at least this share of it."""


def with_waits_for_roles(ranks: Ranks) -> Ranks:
    """Return the ranks with the idle time in which their GPUs wait for another role.

    The ranks are returned unchanged if no GPU waits for another role.
    """
    waits = _find_waits(ranks)
    if not any(map(len, waits.values())):
        return ranks
    return ranks.map_each(Trace.with_waits_for_roles, [(waits,)] * len(ranks))


def _find_waits(ranks: Ranks) -> dict[int, Intervals]:
    """Return when each device waited for another role, over the whole recording."""
    roles, members = find_roles(ranks).of_member, find_members(ranks)
    is_trainer = {members[place].process: role == TRAINER for place, role in roles.items()}
    durations_ns = np.concatenate([steps.durations_ns for steps in ranks.whole.each(find_steps)])
    if not is_trainer or not len(durations_ns):
        return {}
    min_ns = _MIN_GAP_RATIO * float(np.median(durations_ns))
    busy = [
        (is_trainer[process], device, time)
        for of_rank in ranks.whole.each(_busy_of_processes, [*is_trainer])
        for process, times in of_rank.items()
        for device, time in times.items()
    ]
    found: dict[int, Intervals] = {}
    for role in (True, False):
        at_work = Intervals.empty()
        for other, _, time in busy:
            if other != role:
                at_work |= time
        for role_of_device, device, time in busy:
            if role_of_device == role:
                found[device] = _long_gaps_beside(ranks.span.times - time, at_work, min_ns)
    return found


def _long_gaps_beside(gaps: Intervals, at_work: Intervals, min_ns: float) -> Intervals:
    """Return the ``gaps`` of at least ``min_ns`` during most of which others are ``at_work``."""
    starts, ends = gaps.starts, gaps.ends
    is_wait = at_work.covered_ns(starts, ends) >= _MIN_AT_WORK_RATIO * (ends - starts)
    is_wait &= ends - starts >= min_ns
    return Intervals.union_of(starts[is_wait], ends[is_wait])


def _busy_of_processes(
    trace: Trace, processes: Sequence[int]
) -> Mapping[int, Mapping[int, Intervals]]:
    """Return when each device of each of ``processes`` was busy."""
    times, devices_of = device_times(trace), devices_of_processes(trace)
    return {
        process: {d: times[d].busy for d in devices_of.get(process, ()) if d in times}
        for process in processes
        if process in devices_of
    }
