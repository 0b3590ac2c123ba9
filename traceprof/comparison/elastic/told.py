"""A job whose ranks come and go, alone or beside one of a fixed size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isclose
from typing import Final

import numpy as np

from traceprof.comparison.base import Comparison
from traceprof.comparison.elastic.course import Course, course_of
from traceprof.comparison.elastic.spec import ABOUT, TIMELINE_NAME
from traceprof.comparison.elastic.tables import (
    epochs_table,
    parts_of_job,
    parts_table,
    restarts_table,
    timeline_table,
)
from traceprof.errors import UsageError
from traceprof.model.results import Note
from traceprof.model.summary import Summary

__all__ = ["elastic"]

_NOTABLE: Final = 0.5
"""An epoch that takes so much more than a typical one is named."""
_LEFT_OVER: Final = "outside of all these"


def elastic(runs: Sequence[Summary]) -> Comparison:
    """Return what happened to a job, where its time went and what each restart cost.

    Of two runs the first is the base, such as one of a fixed size: the other stands beside it,
    epoch by epoch.

    Raises:
        UsageError: there are no runs or more than two, or neither epochs nor starts are known.
    """
    if len(runs) not in (1, 2):
        raise UsageError(f"expected one run, or a base and a run, not {len(runs)}")
    for run in runs:
        if not any(len(run.table(name)) for name in ("epochs", "lives", "events")):
            raise UsageError(
                f"{run.name}: neither epochs nor starts nor events are known: record into a folder "
                "(traceprof record -o FOLDER/ -- torchrun …), or give the log of the program"
            )
    courses = [course_of(run) for run in runs]
    course, base = courses[-1], (courses[0] if len(courses) == 2 else None)
    results = {
        "restarts": restarts_table(courses),
        "epochs": epochs_table(course, base),
        TIMELINE_NAME: timeline_table(courses, runs),
    }
    if any(len(one.epochs) or one.lost for one in courses):
        results = {"parts": parts_table(course, base), **results}
    return Comparison(
        title=" against ".join(run.name for run in reversed(runs)),
        results=results,
        verdict=tuple(_verdict(course, base)),
        notes=tuple(_notes(courses, runs)),
        about=ABOUT,
    )


def _verdict(course: Course, base: Course | None) -> Iterator[Note]:
    if base is not None and np.isfinite(course.total_ns - base.total_ns):
        more = course.total_ns - base.total_ns
        yield Note.of(
            "{run} took {total:ns}, {base} {other:ns}: {more:ns} {word}",
            run=course.name,
            total=course.total_ns,
            base=base.name,
            other=base.total_ns,
            more=abs(more),
            word="more" if more >= 0 else "less",
        )
    elif np.isfinite(course.total_ns):
        yield Note.of("{run} took {total:ns}", run=course.name, total=course.total_ns)
    if not course.lost:
        text = "no restart of {run} is told"
        if course.restarts_count:
            text = "{n:count} restart(s) of {run} are told, but not what they cost"
        yield Note.of(text, run=course.name, n=course.restarts_count)
        return
    yield _about_lost(course)
    for one in course.lost:
        beyond = course.beyond_ns(one.epoch)
        rows = course.epochs[course.epochs["epoch"] == one.epoch]
        if rows.empty or not beyond > _NOTABLE * float(rows["typical_ns"].iloc[0]):
            continue
        yield Note.of(
            "epoch {epoch:number} took {took:ns}: {lost:ns} lost, {typical:ns} as epochs "
            "{typical_of} do, and {beyond:ns} that nothing explains",
            epoch=one.epoch,
            took=float(rows["duration_ns"].iloc[0]),
            lost=float(rows["lost_ns"].iloc[0]),
            typical=float(rows["typical_ns"].iloc[0]),
            typical_of=str(rows["typical_of"].iloc[0]),
            beyond=beyond,
        )


def _about_lost(course: Course) -> Note:
    explained = sum(one.explained_ns for one in course.lost)
    share = course.lost_ns / course.total_ns if np.isfinite(course.total_ns) else float("nan")
    text = "{lost:ns} lost at {n:count} restart(s)"
    if np.isfinite(share):
        text += ", {share:ratio} of the time"
    return Note.of(
        f"{text}: {{explained:ns}} of it is explained, {{rest:ns}} is not",
        lost=course.lost_ns,
        n=len(course.lost),
        share=share,
        explained=explained,
        rest=course.lost_ns - explained,
    )


def _notes(courses: Sequence[Course], runs: Sequence[Summary]) -> Iterator[Note]:
    for course, run in zip(courses, runs, strict=True):
        yield from _checks(course, run.notes)
        yield from _setbacks(course)
        if course.cut_count:
            yield Note.of(
                "{run}: {n:count} epoch(s) were begun and begun again: "
                + ("counted as lost" if course.lost else "the last of each is told"),
                run=course.name,
                n=course.cut_count,
            )
        yield from run.notes


def _checks(course: Course, said: Sequence[Note]) -> Iterator[Note]:
    """Say where set-up, epochs and lost time do not add up to the total, unless it was ``said``."""
    if not np.isfinite(course.total_ns):
        yield Note.of("{run}: how long the whole took is not known", run=course.name)
        return
    parts = parts_of_job(course)
    left = parts[_LEFT_OVER]
    values = [value for note in said for value in note.values.values()]
    is_said = any(isinstance(value, float) and isclose(value, left) for value in values)
    if abs(left) > 0.01 * course.total_ns and not is_said:
        yield Note.of(
            "{run}: set-up, epochs and lost time make {sum:ns} of {total:ns}: {left:ns} lie "
            "outside of them, such as evaluation, or what nobody printed",
            run=course.name,
            sum=course.total_ns - left,
            total=course.total_ns,
            left=left,
        )


def _setbacks(course: Course) -> Iterator[Note]:
    """Say where the accuracy was lower after a restart than before it."""
    known = sorted(course.accuracy)
    is_counting = bool(known) and known[-1] > float(course.epochs["epoch"].max())
    for one in course.lost:
        after = one.epoch + 1 if is_counting else one.epoch
        now, before = course.accuracy.get(after), course.accuracy.get(after - 1)
        if now is not None and before is not None and now < before:
            yield Note.of(
                "{run}: {name} went back from {before:number} to {now:number} in epoch "
                "{epoch:number}, at the restart",
                run=course.name,
                name=course.accuracy_name,
                before=before,
                now=now,
                epoch=one.epoch,
            )
