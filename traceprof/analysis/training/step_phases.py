"""The phases of every step and device: host time against device time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.facts.host.phase_names import PHASES, UNCLAIMED
from traceprof.facts.host.phases import find_host_phases
from traceprof.facts.launches import find_launches, phase_of_launches
from traceprof.facts.steps.find import find_steps
from traceprof.facts.steps.parts import owner_of
from traceprof.model.intervals import Intervals
from traceprof.model.trace import DEVICE_TABLES, Trace

__all__ = ["ANALYSIS", "StepPhases", "measure_step_phases"]

_KEYS = ["process", "step", "device", "phase"]


@dataclass(frozen=True, slots=True, eq=False)
class StepPhases:
    """One row per process, step, device and phase, in the order of time.

    ``table``: process, step, device (-1 where the process uses none), phase, host_ns (in the
    step, without the phases inside), device_ns (how long the device worked on what the phase
    launched in the step, whenever that ran) and work_count (kernels and copies); without the
    columns of devices where their work was not recorded.
    """

    table: pd.DataFrame
    notes: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return the table."""
        return self.table


def measure_step_phases(trace: Trace) -> StepPhases:
    """Return the phases of the steps that lie wholly inside the window."""
    steps = find_steps(trace).table
    host, work = _host_times(trace, steps), _device_times(trace, steps)
    if host.empty and work.empty:
        table = pd.DataFrame(columns=[*_KEYS, "host_ns", "device_ns", "work_count"])
        return StepPhases(table, ("no steps, or no phases in them, are known",))
    used = work[["process", "device"]].drop_duplicates()
    host = host.merge(used, on="process", how="left").fillna({"device": -1})
    table = host.astype({"device": "int64"}).merge(work, on=_KEYS, how="outer")
    numbers = ["host_ns", "device_ns", "work_count"]
    table[numbers] = table[numbers].fillna(0).astype("int64")
    order = table["phase"].map([*PHASES, UNCLAIMED].index)
    table = table.assign(order=order).sort_values(["process", "step", "device", "order"])
    dropped = ["order"]
    if not (trace.recorded & set(DEVICE_TABLES)):
        dropped += ["device", "device_ns", "work_count"]
    return StepPhases(table.drop(columns=dropped).reset_index(drop=True))


def _host_times(trace: Trace, steps: pd.DataFrame) -> pd.DataFrame:
    """Return the host time of each phase in each step, and what no phase claims."""
    tables = []
    for phases in find_host_phases(trace):
        rows = steps[steps["process"] == phases.process]
        starts, ends = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
        times = {phase: time.covered_ns(starts, ends) for phase, time in phases.times.items()}
        times[UNCLAIMED] = ends - starts - np.sum(list(times.values()), axis=0)
        tables += [
            rows[["process", "step"]].assign(phase=phase, host_ns=ns) for phase, ns in times.items()
        ]
    if not tables:
        return pd.DataFrame(columns=["process", "step", "phase", "host_ns"])
    return pd.concat(tables, ignore_index=True)


def _device_times(trace: Trace, steps: pd.DataFrame) -> pd.DataFrame:
    """Return the device time of what each phase launched in each step."""
    parts = []
    names = np.array([*PHASES, UNCLAIMED], object)
    for name in DEVICE_TABLES:
        frame = trace.table(name)
        launches = find_launches(trace, frame)
        owner = owner_of(steps, frame["process"], launches.start_ns)
        columns = frame[["start_ns", "end_ns", "device", "process"]]
        phases = names[phase_of_launches(trace, launches)]
        parts.append(columns.assign(owner=owner, phase=phases)[owner >= 0])
    work = pd.concat(parts, ignore_index=True)
    work["step"] = steps["step"].to_numpy()[work["owner"]] if len(steps) else 0
    rows = [
        (*key, Intervals.union_of(own["start_ns"], own["end_ns"]).total_ns, len(own))
        for key, own in work.groupby(_KEYS)
    ]
    return pd.DataFrame(rows, columns=[*_KEYS, "device_ns", "work_count"])


ANALYSIS = Analysis(
    name="step-phases",
    needs=("ranges",),
    run=measure_step_phases,
)
