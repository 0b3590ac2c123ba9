"""What is said of runs on the way to a target."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from traceprof.comparison.accuracy.course import Course, Target
from traceprof.model.results import Note, Result
from traceprof.model.summary import CONTRADICTS

__all__ = ["notes_of", "verdict_of"]


def verdict_of(results: Mapping[str, Result], goal: Target) -> Iterator[Note]:
    """Yield the answer: who reached the target first, who never, and what more devices gave."""
    table = results["accuracy"].to_frame("reached")
    reached = table[table["is_reached"].astype(bool)]
    values: dict[str, Any] = {"metric": goal.metric, "target": goal.value}
    if len(reached) < len(table):
        never = table[~table["is_reached"].astype(bool)]
        best = goal.best(never["best"])
        yield Note.of(
            "{n:count} of {all:count} run(s) never reached {metric} {target:number}, the best of "
            "them {best:number}: {names}",
            n=len(never),
            all=len(table),
            names=", ".join(never["run"]),
            best=best,
            **values,
        )
    timed = reached[reached["time_ns"].notna()].sort_values("time_ns", kind="stable")
    if len(timed):
        fastest = timed.iloc[0]
        yield Note.of(
            "{name} is the first to reach {metric} {target:number}, after {time:ns}",
            time=float(fastest["time_ns"]),
            name=fastest["run"],
            **values,
        )
    elif len(reached):
        yield Note.of("no time is known: the runs tell of epochs, steps or samples alone")
    if "speedup" in results:
        yield from _of_speedup(results["speedup"].table)


def _of_speedup(table: pd.DataFrame) -> Iterator[Note]:
    known = table.iloc[1:]
    known = known[known["time_speedup"].notna()]
    if known.empty:
        return
    row = known.sort_values("time_speedup", kind="stable").iloc[-1]
    base = table.iloc[0]
    values: dict[str, Any] = {
        "name": row["group"],
        "base": base["group"],
        "time": float(row["time_speedup"]),
        "rate": float(row["rate_speedup"]),
        "work": float(row["work_factor"]),
        "devices": float(row["devices_count"]),
        "few": float(base["devices_count"]),
    }
    text = "{name} is there {time:factor} as fast as {base}"
    if math.isfinite(values["devices"] + values["few"]):
        text += ", on {devices:count} instead of {few:count} devices"
    if math.isfinite(values["rate"]):
        text += ", with {rate:factor} the throughput"
    if math.isfinite(values["work"]) and abs(values["work"] - 1) > 0.01:
        text += ": it needs {work:factor} the samples"
    yield Note.of(text, **values)


def notes_of(courses: Sequence[Course], goal: Target) -> Iterator[Note]:
    """Yield what must be read with the numbers, and what is doubtful in the runs themselves."""
    yield Note.of(
        "time is counted from the start of training to the end of the evaluation that first "
        "reached the target; what the benchmark's own clock says stands beside it"
        if any(course.run.measure("time_to_train_ns") is not None for course in courses)
        else "time is counted from the start of training to the first value that reached the target"
    )
    if any(course.is_smoothed for course in courses):
        yield Note.of(
            "{metric} is that of single steps: the median of five stands for each",
            metric=goal.metric,
        )
    if any(course.curve["life"].nunique() > 1 for course in courses):
        yield Note.of("time goes on through restarts: what was lost at them is in it")
    yield from _of_runs(courses)


def _of_runs(courses: Sequence[Course]) -> Iterator[Note]:
    """Yield what the runs say of themselves; of what several say in the same words the first."""
    told: dict[str, int] = {}
    for course in courses:
        for note in course.run.notes:
            told[note.text] = told.get(note.text, 0) + 1
    for course in courses:
        for note in course.run.notes:
            count = told.get(note.text, 0)
            if note.text.startswith(CONTRADICTS) or count == 1:
                yield Note.of("{run}: {note}", run=course.run.name, note=note)
            elif count:
                text = "{run}: {note} ({n:count} other run(s): the like)"
                yield Note.of(text, run=course.run.name, note=note, n=count - 1)
                told[note.text] = 0
