"""Single steps that take much longer than the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.context import Context
from traceprof.analysis.training.step_remarks import PROFILER
from traceprof.analysis.training.steps import measure_steps
from traceprof.errors import NotRecordedError
from traceprof.units import format_duration, format_ratio

__all__ = ["RULE"]

_LEAST: Final = 0.01


def _check(context: Context) -> Iterator[Finding]:
    if len(context.steps) < 4:
        raise NotRecordedError("too few steps are named to call one slow")
    remarks = measure_steps(context.trace).table["remark"]
    disturbed = remarks.str.contains(PROFILER, regex=False).to_numpy()
    slow = np.flatnonzero((context.step_outliers > 0) & ~disturbed)
    if not len(slow):
        return
    durations = context.steps.durations_ns
    steady = ~context.is_warmup
    excess_ns = int((durations[slow] - context.step_ns).sum())
    ratio = excess_ns / int(durations[steady].sum())
    if ratio < _LEAST:
        return
    table = context.steps.table
    worst = slow[np.argsort(-durations[slow], kind="stable")]
    row = table.iloc[worst[0]]
    yield Finding(
        rule=RULE.name,
        title=(
            f"slow steps: {len(slow)} of {int(steady.sum())} take {format_duration(excess_ns)} "
            f"more than usual, {format_ratio(ratio)} of all"
        ),
        saving_ratio=ratio,
        saving_ns=context.saving_ns(ratio),
        evidence=tuple(f"step {table['step'].iloc[i]}: {remarks.iloc[i]}" for i in worst[:3]),
        action=(
            "look at the slow steps in the timeline: checkpoints, evaluation, logging, garbage "
            "collection, a slow file, other jobs on the machine"
        ),
        caveat="periodic slow steps (a checkpoint every N) are often meant to be there",
        window=f"step:{row['step']}",
    )


RULE = Rule(
    name="slow_steps",
    summary="single steps far slower than the others",
    needs=(),
    check=_check,
)
