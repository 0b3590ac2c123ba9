"""Leading steps that are warm-up and distort what is measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.context import Context
from traceprof.errors import NotRecordedError
from traceprof.model.results import Note

__all__ = ["RULE"]

_LEAST: Final = 0.05
_FEWEST: Final = 2


def _check(context: Context) -> Iterator[Finding]:
    steps = context.all_steps
    if not len(steps):
        raise NotRecordedError("no steps are named")
    leading = steps.warmup()
    if leading.all() or not leading.any():
        return
    first = steps.table["process"] == steps.table["process"].iloc[0]
    count = int((leading & first).sum())
    usual = float(np.median(steps.durations_ns[~leading]))
    excess_ns = float((steps.durations_ns[leading] - usual).clip(min=0).sum())
    whole_ratio = excess_ns / float(steps.durations_ns.sum())
    inside = int(context.is_warmup.sum())
    if whole_ratio < _LEAST or (count < _FEWEST and not inside):
        return
    ratio = 0.0
    if inside:
        warm = context.steps.durations_ns[context.is_warmup]
        ratio = float((warm - usual).clip(min=0).sum()) / float(context.steps.durations_ns.sum())
    numbers = steps.table.loc[leading & first, "step"]
    where = "are inside the window" if inside else "are outside the window, as they should be"
    yield Finding(
        title=Note.of(
            "warm-up: {n:count} leading step(s) cost {share:ratio} of the time of all steps",
            n=count,
            share=whole_ratio,
        ),
        saving_ratio=ratio,
        saving_ns=context.saving_ns(ratio),
        evidence=(
            Note.of(
                f"steps {{first}}..{{last}} {where}; they take {{mean:ns}} on average, the others "
                "{usual:ns}",
                first=int(numbers.iloc[0]),
                last=int(numbers.iloc[-1]),
                mean=float(steps.durations_ns[leading & first].mean()),
                usual=usual,
            ),
        ),
        action=(
            "measure without them (--window steady); in short jobs cache compiled kernels, limit "
            "cudnn.benchmark to fixed shapes, and start the workers of the DataLoader earlier"
        ),
        caveat="a learning-rate or batch-size schedule changes the first steps on purpose",
        window=f"step:{numbers.iloc[0]}..{numbers.iloc[-1]}",
    )


RULE = Rule(
    name="warmup",
    summary="leading steps that are unlike the rest",
    needs=(),
    show="steps",
    check=_check,
)
