"""The tables about a job, or about two beside one another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from traceprof.comparison.elastic.course import PARTS, Course, table_of
from traceprof.comparison.elastic.spec import EPOCHS, RESTARTS, TIMELINE, TIMELINE_NAME
from traceprof.comparison.elastic.spec import PARTS as PARTS_SPEC
from traceprof.model.results import Result, ResultSpec
from traceprof.model.summary import Summary

__all__ = ["epochs_table", "parts_of_job", "parts_table", "restarts_table", "timeline_table"]

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


def parts_of_job(course: Course) -> dict[str, float]:
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


def parts_table(course: Course, base: Course | None) -> Result:
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


def restarts_table(courses: Sequence[Course]) -> Result:
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


def epochs_table(course: Course, base: Course | None) -> Result:
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


def _after(course: Course, epoch: float) -> float:
    """Return the accuracy after an epoch; metrics may count how many epochs there were."""
    for place in (epoch + 1, epoch):
        if set(course.accuracy) >= {place} and _counts_epochs(course) == (place == epoch + 1):
            return course.accuracy[place]
    return float("nan")


def _counts_epochs(course: Course) -> bool:
    """Return whether the metrics say after how many epochs they are, not in which."""
    numbers = set(course.epochs["epoch"])
    return bool(course.accuracy) and max(course.accuracy) > max(numbers, default=0.0)


def timeline_table(courses: Sequence[Course], runs: Sequence[Summary]) -> Result:
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
