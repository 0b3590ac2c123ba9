"""The steps of all ranks, measured: their lengths, parts, throughput, and how steady they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from traceprof.facts.cache import of_window
from traceprof.facts.names.phases import PHASES
from traceprof.facts.steps.excess import excess_of_steps
from traceprof.facts.steps.find import find_steps, steps_of_ranks
from traceprof.facts.steps.parts import (
    DEVICE_PARTS,
    device_durations,
    parts_of_devices,
    phases_of_host,
    profiler_in_steps,
    sums_in_steps,
)
from traceprof.facts.steps.steadiness import (
    Steadiness,
    measure_steadiness,
    outliers_of_processes,
)
from traceprof.model.ranks import Ranks
from traceprof.model.trace import DEVICE_TABLES, Trace

__all__ = ["MeasuredSteps", "Throughput", "measured_steps"]

_SUMS: Final = ("profiler_ns", "h2d_bytes", "d2h_bytes", "p2p_bytes", "samples_count")
"""What is 0, not unknown, in ranks where there was none of it."""

_ORDER: Final = (
    *("process", "step", "at_ns", "duration_ns", "device_ns"),
    *DEVICE_PARTS,
    *(f"{phase}_ns" for phase in PHASES),
    *_SUMS,
)


@dataclass(frozen=True, slots=True)
class Throughput:
    """Samples per second over the steady steps, of all processes together.

    ``mean_per_s`` is all samples over all time; ``median_per_s`` of the rates of single steps.
    """

    mean_per_s: float
    median_per_s: float


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredSteps:
    """The steps that lie wholly inside the window, of all ranks.

    ``table`` has one row per process and step, sorted so: process, step, at_ns (its start, from
    the start of the run), duration_ns (on the host; of inferred steps on the device), device_ns,
    the five parts of the device (they add up to the duration), the host time of each phase and of
    the profiler, bytes by direction, samples_count, samples_per_s, is_warmup, and what
    `excess_of_steps` says of outliers. NaN: not recorded. Columns of what was not recorded at
    all are not there.

    ``steadiness`` and ``throughput`` are of the steps without the warm-up, None where there are
    none (or no samples); ``warmup_count`` steps of each process are left out, ``warmup_ns`` long
    in the first one.
    """

    table: pd.DataFrame
    source: str
    confidence_ratio: float
    steadiness: Steadiness | None
    throughput: Throughput | None
    warmup_count: int
    warmup_ns: int

    @property
    def is_inferred(self) -> bool:
        """Whether nobody named the steps: they were seen in the sequence of kernels."""
        return self.confidence_ratio < 1


@of_window
def measured_steps(ranks: Ranks) -> MeasuredSteps:
    """Return every step of every rank that lies wholly inside the window."""
    steps = steps_of_ranks(ranks)
    table = _joined([_measure(part) for part in ranks])
    is_warmup = table["is_warmup"].to_numpy(np.bool_)
    durations = table["duration_ns"].to_numpy(np.float64)
    processes = table["process"].to_numpy(np.int64)
    outliers = outliers_of_processes(durations, processes, is_warmup)
    dropped = table.loc[is_warmup, ["process", "duration_ns"]]
    first = dropped.loc[dropped["process"] == dropped["process"].min(), "duration_ns"]
    return MeasuredSteps(
        table=table.assign(**excess_of_steps(table, outliers)),
        source=steps.source if len(steps) else "",
        confidence_ratio=steps.confidence_ratio if len(steps) else 1.0,
        steadiness=measure_steadiness(durations[~is_warmup], processes[~is_warmup]),
        throughput=_throughput(table[~is_warmup]),
        warmup_count=len(first),
        warmup_ns=int(first.sum()),
    )


@of_window
def _measure(trace: Trace) -> pd.DataFrame:
    """Return what is known of the steps of one rank by itself."""
    steps = find_steps(trace)
    rows = steps.table
    duration = steps.durations_ns
    columns: dict[str, object] = {
        "process": rows["process"],
        "step": rows["step"],
        "at_ns": rows["start_ns"] - trace.whole.span.start_ns,
        "duration_ns": duration,
    }
    if trace.recorded & set(DEVICE_TABLES):
        on_device = duration.astype(np.float64) if steps.is_inferred else device_durations(trace)
        columns |= {"device_ns": on_device, **parts_of_devices(trace)}
    columns |= {**phases_of_host(trace), **profiler_in_steps(trace), **sums_in_steps(trace)}
    table = pd.DataFrame({name: np.asarray(values) for name, values in columns.items()})
    return table.assign(is_warmup=steps.warmup())


def _joined(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the steps of all ranks, with their samples per second."""
    filled = [table for table in tables if len(table)] or [tables[0]]
    table = filled[0] if len(filled) == 1 else pd.concat(filled, ignore_index=True)
    known = [name for name in _ORDER if name in table]
    sums = {name: table[name].fillna(0) for name in known if name in _SUMS}
    joined = table[[*known, "is_warmup"]].assign(**sums)
    if "samples_count" in joined:
        rate = joined["samples_count"] / (joined["duration_ns"] / 1e9)
        joined.insert(len(known), "samples_per_s", rate)
    return joined.sort_values(["process", "at_ns"], kind="stable", ignore_index=True)


def _throughput(steady: pd.DataFrame) -> Throughput | None:
    if "samples_count" not in steady or steady.empty or not steady["samples_count"].any():
        return None
    per_process = steady.groupby("process")
    mean = per_process["samples_count"].sum() / (per_process["duration_ns"].sum() / 1e9)
    median = per_process["samples_per_s"].median()
    return Throughput(float(mean.sum()), float(median.sum()))
