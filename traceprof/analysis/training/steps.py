"""The steps one by one: how long, made up of what, how steady, and why the slow ones were slow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.analysis.training.step_remarks import remark_on, sentences_about
from traceprof.facts.steps.find import find_steps
from traceprof.facts.steps.parts import (
    device_duration,
    parts_of_devices,
    phases_of_host,
    profiler_in_steps,
    sums_in_steps,
)
from traceprof.facts.steps.steadiness import Steadiness, measure_steadiness, outliers
from traceprof.model.steps import Steps
from traceprof.model.trace import DEVICE_TABLES, Trace

__all__ = ["ANALYSIS", "StepTimes", "Throughput", "measure_steps"]


@dataclass(frozen=True, slots=True)
class Throughput:
    """Samples per second over the steady steps, of all processes together.

    ``mean_per_s`` is all samples over all time; ``median_per_s`` of the rates of single steps.
    """

    mean_per_s: float
    median_per_s: float


@dataclass(frozen=True, slots=True, eq=False)
class StepTimes:
    """One row per process and step.

    ``table``: process, step, at_ns (its start, from the start of the trace), duration_ns (on the
    host; for inferred steps on the device), device_ns, the five parts of the device (they add up
    to the duration), the host time of each phase, bytes by direction, samples_count, samples/s
    (``samples_per_s``), is_warmup, and a remark on slow and fast ones. NaN: not recorded.

    ``steadiness`` and ``throughput`` are of the steps without the warm-up.
    """

    table: pd.DataFrame
    source: str
    confidence_ratio: float
    steadiness: Steadiness | None
    throughput: Throughput | None
    notes: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return the table."""
        return self.table


def measure_steps(trace: Trace) -> StepTimes:
    """Return every step that lies wholly inside the window."""
    steps = find_steps(trace)
    if not len(steps):
        return StepTimes(_measure(trace, steps), "", 1.0, None, None, (_why_none(trace),))
    table = _measure(trace, steps)
    steady = table[~table["is_warmup"]]
    durations = steady["duration_ns"].to_numpy(np.float64)
    steadiness = measure_steadiness(durations, steady["process"].to_numpy(np.int64))
    throughput = _throughput(steady)
    table["remark"] = remark_on(table, _outliers(table))
    samples_per_s = None if throughput is None else throughput.mean_per_s
    notes = sentences_about(steps, table, steadiness, samples_per_s)
    return StepTimes(table, steps.source, steps.confidence_ratio, steadiness, throughput, notes)


def _why_none(trace: Trace) -> str:
    if len(find_steps(trace.whole)):
        return "no step lies wholly inside the window: choose a larger one"
    return "no steps are known: record with `traceprof record`, or call traceprof.step()"


def _measure(trace: Trace, steps: Steps) -> pd.DataFrame:
    rows = steps.table
    duration = (rows["end_ns"] - rows["start_ns"]).to_numpy()
    columns: dict[str, object] = {
        "process": rows["process"],
        "step": rows["step"],
        "at_ns": rows["start_ns"] - trace.whole.span.start_ns,
        "duration_ns": duration,
    }
    if trace.recorded & set(DEVICE_TABLES):
        on_device = (
            duration.astype(np.float64) if steps.is_inferred else device_duration(trace, rows)
        )
        columns |= {"device_ns": on_device, **parts_of_devices(trace, rows)}
    columns |= {
        **phases_of_host(trace, rows),
        **profiler_in_steps(trace, rows),
        **sums_in_steps(trace, rows),
    }
    table = pd.DataFrame({name: np.asarray(values) for name, values in columns.items()})
    if "samples_count" in table:
        seconds = table["duration_ns"] / 1e9
        table["samples_per_s"] = table["samples_count"] / seconds
    return table.assign(is_warmup=steps.warmup())


def _outliers(table: pd.DataFrame) -> np.ndarray:
    """Return 1 for each slow step and -1 for each fast one among the steady ones of a process."""
    found = np.zeros(len(table), np.int64)
    steady = np.flatnonzero(~table["is_warmup"])
    durations = table["duration_ns"].to_numpy(np.float64)
    for rows in table.iloc[steady].groupby("process").indices.values():
        found[steady[rows]] = outliers(durations[steady[rows]])
    return found


def _throughput(steady: pd.DataFrame) -> Throughput | None:
    if "samples_count" not in steady or steady.empty or not steady["samples_count"].any():
        return None
    per_process = steady.groupby("process")
    mean = per_process["samples_count"].sum() / (per_process["duration_ns"].sum() / 1e9)
    median = per_process["samples_per_s"].median()
    return Throughput(float(mean.sum()), float(median.sum()))


ANALYSIS = Analysis(
    name="steps",
    needs=(),
    run=measure_steps,
)
