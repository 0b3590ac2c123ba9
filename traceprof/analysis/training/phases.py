"""Host and device time by phase of the training loop: data, forward, backward and so on.

Phases are read from the names of ranges: those that `traceprof record` injects, and what people
commonly write by hand. Host time counts for the innermost phase, on the thread that names
phases; what none claims is shown as such, so that the parts of a process add up to the window.
Device time is what the phase launched, whenever it ran (see
`traceprof.facts.launches`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Final

import numpy as np
import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.facts.host.phase_names import PHASES, UNCLAIMED, phase_of
from traceprof.facts.host.phases import HostPhases, find_host_phases
from traceprof.facts.launches import find_launches, phase_of_launches
from traceprof.model.intervals import Intervals
from traceprof.model.trace import DEVICE_TABLES, Trace
from traceprof.units import format_count, format_duration, format_ratio

__all__ = [
    "ANALYSIS",
    "PHASES",
    "UNCLAIMED",
    "PhaseTime",
    "Phases",
    "measure_phases",
    "phase_of",
]


@dataclass(frozen=True, slots=True)
class PhaseTime:
    """One phase of one process.

    ``host_ns`` is exclusive of the phases inside it and ``count`` how often it ran there.
    ``device_ns`` is how long devices worked on what it launched (the union over streams, added
    up over devices), ``device_ratio`` its share of the sum over all phases; None where device
    work was not recorded. Phases may overlap on a device.
    """

    process: int
    phase: str
    host_ns: int
    host_ratio: float
    count: int
    device_ns: int | None = None
    device_ratio: float | None = None
    kernel_count: int | None = None


@dataclass(frozen=True, slots=True)
class Phases:
    """The phases of every process that names any; per process they add up to the window."""

    phases: tuple[PhaseTime, ...]
    notes: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return one row per process and phase, in the order of the training loop."""
        columns = list(PhaseTime.__dataclass_fields__)
        return pd.DataFrame([asdict(phase) for phase in self.phases], columns=columns)


def measure_phases(trace: Trace) -> Phases:
    """Return the host and device time of each phase."""
    window_ns = trace.span.duration_ns
    host = [row for phases in find_host_phases(trace) for row in _host_rows(phases, window_ns)]
    if not host:
        return Phases((), ("no range names a phase (data, forward, backward, optimizer …)",))
    if not (trace.recorded & set(DEVICE_TABLES)):
        return Phases(tuple(host))
    work = _device_work(trace)
    timed = [_with_device_time(phase, work) for phase in (*host, *_only_on_device(work, host))]
    timed.sort(key=lambda row: (row.process, _ORDER.index(row.phase)))
    return Phases(tuple(_with_shares(timed)), _notes(work))


def _host_rows(phases: HostPhases, window_ns: int) -> list[PhaseTime]:
    rows = [
        PhaseTime(phases.process, phase, time.total_ns, 0.0, phases.counts[phase])
        for phase, time in phases.times.items()
    ]
    rows.append(PhaseTime(phases.process, UNCLAIMED, window_ns - phases.claimed_ns, 0.0, 0))
    return [replace(row, host_ratio=row.host_ns / (window_ns or 1)) for row in rows]


def _device_work(trace: Trace) -> pd.DataFrame:
    """Return all kernels and copies with their phase (`UNCLAIMED` where none claims them)."""
    parts = []
    for name in DEVICE_TABLES:
        frame = trace.table(name)
        launches = find_launches(trace, frame)
        phases = phase_of_launches(trace, launches)
        columns = frame[["start_ns", "end_ns", "device", "process"]]
        parts.append(
            columns.assign(phase=phases, is_kernel=name == "kernels", is_linked=launches.is_known)
        )
    work = pd.concat(parts, ignore_index=True)
    names = np.array(_ORDER, object)
    return work.assign(phase=names[work["phase"].to_numpy()])


def _with_device_time(phase: PhaseTime, work: pd.DataFrame) -> PhaseTime:
    mine = work[(work["process"] == phase.process) & (work["phase"] == phase.phase)]
    busy_ns = sum(
        Intervals.union_of(rows["start_ns"], rows["end_ns"]).total_ns
        for _, rows in mine.groupby("device")
    )
    return replace(phase, device_ns=busy_ns, kernel_count=int(mine["is_kernel"].sum()))


def _only_on_device(work: pd.DataFrame, host: list[PhaseTime]) -> list[PhaseTime]:
    """Return the phases that have device work in the window but no host time."""
    present = {(phase.process, phase.phase) for phase in host}
    processes = {process for process, _ in present}
    pairs = work[["process", "phase"]].drop_duplicates().itertuples(index=False, name=None)
    return [
        PhaseTime(int(process), str(phase), 0, 0.0, 0)
        for process, phase in pairs
        if (process, phase) not in present and process in processes
    ]


def _with_shares(rows: list[PhaseTime]) -> list[PhaseTime]:
    whole: dict[int, int] = {}
    for row in rows:
        whole[row.process] = whole.get(row.process, 0) + (row.device_ns or 0)
    return [
        replace(row, device_ratio=(row.device_ns or 0) / whole[row.process])
        if whole[row.process]
        else row
        for row in rows
    ]


def _notes(work: pd.DataFrame) -> tuple[str, ...]:
    """Return how much device work no phase claims, and why."""
    lost = work[work["phase"] == UNCLAIMED]
    if lost.empty:
        return ()
    durations = lost["end_ns"] - lost["start_ns"]
    whole_ns = int((work["end_ns"] - work["start_ns"]).sum()) or 1
    unlinked = ~lost["is_linked"]
    note = (
        f"no phase claims {format_count(len(lost))} kernels and copies, "
        f"{format_duration(int(durations.sum()))} "
        f"({format_ratio(int(durations.sum()) / whole_ns)} of all): "
    )
    reasons = [
        f"{format_count(int(rows.sum()))} {why}"
        for rows, why in (
            (~unlinked, "were launched outside any phase"),
            (unlinked, "have no recorded launch"),
        )
        if rows.any()
    ]
    return (note + ", ".join(reasons),)


_ORDER: Final = (*PHASES, UNCLAIMED)

ANALYSIS = Analysis(
    name="phases",
    needs=("ranges",),
    run=measure_phases,
)
