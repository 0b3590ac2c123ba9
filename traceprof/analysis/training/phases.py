"""Host and device time by phase of the training loop: data, forward, backward and so on.

Phases are read from the names of ranges: those that `traceprof record` injects, and what people
commonly write by hand. Host time counts for the innermost phase, on the thread that names
phases; what none claims is shown as such, so that the parts of a process add up to the window.
Device time is what the phase launched, whenever it ran (see `traceprof.facts.launches`). A
backward pass that no range names is inferred, and said to be (see `traceprof.facts.backward`).
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.facts.backward import BACKWARD
from traceprof.facts.host.phases import find_host_phases, inferred_backward_on_host
from traceprof.facts.launches import are_inferred_backward, launches_of, phases_of_work
from traceprof.model.grouping import groups_of
from traceprof.model.intervals import Intervals, union_lengths
from traceprof.model.results import (
    Note,
    Result,
    ResultSpec,
    TableSpec,
    Unit,
    derived,
    key,
    total,
)
from traceprof.model.trace import DEVICE_TABLES, Trace
from traceprof.names.ranges import PHASES, UNCLAIMED

__all__ = ["ANALYSIS"]

SPEC: Final = ResultSpec(
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
        return Result("phases", SPEC, {"phases": _named(host)})
    work = _device_work(trace)
    table = host.merge(_device_times(work), on=["process", "phase"], how="outer")
    # Device work counts for the processes that name phases; of the others there are none.
    table = table[table["process"].isin(host["process"])].fillna(0).astype("int64")
    lost, inferred = work[work["phase"] == _NO_PHASE], work[work["is_inferred"] == 1]
    return Result(
        "phases",
        SPEC,
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


ANALYSIS = Analysis(
    name="phases",
    spec=SPEC,
    needs=("ranges",),
    uses=("kernels", "copies", "api_calls", "host_ops"),
    whole=("ranges",),
    of_rank=measure_phases,
    finish=_finish,
)
