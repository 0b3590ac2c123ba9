"""Single steps that take much longer than the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.claims import Ground, Kind
from traceprof.analysis.advice.findings.context import Context
from traceprof.errors import NotRecordedError
from traceprof.measures.steps.measured import measured_steps
from traceprof.model.intervals import Intervals
from traceprof.model.results import Note

__all__ = ["RULE"]

_LEAST: Final = 0.01
_LOWER: Final = 0.97
"""Clocks go up and down by some steps of 15 MHz without any reason."""
_COUNTED: Final = {
    "alloc_retries_count": "ran out of memory, freed what it kept and tried again",
    "device_alloc_count": "asked the device for memory",
}


def _check(context: Context) -> Iterator[Finding]:
    if len(context.steps) < 4:
        raise NotRecordedError("too few steps are named to call one slow")
    table = measured_steps(context.ranks).table
    slow = context.slow_steps
    if not len(slow) or context.slow_ratio < _LEAST:
        return
    durations = context.steps.durations_ns
    spans = context.steps.table.iloc[slow]
    time = Intervals.union_of(spans["start_ns"], spans["end_ns"])
    worst = slow[np.argsort(-durations[slow], kind="stable")]
    yield Finding(
        title=Note.of(
            (
                "one slow step of {of:count} takes {excess:ns} more than usual"
                if len(slow) == 1
                else "{n:count} slow steps of {of:count} take {excess:ns} more than usual in all"
            )
            + ", {share:ratio} of the time of the steps",
            n=len(slow),
            of=int((~context.is_warmup & ~context.is_occasional).sum()),
            excess=context.slow_excess_ns,
            share=context.slow_ratio,
        ),
        claims=(context.left(dict.fromkeys(context.places, time), Ground.SLOW),),
        kind=Kind.MEASURED,
        evidence=(
            *(_why(table.iloc[i]) for i in worst[:3].tolist()),
            *_machine(table, slow, ~context.is_warmup & (context.step_outliers == 0)),
        ),
        action=(
            "see what is longer in them (`traceprof explain TRACE slowest`): logging, garbage "
            "collection, a slow file, other jobs on the machine"
        ),
        caveat="evaluation or saving that no range names is often meant to be there",
        window=f"step:{table['step'].iloc[worst[0]]}",
    )


def _why(step: Any) -> Note:
    """Return by how much a step is slow, and which part of it grew."""
    text = "step {step}: slow by {excess:ns}"
    values: dict[str, Any] = {}
    for name in ("grown_part", "grown_phase"):
        if step[name]:
            text += f", {{{name}}} +{{{name}_ns:ns}}"
            values |= {name: step[name].replace("_", " "), f"{name}_ns": step[f"{name}_ns"]}
    return Note.of(text, step=int(step["step"]), excess=float(step["excess_ns"]), **values)


def _machine(
    table: pd.DataFrame, slow: npt.NDArray[np.int64], usual: npt.NDArray[np.bool_]
) -> Iterator[Note]:
    """Yield what was different of the machine in the slow steps."""
    own, others = table.iloc[slow], table[usual]
    if "sm_clock_mhz" in table:
        clock, typical = (float(rows["sm_clock_mhz"].median()) for rows in (own, others))
        if clock < _LOWER * typical:
            text = "the clock of the device was at {clock:count} MHz instead of {typical:count}"
            held = float(own["throttled_ratio"].mean()) if "throttled_ratio" in own else 0.0
            text += ": power or heat held it down {held:ratio} of the time" if held > 0 else ""
            yield Note.of(text, clock=round(clock), typical=round(typical), held=held)
    for name, words in _COUNTED.items():
        if name in table and float(own[name].mean()) > float(np.nan_to_num(others[name].mean())):
            count = int(own[name].sum())
            yield Note.of(f"in them torch {words} {{n:count}} time(s)", n=count)


RULE = Rule(
    name="slow_steps",
    subject="even steps",
    summary="single steps far slower than the others",
    needs=(),
    show="steps",
    check=_check,
)
