"""The host runs other code for long while devices have nothing to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.context import Context
from traceprof.analysis.waiting.longest_gaps import ranges_at
from traceprof.facts.gaps import LAUNCH_BOUND_NS
from traceprof.units import format_duration, format_ratio

__all__ = ["RULE"]

_LEAST: Final = 0.03


def _check(context: Context) -> Iterator[Finding]:
    ratio = context.gap_ratio("host_code")
    if ratio < _LEAST:
        return
    gaps = context.gaps[(context.gaps["owner"] == "host_code") & (context.gaps["typical_ns"] > 0)]
    lengths = (gaps["end_ns"] - gaps["start_ns"]).to_numpy()
    places: dict[str, int] = {}
    for name, length in zip(ranges_at(context.trace, gaps), lengths, strict=True):
        places[name] = places.get(name, 0) + int(length)
    ranked = sorted(((ns, name) for name, ns in places.items() if name), reverse=True)[:3]
    yield Finding(
        rule=RULE.name,
        title=f"host code between launches: devices are idle {format_ratio(ratio)} of the time",
        saving_ratio=ratio,
        saving_ns=context.saving_ns(ratio),
        evidence=(
            f"{context.per_step(len(gaps))} gaps longer than {format_duration(LAUNCH_BOUND_NS)}, "
            f"median {format_duration(float(np.median(lengths)))}",
            *(f"{context.time_per_step(ns)} of them in {name}" for ns, name in ranked),
        ),
        action=(
            "find the Python code in these gaps (logging, checkpoints, metrics, building batches, "
            "garbage collection, allocation) and move it out of the loop or to another thread"
        ),
        caveat="gaps of a host that merely launches very slowly look the same",
        window=context.longest_gap("host_code"),
        ranges=tuple(name for _, name in ranked),
    )


RULE = Rule(
    name="host_code",
    summary="long gaps in which the host neither launches nor waits",
    needs=("kernels", "api_calls"),
    check=_check,
)
