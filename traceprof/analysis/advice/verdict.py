"""The answer in a few sentences: where the step goes, how steady it is, what would help most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from traceprof.analysis.advice.findings import Finding, Findings, measure_findings
from traceprof.analysis.device.breakdown import Breakdown, measure_breakdown
from traceprof.analysis.training.steps import StepTimes, measure_steps
from traceprof.facts.host.phases import find_host_phases
from traceprof.model.trace import DEVICE_TABLES, Trace
from traceprof.units import format_duration, format_ratio

__all__ = ["Verdict", "measure_verdict"]

_PARTS: Final = {
    "compute_ns": "compute",
    "exposed_communication_ns": "exposed communication",
    "exposed_transfer_ns": "exposed transfers",
    "device_memory_ns": "copies inside the device",
    "idle_ns": "idle",
}
_NEXT: Final = {
    "input_bound": "steps",
    "host_sync": "sync",
    "host_code": "gaps",
    "launch_bound": "launches",
    "pageable_copies": "copies",
    "unpinned_memory": "copies",
    "blocking_copies": "copies",
    "slow_link": "copies",
    "slow_host": "hosts",
    "straggler": "stragglers",
    "exposed_communication": "collectives",
    "small_buckets": "collectives",
    "slow_steps": "steps",
    "warmup": "steps",
    "layout_conversion": "kernels",
    "small_kernels": "classes",
    "tensor_cores": "classes",
    "gpu_gaps": "gaps",
    "low_utilisation": "idle",
}
_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the window tells.

    ``where`` says where the time goes and ``steadiness`` how steady the steps are (each one
    sentence, "" where nothing is known); ``findings`` are the best three; ``next_command`` is
    what to run next, with TRACE for the file.
    """

    where: str
    steadiness: str
    findings: tuple[Finding, ...]
    next_command: str


def measure_verdict(
    trace: Trace, steps: StepTimes | None = None, findings: Findings | None = None
) -> Verdict:
    """Return the verdict on the window that ``trace`` was cut to.

    What was measured of the same window already can be handed in.
    """
    steps = steps or measure_steps(trace)
    best = (findings or measure_findings(trace)).findings[:_SHOWN]
    return Verdict(
        where=_where(trace, steps),
        steadiness=_steadiness(steps),
        findings=best,
        next_command=_next_command(trace, best),
    )


def _where(trace: Trace, steps: StepTimes) -> str:
    step_ns = None if steps.steadiness is None else steps.steadiness.median_ns
    kind = "step" if steps.confidence_ratio == 1 else "step (inferred)"
    start = "The window" if step_ns is None else f"A {kind} of {format_duration(step_ns)}"
    if trace.recorded & set(DEVICE_TABLES):
        shares = _device_shares(measure_breakdown(trace))
        return f"{start} goes to {shares}." if shares else ""
    shares = _host_shares(trace)
    return f"{start} goes to {shares} on the host." if shares else ""


def _device_shares(breakdown: Breakdown) -> str:
    if breakdown.total is None:
        return ""
    parts = {name: getattr(breakdown.total, column) for column, name in _PARTS.items()}
    several = len(breakdown.devices)
    mean = f" (mean of {several} devices)" if several > 1 else ""
    return _shares(parts, breakdown.total.duration_ns) + mean


def _host_shares(trace: Trace) -> str:
    hosts = find_host_phases(trace)
    if not hosts:
        return ""
    times = {phase: time.total_ns for phase, time in hosts[0].times.items()}
    rest = trace.span.duration_ns - hosts[0].claimed_ns
    return _shares({**times, "code outside any phase": rest}, trace.span.duration_ns)


def _shares(parts: dict[str, int], whole_ns: int) -> str:
    """Return the parts that make up at least 1 %, the largest first."""
    ranked = sorted(parts.items(), key=lambda part: -part[1])
    shown = [
        f"{format_ratio(ns / whole_ns)} {name}" for name, ns in ranked if ns >= 0.01 * whole_ns
    ]
    return ", ".join(shown)


def _steadiness(steps: StepTimes) -> str:
    steady = steps.steadiness
    if steady is None or steady.count < 2:
        return ""
    word = "steady" if steady.spread_ratio < 0.1 else "uneven"
    n_processes = steps.table["process"].nunique()
    of = f" of {n_processes} processes" if n_processes > 1 else ""
    text = (
        f"{steady.count} steps{of}, {word}: 80 % of them take {format_duration(steady.p10_ns)} to "
        f"{format_duration(steady.p90_ns)}"
    )
    n_slow = int(steps.table["remark"].str.startswith("slow").sum())
    if n_slow:
        text += f"; {n_slow} slow one(s)"
    if steps.throughput is not None:
        text += f"; {steps.throughput.mean_per_s:.4g} samples/s"
    return text + "."


def _next_command(trace: Trace, findings: tuple[Finding, ...]) -> str:
    if findings:
        first = findings[0]
        window = f" --window '{first.window}'" if first.window else ""
        name = _NEXT.get(first.rule, "timeline")
        # A window that holds one gap shows nothing in a table of steps.
        return f"traceprof {name} TRACE" + ("" if name == "steps" else window)
    if trace.recorded & set(DEVICE_TABLES):
        return "traceprof kernels TRACE"
    return "traceprof ops TRACE" if "host_ops" in trace.recorded else "traceprof ranges TRACE"
