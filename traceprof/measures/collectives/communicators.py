"""Find which unnamed collectives belong to the same communicator, from launches and times.

Old traces contain kernels without communicator names. On each device NCCL runs a communicator in
one stream, so this module groups streams:

* streams whose kernels were launched by one call (a process that drives several devices);
* otherwise streams with the same sequence of operations whose kernels run concurrently and end
  together, since no rank leaves a collective before all ranks have arrived.

If ranks started recording at different times, their sequences are aligned first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from traceprof.measures.rows import bounds
from traceprof.model.grouping import codes_of, groups_of, rows_by_values
from traceprof.model.intervals import Int64Array
from traceprof.model.table import Table
from traceprof.model.tables import ABSENT

_MAX_SHIFT: Final = 64  # in operations
_MIN_OVERLAP_RATIO: Final = 0.5  # of the shorter sequence
_OFFSET_WEIGHT: Final = 0.01  # of the clock difference, in the cost of a shift
_MAX_SYNCED_OFFSET_NS: Final = 1_000_000_000  # clocks that differ more are unrelated
_SIMILAR_FACTOR: Final = 2.0  # costs within this factor are about equal
_MIN_MARGIN_NS: Final = 1000  # by which rivals of a clear shift cost more


Recorded: TypeAlias = tuple[Int64Array, Int64Array]
"""Ends in ns and sizes of a sequence of operations of one rank."""


class LinedUp(NamedTuple):
    """A shift, and whether no other shift fits about as well."""

    shift: int
    is_clear: bool


def line_up(reference: Recorded, other: Recorded, one_clock: bool = False) -> LinedUp:
    """Return k such that element i of ``other`` is element i + k of ``reference``.

    Both are (ends in ns, sizes). The same operation has the same size on both ranks and ends at the
    same time, up to a constant clock difference. The shift with the fewest unequal sizes wins. Of
    equals, the shift with the lowest cost wins: the unsteadiness of the end difference plus 1% of
    the difference itself. If the difference exceeds one second at every shift, the clocks are
    unrelated: the difference does not count, and the smallest shift with about the lowest
    unsteadiness wins. With ``one_clock`` both ranks have the same clock, so the whole difference
    counts.
    """
    n_reference, n_other = len(reference[0]), len(other[0])
    min_overlap = max(1, int(_MIN_OVERLAP_RATIO * min(n_reference, n_other)))
    lowest = max(-_MAX_SHIFT, min_overlap - n_other)
    highest = min(_MAX_SHIFT + max(0, n_reference - n_other), n_reference - min_overlap)
    shifts = sorted(range(lowest, highest + 1), key=abs)
    costs = {shift: _cost(reference, other, shift) for shift in shifts}
    fewest = min(cost[0] for cost in costs.values())
    likely = [shift for shift in shifts if costs[shift][0] == fewest]
    if one_clock or min(costs[shift][2] for shift in likely) <= _MAX_SYNCED_OFFSET_NS:
        weight = 1.0 if one_clock else _OFFSET_WEIGHT
        total = {s: costs[s][1] + weight * costs[s][2] for s in likely}
        best = min(likely, key=lambda s: total[s])
    else:
        total = {s: costs[s][1] for s in likely}
        limit = _SIMILAR_FACTOR * min(total.values())
        best = next(s for s in likely if total[s] <= limit)
    rivals = [cost for s, cost in total.items() if s != best]
    limit = _SIMILAR_FACTOR * total[best] + (0 if one_clock else _MIN_MARGIN_NS)
    return LinedUp(best, not rivals or min(rivals) > limit)


def overlap_of(n_reference: int, n_other: int, shift: int) -> tuple[slice, slice]:
    """Return the slices of two sequences that correspond to each other at ``shift``."""
    first = max(0, shift)
    last = max(first, min(n_reference, n_other + shift))
    return slice(first, last), slice(first - shift, last - shift)


def _cost(reference: Recorded, other: Recorded, shift: int) -> tuple[float, float, float]:
    """Return the share of unequal sizes, then unsteadiness and size of the end difference (ns)."""
    there, here = overlap_of(len(reference[0]), len(other[0]), shift)
    unequal = float(np.mean(reference[1][there] != other[1][here]))
    difference = (other[0][here] - reference[0][there]).astype(np.float64)
    median = _median(difference)
    return unequal, _median(np.abs(difference - median)), abs(median)


def _median(values: npt.NDArray[np.float64]) -> float:
    """Return the median of at least one value; faster than np.median for short arrays."""
    half, is_odd = divmod(len(values), 2)
    if is_odd:
        return float(np.partition(values, half)[half])
    middle = np.partition(values, (half - 1, half))
    return float((middle[half - 1] + middle[half]) / 2)


_MAX_UNEQUAL_RATIO: Final = 0.05  # of operations whose kinds differ between two lanes
_MIN_CONCURRENT_RATIO: Final = 0.5  # of operations that overlap and end together
_MAX_END_DISTANCE_RATIO: Final = 0.5  # of the shorter duration, for ends that are together
_MAX_END_DISTANCE_NS: Final = 20_000
_KIND_COLUMNS: Final = ("op", "algorithm", "protocol", "n_bytes")


@dataclass(frozen=True, slots=True, eq=False)
class _Lane:
    """The collectives of one member and stream, in time order; ``clock`` is its process."""

    member: int
    clock: int
    rows: Int64Array
    starts: Int64Array
    ends: Int64Array
    kinds: Int64Array


@dataclass(slots=True)
class _Communicator:
    """The lanes of one communicator, and whether they are known to belong together."""

    lanes: list[_Lane] = field(default_factory=list)
    is_certain: bool = True


def launch_of_rows(rows: Table) -> Int64Array:
    """Return a number per row for kernels that one call launched on several members; else -1."""
    found = np.full(len(rows), ABSENT, np.int64)
    members = groups_of(rows["process"], rows["member"]).keys
    if len({process for process, _ in members}) == len(members):
        return found
    places = np.flatnonzero(rows["call_ns"] != ABSENT)
    member = rows["member"][places]
    calls = groups_of(*(rows[name][places] for name in ("process", "thread", "call_ns")))
    # Two kernels of one member in one call: a group of collectives that cannot be distinguished.
    pairs = groups_of(calls.packed, member)
    is_shared = calls.reduced(np.logical_and, (pairs.counts == 1)[pairs.number])
    is_shared &= calls.differ(member)
    found[places] = np.where(is_shared[calls.number], calls.number, ABSENT)
    return found


def number_communicators(rows: Table) -> tuple[Int64Array, npt.NDArray[np.bool_]]:
    """Return the communicator number of each row, and whether it is certain.

    ``rows`` have the columns of `find_collectives` and member. If each member has a single stream,
    there is one communicator.
    """
    found = np.zeros(len(rows), np.int64)
    certain = np.ones(len(rows), np.bool_)
    streams = groups_of(rows["member"], rows["stream"]).keys
    if len({member for member, _ in streams}) == len(streams):
        return found, certain
    for number, communicator in enumerate(_merge_lanes(_lanes(rows), launch_of_rows(rows))):
        for lane in communicator.lanes:
            found[lane.rows] = number
            certain[lane.rows] = communicator.is_certain
    return found, certain


def _lanes(work: Table) -> list[_Lane]:
    """Return the lanes of the collectives, one per member and stream."""
    kinds = groups_of(*(codes_of(work[name]) for name in _KIND_COLUMNS)).number.astype(np.int64)
    starts, ends = bounds(work)
    order = np.argsort(starts, kind="stable")
    lanes = rows_by_values(work["member"][order], work["stream"][order])
    clocks = work["process"]
    return [
        _Lane(member, int(clocks[rows[0]]), rows, starts[rows], ends[rows], kinds[rows])
        for (member, _), places in lanes.items()
        for rows in (order[places],)
    ]


def _merge_lanes(lanes: list[_Lane], launch: Int64Array) -> list[_Communicator]:
    """Return the communicators; those with the most collectives first."""
    communicators: list[_Communicator] = []
    for launched in _lanes_by_launch(lanes, launch):
        if len(launched) > 1:
            communicators.append(_Communicator(launched))
            continue
        (lane,) = launched
        scores = {
            i: score
            for i, communicator in enumerate(communicators)
            if lane.member not in {other.member for other in communicator.lanes}
            and (score := _distance(communicator.lanes[0], lane)) is not None
        }
        if not scores:
            communicators.append(_Communicator([lane]))
            continue
        best = min(scores, key=lambda i: scores[i])
        rivals = [score for i, score in scores.items() if i != best]
        communicators[best].lanes.append(lane)
        if rivals and min(rivals) <= _SIMILAR_FACTOR * scores[best]:
            communicators[best].is_certain = False
    return communicators


def _lanes_by_launch(lanes: list[_Lane], launch: Int64Array) -> list[list[_Lane]]:
    """Group the lanes whose kernels were launched by the same calls; longest groups first."""
    group = list(range(len(lanes)))
    lane_of: dict[int, int] = {}
    for i, lane in enumerate(lanes):
        for number in np.unique(launch[lane.rows]).tolist():
            if number == ABSENT:
                continue
            old, new = group[i], group[lane_of.setdefault(number, i)]
            if old != new:
                group = [new if number == old else number for number in group]
    lanes_of_group: dict[int, list[_Lane]] = {}
    for number, lane in zip(group, lanes, strict=True):
        lanes_of_group.setdefault(number, []).append(lane)
    return sorted(
        lanes_of_group.values(), key=lambda lanes: (-len(lanes), -max(len(x.rows) for x in lanes))
    )


def _distance(lane: _Lane, other: _Lane) -> float | None:
    """Return the median distance of the ends of two lanes in ns; None for different communicators.

    The clocks of different processes may differ by any constant.
    """
    one_clock = lane.clock == other.clock
    shift = line_up((lane.ends, lane.kinds), (other.ends, other.kinds), one_clock).shift
    there, here = overlap_of(len(lane.ends), len(other.ends), shift)
    if (
        not len(lane.ends[there])
        or np.mean(lane.kinds[there] != other.kinds[here]) > _MAX_UNEQUAL_RATIO
    ):
        return None
    differences = (other.ends[here] - lane.ends[there]).astype(np.float64)
    offset = 0.0 if one_clock else float(np.median(differences))
    latest_start = np.maximum(lane.starts[there], other.starts[here] - offset)
    is_concurrent = latest_start < np.minimum(lane.ends[there], other.ends[here] - offset)
    if float(np.mean(is_concurrent)) < _MIN_CONCURRENT_RATIO:
        return None
    distance = np.abs(differences - offset)
    shorter = np.minimum((lane.ends - lane.starts)[there], (other.ends - other.starts)[here])
    ends_together = distance <= np.maximum(_MAX_END_DISTANCE_NS, _MAX_END_DISTANCE_RATIO * shorter)
    return float(np.median(distance)) if ends_together.mean() >= _MIN_CONCURRENT_RATIO else None
