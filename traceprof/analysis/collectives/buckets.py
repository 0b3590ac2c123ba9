"""The collectives of a step in their order: the buckets of DDP, the shards of FSDP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.analysis.communication.collectives import UNRECORDED, is_recorded
from traceprof.errors import NotRecordedError
from traceprof.facts.collectives.callers import phases_of_collectives, steps_of_collectives
from traceprof.facts.collectives.rates import with_sizes
from traceprof.facts.collectives.work import find_collectives
from traceprof.facts.steps.find import find_steps
from traceprof.model.trace import Trace

__all__ = ["ANALYSIS", "Buckets", "measure_buckets"]

_COLUMNS: Final = [
    "process",
    "place",
    "op",
    "phase",
    "size_bytes",
    "count",
    "after_ns",
    "duration_ns",
    "exposed_ns",
    "algbw_bytes_per_s",
    "busbw_bytes_per_s",
]


@dataclass(frozen=True, slots=True, eq=False)
class Buckets:
    """One row per process and place in the step (1 is the first collective of a step).

    ``table``: process, place, op, phase, size_bytes, count (in how many steps), and over these
    steps the medians of after_ns (its start, from the start of the step), duration_ns and
    exposed_ns, and the bandwidths. Steps with other operations or sizes at a place have rows of
    their own.
    """

    table: pd.DataFrame
    notes: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return the table, in the order of the step."""
        return self.table


def measure_buckets(trace: Trace) -> Buckets:
    """Return the collectives of the steps in the window by their place in the step.

    Raises:
        NotRecordedError: neither collectives nor kernels were recorded.
    """
    if not is_recorded(trace):
        raise NotRecordedError(UNRECORDED)
    steps = find_steps(trace)
    # What a step called may run after the end of the window.
    work = with_sizes(find_collectives(trace.whole))
    place = steps_of_collectives(steps, work)
    work = work.assign(step=place, phase=phases_of_collectives(trace, work))[place >= 0]
    if work.empty:
        return Buckets(pd.DataFrame(columns=_COLUMNS), ("no step in this window has collectives",))
    work = work.sort_values(["step", "call_ns", "start_ns"], kind="stable")
    starts = steps.table["start_ns"].to_numpy()[work["step"].to_numpy()]
    timed = work["is_timed"]
    work = work.assign(
        place=work.groupby("step").cumcount() + 1,
        after_ns=work["start_ns"] - starts,
        duration_ns=(work["end_ns"] - work["start_ns"]).where(timed),
        size_bytes=work["n_bytes"].where(work["n_bytes"] >= 0).astype(np.float64),
        operation_bytes=work["operation_bytes"].where(timed),
        bus_bytes=work["bus_bytes"].where(timed),
    )
    table = _summed(work)
    note = f"medians over {steps.table['step'].nunique()} steps ({steps.source})"
    return Buckets(table, (note,))


def _summed(work: pd.DataFrame) -> pd.DataFrame:
    keys = ["process", "place", "op", "phase", "size_bytes"]
    groups = work.groupby(keys, dropna=False, sort=True)
    table = groups.agg(
        count=("step", "size"),
        after_ns=("after_ns", "median"),
        duration_ns=("duration_ns", "median"),
        exposed_ns=("exposed_ns", "median"),
        total_ns=("duration_ns", "sum"),
        operation_bytes=("operation_bytes", lambda sizes: sizes.sum(min_count=1)),
        bus_bytes=("bus_bytes", lambda sizes: sizes.sum(min_count=1)),
    ).reset_index()
    seconds = table["total_ns"].where(table["total_ns"] > 0) / 1e9
    return table.assign(
        algbw_bytes_per_s=table["operation_bytes"] / seconds,
        busbw_bytes_per_s=table["bus_bytes"] / seconds,
    )[_COLUMNS]


ANALYSIS = Analysis(
    name="buckets",
    needs=(),
    run=measure_buckets,
)
