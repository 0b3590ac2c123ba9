"""What each rank does in its own steps: what tells a slow rank without a clock that all share.

Ranks that wait for one another take as long for a step; who waits least comes last. Both the
compute of a rank and its waiting are seen within its own steps, on its own clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from traceprof.measures.collectives.members import Member, find_members
from traceprof.measures.collectives.operations import SINGLE_OPS, find_collectives
from traceprof.measures.device.times import device_time, devices_of_processes, recorded_windows
from traceprof.measures.facts import of_window
from traceprof.measures.rows import ints, rows_by
from traceprof.measures.steps.find import find_steps
from traceprof.model.intervals import Int64Array
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note
from traceprof.model.table import Table
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace

_MIN_EXCESS_RATIO: Final = 0.03
"""What a rank does more than the others, of a step, to be told."""
_MIN_SHARE_OF_SLOWEST: Final = 0.5
"""Ranks that do at least this of what the slowest does more are slow together."""
_MAX_LISTED_RANKS: Final = 4


@dataclass(frozen=True, slots=True)
class SlowRanks:
    """The ranks at ``places`` (in `find_members`), which do more in their own steps than others.

    Per step, the median: ``compute_ns``, of the slowest, and ``usual_compute_ns``, of the median of
    the others; ``exposed_ns`` and ``usual_exposed_ns`` of communication that no compute hides.
    ``excess_ns`` is what the slowest does more than that median, ``least_ns`` than any other that
    is not slow, ``is_compute`` whether that is compute: else it waits less than the others, for
    what it does outside compute. ``n_steps``: of how many steps, 0 where none are known, and of the
    whole recording.
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
        """How many times as long it computes as the median of the others."""
        return self.compute_ns / max(self.usual_compute_ns, 1)


@of_window
def own_times(ranks: Ranks) -> Table:
    """Return what each rank does in its own steps, the median; of the recording without steps.

    Columns: place (in `find_members`), n_steps, step_ns, compute_ns, exposed_ns (communication that
    no compute hides), has_messages. Ranks without device work are left out. Where the clocks are so
    far apart that the window holds no steps of some ranks, it is of the whole recording.
    """
    members, hull = find_members(ranks), ranks.span.hull
    # A gap that is one rank's, where clocks differ, lies in a step of another.
    widened = ranks if hull == ranks.span else ranks.whole.within(hull)
    within, whole = (
        Table.stacked(window.each(_measure_part, members)) for window in (widened, ranks.whole)
    )
    is_missing = len(within) < len(whole) or (within["n_steps"] == 0).any()
    return (whole if is_missing else within).in_order("place")


def _measure_part(part: Trace, members: tuple[Member, ...]) -> Table:
    steps = find_steps(part)
    table = steps.table.take(~steps.warmup()) if len(steps) else steps.table
    rows_of, used = rows_by(table, "process"), devices_of_processes(part)
    work, windows = find_collectives(part), recorded_windows(part)
    talking = set(work["process"][work["op"].isin(SINGLE_OPS)].tolist())
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
        if (seen := windows.get(member.process)) is not None:
            lengths = ends[rows] - starts[rows]
            rows = rows[seen.covered_ns(starts[rows], ends[rows]) == lengths]
        spans = (
            (starts[rows], ends[rows])
            if len(rows)
            else (np.array([recorded.start_ns]), np.array([recorded.end_ns]))
        )
        found.append(_measure_rank(part, place, devices, spans, len(rows)))
        found[-1]["has_messages"] = member.process in talking
    names = ("place", "n_steps", "step_ns", "compute_ns", "exposed_ns", "has_messages")
    return Table({name: np.array([row[name] for row in found], np.int64) for name in names})


def _measure_rank(
    part: Trace, place: int, devices: tuple[int, ...], spans: tuple[Int64Array, Int64Array], n: int
) -> dict[str, int | bool]:
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
    """Return the ranks that do more in their own steps than the others, and wait less for these.

    Nothing where no rank stands out, or where not all communicate: they need not wait then.
    """
    times = own_times(ranks)
    if len(times) < 2 or (times["exposed_ns"] == 0).all():
        return None
    step_ns = int(np.median(times["step_ns"]))
    compute, exposed = ints(times, "compute_ns", "exposed_ns")
    usual_compute, usual_exposed = map(_median_of_others, (compute, exposed))
    waits_less = exposed <= usual_exposed
    for is_compute, values, excess in (
        (True, compute, np.where(waits_less, compute - usual_compute, 0)),
        # In a pipeline stages may also wait without a kernel that would show it.
        (False, -exposed, np.where(times["has_messages"].any(), 0, usual_exposed - exposed)),
    ):
        most = int(excess.argmax())
        if excess[most] < _MIN_EXCESS_RATIO * step_ns:
            continue
        slow = np.flatnonzero(excess >= _MIN_SHARE_OF_SLOWEST * excess[most])
        if 2 * len(slow) > len(times):
            continue
        places = tuple(times["place"][slow].tolist())
        return SlowRanks(
            places=places,
            label=_list_members([find_members(ranks)[place] for place in places]),
            is_compute=is_compute,
            excess_ns=int(excess[most]),
            least_ns=max(int((values[most] - np.delete(values, slow)).min()), 0),
            step_ns=step_ns,
            compute_ns=int(compute[most]),
            usual_compute_ns=int(usual_compute[most]),
            exposed_ns=int(exposed[most]),
            usual_exposed_ns=int(usual_exposed[most]),
            n_steps=int(times["n_steps"][most]),
        )
    return None


def _median_of_others(values: Int64Array) -> Int64Array:
    """Return the lower median of the others, for each: more than half must be slow to hide one."""
    order = np.sort(values)
    middle = (len(values) - 2) // 2
    place = np.searchsorted(order, values)  # without itself the others behind it move up
    found: Int64Array = order[middle + (place <= middle)]
    return found


def _list_members(members: list[Member]) -> str:
    labels = [member.label for member in members[:_MAX_LISTED_RANKS]]
    more = len(members) - len(labels)
    return ", ".join(labels) + (f" and {more} more" if more else "")


def describe_slow(slow: SlowRanks) -> Note:
    """Return a note on ranks that are slow by what they do in their own steps."""
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
