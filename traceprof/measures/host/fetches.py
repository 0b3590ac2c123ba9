"""Finds the pace at which batches arrive, and how much longer a loop takes than that."""

from __future__ import annotations

from typing import Final

import numpy as np

from traceprof.measures.host.states import find_host_phases
from traceprof.measures.rows import Floats, Ints
from traceprof.model.intervals import Intervals
from traceprof.model.table import Table
from traceprof.model.trace import Trace

_MIN_WAIT_RATIO: Final = 0.05
"""Minimum wait for a batch, as a share of the mean step, that shows that no batch was ready."""
_MAX_STEPS_BETWEEN_WAITS: Final = 8
"""With more steps between two waits, the loop rather than the loader determines the pace."""


def paces_of_batches(part: Trace, steps: Table) -> list[tuple[float, float]]:
    """Return the pace of each process that waits for batches, and its excess, both in ns per step.

    A wait ends when the next batch is ready. Between two waits, the loop therefore takes as long as
    the loader needs for these batches, whatever the steps between them contain: a slow step only
    shortens the next waits. The pace is the median of these times per step. The excess is the mean
    time beyond it, because the workers stopped (their queue was full) or because the loop itself
    loads the data. ``steps`` has the columns process, start_ns, and next_ns.
    """
    found = []
    for host in find_host_phases(part.whole):
        own = steps.take(steps["process"] == host.process)
        if own.empty or "data" not in host.times:
            continue
        starts, end_ns = own["start_ns"], int(own["next_ns"][-1])
        time = host.times["data"] & Intervals.single(int(starts[0]), end_ns)
        step = np.searchsorted(starts, time.ends, side="right")
        waited_ns = np.bincount(step, time.ends - time.starts, minlength=len(starts) + 1)
        ready_ns = np.zeros(len(starts) + 1, np.int64)
        ready_ns[step] = time.ends  # the last of a step remains
        mean_ns = (end_ns - starts[0]) / len(starts)
        waits = np.flatnonzero(waited_ns >= _MIN_WAIT_RATIO * mean_ns)
        lengths, counts = np.diff(ready_ns[waits]).astype(np.float64), np.diff(waits)
        if 2 * counts.sum() < len(starts) or _median(counts, counts) > _MAX_STEPS_BETWEEN_WAITS:
            continue
        pace_ns = _median(lengths / counts, counts)
        found.append((pace_ns, max(0.0, lengths.sum() / counts.sum() - pace_ns)))
    return found


def _median(values: Floats | Ints, counts: Ints) -> float:
    """Return the median of ``values``, each repeated as often as ``counts`` says."""
    return float(np.median(np.repeat(values, counts)))
