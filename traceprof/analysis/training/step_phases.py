"""The phases of every step and device: host time against device time."""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.facts.backward import BACKWARD
from traceprof.facts.host.phases import find_host_phases, inferred_backward_on_host
from traceprof.facts.launches import are_inferred_backward, launches_of, phases_of_work
from traceprof.facts.steps.find import find_steps
from traceprof.facts.steps.spans import owner_of
from traceprof.model.intervals import union_lengths
from traceprof.model.results import Note, Result, ResultSpec, TableSpec, Unit, key, total
from traceprof.model.tables import ABSENT
from traceprof.model.trace import DEVICE_TABLES, Trace
from traceprof.names.ranges import PHASES, UNCLAIMED

__all__ = ["ANALYSIS"]

SPEC: Final = ResultSpec(
    tables=(
        TableSpec(
            "step_phases",
            "one row per process, step, device and phase, in the order of time",
            (
                key("process", "the process", Unit.NUMBER),
                key("step", "the number of the step", Unit.NUMBER),
                key("device", "the device; -1 where the process uses none", Unit.NUMBER),
                key("phase", f'the phase, or "{UNCLAIMED}"'),
                total(
                    "host_ns",
                    Unit.NS,
                    "when the host was in it during the step, and in no other inside; the same "
                    "for each device",
                ),
                total(
                    "device_ns",
                    Unit.NS,
                    "how long the device worked on what it launched in the step, whenever that ran",
                ),
                total("work_count", Unit.COUNT, "how many kernels and copies these are"),
                total(
                    "inferred_count",
                    Unit.COUNT,
                    "how many of them are its own although no range says so",
                ),
            ),
        ),
    )
)
_NAMES: Final = (*PHASES, UNCLAIMED)
_NO_PHASE: Final = len(PHASES)
_KEYS: Final = ["owner", "device", "phase"]
_MEASURES: Final = ["host_ns", "device_ns", "work_count", "inferred_count"]


def measure_step_phases(trace: Trace) -> Result:
    """Return the phases of the steps that lie wholly inside the window."""
    steps = find_steps(trace).table
    host, work = _host_times(trace, steps), _device_times(trace, steps)
    used = work[["process", "device"]].drop_duplicates()
    host = host.merge(used, on="process", how="left").fillna({"device": ABSENT})
    table = host.drop(columns="process").merge(work.drop(columns="process"), on=_KEYS, how="outer")
    table = table.fillna(dict.fromkeys(_MEASURES, 0)).astype("int64")
    # Steps are sorted by process and start, so that their rows are in the order of time.
    table = table.sort_values(_KEYS, ignore_index=True)
    owner = steps.iloc[table["owner"].to_numpy()]
    table = table.assign(
        process=owner["process"].to_numpy(),
        step=owner["step"].to_numpy(),
        phase=np.array(_NAMES, object)[table["phase"].to_numpy()],
    )
    if not (trace.recorded & set(DEVICE_TABLES)):
        table = table.drop(columns=["device", *_MEASURES[1:]])
    return Result("step-phases", SPEC, {"step_phases": SPEC.tables[0].frame(table)})


def _host_times(trace: Trace, steps: pd.DataFrame) -> pd.DataFrame:
    """Return the host time of each phase in each step, and what no phase claims.

    ``owner`` is the row of the step, ``phase`` the place of the phase in `_NAMES`.
    """
    tables = []
    of_process = steps.groupby("process").indices
    inferred = inferred_backward_on_host(trace)
    for phases in find_host_phases(trace):
        rows = of_process.get(phases.process)
        if rows is None:
            continue
        starts, ends = (steps[name].to_numpy()[rows] for name in ("start_ns", "end_ns"))
        times = {PHASES.index(p): time.covered_ns(starts, ends) for p, time in phases.times.items()}
        if phases.process in inferred:
            times[BACKWARD] = inferred[phases.process].covered_ns(starts, ends)
        times[_NO_PHASE] = ends - starts - np.sum(list(times.values()), axis=0)
        tables += [
            pd.DataFrame(
                {"process": phases.process, "owner": rows, "phase": place, "host_ns": host_ns}
            )
            for place, host_ns in times.items()
        ]
    if not tables:
        return pd.DataFrame({n: np.empty(0, np.int64) for n in ("process", *_KEYS[::2], "host_ns")})
    return pd.concat(tables, ignore_index=True)


def _device_times(trace: Trace, steps: pd.DataFrame) -> pd.DataFrame:
    """Return the device time of what each phase launched in each step."""
    parts = []
    for name in DEVICE_TABLES:
        frame = trace.table(name)
        owner = owner_of(steps, frame["process"], launches_of(trace, name).start_ns)
        phases = phases_of_work(trace, name)
        work = frame[["start_ns", "end_ns", "device", "process"]].assign(
            owner=owner,
            phase=np.where(phases >= 0, phases, _NO_PHASE),
            is_inferred=are_inferred_backward(trace, name).astype(np.int64),
        )
        parts.append(work[owner >= 0])
    work = pd.concat(parts, ignore_index=True)
    groups = work.groupby(_KEYS, sort=False)
    table = groups.agg(
        process=("process", "first"),
        work_count=("process", "size"),
        inferred_count=("is_inferred", "sum"),
    ).reset_index()
    number = groups.ngroup().to_numpy(np.int64)
    lengths = union_lengths(number, work["start_ns"], work["end_ns"], len(table))
    return table.assign(device_ns=lengths)


def _finish(result: Result) -> Result:
    table = result.table
    if not table.empty:
        return result.with_table(table.sort_values("process", kind="stable", ignore_index=True))
    return result.with_notes(Note("no steps, or no phases in them, are known"))


ANALYSIS = Analysis(
    name="step-phases",
    spec=SPEC,
    needs=("ranges",),
    uses=("kernels", "copies", "api_calls", "host_ops"),
    whole=("ranges", "kernels"),
    of_steps=True,
    of_rank=measure_step_phases,
    finish=_finish,
)
