"""What training gave on either side: metrics such as loss and accuracy beside one another."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, nan
from statistics import fmean
from typing import Any, Final

from traceprof.comparison.accuracy.course import Course, course_of, metrics_of
from traceprof.comparison.sides import Side
from traceprof.comparison.specs import METRICS
from traceprof.comparison.statistics import compare_runs
from traceprof.model.results import Note, Result
from traceprof.model.summary import better_of

__all__ = ["metrics_of_sides"]

_OF_SPEED: Final = ("_ns", "_per_s", "_bytes", "_per_device", "_per_rank", "_count", "mfu_ratio")


def metrics_of_sides(base: Side, new: Side) -> Result | None:
    """Return the metrics that all runs have, of each side its mean; None without any.

    What tells of speed and memory is left out: `measures` has it.
    """
    runs = [*base.runs, *new.runs]
    names = [
        name
        for name in metrics_of(runs[0])
        if not name.endswith(_OF_SPEED) and all(name in metrics_of(run) for run in runs[1:])
    ]
    rows = [row for name in names if (row := _row(name, base, new)) is not None]
    if not rows:
        return None
    notes = []
    if any(row["verdict"] for row in rows):
        notes.append(Note("the run is the unit: means of the runs, judged by their best values"))
    else:
        notes.append(
            Note("one run of each does not tell whether metrics differ by more than chance")
        )
    return Result("metrics", METRICS, {"metrics": METRICS.tables[0].frame(rows)}, {}, tuple(notes))


def _row(name: str, base: Side, new: Side) -> dict[str, Any] | None:
    courses = [[course_of(run, name) for run in side.runs] for side in (base, new)]
    if any(not len(course.curve) for own in courses for course in own):
        return None
    better = better_of(name)
    bests = [[_best(course, better) for course in own] for own in courses]
    row: dict[str, Any] = {"metric": name, "better": better}
    for side, own, best in zip(("base", "new"), courses, bests, strict=True):
        row |= {
            f"{side}_last": fmean(float(course.curve["value"].iloc[-1]) for course in own),
            f"{side}_best": fmean(best),
            f"{side}_epoch": _mean_of_last(own, "epoch"),
            f"{side}_step": _mean_of_last(own, "step"),
        }
    return {
        **row,
        "last_difference": row["new_last"] - row["base_last"],
        "best_difference": row["new_best"] - row["base_best"],
        "verdict": _verdict(bests[0], bests[1], better),
    }


def _best(course: Course, better: str) -> float:
    values = course.curve["value"]
    if not better:
        return nan
    return float(values.min() if better == "lower" else values.max())


def _mean_of_last(courses: Sequence[Course], column: str) -> float:
    values = [float(course.curve[column].iloc[-1]) for course in courses]
    return fmean(values) if all(map(isfinite, values)) else nan


def _verdict(base: Sequence[float], new: Sequence[float], better: str) -> str:
    """Return what several runs of each side tell; "" of one of each."""
    if min(len(base), len(new)) < 2 or not all(value > 0 for value in (*base, *new)):
        return ""
    found = compare_runs(base, new)
    if not found.excludes_zero:
        return "no difference shown"
    return "better" if (found.change_ratio > 0) == (better == "higher") else "worse"
