"""A job whose ranks come and go, alone or beside one of a fixed size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isclose
from typing import Any, Final

import numpy as np
import pandas as pd

from traceprof.comparison import Comparison
from traceprof.comparison.jobs import PARTS, ElasticJob, elastic_job, table_of
from traceprof.comparison.specs_of_many import (
    ELASTIC_ABOUT,
    EPOCHS,
    RESTARTS,
    TIMELINE,
    TIMELINE_NAME,
)
from traceprof.comparison.specs_of_many import (
    JOB_PARTS as PARTS_SPEC,
)
from traceprof.errors import UsageError
from traceprof.model.results import Note, Result, ResultSpec
from traceprof.model.summary import Summary

_LOST: Final[Mapping[str, str]] = {
    "redone": "lost: steps made again",
    "noticing": "lost: until agents noticed",
    "rendezvous": "lost: agents meeting",
    "failed": "lost: starts that failed",
    "initialisation": "lost: worker initialisation",
    "loading": "lost: loading checkpoints",
    "setup": "lost: set-up",
}
_WHAT: Final[Mapping[str, str]] = {
    "time_lost": "time lost",
    "setup": "set-up",
    "initialisation": "worker initialisation",
    "rendezvous": "agents meet",
    "redone": "steps made again",
    "noticing": "until agents noticed",
    "loading": "loading of checkpoints",
    "failed": "starts that failed",
    "membership": "membership change",
    "failure": "rank failed",
    "stopped": "rank killed",
}
_MOST_OF_A_KIND: Final = 200
_SEVERAL: Final = ("checkpoint",)
_SIZED: Final = ("start", "restart", "membership")
"""The events of recordings, and the first of them of logs, whose value is how many ranks remain."""


def parts_of_job(course: ElasticJob) -> dict[str, float]:
    """Return what the job's time was, in ns: the parts add up to its total where that is known.

    What is left over when set-up, epochs and lost time are taken from the total is the last part.
    """
    epochs = course.epochs
    first = epochs["is_first"].to_numpy(bool)
    restart = epochs["is_restart"].to_numpy(bool) & ~first
    beyond = epochs["beyond_ns"].to_numpy(np.float64)
    typical = np.nansum(epochs["typical_ns"].to_numpy(np.float64))
    parts = {
        "set-up": _or_zero(course.setup_ns),
        "worker initialisation": _or_zero(course.initialisation_ns),
        "epochs, as long as typical": float(typical),
        "first epoch, beyond that": float(np.nansum(beyond[first])),
        "epochs of restarts, beyond that": float(np.nansum(beyond[restart])),
        "other epochs, beyond that": float(np.nansum(beyond[~first & ~restart])),
    }
    for kind in PARTS:
        parts[_LOST[kind]] = float(sum(one.parts.get(kind, 0.0) for one in course.lost))
    parts["lost: not explained"] = float(
        sum(one.lost_ns - sum(one.parts.values()) for one in course.lost)
    )
    if np.isfinite(course.total_ns):
        parts["outside of all these"] = course.total_ns - sum(parts.values())
    return parts


def _or_zero(value: float) -> float:
    return value if np.isfinite(value) else 0.0


def parts_table(course: ElasticJob, base: ElasticJob | None) -> Result:
    """Return what the time of a job was, beside that of the base."""
    own = parts_of_job(course)
    theirs = parts_of_job(base) if base else {}
    names = [name for name in {**own, **theirs} if own.get(name) or theirs.get(name)]
    total = sum(own.values())
    rows = []
    for name in [*names, "total"]:
        ns = total if name == "total" else own.get(name, 0.0)
        row: dict[str, Any] = {
            "part": name,
            "duration_ns": ns,
            "share_ratio": ns / total if total else None,
        }
        if base:
            row["base_ns"] = sum(theirs.values()) if name == "total" else theirs.get(name, 0.0)
            row["difference_ns"] = ns - row["base_ns"]
        rows.append(row)
    return _result("parts", PARTS_SPEC, rows)


def restarts_table(courses: Sequence[ElasticJob]) -> Result:
    """Return the restarts of the jobs."""
    rows = []
    for course in courses:
        for one in course.lost:
            row = {
                "run": course.name,
                "restart": one.number,
                "epoch": one.epoch,
                "life": one.life,
                "at_ns": one.at_ns,
                "why": one.why,
                "ranks_before_count": one.ranks_before,
                "ranks_after_count": one.ranks_after,
                "lost_ns": one.lost_ns,
                "redone_count": one.redone_count,
                "unexplained_ns": one.unexplained_ns,
                "beyond_ns": course.beyond_ns(one.epoch),
            }
            rows.append(row | {f"{kind}_ns": one.parts.get(kind, np.nan) for kind in PARTS})
    every = [one for course in courses for one in course.lost]
    return _result("restarts", RESTARTS, rows).with_scalars(
        lost_ns=sum(one.lost_ns for one in every),
        explained_ns=sum(one.explained_ns for one in every),
        unexplained_ns=sum(one.unexplained_ns for one in every),
    )


def epochs_table(course: ElasticJob, base: ElasticJob | None) -> Result:
    """Return the epochs of a job, beside those of the base."""
    table = course.epochs.copy()
    table["accuracy"] = [_after(course, epoch) for epoch in table["epoch"]]
    if base is not None:
        other = base.epochs[["epoch", "duration_ns"]].rename(columns={"duration_ns": "base_ns"})
        other["base_accuracy"] = [_after(base, epoch) for epoch in other["epoch"]]
        table = table.merge(other, on="epoch", how="outer").sort_values("epoch")
        table["difference_ns"] = table["duration_ns"] - table["base_ns"]
    known = [c.name for c in EPOCHS.tables[0] if c.name in table and table[c.name].notna().any()]
    return _result("epochs", EPOCHS, table[known])


def _after(course: ElasticJob, epoch: float) -> float:
    """Return the accuracy after an epoch; metrics may count how many epochs there were."""
    for place in (epoch + 1, epoch):
        if set(course.accuracy) >= {place} and _counts_epochs(course) == (place == epoch + 1):
            return course.accuracy[place]
    return float("nan")


def _counts_epochs(course: ElasticJob) -> bool:
    """Return whether the metrics say after how many epochs they are, not in which."""
    numbers = set(course.epochs["epoch"])
    return bool(course.accuracy) and max(course.accuracy) > max(numbers, default=0.0)


def timeline_table(courses: Sequence[ElasticJob], runs: Sequence[Summary]) -> Result:
    """Return what happened to the jobs."""
    rows: list[dict[str, Any]] = []
    for course, run in zip(courses, runs, strict=True):
        own = [*_lives(run), *_epochs(run), *_events(run)]
        own.sort(key=lambda row: float(row["at_ns"]) if pd.notna(row["at_ns"]) else np.inf)
        rows += [{"run": course.name, "number": n, **row} for n, row in enumerate(own)]
    return _result(TIMELINE_NAME, TIMELINE, rows)


def _lives(run: Summary) -> Iterator[dict[str, Any]]:
    for row in table_of(run, "lives").to_dict("records"):
        yield {
            "at_ns": row["at_ns"],
            "duration_ns": row["end_ns"] - row["at_ns"],
            "what": "rank runs",
            "life": row["life"],
            "rank": row["rank"],
            "node": row["node"],
            "text": row["ended"],
        }


def _epochs(run: Summary) -> Iterator[dict[str, Any]]:
    for row in table_of(run, "epochs").to_dict("records"):
        yield {
            "at_ns": row["at_ns"],
            "duration_ns": row["duration_ns"],
            "what": "epoch",
            "life": row["life"],
            "epoch": row["epoch"],
            "ranks_count": row["ranks_count"],
        }


def _events(run: Summary) -> Iterator[dict[str, Any]]:
    table = table_of(run, "events")
    place = table.groupby("kind").cumcount()
    sized = _SIZED if len(table_of(run, "lives")) else _SIZED[:1]
    for row in table[place < _MOST_OF_A_KIND].sort_values("event").to_dict("records"):
        if row["kind"] in _SEVERAL:
            continue
        yield {
            "at_ns": row["at_ns"],
            "duration_ns": row["duration_ns"],
            "what": _WHAT.get(str(row["kind"]), str(row["kind"])),
            "life": row["life"],
            "epoch": row["epoch"],
            "rank": row["rank"],
            "node": row["node"],
            "ranks_count": row["value"] if row["kind"] in sized else None,
            "text": row["text"],
        }


def _result(
    name: str, spec: ResultSpec, rows: Sequence[Mapping[str, Any]] | pd.DataFrame
) -> Result:
    """Return a result; which job it is about is told where there are several."""
    table = spec.tables[0]
    frame = table.frame(rows)
    if "run" in frame and frame["run"].nunique() == 1:
        frame = frame.drop(columns="run")
    return Result(name, spec, {table.name: frame})


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
    courses = [elastic_job(run) for run in runs]
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
        about=ELASTIC_ABOUT,
    )


def _verdict(course: ElasticJob, base: ElasticJob | None) -> Iterator[Note]:
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


def _about_lost(course: ElasticJob) -> Note:
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


def _notes(courses: Sequence[ElasticJob], runs: Sequence[Summary]) -> Iterator[Note]:
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


def _checks(course: ElasticJob, said: Sequence[Note]) -> Iterator[Note]:
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


def _setbacks(course: ElasticJob) -> Iterator[Note]:
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
