"""Time that the recorder takes, and time between the cycles that it records."""

from __future__ import annotations

from traceprof.measures.rows import unions_by
from traceprof.model.intervals import Intervals
from traceprof.model.timing import TRACEPROF_DOMAIN
from traceprof.model.trace import Trace
from traceprof.names.ranges import CYCLE, PROFILER_RANGES


def recorder_times(trace: Trace) -> dict[int, Intervals]:
    """Return when a recorder was busy with itself, or did not record, by process.

    It is busy at the start and end of its windows. It does not record between two recordings.
    """
    ranges = trace.ranges
    traceprof_ranges = ranges.take(ranges["domain"] == TRACEPROF_DOMAIN)
    found = unions_by(traceprof_ranges.take(traceprof_ranges["name"].isin(PROFILER_RANGES)))
    for process, between in between_cycles(trace).items():
        found[process] = found.get(process, Intervals.empty()) | between
    return found


def between_cycles(trace: Trace) -> dict[int, Intervals]:
    """Return the times between several recordings of a process, in which nothing was recorded."""
    ranges = trace.whole.ranges
    cycle_ranges = ranges.take((ranges["name"] == CYCLE) & (ranges["domain"] == TRACEPROF_DOMAIN))
    return {
        process: cycles.gaps(int(cycles.starts[0]), int(cycles.ends[-1]))
        for process, cycles in unions_by(cycle_ranges).items()
    }
