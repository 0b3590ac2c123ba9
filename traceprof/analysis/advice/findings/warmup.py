"""Leading steps that are warm-up and distort what is measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.claims import Kind
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
    numbers = steps.table.loc[leading & first, "step"]
    where = "inside the window" if inside else "outside the window"
    words = f"step {{first}} is {where}" if count == 1 else f"steps {{first}}..{{last}} are {where}"
    yield Finding(
        title=Note.of(
            (
                "warm-up: the first step costs"
                if count == 1
                else "warm-up: the first {n:count} steps cost"
            )
            + " {excess:ns} more than usual, {share:ratio} of the time of all that was recorded",
            excess=_of_a_process(context, leading, usual),
            n=count,
            share=whole_ratio,
        ),
        claims=(),
        kind=Kind.ONCE,
        once_ns=round(_of_a_process(context, leading, usual)),
        evidence=(
            Note.of(
                f"{words}; {{mean:ns}} on average, the others {{usual:ns}}",
                first=int(numbers.iloc[0]),
                last=int(numbers.iloc[-1]),
                mean=float(steps.durations_ns[leading & first].mean()),
                usual=usual,
            ),
        ),
        action=context.advice(
            pytorch="measure without them (--window steady); in short jobs cache compiled kernels, "
            "limit cudnn.benchmark to fixed shapes, start the workers of the DataLoader earlier",
            other="measure without them (--window steady); in short jobs cache compiled kernels",
        ),
        caveat="a learning-rate or batch-size schedule changes the first steps on purpose",
        window=f"step:{numbers.iloc[0]}..{numbers.iloc[-1]}",
    )


def _of_a_process(context: Context, leading: npt.NDArray[np.bool_], usual: float) -> float:
    """Return how much longer than ``usual`` the ``leading`` steps of a process are, the mean."""
    excess = (context.all_steps.durations_ns[leading] - usual).clip(min=0).sum()
    return float(excess) / int(context.all_steps.table["process"].nunique())


RULE = Rule(
    name="warmup",
    subject="warm-up",
    summary="leading steps that are unlike the rest",
    needs=(),
    show="steps",
    check=_check,
)
