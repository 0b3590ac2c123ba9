"""When the host was in which phase."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from traceprof.facts.cache import of_window
from traceprof.facts.host.phase_names import PHASES, phases_of_ranges
from traceprof.model.intervals import Intervals
from traceprof.model.trace import Trace

__all__ = ["HostPhases", "find_host_phases"]


@dataclass(frozen=True, slots=True, eq=False)
class HostPhases:
    """When the main thread of a process was in each phase, without the phases inside it.

    ``times`` has the phases that occur, in the order of the training loop; ``counts`` how many
    ranges name each.
    """

    process: int
    thread: int
    times: Mapping[str, Intervals]
    counts: Mapping[str, int]

    @property
    def claimed_ns(self) -> int:
        """The time in any phase."""
        return sum(time.total_ns for time in self.times.values())


@of_window
def find_host_phases(trace: Trace) -> list[HostPhases]:
    """Return the phases of each process that names any, on the thread that names the most."""
    ranges = trace.ranges
    phases = phases_of_ranges(ranges)
    phased = ranges.assign(phase=phases)[(phases >= 0) & (ranges["kind"] == "push_pop")]
    found = []
    for process, owned in phased.groupby("process"):
        thread = owned.groupby("thread").size().idxmax()
        found.append(
            _of_thread(owned[owned["thread"] == thread], int(str(process)), int(str(thread)))
        )
    return found


def _of_thread(phased: pd.DataFrame, process: int, thread: int) -> HostPhases:
    """Return the exclusive times: what is deeper is taken from what is around it."""
    times = dict.fromkeys(PHASES, Intervals.empty())
    depth = phased["depth"].to_numpy()
    claimed = Intervals.empty()
    for level in np.unique(depth)[::-1]:
        at_level = phased[depth == level]
        for place, rows in at_level.groupby("phase"):
            phase = PHASES[int(str(place))]
            mine = Intervals.union_of(rows["start_ns"], rows["end_ns"])
            times[phase] = times[phase] | (mine - claimed)
        claimed = claimed | Intervals.union_of(at_level["start_ns"], at_level["end_ns"])
    counts = np.bincount(phased["phase"], minlength=len(PHASES))
    present = [(phase, int(count)) for phase, count in zip(PHASES, counts, strict=True) if count]
    return HostPhases(
        process=process,
        thread=thread,
        times={phase: times[phase] for phase, _ in present},
        counts=dict(present),
    )
