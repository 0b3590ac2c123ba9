"""The time by which a run is judged: its steps without warm-up and slow ones, or the whole window.

What one device or another loses there is a share of that time alone: `findings` and `whatif` take
it from here.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.facts.cache import of_window
from traceprof.facts.device.times import recorded_window, used_devices
from traceprof.facts.steps.find import steps_of_ranks
from traceprof.facts.steps.measured import measured_steps
from traceprof.model.intervals import Intervals
from traceprof.model.ranks import Ranks
from traceprof.model.timing import Steps

__all__ = ["are_typical", "judged_times", "named_steps", "typical_step_ns", "typical_time"]


def named_steps(steps: Steps) -> Steps:
    """Return the steps that can be judged: none where all of them are warm-up."""
    is_none = not len(steps) or steps.warmup().all()
    return Steps(steps.table.iloc[:0], "") if is_none else steps


@of_window
def are_typical(ranks: Ranks) -> npt.NDArray[np.bool_]:
    """Return which of the steps of the window are neither warm-up nor slow."""
    steps = steps_of_ranks(ranks)
    if not len(named_steps(steps)):
        return np.zeros(len(steps), np.bool_)
    excess_ns = measured_steps(ranks).table["excess_ns"].to_numpy(np.float64)
    return ~steps.warmup() & ~(excess_ns > 0)


@of_window
def typical_time(ranks: Ranks) -> Intervals:
    """Return when the typical steps were; the window where steps are not known."""
    table = steps_of_ranks(ranks).table
    is_typical = are_typical(ranks)
    if is_typical.any():
        kept = _union_of(table) - _union_of(table[~is_typical])
        if len(kept):
            return kept
    return Intervals.single(ranks.span.start_ns, ranks.span.end_ns)


@of_window
def typical_step_ns(ranks: Ranks) -> float:
    """Return the median length of a typical step; the window where steps are not known."""
    is_typical = are_typical(ranks)
    if not is_typical.any():
        return float(ranks.span.duration_ns)
    return float(np.median(steps_of_ranks(ranks).durations_ns[is_typical]))


@of_window
def judged_times(ranks: Ranks) -> Mapping[int, Intervals]:
    """Return when each device that ever worked is judged, as far as its rank was recorded."""
    found: dict[int, Intervals] = {}
    for part in ranks:
        for device in used_devices(part):
            window = recorded_window(part, device)
            found[device] = typical_time(ranks).clip(window.start_ns, window.end_ns)
    return found


def _union_of(steps: pd.DataFrame) -> Intervals:
    return Intervals.union_of(steps["device_start_ns"], steps["device_end_ns"])
