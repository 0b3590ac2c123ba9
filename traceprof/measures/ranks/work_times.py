"""Measure each rank within its own steps, to find a slow rank without a common clock.

Ranks that wait for each other have the same step time; the rank that waits least arrives last. The
compute and the waiting of a rank are both measured within its own steps, on its own clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from traceprof.measures.collectives.members import Member, find_members, list_members
from traceprof.measures.collectives.operations import SINGLE_OPS, find_collectives
from traceprof.measures.device.times import device_time, devices_of_processes, recorded_windows
from traceprof.measures.facts import of_window
from traceprof.measures.ranks.roles import find_roles
from traceprof.measures.rows import ints, rows_by
from traceprof.measures.steps.find import find_steps
from traceprof.model.intervals import Int64Array
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note
from traceprof.model.table import Table
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace

_MIN_EXCESS_RATIO: Final = 0.03
"""Minimum extra time of a slow rank, as a share of the step."""
_MIN_COLLECTIVES: Final = 3
"""With fewer collectives, a rank that communicates less need not be waited for."""
_MIN_SHARE_OF_SLOWEST: Final = 0.5
"""Ranks with at least this share of the extra time of the slowest rank are slow as well."""


@dataclass(frozen=True, slots=True)
class SlowRanks:
    """The ranks at ``places`` (in `find_members`) that do more in their own steps than the others.

    Times are medians per step. ``compute_ns`` is that of the slowest rank, ``usual_compute_ns`` the
    median of the others. ``exposed_ns`` and ``usual_exposed_ns`` are the same for communication not
    overlapped with compute. ``excess_ns`` is how far the slowest rank is above that median,
    ``least_ns`` how far above every rank that is not slow. ``is_compute``: the excess is compute;
    otherwise the rank waits less than the others because of work outside compute. ``n_steps`` is
    the number of measured steps; 0 if no steps are known, and the values are of the whole recording
    then.
    """

    places: tuple[int, ...]
    label: str
    is_compute: bool
    excess_ns: int
    least_ns: int
    step_ns: int
    compute_ns: int
    usual_compute_ns: int
    exposed_ns: int
    usual_exposed_ns: int
    n_steps: int

    @property
    def factor(self) -> float:
        """Compute time divided by the median of the other ranks."""
        return self.compute_ns / max(self.usual_compute_ns, 1)


_COUNTED: Final = ("has_messages", "n_collectives")


@of_window
def work_times(ranks: Ranks) -> Table:
    """Return the median step of each rank; of the recording if no steps are known.

    Columns: place (in `find_members`), n_steps, step_ns, compute_ns, exposed_ns (communication not
    overlapped with compute), has_messages, n_collectives. Ranks without device work are left out.
    If some ranks have no steps in the window (the clocks differ that much), the result covers the
    whole recording.
    """
    members, hull = find_members(ranks), ranks.span.hull
    # With different clocks, a gap between the windows of one rank is inside a step of another rank.
    widened = ranks if hull == ranks.span else ranks.whole.within(hull)
    within, whole = (
        Table.stacked(window.each(_measure_part, members)) for window in (widened, ranks.whole)
    )
    is_missing = len(within) < len(whole) or (within["n_steps"] == 0).any()
    return (whole if is_missing else within).in_order("place")


def _measure_part(part: Trace, members: tuple[Member, ...]) -> Table:
    """Return the columns of `work_times` for the members that used devices in one trace."""
    steps = find_steps(part)
    table = steps.table.take(~steps.warmup()) if len(steps) else steps.table
    rows_of, used = rows_by(table, "process"), devices_of_processes(part)
    work, windows = find_collectives(part), recorded_windows(part)
    with_messages = set(work["process"][work["op"].isin(SINGLE_OPS)].tolist())
    starts, ends = ints(table, "device_start_ns", "device_end_ns")
    found = []
    for place, member in enumerate(members):
        devices = used.get(member.process, ())
        if member.device != ABSENT:
            devices = tuple(device for device in devices if device == member.device)
        if not devices:
            continue
        recorded = part.recordings.get(member.process, part.span) & part.span
        rows = rows_of.get(member.process, np.empty(0, np.int64))
        if (recorded_device := windows.get(member.process)) is not None:
            lengths = ends[rows] - starts[rows]
            rows = rows[recorded_device.covered_ns(starts[rows], ends[rows]) == lengths]
        spans = (
            (starts[rows], ends[rows])
            if len(rows)
            else (np.array([recorded.start_ns]), np.array([recorded.end_ns]))
        )
        found.append(_measure_rank(part, place, devices, spans, len(rows)))
        found[-1]["has_messages"] = member.process in with_messages
        is_inside = (work["process"] == member.process) & (work["start_ns"] >= spans[0].min())
        found[-1]["n_collectives"] = int((is_inside & (work["start_ns"] < spans[1].max())).sum())
    names = ("place", "n_steps", "step_ns", "compute_ns", "exposed_ns", *_COUNTED)
    return Table({name: np.array([row[name] for row in found], np.int64) for name in names})


def _measure_rank(
    part: Trace, place: int, devices: tuple[int, ...], spans: tuple[Int64Array, Int64Array], n: int
) -> dict[str, int | bool]:
    """Return the medians of step, compute, and exposed communication over ``spans``.

    ``n`` is the number of steps; 0 if the span is the recording.
    """
    times = [device_time(part, device) for device in devices]
    parts = (
        ("compute_ns", [time.compute for time in times]),
        ("exposed_ns", [time.communication - time.compute for time in times]),
    )
    medians = {
        name: int(np.median(np.mean([time.covered_ns(*spans) for time in intervals], axis=0)))
        for name, intervals in parts
    }
    return {"place": place, "n_steps": n, "step_ns": int(np.median(spans[1] - spans[0])), **medians}


@of_window
def find_slow_ranks(ranks: Ranks) -> SlowRanks | None:
    """Return the ranks that do more in their own steps than the others, and wait less for them.

    Only trainers are compared if ranks have roles, and only ranks with steps if any has some. None
    if no rank stands out, if no rank has exposed communication (then ranks need not wait), or if a
    rank has fewer than 3 collectives.
    """
    times = work_times(ranks)
    if trainers := find_roles(ranks).places(are_trainers=True):
        times = times.take(np.isin(times["place"], trainers))
    # A rank without steps has another role, and its whole recording is no step.
    if (times["n_steps"] > 0).any():
        times = times.take(times["n_steps"] > 0)
    if len(times) < 2 or (times["exposed_ns"] == 0).all():
        return None
    if times["n_collectives"].min() < _MIN_COLLECTIVES:
        return None
    step_ns = int(np.median(times["step_ns"]))
    compute, exposed = ints(times, "compute_ns", "exposed_ns")
    usual_compute, usual_exposed = map(_median_of_others, (compute, exposed))
    waits_less = exposed <= usual_exposed
    for is_compute, values, excess in (
        (True, compute, np.where(waits_less, compute - usual_compute, 0)),
        # Pipeline stages may wait without a kernel that shows the waiting.
        (False, -exposed, np.where(times["has_messages"].any(), 0, usual_exposed - exposed)),
    ):
        slowest = int(excess.argmax())
        if excess[slowest] < _MIN_EXCESS_RATIO * step_ns:
            continue
        slow = np.flatnonzero(excess >= _MIN_SHARE_OF_SLOWEST * excess[slowest])
        if 2 * len(slow) > len(times):
            continue
        places = tuple(times["place"][slow].tolist())
        return SlowRanks(
            places=places,
            label=list_members([find_members(ranks)[place] for place in places]),
            is_compute=is_compute,
            excess_ns=int(excess[slowest]),
            least_ns=max(int((values[slowest] - np.delete(values, slow)).min()), 0),
            step_ns=step_ns,
            compute_ns=int(compute[slowest]),
            usual_compute_ns=int(usual_compute[slowest]),
            exposed_ns=int(exposed[slowest]),
            usual_exposed_ns=int(usual_exposed[slowest]),
            n_steps=int(times["n_steps"][slowest]),
        )
    return None


def _median_of_others(values: Int64Array) -> Int64Array:
    """Return, for each value, the lower median of the other values.

    More than half of the ranks must be slow to hide a slow one.
    """
    order = np.sort(values)
    middle = (len(values) - 2) // 2
    place = np.searchsorted(order, values)  # values after it move up by one
    return np.asarray(order[middle + (place <= middle)], np.int64)


def describe_slow(slow: SlowRanks) -> Note:
    """Return a note on ranks that are slow within their own steps."""
    of = "per step" if slow.n_steps else "in total"
    values = {
        "who": slow.label,
        "own": slow.compute_ns,
        "factor": slow.factor,
        "exposed": slow.exposed_ns,
        "usual": slow.usual_exposed_ns,
    }
    waiting = f"exposed communication takes {{exposed:ns}} {of}, compared with {{usual:ns}} on "
    if slow.is_compute:
        text = (
            f"{{who}}: compute takes {{own:ns}} {of}, {{factor:factor}} the median of the other "
            f"ranks; {waiting}the other ranks."
        )
    else:
        text = f"{{who}} waits least: {waiting}the median of the other ranks."
    return Note.of(text, **values)
