"""The first lines of the report: where the time went, in sentences, and the main numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, TypeVar

from traceprof.analysis.base import Result
from traceprof.analysis.breakdown import Breakdown, DeviceBreakdown
from traceprof.analysis.idle import Idle
from traceprof.analysis.phases import Phases
from traceprof.analysis.steps import StepTimes
from traceprof.units import format_duration, format_ratio

__all__ = ["Figure", "key_figures", "verdict"]

Figure = tuple[str, str]
"""A number and what it is."""

_R = TypeVar("_R")

_LOSSES: Final = {
    "exposed_communication_ns": "communication that no computation hides",
    "exposed_transfer_ns": "copies that nothing hides",
    "device_memory_ns": "copies and memsets within the devices",
    "idle_ns": "idle time",
}


def verdict(results: Mapping[str, Result]) -> list[str]:
    """Return the sentences; each states a measured number."""
    return [
        *_of_devices(_found(results, "breakdown", Breakdown), _found(results, "idle", Idle)),
        *_of_steps(_found(results, "steps", StepTimes)),
        *_of_host(results),
    ]


def key_figures(results: Mapping[str, Result]) -> list[Figure]:
    """Return the main numbers of the page."""
    figures: list[Figure] = []
    steps = _found(results, "steps", StepTimes)
    if steps is not None and len(steps.table):
        steady = steps.table[~steps.table["is_warmup"]]
        median = float(steady["duration_ns"].median())
        figures.append((format_duration(median), f"median of {len(steady)} steady steps"))
    if steps is not None and steps.throughput is not None:
        figures.append((f"{steps.throughput.mean_per_s:,.1f}", "samples per second"))
    total = _total(results)
    if total is not None:
        figures += [
            (_share(total, "compute_ns"), "of the devices' time computes"),
            (_share(total, "exposed_communication_ns"), "exposed communication"),
            (_share(total, "exposed_transfer_ns"), "exposed transfers"),
            (_share(total, "idle_ns"), "idle"),
        ]
    return figures


def _found(results: Mapping[str, Result], name: str, kind: type[_R]) -> _R | None:
    result = results.get(name)
    return result if isinstance(result, kind) else None


def _total(results: Mapping[str, Result]) -> DeviceBreakdown | None:
    breakdown = _found(results, "breakdown", Breakdown)
    return None if breakdown is None else breakdown.total


def _share(row: DeviceBreakdown, part: str) -> str:
    return format_ratio(getattr(row, part) / max(1, row.duration_ns))


def _of_devices(breakdown: Breakdown | None, idle: Idle | None) -> Iterator[str]:
    if breakdown is None or breakdown.total is None:
        return
    total = breakdown.total
    n = len(breakdown.devices)
    who = "The device" if n == 1 else f"The {n} devices"
    yield f"{who} computed {_share(total, 'compute_ns')} of the window."
    loss = max(_LOSSES, key=lambda part: getattr(total, part))
    if getattr(total, loss) == 0:
        return
    causes = _idle_causes(idle) if loss == "idle_ns" else ""
    yield f"The largest loss is {_LOSSES[loss]}: {_share(total, loss)} of it{causes}."
    if total.communication_ns and total.communication_overlap_ratio is not None:
        hidden = format_ratio(total.communication_overlap_ratio)
        yield f"{hidden} of the communication ran while the same device computed."


def _idle_causes(idle: Idle | None) -> str:
    if idle is None or idle.table.empty:
        return ""
    causes = idle.table.groupby("cause")["total_ns"].sum().sort_values(ascending=False)
    whole = float(causes.sum())
    if whole == 0:
        return ""
    words = [
        f"{cause} {format_ratio(float(ns) / whole)}" for cause, ns in causes.head(3).items() if ns
    ]
    return f" ({', '.join(words)} of the idle time)"


def _of_steps(steps: StepTimes | None) -> Iterator[str]:
    if steps is None or steps.table.empty:
        return
    steady = steps.table[~steps.table["is_warmup"]]
    if len(steady):
        median = format_duration(float(steady["duration_ns"].median()))
        yield f"A step takes {median} (median of {len(steady)} steady ones)."


def _of_host(results: Mapping[str, Result]) -> Iterator[str]:
    """Where no device was recorded, the phases of the host are the answer."""
    phases = _found(results, "phases", Phases)
    if _total(results) is not None or phases is None or not phases.phases:
        return
    first = sorted(phases.phases, key=lambda phase: -phase.host_ns)[:3]
    words = ", ".join(f"{phase.phase} {format_ratio(phase.host_ratio)}" for phase in first)
    yield f"No device was recorded; of the time of the host: {words}."
