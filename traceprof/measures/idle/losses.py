"""What devices lose: when each did not compute, and to what; idle after waits is told apart.

Exposed communication and copies, work on its own memory, and idle time by cause: with compute
they fill the time of a device exactly.
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
from traceprof.measures.idle.gaps import CAUSES, carved, find_gap_parts, find_gaps, times_in_gaps
from traceprof.measures.rows import Ints, are_first, bounds, unions_by, unions_of
from traceprof.measures.steps.base import WINDOW, base_of_shares
from traceprof.model.activity import BUSY_PARTS, IDLE, PARTS
from traceprof.model.grouping import places_of, rows_by_values
from traceprof.model.intervals import Intervals
from traceprof.model.packed import Packed
from traceprof.model.ranks import Ranks
from traceprof.model.table import Table
from traceprof.model.trace import Trace

DRAINED: Final = "drained"
"""Idle after a wait for the device, until work is launched again, and while launches catch up.

Without the wait the host would have been that much earlier: at most the wait's own length of what
follows is its doing, whatever the host does in the gap that opens in it, and what it launches late
until the next wait.
"""

_Times: TypeAlias = Mapping[int, Intervals]
"""When, by device."""
_AFTER_A_WAIT: Final = ("launch", "host")
_NAMES: Final = (*CAUSES, DRAINED)


def idle_ns_by_gap(part: Trace, *causes: str) -> Ints:
    """Return how long ``causes`` (of `CAUSES`, or `DRAINED`) hold in each of `find_gaps`.

    The causes in which a host is busy are without what is `DRAINED`, so that all add up.
    """
    places = [_NAMES.index(cause) for cause in causes]
    return times_in_gaps(len(find_gaps(part)), _parts(part), *places)


@of_window
def idle_times(ranks: Ranks) -> Mapping[str, _Times]:
    """Return, for each cause (and `DRAINED`), when each device was idle for it."""
    return times_of_causes(ranks, _parts, _NAMES)


def times_of_causes(
    ranks: Ranks, parts_of: Callable[[Trace], Table], names: Sequence[str]
) -> dict[str, dict[int, Intervals]]:
    """Return when each device was idle for each of ``names``, the causes of ``parts_of`` a rank.

    Parts are those of gaps, with gap, start_ns, end_ns and cause (a place in ``names``).
    """
    found: dict[str, dict[int, Intervals]] = {name: {} for name in names}
    for own in ranks.each(_times_of_one, parts_of, names):
        for name, times in own.items():
            found[name] |= times
    return found


def _times_of_one(
    part: Trace, parts_of: Callable[[Trace], Table], names: Sequence[str]
) -> dict[str, dict[int, Intervals]]:
    found: dict[str, dict[int, Intervals]] = {name: {} for name in names}
    parts, device = parts_of(part), find_gaps(part)["device"]
    for number in places_of(device)[1]:
        for times in found.values():
            times[number] = Intervals.empty()
    owner = device[parts["gap"]]
    for (number, cause), time in unions_of(*bounds(parts), owner, parts["cause"]).items():
        found[names[cause]][number] = time
    return found


@of_window
def _parts(part: Trace) -> Table:
    """Return `find_gap_parts`, with what is drained by a wait as a cause of its own."""
    waited, later = _waits_before(part)
    parts = find_gap_parts(part)
    for causes, ns_of_gaps in (_AFTER_A_WAIT, waited), (_AFTER_A_WAIT[:1], later):
        if ns_of_gaps.any():
            parts = carved(parts, causes, ns_of_gaps, len(CAUSES))
    return parts


@of_window
def find_idle_parts(part: Trace) -> Table:
    """Return the parts of `find_gaps` by cause (places in `CAUSES`), as every command shows them.

    Idle time after a wait for the device is that of the wait: it is synchronization.
    """
    parts = _parts(part)
    is_drained = parts["cause"] == len(CAUSES)
    waits = CAUSES.index("synchronizing")
    return parts.assign(cause=Packed(np.where(is_drained, waits, parts["cause"])))


def _waits_before(part: Trace) -> tuple[Ints, Ints]:
    """Return how long the host had waited for the device where each gap opens, 0 where not.

    And how much of that is left in later gaps, until the next wait: the host that had waited while
    the device ran out of work launches that much later.
    """
    gaps, parts, states = find_gaps(part), find_gap_parts(part), find_host_states(part)
    waited, later = np.zeros(len(gaps), np.int64), np.zeros(len(gaps), np.int64)
    if not any(len(own.synchronizing) for own in states.values()):
        return waited, later
    of_launches, of_both = (
        times_in_gaps(len(gaps), parts, *(CAUSES.index(name) for name in names))
        for names in (_AFTER_A_WAIT[:1], _AFTER_A_WAIT)
    )
    for (process, _), rows in rows_by_values(gaps["process"], gaps["device"]).items():
        state = states.get(process)
        if state is None or not len(state.synchronizing):
            continue
        time, at = state.synchronizing, gaps["start_ns"][rows]
        place = np.searchsorted(time.starts, at, side="right") - 1
        inside = (place >= 0) & (time.ends[place] >= at)
        waited[rows] = np.where(inside, at - time.starts[place], 0)
        # Of each wait what its last gap leaves, and what the launches of later ones take of that.
        left = np.zeros(len(time) + 1, np.int64)
        left[place[inside]] = np.maximum(waited[rows] - of_both[rows], 0)[inside]
        taken = np.where(inside, 0, of_launches[rows])
        before = np.cumsum(taken) - taken
        firsts = np.flatnonzero(are_first(place))
        before -= np.repeat(before[firsts], np.diff(np.append(firsts, len(place))))
        later[rows] = np.where(inside, 0, np.maximum(left[place] - before, 0))
    return waited, later


def held_up(part: Trace, calls: Table, slack_ns: int = 0, *, is_all: bool = False) -> _Times:
    """Return when each device was idle since ``calls`` held the host up: in them, and after them.

    Calls have process, start_ns and end_ns. Without one the host would be as much earlier as it
    took, and so would be the work that it launches next: of the idle time in which it launches, or
    runs other code, as much is the call's as it took, until the next one. Only where the device ran
    out of work in it, or up to ``slack_ns`` later: else the host was ahead all the same.

    ``is_all``: of all time without compute, which is the most that could be earlier.
    """
    found: dict[int, Intervals] = {}
    if calls.empty:
        return found
    gaps, parts, holds_of = find_gaps(part), find_gap_parts(part), unions_by(calls)
    owner, cause = parts["gap"], parts["cause"]
    is_late = np.isin(cause, [CAUSES.index(name) for name in _AFTER_A_WAIT])
    is_held = is_all | is_late | (cause == CAUSES.index("synchronizing"))
    span, times = part.span, device_times(part)
    lanes = rows_by_values(gaps["process"][owner], gaps["device"][owner])
    for (process, device), rows in lanes.items():
        if process not in holds_of:
            continue
        holds, own = holds_of[process], gaps.take(gaps["device"] == device)
        held, late = (
            Intervals.union_of(*(column[rows[chosen[rows]]] for column in bounds(parts)))
            for chosen in (is_held, is_late)
        )
        if is_all and device in times:
            late = span.times - times[device].compute
        both = (held & holds) | _late_after(late - holds, holds, bounds(own), slack_ns)
        found[device] = found.get(device, Intervals.empty()) | both
    return found


def _late_after(
    idle: Intervals, holds: Intervals, gaps: tuple[Ints, Ints], slack_ns: int
) -> Intervals:
    """Return what of ``idle``, that lies outside ``holds``, follows from the one before it."""
    gap_starts, gap_ends = gaps
    # How much of each was no idle time of the device, and whether this ran out of work in it.
    whole = Intervals.union_of(gap_starts, gap_ends)
    credit = holds.ends - holds.starts - whole.covered_ns(holds.starts, holds.ends)
    place = np.searchsorted(gap_ends, holds.ends, side="right")
    opens = np.append(gap_starts, np.iinfo(np.int64).max)[place]
    credit = np.where(opens <= holds.ends + slack_ns, credit, 0)
    hold = np.searchsorted(holds.ends, idle.starts, side="right") - 1
    starts, ends = idle.starts[hold >= 0], idle.ends[hold >= 0]
    hold = hold[hold >= 0]
    lengths = ends - starts
    before = np.cumsum(lengths) - lengths
    firsts = np.flatnonzero(are_first(hold))
    before -= np.repeat(before[firsts], np.diff(np.append(firsts, len(hold))))
    taken = np.clip(credit[hold] - before, 0, lengths)
    return Intervals.union_of(starts[taken > 0], (starts + taken)[taken > 0])


Times: TypeAlias = Mapping[int, Intervals]
"""When, by device."""

_NOTHING: Final = Intervals.empty()
LOSSES: Final = (*BUSY_PARTS[1:], *CAUSES)
"""The parts of a device's time that are no compute, as `breakdown` has them, idle by cause."""


@of_window
def find_losses(ranks: Ranks) -> Mapping[str, Times]:
    """Return, for each of `LOSSES`, when each device that ever worked lost time of the window."""
    busy: dict[str, dict[int, Intervals]] = {name: {} for name in BUSY_PARTS[1:]}
    for own in ranks.each(_lost_by_work):
        for name, times in own.items():
            busy[name] |= times
    return {**busy, **times_of_causes(ranks, find_idle_parts, CAUSES)}


@of_window
def analyzed_times(ranks: Ranks) -> Times:
    """Return the time of each device that shares of the window are of.

    It is the window, as far as the device was recorded in it. Where steps that were not profiled
    tell how long a step is, what the profiler added is no part of it.
    """
    found = {d: recorded_times(part, d) for part in ranks for d in used_devices(part)}
    if base_of_shares(ranks).is_unprofiled:
        added = idle_times(ranks)["profiler"]
        found = {device: time - added.get(device, _NOTHING) for device, time in found.items()}
    return found


@dataclass(frozen=True, slots=True)
class Analyzed:
    """What times of devices in the window are as shares of a step (of the window without steps).

    ``whole_ns`` is, by device, what its times are divided by, and ``idle_scale`` how much idle time
    a step without the profiler has, of that of a profiled step. ``shares`` are those of the five
    parts, of all devices together; they add up to 1.
    """

    whole_ns: Mapping[int, float]
    idle_scale: Mapping[int, float]
    shares: Mapping[str, float]
    is_unprofiled: bool = False


@of_window
def analyzed(ranks: Ranks) -> Analyzed:
    """Return what times of devices in the window are shares of."""
    base = base_of_shares(ranks)
    parts = {device: own for of in ranks.each(_parts_of_devices) for device, own in of.items()}
    whole_ns = {device: base.whole_ns(own) for device, own in parts.items()}
    scales = dict.fromkeys(parts, 1.0)
    if base.is_unprofiled:
        for device, time in analyzed_times(ranks).items():
            busy_ns = sum(parts[device].values()) - parts[device][IDLE]
            idle_ns = time.total_ns - busy_ns
            scales[device] = (whole_ns[device] - busy_ns) / idle_ns if idle_ns > 0 else 1.0
    shares = base.shares(list(parts.values()))
    return Analyzed(whole_ns, scales, shares, base.is_unprofiled)


def scale_to_steps(ranks: Ranks, ns: Ints, causes: Sequence[str]) -> tuple[Ints, int]:
    """Return times of all devices in the window so that they add up to whole steps, and how many.

    ``ns`` are times of what devices did and were idle for, together all of the window; ``causes``
    says of idle ones for what, "" of others. Idle times are those of steps that were not profiled,
    where such steps are known. Of a window without steps nothing changes.
    """
    base, of = base_of_shares(ranks), analyzed(ranks)
    n_devices = max(1, len(of.whole_ns))
    if base.unit == WINDOW or not ns.sum():
        return ns, n_devices
    units = max(1, round(base.steps_count)) * n_devices
    idle = np.array([bool(cause) for cause in causes], np.bool_)
    times = ns.astype(np.float64)
    if of.is_unprofiled:
        times[[cause == "profiler" for cause in causes]] = 0.0
        busy_ns = times[~idle].sum()
        times[idle] *= max(0.0, sum(of.whole_ns.values()) - busy_ns) / max(1.0, times[idle].sum())
    until = np.rint(np.cumsum(times) * (units * base.unit_ns / times.sum())).astype(np.int64)
    return np.diff(until, prepend=0), units


def _parts_of_devices(part: Trace) -> dict[int, dict[str, int]]:
    """Return the ns of each of the five parts in the window, by device."""
    return {
        row["device"]: {name: int(row[f"{name}_ns"]) for name in PARTS}
        for row in device_parts(part).rows()
    }


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
