"""Measures host and device time by phase of the training loop (data, forward …) and by step.

Phases come from range names: the ranges that `traceprof record` adds, and common names of manual
ranges. Host time counts for the innermost phase on the thread with named phases. Unclaimed time has
its own row, so the phases of a process add up to the window. Device time is the work that the phase
launched, whenever it ran. A backward pass without a named range is inferred and marked as inferred
(see `traceprof.measures.host.phases`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from traceprof.measures.analyses import Analysis
from traceprof.measures.device.times import between_cycles, recorder_times
from traceprof.measures.facts import fact
from traceprof.measures.host.launches import launches_of
from traceprof.measures.host.phases import are_inferred_backward, phases_of_work
from traceprof.measures.host.states import find_host_phases, inferred_passes_on_host, phase_times
from traceprof.measures.rows import bounds, lengths_of, owner_of, ratio_of, rows_by
from traceprof.measures.steps.find import find_steps, rows_of_steps
from traceprof.measures.steps.measured import host_times
from traceprof.model.grouping import grouped_by, groups_of, is_in, joined, rows_by_values
from traceprof.model.intervals import Intervals, union_lengths
from traceprof.model.packed import Packed
from traceprof.model.results import Note, Result, ResultSpec
from traceprof.model.table import Table
from traceprof.model.tables import ABSENT
from traceprof.model.trace import DEVICE_TABLES, Trace
from traceprof.names.ranges import PHASES, PROFILER, UNCLAIMED

LOOP_PHASES_SPEC: Final = ResultSpec.of(f"""
    table phases: one row per process and phase, in the order of the training loop
    key process: process ID
    key phase: phase of the training loop, or "{UNCLAIMED}"
    total host_ns: time that the main thread spent in the phase, without nested phases; the phases
        of a process add up to the window
    derived host_ratio: host_ns as a share of the window
    total count: number of times that the main thread ran the phase
    total device_ns: GPU time of the kernels and copies that the phase launched (union over the
        streams of each GPU, summed over GPUs); phases may overlap
    derived device_ratio: device_ns as a share of the sum over all phases
    total kernel_count: number of kernels that the phase launched
    total inferred_count: number of kernels and copies that traceprof assigned to the phase by
        inference, because no range names their phase
    scalars:
    total work_ns: total duration of all kernels and copies
    total unclaimed_ns: total duration of the kernels and copies without a phase
    total outside_count: number of kernels and copies without a phase that were launched outside any
        phase
    total unlinked_count: number of kernels and copies without a phase that have no recorded launch
    total launched_before_recording_count: number of kernels and copies without a phase that were
        launched before the recording began (their correlation ID is smaller than that of any
        recorded call)
    total inferred_ns: total duration of the kernels and copies inferred to be backward
    total inferred_count: number of kernels and copies inferred to be backward
    """)
_INFERRED: Final = (
    "traceprof assigned {count:count} kernels and copies ({time:ns}) to backward by inference. No "
    "range names their phase; autograd threads launched them, or they were launched between "
    "forward and optimizer."
)
_REASONS: Final = {
    "outside": "{outside:count} launched outside any phase",
    "earlier": "{earlier:count} launched before the recording began",
    "unlinked": "{unlinked:count} without a recorded launch",
}
_NAMES: Final = (*PHASES, UNCLAIMED)
_OF_DEVICE: Final = ("device_ns", "kernel_count", "inferred_count")
_NO_PHASE: Final = len(PHASES)


def measure_phases(trace: Trace) -> Result:
    """Return the host and device time of each phase."""
    host = _host_times(trace)
    if not (trace.recorded & set(DEVICE_TABLES)):
        return Result("phases", LOOP_PHASES_SPEC, {"phases": _with_phase_names(host)})
    work = _device_work(trace)
    per_device = _device_times(work, "process", "phase", "device")
    device, groups = grouped_by(per_device, "process", "phase")
    sums = {name: groups.reduced(np.add, per_device[name]) for name in _OF_DEVICE}
    table = _as_integers(joined(host, device.assign(**sums), "process", "phase"))
    # Device work counts only for processes with named phases.
    table = table.take(np.isin(table["process"], host["process"]))
    length, lost, is_linked = lengths_of(work), work["phase"] == _NO_PHASE, work["is_linked"]
    inferred = work["is_inferred"] == 1
    scalars = {
        "work_ns": length.sum(),
        "unclaimed_ns": length[lost].sum(),
        "outside_count": (lost & is_linked).sum(),
        "unlinked_count": (lost & ~is_linked).sum(),
        "launched_before_recording_count": (lost & work["is_earlier"]).sum(),
        "inferred_ns": length[inferred].sum(),
        "inferred_count": inferred.sum(),
    }
    scalars = {name: int(value) for name, value in scalars.items()}
    return Result("phases", LOOP_PHASES_SPEC, {"phases": _with_phase_names(table)}, scalars)


def _as_integers(table: Table) -> Table:
    """Return the table as integers, with 0 for NaN."""
    return Table({name: np.nan_to_num(table[name]).astype(np.int64) for name in table}, len(table))


def _with_phase_names(table: Table) -> Table:
    """Return the table with phase names instead of indices, sorted by process and phase."""
    table = table.in_order("process", "phase")
    return table.assign(phase=np.array(_NAMES, object)[table["phase"]])


def _host_times(trace: Trace) -> Table:
    """Return one row per process and phase (index in `_NAMES`)."""
    rows = []
    inferred, unrecorded = inferred_passes_on_host(trace), between_cycles(trace)
    for host in find_host_phases(trace):
        times = [(PHASES.index(p), t.total_ns, host.counts[p]) for p, t in host.times.items()]
        for phase, time in inferred.get(host.process, {}).items():
            unnamed = time & trace.span.times
            if len(unnamed):
                times.append((PHASES.index(phase), unnamed.total_ns, len(unnamed)))
        claimed_ns = sum(ns for _, ns, _ in times)
        unrecorded_time = unrecorded.get(host.process, Intervals.empty())
        whole_ns = trace.span.duration_ns - (unrecorded_time & trace.span.times).total_ns
        times.append((_NO_PHASE, whole_ns - claimed_ns, 0))
        rows += [(host.process, *values) for values in times]
    columns = np.array(rows, np.int64).reshape(-1, 4).T
    return Table(dict(zip(("process", "phase", "host_ns", "count"), columns, strict=True)))


def _device_work(trace: Trace) -> Table:
    """Return all kernels and copies with the index of their phase in `_NAMES`."""
    parts, calls = [], trace.whole.api_calls
    firsts = {
        p: calls["correlation"][process_rows].min()
        for p, process_rows in rows_by(calls, "process").items()
    }
    for name in DEVICE_TABLES:
        is_linked, number = launches_of(trace, name).is_known, trace.table(name)["correlation"]
        is_earlier = ~is_linked & (number >= 0)
        for process, rows in rows_by(trace.table(name), "process").items():
            is_earlier[rows] &= number[rows] < firsts.get(process, 0)
        parts.append(_work_of(trace, name).assign(is_linked=is_linked, is_earlier=is_earlier))
    return Table.stacked(parts)


def _work_of(trace: Trace, name: str) -> Table:
    """Return the kernels or copies with their phase."""
    phases, work = phases_of_work(trace, name), trace.table(name)
    return work.select("start_ns", "end_ns", "device", "process").assign(
        phase=Packed(np.where(phases >= 0, phases, _NO_PHASE)),
        is_kernel=name == "kernels",
        is_inferred=are_inferred_backward(trace, name),
    )


def _device_times(work: Table, *keys: str) -> Table:
    """Return the device time of ``work`` by ``keys``, and the number of operations and kernels."""
    table, groups = grouped_by(work, *keys)
    return table.assign(
        device_ns=union_lengths(groups.number, *bounds(work), len(groups.keys)),
        work_count=groups.counts,
        kernel_count=groups.counts_where(work["is_kernel"]),
        inferred_count=groups.counts_where(work["is_inferred"]),
    )


def _finish(result: Result) -> Result:
    """Add shares and notes after all ranks are combined."""
    table = result.table.in_order("process")
    if table.empty:
        return result.lacking("the trace contains no ranges of phases (data, forward, backward …)")
    # The host times of each process add up to the window.
    groups = groups_of(table["process"])
    window = groups.reduced(np.add, table["host_ns"])[groups.number]
    table = table.assign(host_ratio=table["host_ns"] / np.maximum(window, 1))
    if "device_ns" in table:
        whole = groups.reduced(np.add, table["device_ns"])[groups.number]
        table = table.assign(device_ratio=ratio_of(table["device_ns"], whole))
    return result.with_table(table).with_notes(*_notes(result))


def _notes(result: Result) -> list[Note]:
    """Return notes on inferred device work, and on device work without a phase."""
    scalars = result.scalars
    notes = []
    if scalars.get("inferred_count", 0):
        count, time = scalars["inferred_count"], scalars["inferred_ns"]
        notes.append(Note.of(_INFERRED, count=count, time=time))
    outside, unlinked = scalars.get("outside_count", 0), scalars.get("unlinked_count", 0)
    if not outside + unlinked:
        return notes
    earlier = scalars.get("launched_before_recording_count", 0)
    values = {"outside": outside, "earlier": earlier, "unlinked": unlinked - earlier}
    reasons = [text for name, text in _REASONS.items() if values[name]]
    return [
        *notes,
        Note.of(
            "{count:count} kernels and copies have no phase ({lost:ns}, {share:ratio} of all): "
            + ", ".join(reasons),
            count=outside + unlinked,
            lost=scalars["unclaimed_ns"],
            share=scalars["unclaimed_ns"] / (scalars["work_ns"] or 1),
            **values,
        ),
    ]


LOOP_PHASES = Analysis(
    "phases",
    LOOP_PHASES_SPEC,
    needs=("ranges",),
    uses=("kernels", "copies", "api_calls", "host_ops"),
    whole=("ranges",),
    of_rank=measure_phases,
    finish=_finish,
)


STEP_PHASES_SPEC: Final = ResultSpec.of(f"""
    table step_phases: one row per process, step, device and phase, in the order of time
    key process: process ID
    key step: step number
    key device: GPU index in the run; -1 if the process uses no GPU
    key phase: phase of the training loop, or "{UNCLAIMED}"
    total host_ns: CPU time in the phase during the step, without nested phases; the same for each
        GPU of the process
    total device_ns: GPU time of the kernels and copies that the phase launched in the step,
        including work that ran after the step
    total work_count: number of kernels and copies that the phase launched in the step
    total inferred_count: number of these that traceprof assigned to the phase by inference
    """)
_KEYS: Final = ("owner", "device", "phase")


@fact
def _phases_of_steps(trace: Trace) -> Table:
    """Return the times of each phase in each step of the recording, independent of the window."""
    steps = find_steps(trace).table
    work = _device_times_of_steps(trace, steps)
    host = _host_times_of_steps(trace, steps, rows_by_values(work["process"], work["device"]))
    # Steps are sorted by process and start, so sorting by row sorts by time.
    return _as_integers(joined(host, work.without("process", "kernel_count"), *_KEYS))


def measure_step_phases(trace: Trace) -> Result:
    """Return the phases of the steps that lie completely inside the window."""
    steps, table = find_steps(trace.whole).table, _phases_of_steps(trace)
    table = table.take(is_in(table["owner"], rows_of_steps(trace)))
    table = table.assign(
        process=steps["process"][table["owner"]],
        step=steps["step"][table["owner"]],
        phase=np.array(_NAMES, object)[table["phase"]],
    )
    if not (trace.recorded & set(DEVICE_TABLES)):
        table = table.without("device", "device_ns", "work_count", "inferred_count")
    spec = STEP_PHASES_SPEC
    return Result("step-phases", spec, {"step_phases": spec.tables[0].of_rows(table)})


def _host_times_of_steps(trace: Trace, steps: Table, used: Iterable[tuple[int, ...]]) -> Table:
    """Return the host time of each phase in each step, and the time outside phases.

    Rows are repeated for each device that the process uses (``used``: pairs of process and device).
    ``owner`` is the row of the step, ``phase`` the index of the phase in `_NAMES`.
    """
    rows_of, (starts, ends) = rows_by(steps, "process"), bounds(steps)
    profiler = host_times(trace, find_steps(trace)).get("profiler_ns", np.zeros(len(steps)))
    devices: dict[int, list[int]] = {}
    for process, device in used:
        devices.setdefault(process, []).append(device)
    tables = [Table(dict.fromkeys((*_KEYS, "host_ns"), np.empty(0, np.int64)))]
    known, recorder = phase_times(trace), recorder_times(trace)
    # A process without named phases that uses a device has all time outside phases.
    for process in sorted({*known, *devices}):
        rows = rows_of.get(process, np.empty(0, np.int64))
        paused = recorder.get(process, Intervals.empty())  # excluded from the period as well
        unclaimed = ends[rows] - starts[rows] - paused.covered_ns(starts[rows], ends[rows])
        found = {}
        for phase, time in known.get(process, {}).items():
            if phase != PROFILER:
                found[PHASES.index(phase)] = time.covered_ns(starts[rows], ends[rows])
                unclaimed = unclaimed - found[PHASES.index(phase)]
        of_profiler = np.minimum(profiler[rows].astype(np.int64), unclaimed)
        if of_profiler.any():
            found[PHASES.index(PROFILER)] = of_profiler
        found[_NO_PHASE] = unclaimed - of_profiler
        tables += [
            Table({"owner": rows, "device": device, "phase": phase, "host_ns": ns})
            for device in devices.get(process, (ABSENT,))
            for phase, ns in found.items()
        ]
    return Table.stacked(tables)


def _device_times_of_steps(trace: Trace, steps: Table) -> Table:
    """Return the device time of the work that each phase launched in each step."""
    parts = []
    for name in DEVICE_TABLES:
        work = _work_of(trace, name)
        owner = owner_of(steps, work["process"], launches_of(trace, name).start_ns)
        parts.append(work.assign(owner=owner).take(owner >= 0))
    return _device_times(Table.stacked(parts), "process", *_KEYS)


def _finish_steps(result: Result) -> Result:
    """Sort the rows by process, or add a note that the table is empty."""
    if not result.table.empty:
        return result.with_table(result.table.in_order("process"))
    return result.lacking("the trace contains no steps, or no phases within steps")


STEP_PHASES = Analysis(
    "step-phases",
    STEP_PHASES_SPEC,
    needs=("ranges",),
    uses=("kernels", "copies", "api_calls", "host_ops", "overheads"),
    whole=("ranges", "kernels", "copies", "api_calls", "host_ops"),
    of_steps=True,
    of_rank=measure_step_phases,
    finish=_finish_steps,
)
