"""Convert an experiment into summaries for the run database, one per change."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from traceprof.model.results import Unit
from traceprof.model.summary import SUMMARY, Summary
from traceprof.model.table import Table
from traceprof.secrets import masked_command
from traceprof.store.runs import as_name
from traceprof.trying.experiment import Experiment
from traceprof.trying.runs import OK, TriedRun

_LABEL: Final = "change"
_UNCHANGED: Final = "none"


def summaries_of(found: Experiment, name: str, labels: Mapping[str, str]) -> Iterator[Summary]:
    """Yield a summary of the unchanged program, and of each change with finished runs.

    Summaries contain all steps, so that `compare` can compare them with other runs.
    """
    whole = [("", found.base), *found.runs.items()]
    for change, runs in whole:
        finished = [run for run in runs if run.failure == OK and len(run.step_ns)]
        if finished:
            run_labels = {**labels, _LABEL: change or _UNCHANGED}
            yield _summary(f"{name}-{as_name(change or _UNCHANGED)}", finished, run_labels, found)


def _summary(
    name: str, runs: Sequence[TriedRun], labels: Mapping[str, str], found: Experiment
) -> Summary:
    steps = np.concatenate([run.step_ns for run in runs])
    attempts = np.repeat(np.arange(len(runs)), [len(run.step_ns) for run in runs])
    numbers = np.concatenate([found.plan.warmup + np.arange(len(run.step_ns)) for run in runs])
    measures = [
        _measure("step_period_ns", float(steps.mean()), Unit.NS, "lower"),
        _measure("world_size", float(max(run.ranks_count for run in runs)), Unit.COUNT, ""),
    ]
    peak = max((run.peak_bytes or 0 for run in runs), default=0)
    if peak:
        measures.append(_measure("peak_memory_bytes", float(peak), Unit.BYTES, "lower"))
    unknown = {column.name: np.full(len(steps), np.nan) for column in SUMMARY.table("steps")}
    table = Table(
        {
            **unknown,
            "at_ns": np.cumsum(steps) - steps,
            "attempt": attempts,
            "rank": np.zeros(len(steps), np.int64),
            "step": numbers,
            "steps_count": np.ones(len(steps), np.int64),
            "period_ns": steps,
            "duration_ns": steps,
            "is_warmup": np.zeros(len(steps), np.bool_),
            "is_counted": np.ones(len(steps), np.bool_),
        }
    )
    return Summary(
        name=name,
        origin="try",
        labels=labels,
        command=" ".join(masked_command(found.plan.command)),
        started_utc_ns=time.time_ns(),
        steps_count=len(steps),
        tables={
            "measures": SUMMARY.table("measures").of_rows(measures),
            "steps": SUMMARY.table("steps").of_rows(table),
        },
    )


def _measure(name: str, value: float, unit: Unit, better: str) -> dict[str, object]:
    return {
        "measure": name,
        "value": value,
        "unit": unit.value,
        "scope": "run",
        "better": better,
        "source": "measured",
    }
