"""Which step a collective belongs to, and what the collectives of a step add up to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.facts.host.phase_names import PHASES, UNCLAIMED, phases_of_ranges
from traceprof.facts.launches import Launches, adopting_range_of_launches
from traceprof.facts.steps.find import find_steps
from traceprof.model.intervals import Intervals
from traceprof.model.steps import Steps
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace

__all__ = [
    "StepTraffic",
    "callers_of_collectives",
    "measure_step_traffic",
    "phases_of_collectives",
    "steps_of_collectives",
]

_IS_COLLECTIVE: Final = re.compile(
    r"comm:|comm\.async:|[nr]ccl|gloo:|record_param_comms", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class StepTraffic:
    """The collectives of an average step of one process.

    ``size_bytes`` is what the rank hands in, None where a size is not known;
    ``all_reduce_ratio`` the share of the steps in which an all-reduce ran.
    """

    n_steps: int
    count: float
    size_bytes: float | None
    all_reduce_ratio: float


def steps_of_collectives(steps: Steps, work: pd.DataFrame) -> npt.NDArray[np.int64]:
    """Return the row of ``steps.table`` that each collective was called in, -1 for none.

    A collective whose call is not known belongs to the step in which it started.
    """
    found = np.full(len(work), ABSENT, np.int64)
    called = work["call_ns"].to_numpy(np.int64)
    instants = np.where(called != ABSENT, called, work["start_ns"].to_numpy(np.int64))
    table = steps.table
    by_process = work.groupby("process").indices
    for process, rows in table.groupby("process").indices.items():
        mine = by_process.get(process)
        if mine is None:
            continue
        starts, ends = (table[name].to_numpy()[rows] for name in ("start_ns", "end_ns"))
        place = np.searchsorted(starts, instants[mine], side="right") - 1
        inside = (place >= 0) & (instants[mine] < ends[np.maximum(place, 0)])
        found[mine] = np.where(inside, rows[np.maximum(place, 0)], ABSENT)
    return found


def phases_of_collectives(trace: Trace, work: pd.DataFrame) -> npt.NDArray[np.object_]:
    """Return the phase whose code called each collective (forward, backward and so on).

    The ranges of the collectives themselves do not count.
    """
    ranges = trace.whole.ranges
    phases = phases_of_ranges(ranges)
    kept = (phases >= 0) & (phases != PHASES.index("communication"))
    kept &= (ranges["kind"] == "push_pop").to_numpy()
    found = adopting_range_of_launches(trace, ranges[kept], _calls(work))
    return _named(np.array([*PHASES, UNCLAIMED], object)[phases[kept]], found, UNCLAIMED)


def callers_of_collectives(trace: Trace, work: pd.DataFrame) -> npt.NDArray[np.object_]:
    """Return the innermost range (a layer, a module, a user's own) around each call; "" for none.

    The ranges of the collectives themselves and NCCL's own do not count.
    """
    ranges = trace.whole.ranges
    names = ranges["name"].cat
    own = np.array([_IS_COLLECTIVE.match(str(name)) is not None for name in names.categories], bool)
    kept = ~own[names.codes.to_numpy()] if len(own) else np.zeros(len(ranges), bool)
    kept &= (ranges["kind"] == "push_pop").to_numpy()
    found = adopting_range_of_launches(trace, ranges[kept], _calls(work))
    return _named(ranges.loc[kept, "name"].astype(object).to_numpy(), found, "")


def _calls(work: pd.DataFrame) -> Launches:
    """Return the calls of the collectives as launches."""
    called = work["call_ns"].to_numpy(np.int64)
    return Launches(
        call=np.where(called == ABSENT, ABSENT, 0),
        start_ns=called,
        end_ns=work["call_end_ns"].to_numpy(np.int64),
        process=work["process"].to_numpy(np.int64),
        thread=work["thread"].to_numpy(np.int64),
    )


def _named(
    names: npt.NDArray[np.object_], found: npt.NDArray[np.int64], nothing: str
) -> npt.NDArray[np.object_]:
    if not len(names):
        return np.full(len(found), nothing, object)
    return np.asarray(np.where(found >= 0, names[np.maximum(found, 0)], nothing), object)


def measure_step_traffic(trace: Trace, work: pd.DataFrame) -> StepTraffic | None:
    """Return what the collectives of a step add up to; None where no steps are known."""
    steps = find_steps(trace)
    in_step = work[steps_of_collectives(steps, work) >= 0] if len(steps) else work.iloc[:0]
    if in_step.empty:
        return None
    sizes = in_step["n_bytes"].to_numpy(np.int64)
    spans = Intervals.union_of(steps.table["start_ns"], steps.table["end_ns"])
    reducing = in_step[(in_step["op"] == "all_reduce") & in_step["is_timed"]]
    return StepTraffic(
        n_steps=len(steps),
        count=len(in_step) / len(steps),
        size_bytes=None if (sizes < 0).any() else float(sizes.sum()) / len(steps),
        all_reduce_ratio=_covered(reducing, spans) / (spans.total_ns or 1),
    )


def _covered(work: pd.DataFrame, spans: Intervals) -> int:
    return (Intervals.union_of(work["start_ns"], work["end_ns"]) & spans).total_ns
