"""Notes on the waiting of ranks for each other: how much, for whom, and whose profiler is slow."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final

import numpy as np

from traceprof.findings.claims import Times
from traceprof.findings.context import Context
from traceprof.findings.members import devices_of_members
from traceprof.measures.collectives.blame import find_blame
from traceprof.measures.collectives.members import find_members
from traceprof.measures.collectives.waits import find_waits, waiting_of_members
from traceprof.measures.ranks.imbalance import MIN_STEPS
from traceprof.measures.ranks.pipeline import find_stages
from traceprof.measures.rows import rows_by
from traceprof.measures.steps.base import STEP
from traceprof.model.intervals import Intervals
from traceprof.model.results import Note
from traceprof.model.trace import Trace

_MIN_WAITED_RATIO: Final = 0.05
"""Share of the window from which the load balance of waiting ranks is not called fine."""
_MIN_NOTED_RATIO: Final = 0.01
_MIN_COST_FACTOR: Final = 2.0
"""A profiler costs much more on a rank if it costs twice as much as on any other rank."""


def note_on_waiting(context: Context) -> Note | None:
    """Return how long the ranks wait for each other and most of all for whom; None if it is little.

    The numbers are those of the table of stragglers. Stages of a pipeline wait by design.
    """
    blame, members = find_blame(context.ranks), find_members(context.ranks)
    mean_ns = blame.whole_ns / max(1, len(members))
    is_little = mean_ns < _MIN_WAITED_RATIO * context.window_ns
    if blame.why_not or is_little or find_stages(context.ranks):
        return None
    latest = int(blame.attributed_ns.argmax())
    ratio = float(blame.attributed_ns[latest] / blame.whole_ns)
    is_of_steps = context.base.unit == STEP
    n = context.base.steps_count if is_of_steps else 1.0
    text = "Ranks wait {waited:ns} " + ("per step" if is_of_steps else "in the window")
    text += ", {share:ratio} of it for {who}" if ratio else ""
    few = "one step is" if round(n) == 1 else "{n:count} steps are"
    if is_of_steps and n < MIN_STEPS:
        text += f"; {few} too few to name a straggler"
    else:
        text += "; no single rank is a straggler"
    notes = [*notes_on_profiler(context, (latest,))] if ratio else []
    text += "".join(f"; {note.text}" for note in notes)
    values: dict[str, Any] = {"waited": mean_ns / n, "who": members[latest].label, "share": ratio}
    return Note.of(text, **values, n=round(n))


def notes_on_profiler(context: Context, places: Collection[int]) -> Iterator[Note]:
    """Yield a note if a profiler costs the late ranks much more than any other rank."""
    cost_of = {
        process: ratio
        for processes, ratio in context.ranks.each(_cost_of_recording)
        for process in processes
    }
    members = find_members(context.ranks)
    costs = np.array([cost_of.get(member.process, 0.0) for member in members])
    is_late = np.isin(np.arange(len(members)), [*places])
    least_ratio = costs[is_late].min(initial=1.0)
    if least_ratio > _MIN_COST_FACTOR * costs[~is_late].max(initial=0.0):
        who, whose = members[min(places)].label, "its profiler"
        if len(places) > 1:
            who, whose = "these ranks", "their profiler"
        yield Note.of("{who} may be late because of " + whose, who=who)


def _cost_of_recording(part: Trace) -> tuple[list[int], float]:
    """Return the processes of a trace, and the least share of the CPU time that recording took."""
    recording = part.info.recording
    return part.processes["process"].tolist(), recording.ratios[0] if recording else 0.0


def notes_on_waiting_in(context: Context, exposed: Times) -> Iterator[Note]:
    """Yield a note on the part of exposed communication in which GPUs wait for late ranks."""
    blame = find_blame(context.ranks)
    if blame.why_not or not blame.whole_ns:
        return
    waits, waiting = find_waits(context.ranks), waiting_of_members(context.ranks.whole)
    device_of, waited_ns = devices_of_members(context), 0
    for place, rows in rows_by(waits, "member").items():
        ends = waits["last_start_ns"][rows]
        in_step = Intervals.union_of(ends - waits["wait_ns"][rows], ends) & waiting[place]
        time = exposed.get(device_of.get(place, -1), Intervals.empty()) & context.typical
        waited_ns += (in_step & time).total_ns
    if waited_ns >= _MIN_NOTED_RATIO * context.analyzed_ns:
        after = (
            " of the exposed time is waiting for late ranks, which sending less data cannot save"
        )
        yield context.timed(waited_ns, after=after)
