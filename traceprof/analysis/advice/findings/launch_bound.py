"""Kernels are too short for the host to keep the queue filled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.context import Context
from traceprof.analysis.waiting.launches import launch_table
from traceprof.units import format_duration, format_ratio

__all__ = ["RULE"]

_LEAST: Final = 0.05


def _check(context: Context) -> Iterator[Finding]:
    ratio = context.gap_ratio("launch_bound")
    if ratio < _LEAST:
        return
    launches = launch_table(context.trace)
    call_ns = launches["launched_ns"] - launches["launch_ns"]
    kernels = context.kernels
    yield Finding(
        rule=RULE.name,
        title=f"launch-bound: devices are idle {format_ratio(ratio)} of the time between launches",
        saving_ratio=ratio,
        saving_ns=context.saving_ns(ratio),
        evidence=(
            f"{context.per_step(len(kernels))} kernels, median "
            f"{format_duration(float(kernels['duration_ns'].median()))}",
            f"a launching call takes {format_duration(float(call_ns.median()))} (median)",
            f"{format_ratio(float(launches['is_empty'].mean()))} of the launches found the device "
            "without work",
        ),
        action=(
            "launch less: CUDA graphs or torch.compile(mode='reduce-overhead'), fused optimizers "
            "(fused=True, foreach=True), fused layers, larger batches"
        ),
        caveat=(
            "profilers slow launches down (some µs per call): measure the gain without one; shapes "
            "that change in every step rule CUDA graphs out"
        ),
        window=context.longest_gap("launch_bound"),
    )


RULE = Rule(
    name="launch_bound",
    summary="devices wait for kernels to be launched",
    needs=("kernels", "api_calls"),
    check=_check,
)
