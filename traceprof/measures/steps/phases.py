"""Host and device time by phase of the training loop (data, forward …), of all and by step.

Phases are read from the names of ranges: those that `traceprof record` injects, and what people
commonly write by hand. Host time counts for the innermost phase, on the thread that names
phases; what none claims is shown as such, so that the parts of a process add up to the window.
Device time is what the phase launched, whenever it ran. A backward pass that no range names is
inferred, and said to be (see `traceprof.measures.host.phases`).
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

from traceprof.measures.analyses import Analysis
from traceprof.measures.host.launches import launches_of
from traceprof.measures.host.phases import BACKWARD, are_inferred_backward, phases_of_work
from traceprof.measures.host.states import find_host_phases, inferred_backward_on_host
from traceprof.measures.steps.find import find_steps
from traceprof.measures.steps.spans import owner_of
from traceprof.model.grouping import groups_of
from traceprof.model.intervals import Intervals, union_lengths
from traceprof.model.results import Note, Result, ResultSpec, TableSpec, Unit, derived, key, total
from traceprof.model.tables import ABSENT
from traceprof.model.trace import DEVICE_TABLES, Trace
from traceprof.names.ranges import PHASES, UNCLAIMED

LOOP_PHASES_SPEC: Final = ResultSpec(
    tables=(
        TableSpec(
            "phases",
            "one row per process and phase, in the order of the training loop; host times of a "
            "process add up to the window, device times may overlap",
            (
                key("process", "the process", Unit.NUMBER),
                key("phase", f'the phase, or "{UNCLAIMED}"'),
                total("host_ns", Unit.NS, "when the main thread was in it, and in no other inside"),
                derived("host_ratio", Unit.RATIO, "host_ns of the window"),
                total("count", Unit.COUNT, "how often it ran there"),
                total(
                    "device_ns",
                    Unit.NS,
                    "how long devices worked on what it launched: the union over the streams of "
                    "each device, added up over devices",
                ),
                derived("device_ratio", Unit.RATIO, "device_ns of the sum over the phases"),
                total("kernel_count", Unit.COUNT, "how many kernels it launched"),
                total(
                    "inferred_count",
                    Unit.COUNT,
                    "how many kernels and copies are its own although no range says so",
                ),
            ),
        ),
    ),
    scalars=(
        total("work_ns", Unit.NS, "the durations of all kernels and copies"),
        total("unclaimed_ns", Unit.NS, "the durations of those that no phase claims"),
        total("outside_count", Unit.COUNT, "how many of these were launched outside any phase"),
        total("unlinked_count", Unit.COUNT, "how many of these have no recorded launch"),
        total(
            "earlier_count",
            Unit.COUNT,
            "how many of those were launched before the recording began: their correlation is "
            "smaller than that of any call",
        ),
        total("inferred_ns", Unit.NS, "the durations of those that were inferred to be backward"),
        total("inferred_count", Unit.COUNT, "how many these are"),
    ),
)
_INFERRED: Final = (
    "backward was inferred of {count:count} kernels and copies, {time:ns}, that no range names: "
    "launched by autograd's threads, or between forward and optimizer"
)
_HOST: Final = ["process", "phase", "host_ns", "count"]
_NAMES: Final = (*PHASES, UNCLAIMED)
_NO_PHASE: Final = len(PHASES)


def measure_phases(trace: Trace) -> Result:
    """Return the host and device time of each phase."""
    host = _host_times(trace)
    if not (trace.recorded & set(DEVICE_TABLES)):
        return Result("phases", LOOP_PHASES_SPEC, {"phases": _named(host)})
    work = _device_work(trace)
    table = host.merge(_device_times(work), on=["process", "phase"], how="outer")
    # Device work counts for the processes that name phases; of the others there are none.
    table = table[table["process"].isin(host["process"])].fillna(0).astype("int64")
    lost, inferred = work[work["phase"] == _NO_PHASE], work[work["is_inferred"] == 1]
    return Result(
        "phases",
        LOOP_PHASES_SPEC,
        {"phases": _named(table)},
        {
            "work_ns": int((work["end_ns"] - work["start_ns"]).sum()),
            "unclaimed_ns": int((lost["end_ns"] - lost["start_ns"]).sum()),
            "outside_count": int(lost["is_linked"].sum()),
            "unlinked_count": int((~lost["is_linked"]).sum()),
            "earlier_count": int(lost["is_earlier"].sum()),
            "inferred_ns": int((inferred["end_ns"] - inferred["start_ns"]).sum()),
            "inferred_count": len(inferred),
        },
    )


def _named(table: pd.DataFrame) -> pd.DataFrame:
    table = table.sort_values(["process", "phase"], ignore_index=True)
    return table.assign(phase=np.array(_NAMES, object)[table["phase"].to_numpy(np.int64)])


def _host_times(trace: Trace) -> pd.DataFrame:
    """Return one row per process and place of a phase in `_NAMES`."""
    rows = []
    inferred = inferred_backward_on_host(trace)
    for host in find_host_phases(trace):
        unnamed = inferred.get(host.process, Intervals.empty())
        unnamed = unnamed.clip(trace.span.start_ns, trace.span.end_ns)
        if len(unnamed):
            rows.append((host.process, BACKWARD, unnamed.total_ns, len(unnamed)))
        rows += [
            (host.process, PHASES.index(phase), time.total_ns, host.counts[phase])
            for phase, time in host.times.items()
        ]
        rows.append(
            (
                host.process,
                _NO_PHASE,
                trace.span.duration_ns - host.claimed_ns - unnamed.total_ns,
                0,
            )
        )
    return pd.DataFrame(rows, columns=_HOST).astype("int64")


def _device_work(trace: Trace) -> pd.DataFrame:
    """Return all kernels and copies with the place of their phase in `_NAMES`."""
    parts = []
    firsts = trace.whole.api_calls.groupby("process")["correlation"].min()
    for name in DEVICE_TABLES:
        phases = phases_of_work(trace, name)
        frame = trace.table(name)
        is_linked = launches_of(trace, name).is_known
        is_earlier = np.zeros(len(frame), np.bool_)
        unlinked = np.flatnonzero(~is_linked)
        number = frame["correlation"].to_numpy(np.int64)[unlinked]
        first = frame["process"].iloc[unlinked].map(firsts).to_numpy(np.float64)
        is_earlier[unlinked] = (number < first) & (number >= 0)
        parts.append(
            frame[["start_ns", "end_ns", "device", "process"]].assign(
                phase=np.where(phases >= 0, phases, _NO_PHASE),
                is_kernel=int(name == "kernels"),
                is_linked=is_linked,
                is_earlier=is_earlier,
                is_inferred=are_inferred_backward(trace, name).astype(np.int64),
            )
        )
    return pd.concat(parts, ignore_index=True)


def _device_times(work: pd.DataFrame) -> pd.DataFrame:
    """Return the device time and the kernels of each process and phase."""
    groups = groups_of(work["process"], work["phase"], work["device"])
    lengths = union_lengths(groups.number, work["start_ns"], work["end_ns"], len(groups.keys))
    process, phase, _ = np.array(groups.keys, np.int64).reshape(-1, 3).T
    per_device = pd.DataFrame(
        {
            "process": process,
            "phase": phase,
            "device_ns": lengths,
            "kernel_count": groups.reduced(np.add, work["is_kernel"].to_numpy()),
            "inferred_count": groups.reduced(np.add, work["is_inferred"].to_numpy()),
        }
    )
    return per_device.groupby(["process", "phase"], as_index=False)[
        ["device_ns", "kernel_count", "inferred_count"]
    ].sum()


def _finish(result: Result) -> Result:
    table = result.table
    if table.empty:
        return result.with_notes(
            Note("no range names a phase (data, forward, backward, optimizer …)")
        )
    table = table.sort_values("process", kind="stable", ignore_index=True)
    # Of each process the host times add up to the window.
    window = table.groupby("process")["host_ns"].transform("sum")
    table = table.assign(host_ratio=table["host_ns"] / window.where(window > 0, 1))
    if "device_ns" in table:
        whole = table.groupby("process")["device_ns"].transform("sum")
        table = table.assign(device_ratio=table["device_ns"] / whole.where(whole > 0))
    return result.with_table(table).with_notes(*_notes(result))


def _notes(result: Result) -> list[Note]:
    """Return how much device work is placed by inference, how much no phase claims, and why."""
    scalars = result.scalars
    notes = []
    if scalars.get("inferred_count", 0):
        told = {"count": scalars["inferred_count"], "time": scalars["inferred_ns"]}
        notes.append(Note.of(_INFERRED, **told))
    outside, unlinked = scalars.get("outside_count", 0), scalars.get("unlinked_count", 0)
    if not outside + unlinked:
        return notes
    earlier = scalars.get("earlier_count", 0)
    text = "no phase claims {count:count} kernels and copies, {lost:ns} ({share:ratio} of all): "
    reasons = [
        reason
        for reason, count in (
            ("{outside:count} were launched outside any phase", outside),
            ("{earlier:count} were launched before the recording began", earlier),
            ("{unlinked:count} have no recorded launch", unlinked - earlier),
        )
        if count
    ]
    lost_ns = scalars["unclaimed_ns"]
    return [
        *notes,
        Note.of(
            text + ", ".join(reasons),
            count=outside + unlinked,
            lost=lost_ns,
            share=lost_ns / (scalars["work_ns"] or 1),
            outside=outside,
            earlier=earlier,
            unlinked=unlinked - earlier,
        ),
    ]


LOOP_PHASES = Analysis(
    name="phases",
    spec=LOOP_PHASES_SPEC,
    needs=("ranges",),
    uses=("kernels", "copies", "api_calls", "host_ops"),
    whole=("ranges",),
    of_rank=measure_phases,
    finish=_finish,
)


STEP_PHASES_SPEC: Final = ResultSpec(
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
_KEYS: Final = ["owner", "device", "phase"]
_MEASURES: Final = ["host_ns", "device_ns", "work_count", "inferred_count"]


def measure_step_phases(trace: Trace) -> Result:
    """Return the phases of the steps that lie wholly inside the window."""
    steps = find_steps(trace).table
    host, work = _host_times_of_steps(trace, steps), _device_times_of_steps(trace, steps)
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
    return Result(
        "step-phases", STEP_PHASES_SPEC, {"step_phases": STEP_PHASES_SPEC.tables[0].frame(table)}
    )


def _host_times_of_steps(trace: Trace, steps: pd.DataFrame) -> pd.DataFrame:
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


def _device_times_of_steps(trace: Trace, steps: pd.DataFrame) -> pd.DataFrame:
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


def _finish_steps(result: Result) -> Result:
    table = result.table
    if not table.empty:
        return result.with_table(table.sort_values("process", kind="stable", ignore_index=True))
    return result.with_notes(Note("no steps, or no phases in them, are known"))


STEP_PHASES = Analysis(
    name="step-phases",
    spec=STEP_PHASES_SPEC,
    needs=("ranges",),
    uses=("kernels", "copies", "api_calls", "host_ops"),
    whole=("ranges", "kernels"),
    of_steps=True,
    of_rank=measure_step_phases,
    finish=_finish_steps,
)
