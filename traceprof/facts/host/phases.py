"""When the host was in which phase."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traceprof.facts.cache import of_window
from traceprof.facts.launches import phases_of_all_ranges
from traceprof.facts.names.phases import PHASES
from traceprof.model.intervals import Intervals
from traceprof.model.trace import Trace

__all__ = ["HostPhases", "find_host_phases"]

_Int64Array = npt.NDArray[np.int64]


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
    phases = phases_of_all_ranges(trace)[trace.rows_in_whole("ranges")]
    is_phase = (phases >= 0) & (ranges["kind"] == "push_pop").to_numpy()
    phased = ranges[["process", "thread", "start_ns", "end_ns", "depth"]].loc[is_phase]
    phased = phased.assign(phase=phases[is_phase])
    sizes = phased.groupby(["process", "thread"]).size().reset_index(name="size")
    # Of equals the first thread: rows are sorted by it.
    main = sizes.loc[sizes.groupby("process")["size"].idxmax()]
    lanes = phased.groupby(["process", "thread"]).indices
    columns = [phased[name].to_numpy(np.int64) for name in ("start_ns", "end_ns", "depth", "phase")]
    found = []
    for process, thread in zip(main["process"].tolist(), main["thread"].tolist(), strict=True):
        rows = lanes[process, thread]
        found.append(_of_thread(process, thread, *(column[rows] for column in columns)))
    return found


def _of_thread(
    process: int,
    thread: int,
    starts: _Int64Array,
    ends: _Int64Array,
    depth: _Int64Array,
    phase: _Int64Array,
) -> HostPhases:
    """Return the exclusive times: what is deeper is taken from what is around it."""
    times = dict.fromkeys(range(len(PHASES)), Intervals.empty())
    claimed = Intervals.empty()
    for level in np.unique(depth)[::-1]:
        at_level = depth == level
        for place in np.unique(phase[at_level]).tolist():
            rows = at_level & (phase == place)
            times[place] = times[place] | (Intervals.union_of(starts[rows], ends[rows]) - claimed)
        claimed = claimed | Intervals.union_of(starts[at_level], ends[at_level])
    counts = np.bincount(phase, minlength=len(PHASES)).tolist()
    present = [place for place, count in enumerate(counts) if count]
    return HostPhases(
        process=process,
        thread=thread,
        times={PHASES[place]: times[place] for place in present},
        counts={PHASES[place]: counts[place] for place in present},
    )
