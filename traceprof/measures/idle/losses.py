"""Find when each device did not compute, and why. Idle time after host waits has its own cause.

The losses are exposed communication, exposed copies, work on the device's own memory, and idle time
by cause. Together with compute, they fill the time of a device exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from traceprof.measures.device.times import (
    device_parts,
    device_times,
    recorded_times,
    used_devices,
)
from traceprof.measures.facts import of_window
from traceprof.measures.host.states import find_host_states
from traceprof.measures.idle.gaps import (
    CAUSES,
    find_gap_parts,
    find_gaps,
    reassign_cause,
    sums_before,
    times_in_gaps,
)
from traceprof.measures.rows import Ints, bounds, unions_by, unions_of
from traceprof.measures.steps.base import WINDOW, base_of_shares
from traceprof.model.activity import BUSY_PARTS, IDLE, PARTS
from traceprof.model.grouping import places_of, rows_by_values
from traceprof.model.intervals import Intervals
from traceprof.model.packed import Packed
from traceprof.model.ranks import Ranks
from traceprof.model.table import Table
from traceprof.model.trace import Trace

DRAINED: Final = "drained"
"""Cause of idle time that follows a wait of the host for the device.

Without the wait, the host would have been ahead by the length of the wait. At most that length of
the following idle time is therefore attributed to the wait: the gap in which the wait ends, and
gaps due to late launches until the next wait. If the host runs other code in the gap for longer
than it waited, the whole gap is due to this code: without it, the gap would not exist.
"""

Times: TypeAlias = Mapping[int, Intervals]
"""Time intervals by device."""
_DRAINED_CAUSES: Final = ("launch", "host")
_CAUSES_AND_DRAINED: Final = (*CAUSES, DRAINED)


def idle_ns_by_gap(part: Trace, *causes: str) -> Ints:
    """Return the time in ns of each gap of `find_gaps` that has one of ``causes``.

    ``causes`` are names of `CAUSES`, or `DRAINED`. `DRAINED` time is excluded from the other
    causes, so that all causes add up to the gap.
    """
    places = [_CAUSES_AND_DRAINED.index(cause) for cause in causes]
    return times_in_gaps(len(find_gaps(part)), _parts_with_drained(part), *places)


@of_window
def idle_times(ranks: Ranks) -> Mapping[str, Times]:
    """Return, for each cause (and `DRAINED`), when each device was idle with this cause."""
    return idle_times_by_cause(ranks, _parts_with_drained, _CAUSES_AND_DRAINED)


def idle_times_by_cause(
    ranks: Ranks, parts_of: Callable[[Trace], Table], names: Sequence[str]
) -> dict[str, dict[int, Intervals]]:
    """Return when each device was idle with each cause, over all ranks.

    ``parts_of`` returns the parts of the gaps of one rank, with the columns gap, start_ns, end_ns,
    and cause (a place in ``names``).
    """
    found: dict[str, dict[int, Intervals]] = {name: {} for name in names}
    for of_rank in ranks.each(_idle_times_of_rank, parts_of, names):
        for name, times in of_rank.items():
            found[name] |= times
    return found


def _idle_times_of_rank(
    part: Trace, parts_of: Callable[[Trace], Table], names: Sequence[str]
) -> dict[str, dict[int, Intervals]]:
    """Return when each device of one rank was idle with each cause."""
    parts, device = parts_of(part), find_gaps(part)["device"]
    found = {name: dict.fromkeys(places_of(device)[1], Intervals.empty()) for name in names}
    owner = device[parts["gap"]]
    for (number, cause), time in unions_of(*bounds(parts), owner, parts["cause"]).items():
        found[names[cause]][number] = time
    return found


@of_window
def _parts_with_drained(part: Trace) -> Table:
    """Return `find_gap_parts`, with `DRAINED` as an additional cause, numbered ``len(CAUSES)``."""
    waited, remaining = _wait_ns_before_gaps(part)
    parts = find_gap_parts(part)
    for causes, ns_of_gaps in (_DRAINED_CAUSES, waited), (_DRAINED_CAUSES[:1], remaining):
        if ns_of_gaps.any():
            parts = reassign_cause(parts, causes, ns_of_gaps, len(CAUSES))
    return parts


@of_window
def find_idle_parts(part: Trace) -> Table:
    """Return the parts of `find_gaps` by cause (places in `CAUSES`), as shown by every command.

    Idle time after a wait of the host for the device counts as synchronization.
    """
    parts = _parts_with_drained(part)
    is_drained = parts["cause"] == len(CAUSES)
    cause = np.where(is_drained, CAUSES.index("synchronizing"), parts["cause"])
    return parts.assign(cause=Packed(cause))


def _wait_ns_before_gaps(part: Trace) -> tuple[Ints, Ints]:
    """Return two arrays in ns with one element per gap, 0 where not applicable.

    The first is the time that the host had waited for the device when the gap opens. The second is
    the part of that time that remains for later gaps, until the next wait: a host that waited while
    the device ran out of work launches later by that time.
    """
    gaps, parts = find_gaps(part), find_gap_parts(part)
    states = find_host_states(part.whole)  # a wait may end where the window begins
    waited, remaining = np.zeros(len(gaps), np.int64), np.zeros(len(gaps), np.int64)
    if not any(len(host.synchronizing) for host in states.values()):
        return waited, remaining
    of_launches, of_host = (
        times_in_gaps(len(gaps), parts, CAUSES.index(name)) for name in _DRAINED_CAUSES
    )
    for (process, _), rows in rows_by_values(gaps["process"], gaps["device"]).items():
        state = states.get(process)
        if state is None or not len(state.synchronizing):
            continue
        time, at = state.synchronizing, gaps["start_ns"][rows]
        place = np.searchsorted(time.starts, at, side="right") - 1
        inside = (place >= 0) & (time.ends[place] >= at)
        waited[rows] = np.where(inside, at - time.starts[place], 0)
        # The time that remains of each wait after its last gap, minus the late launches since then.
        unused = np.zeros(len(time) + 1, np.int64)
        late_ns = of_launches[rows] + of_host[rows]
        unused[place[inside]] = np.maximum(waited[rows] - late_ns, 0)[inside]
        waited[rows] *= of_host[rows] <= waited[rows]
        used_before = sums_before(np.where(inside, 0, of_launches[rows]), place)
        remaining[rows] = np.where(inside, 0, np.maximum(unused[place] - used_before, 0))
    return waited, remaining


def held_up(part: Trace, calls: Table, slack_ns: int = 0, *, is_all: bool = False) -> Times:
    """Return when each device was idle because of ``calls`` that block the host.

    ``calls`` has the columns process, start_ns, and end_ns. Without a call, the host and the work
    that it launches next would be earlier by the duration of the call. The idle time during a call
    is attributed to it. After the call, at most the duration of the call is attributed to it, of
    the idle time in which the host launches or runs other code, until the next call. This applies
    only if the device ran out of work during the call, or up to ``slack_ns`` later. Otherwise the
    host was still ahead of the device.

    With ``is_all``, consider all time without compute, not only idle time: this is an upper bound.
    """
    found: dict[int, Intervals] = {}
    if calls.empty:
        return found
    gaps, parts, calls_of = find_gaps(part), find_gap_parts(part), unions_by(calls)
    owner, cause = parts["gap"], parts["cause"]
    counts_after_calls = np.isin(cause, [CAUSES.index(name) for name in _DRAINED_CAUSES])
    counts_in_calls = is_all | counts_after_calls | (cause == CAUSES.index("synchronizing"))
    span, times = part.span, device_times(part)
    lanes = rows_by_values(gaps["process"][owner], gaps["device"][owner])
    for (process, device), rows in lanes.items():
        if process not in calls_of:
            continue
        call_times, gaps_of_device = calls_of[process], gaps.take(gaps["device"] == device)
        idle_in_calls, idle_after_calls = (
            Intervals.union_of(*(column[rows[chosen[rows]]] for column in bounds(parts)))
            for chosen in (counts_in_calls, counts_after_calls)
        )
        after_calls = idle_after_calls - call_times
        if is_all and device in times:
            # A copy that was launched late, because of a call, can last until the next call.
            copies = times[device].parts()["exposed_transfer"]
            after_calls = span.times - times[device].compute - call_times
            after_calls = after_calls | _begun_outside(copies, call_times)
        caused = (idle_in_calls & call_times) | _late_after(
            after_calls, call_times, bounds(gaps_of_device), slack_ns
        )
        found[device] = found.get(device, Intervals.empty()) | caused
    return found


def _begun_outside(time: Intervals, calls: Intervals) -> Intervals:
    """Return the intervals of ``time`` that do not start in a call, with their parts in calls."""
    is_outside = calls.covered_ns(time.starts, time.starts + 1) == 0
    return Intervals.union_of(time.starts[is_outside], time.ends[is_outside])


def _late_after(
    idle: Intervals, calls: Intervals, gaps: tuple[Ints, Ints], slack_ns: int
) -> Intervals:
    """Return the part of ``idle`` that follows from the preceding interval of ``holds``.

    ``idle`` and ``holds`` must be disjoint.
    """
    gap_starts, gap_ends = gaps
    # The busy time of the device in each call, or 0 if the device did not run out of work.
    all_gaps = Intervals.union_of(gap_starts, gap_ends)
    credit_ns = calls.ends - calls.starts - all_gaps.covered_ns(calls.starts, calls.ends)
    place = np.searchsorted(gap_ends, calls.ends, side="right")
    opens = np.append(gap_starts, np.iinfo(np.int64).max)[place]
    credit_ns = np.where(opens <= calls.ends + slack_ns, credit_ns, 0)
    call = np.searchsorted(calls.ends, idle.starts, side="right") - 1
    starts, ends = idle.starts[call >= 0], idle.ends[call >= 0]
    call = call[call >= 0]
    lengths = ends - starts
    taken = np.clip(credit_ns[call] - sums_before(lengths, call), 0, lengths)
    return Intervals.union_of(starts[taken > 0], (starts + taken)[taken > 0])


_NOTHING: Final = Intervals.empty()
LOSSES: Final = (*BUSY_PARTS[1:], *CAUSES)
"""The parts of device time other than compute, as in `breakdown`, with idle time split by cause."""


@of_window
def find_losses(ranks: Ranks) -> Mapping[str, Times]:
    """Return, for each of `LOSSES`, when each device lost time in the window.

    Devices without activity anywhere in the trace are excluded.
    """
    busy: dict[str, dict[int, Intervals]] = {name: {} for name in BUSY_PARTS[1:]}
    for of_rank in ranks.each(_lost_by_work):
        for name, times in of_rank.items():
            busy[name] |= times
    return {**busy, **idle_times_by_cause(ranks, find_idle_parts, CAUSES)}


@of_window
def analyzed_times(ranks: Ranks) -> Times:
    """Return the time of each device that is the base of shares of the window.

    It is the window, as far as the device was recorded. If step times without the profiler are
    known, the overhead of the profiler is excluded.
    """
    found = {d: recorded_times(part, d) for part in ranks for d in used_devices(part)}
    if base_of_shares(ranks).is_unprofiled:
        added = idle_times(ranks)["profiler"]
        found = {device: time - added.get(device, _NOTHING) for device, time in found.items()}
    return found


@dataclass(frozen=True, slots=True)
class Analyzed:
    """The base of shares: a step, or the window if no steps are known.

    ``whole_ns`` is the divisor for the times of each device. ``idle_scale`` is the ratio of the
    idle time of a step without the profiler to that of a profiled step, by device. ``shares`` are
    the shares of the five parts over all devices; they add up to 1.
    """

    whole_ns: Mapping[int, float]
    idle_scale: Mapping[int, float]
    shares: Mapping[str, float]
    is_unprofiled: bool = False


@of_window
def analyzed(ranks: Ranks) -> Analyzed:
    """Return the base of shares of the times of devices in the window."""
    base = base_of_shares(ranks)
    parts = {
        device: parts_ns for of in ranks.each(_parts_of_devices) for device, parts_ns in of.items()
    }
    whole_ns = {device: base.whole_ns(parts_ns) for device, parts_ns in parts.items()}
    scales = dict.fromkeys(parts, 1.0)
    if base.is_unprofiled:
        for device, time in analyzed_times(ranks).items():
            busy_ns = sum(parts[device].values()) - parts[device][IDLE]
            idle_ns = time.total_ns - busy_ns
            scales[device] = (whole_ns[device] - busy_ns) / idle_ns if idle_ns > 0 else 1.0
    return Analyzed(whole_ns, scales, base.shares(list(parts.values())), base.is_unprofiled)


def scale_to_steps(ranks: Ranks, ns: Ints, causes: Sequence[str]) -> tuple[Ints, int]:
    """Return ``ns`` scaled to whole steps of all devices, and the number of steps times devices.

    ``ns`` are times of activities and of idle causes that together fill the window on all devices.
    ``causes`` has the cause of each idle time, and "" for activities. If step times without the
    profiler are known, idle times are scaled to these steps. Without steps, ``ns`` is returned
    unchanged, with the number of devices.
    """
    base, base_of_devices = base_of_shares(ranks), analyzed(ranks)
    n_devices = max(1, len(base_of_devices.whole_ns))
    if base.unit == WINDOW or not ns.sum():
        return ns, n_devices
    units = max(1, round(base.steps_count)) * n_devices
    idle = np.array([bool(cause) for cause in causes], np.bool_)
    times = ns.astype(np.float64)
    if base_of_devices.is_unprofiled:
        times[[cause == "profiler" for cause in causes]] = 0.0
        busy_ns = times[~idle].sum()
        times[idle] *= max(0.0, sum(base_of_devices.whole_ns.values()) - busy_ns) / max(
            1.0, times[idle].sum()
        )
    cumulative = np.rint(np.cumsum(times) * (units * base.unit_ns / times.sum())).astype(np.int64)
    return np.diff(cumulative, prepend=0), units


def _parts_of_devices(part: Trace) -> dict[int, dict[str, int]]:
    """Return the time in ns of each of the five parts in the window, by device."""
    return {
        row["device"]: {name: int(row[f"{name}_ns"]) for name in PARTS}
        for row in device_parts(part).rows()
    }


def _lost_by_work(part: Trace) -> dict[str, dict[int, Intervals]]:
    """Return when each device was busy with each part other than compute."""
    times = device_times(part)
    parts = {d: times[d].parts() if d in times else {} for d in used_devices(part)}
    return {
        name: {
            device: times_of_device.get(name, Intervals.empty())
            for device, times_of_device in parts.items()
        }
        for name in BUSY_PARTS[1:]
    }


def within(times: Times, limits: Times) -> Times:
    """Return the intersection of ``times`` and ``limits``, for the devices in both."""
    return {device: time & limits[device] for device, time in times.items() if device in limits}


def find_longest_gap(
    trace: Trace, typical: Intervals, causes: Sequence[str]
) -> tuple[int, int, int] | None:
    """Return idle ns, start, and end of the gap with the most idle time of ``causes``.

    Only gaps in the typical time count. Returns None without any.
    """
    starts, ends = bounds(find_gaps(trace))
    inside = np.flatnonzero(typical.covered_ns(starts, ends) > 0)
    if not len(inside):
        return None
    lost_ns = idle_ns_by_gap(trace, *causes)
    row = int(inside[lost_ns[inside].argmax()])
    return int(lost_ns[row]), int(starts[row]), int(ends[row])
