"""Report where the time of an elastic job went, alone or compared with a job of fixed size."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import isclose, isfinite
from typing import Any, Final

import numpy as np

from traceprof.comparison import TIMELINE_NAME, Comparison
from traceprof.comparison.jobs import PARTS, ElasticJob, elastic_job
from traceprof.comparison.sides import table_of
from traceprof.comparison.specs_of_many import ELASTIC_ABOUT, EPOCHS, JOB_PARTS, RESTARTS, TIMELINE
from traceprof.errors import UsageError
from traceprof.model.grouping import joined
from traceprof.model.results import Note, Result, ResultSpec
from traceprof.model.summary import Summary
from traceprof.model.table import Table, is_known, is_unknown

_EVENT_NAMES: Final[Mapping[str, str]] = {
    "time_lost": "time lost",
    "setup": "set-up",
    "initialization": "worker initialization",
    "rendezvous": "agents meet",
    "redone": "steps made again",
    "noticing": "until agents noticed",
    "down": "nothing ran",
    "loading": "loading of checkpoints",
    "failed": "starts that failed",
    "membership": "membership change",
    "failure": "rank failed",
    "stopped": "rank killed",
}
_LOST_NAMES: Final[Mapping[str, str]] = {
    "redone": "lost: repeated steps",
    "noticing": "lost: failure detection",
    "down": "lost: no process running",
    "rendezvous": "lost: rendezvous",
    "failed": "lost: failed starts",
    "initialization": "lost: worker initialization",
    "loading": "lost: checkpoint loading",
    "setup": "lost: setup",
}
_MAX_EVENTS_PER_KIND: Final = 200
_FREQUENT_KINDS: Final = ("checkpoint",)
_WITH_SIZE: Final = ("start", "restart", "membership")
"""Kinds of events whose value is the number of remaining ranks: in logs only the first kind."""


def parts_of_job(job: ElasticJob) -> dict[str, float]:
    """Return the parts of the job time in ns; they add up to the total if it is known.

    The last part is the unaccounted time: the total minus setup, epochs and lost time.
    """
    epochs, lost = job.epochs, job.lost
    first, beyond = epochs["is_first"], epochs["beyond_ns"]
    holds_restart = epochs["is_restart"] & ~first
    parts = {
        "setup": job.setup_ns if isfinite(job.setup_ns) else 0.0,
        "worker initialization": job.initialization_ns if isfinite(job.initialization_ns) else 0.0,
        "epochs, typical length": float(np.nansum(epochs["typical_ns"])),
        "first epoch, extra time": float(np.nansum(beyond[first])),
        "epochs with restarts, extra time": float(np.nansum(beyond[holds_restart])),
        "other epochs, extra time": float(np.nansum(beyond[~first & ~holds_restart])),
        **{
            _LOST_NAMES[kind]: float(sum(lost_time.parts.get(kind, 0.0) for lost_time in lost))
            for kind in PARTS
        },
        "lost: cause unknown": float(
            sum(lost_time.lost_ns - sum(lost_time.parts.values()) for lost_time in lost)
        ),
    }
    if isfinite(job.total_ns):
        parts[_UNACCOUNTED] = job.total_ns - sum(parts.values())
    return parts


def parts_table(job: ElasticJob, base: ElasticJob | None) -> Result:
    """Return the parts of the job time, next to those of the base."""
    parts, base_parts = parts_of_job(job), parts_of_job(base) if base else {}
    names = [name for name in {**parts, **base_parts} if parts.get(name) or base_parts.get(name)]
    total, rows = sum(parts.values()), []
    for name in [*names, "total"]:
        ns = total if name == "total" else parts.get(name, 0.0)
        row = {"part": name, "duration_ns": ns, "share_ratio": ns / total if total else None}
        if base:
            before = sum(base_parts.values()) if name == "total" else base_parts.get(name, 0.0)
            row |= {"base_ns": before, "difference_ns": ns - before}
        rows.append(row)
    return _result("parts", JOB_PARTS, rows)


def restarts_table(jobs: Sequence[ElasticJob]) -> Result:
    """Return the restarts of the jobs."""
    restarts = [(job, restart) for job in jobs for restart in job.lost]
    rows = [
        {
            "run": job.name,
            "restart": restart.number,
            **{name: getattr(restart, name) for name in _COPIED_FIELDS},
            "ranks_before_count": restart.ranks_before,
            "ranks_after_count": restart.ranks_after,
            "beyond_ns": job.beyond_ns(restart.epoch),
            **{f"{kind}_ns": restart.parts.get(kind, np.nan) for kind in PARTS},
        }
        for job, restart in restarts
    ]
    sums = {
        name: sum(getattr(restart, name) for _, restart in restarts)
        for name in ("lost_ns", "explained_ns", "unexplained_ns")
    }
    return _result("restarts", RESTARTS, rows).with_scalars(**sums)


_COPIED_FIELDS: Final = (
    *("epoch", "attempt", "at_ns", "why", "lost_ns", "redone_count", "unexplained_ns"),
)


def epochs_table(job: ElasticJob, base: ElasticJob | None) -> Result:
    """Return the epochs of a job, next to those of the base."""
    table = _with_accuracy(job)
    if base is not None:
        other = _with_accuracy(base).select("epoch", "duration_ns", "accuracy", "top5")
        other = other.renamed(duration_ns="base_ns", accuracy="base_accuracy", top5="base_top5")
        table = joined(table, other, "epoch")
        table = table.assign(difference_ns=table["duration_ns"] - table["base_ns"])
    known = [c.name for c in EPOCHS.tables[0] if c.name in table and is_known(table[c.name]).any()]
    return _result("epochs", EPOCHS, table.select(*known))


def _with_accuracy(job: ElasticJob) -> Table:
    epochs = job.epochs["epoch"].tolist()
    return job.epochs.assign(
        accuracy=np.array([job.accuracy_after(epoch) for epoch in epochs], np.float64),
        top5=np.array([job.top5_after(epoch) for epoch in epochs], np.float64),
    )


def timeline_table(jobs: Sequence[ElasticJob], runs: Sequence[Summary]) -> Result:
    """Return the attempts, epochs and events of the jobs by time."""
    rows: list[dict[str, Any]] = []
    for job, run in zip(jobs, runs, strict=True):
        job_events = [*_lives(run), *_epochs(run), *_events(run)]
        job_events.sort(key=lambda row: math.inf if is_unknown(row["at_ns"]) else row["at_ns"])
        rows += [{"run": job.name, "number": n, **row} for n, row in enumerate(job_events)]
    return _result(TIMELINE_NAME, TIMELINE, rows)


def _lives(run: Summary) -> Iterator[dict[str, Any]]:
    for row in table_of(run, "attempts").rows():
        yield {
            "what": "rank runs",
            "duration_ns": row["end_ns"] - row["at_ns"],
            "text": row["ended"],
            **{name: row[name] for name in ("at_ns", "attempt", "rank", "node")},
        }


def _epochs(run: Summary) -> Iterator[dict[str, Any]]:
    for row in table_of(run, "epochs").rows():
        yield {
            "what": "epoch",
            **{
                name: row[name]
                for name in ("at_ns", "duration_ns", "attempt", "epoch", "ranks_count")
            },
        }


def _events(run: Summary) -> Iterator[dict[str, Any]]:
    table = table_of(run, "events")
    counts = Counter(_FREQUENT_KINDS * _MAX_EVENTS_PER_KIND)
    sized = _WITH_SIZE if len(table_of(run, "attempts")) else _WITH_SIZE[:1]
    for row in table.in_order("event").rows():
        counts[row["kind"]] += 1
        if counts[row["kind"]] > _MAX_EVENTS_PER_KIND:
            continue
        names = ("at_ns", "duration_ns", "attempt", "epoch", "rank", "node", "text")
        size = row["value"] if row["kind"] in sized else None
        what = _EVENT_NAMES.get(str(row["kind"]), str(row["kind"]))
        yield {"what": what, "ranks_count": size, **{name: row[name] for name in names}}


def _result(name: str, spec: ResultSpec, rows: Sequence[Mapping[str, Any]] | Table) -> Result:
    """Return a result with one table; the column ``run`` is omitted if there is only one job."""
    table = spec.tables[0]
    filled = table.of_rows(rows)
    if "run" in filled and len(set(filled["run"])) == 1:
        filled = filled.without("run")
    return Result(name, spec, {table.name: filled})


_MIN_REPORTED_EXTRA_RATIO: Final = 0.5
"""Extra time of an epoch from which the verdict lists it, as a share of the typical epoch time."""
_UNACCOUNTED: Final = "unaccounted time"


def elastic(runs: Sequence[Summary]) -> Comparison:
    """Report the events of a job, the parts of its time, and the cost of each restart.

    Of two runs, the first is the base, such as a job of fixed size. Both are compared by epoch. Of
    more runs, only those with epochs count.

    Raises:
        UsageError: there is not one run or two, or a run has no epochs, attempts or events.
    """
    if len(runs) > 2:  # a document with the epochs of two jobs may also have tables of other runs
        runs = [run for run in runs if len(run.table("epochs"))]
    if len(runs) not in (1, 2):
        raise UsageError(f"expected one run, or a base and a run; got {len(runs)} runs")
    for run in runs:
        if not any(len(run.table(name)) for name in ("epochs", "attempts", "events")):
            raise UsageError(
                f"{run.name}: contains no epochs, starts or events. Record into a folder "
                "(traceprof record -o FOLDER/ -- torchrun …), or pass the log of the program"
            )
    jobs = [elastic_job(run) for run in runs]
    job, base = jobs[-1], (jobs[0] if len(jobs) == 2 else None)
    results = {
        "restarts": restarts_table(jobs),
        "epochs": epochs_table(job, base),
        TIMELINE_NAME: timeline_table(jobs, runs),
    }
    if any(len(any_job.epochs) or any_job.lost for any_job in jobs):
        results = {"parts": parts_table(job, base), **results}
    return Comparison(
        title=" compared with ".join(run.name for run in reversed(runs)),
        results=results,
        verdict=tuple(_verdict(job, base)),
        notes=tuple(_notes(jobs, runs)),
        about=ELASTIC_ABOUT,
    )


def _verdict(job: ElasticJob, base: ElasticJob | None) -> Iterator[Note]:
    about = {"run": job.name, "total": job.total_ns}
    if base is not None and isfinite(more := job.total_ns - base.total_ns):
        yield Note.of(
            "{run} took {total:ns}, {more:ns} {word} than {base} ({other:ns}).",
            **about,
            base=base.name,
            other=base.total_ns,
            more=abs(more),
            word="more" if more >= 0 else "less",
        )
    elif isfinite(job.total_ns):
        yield Note.of("{run} took {total:ns}.", **about)
    if not job.lost:
        text = "No restart of {run} is recorded."
        if job.restarts_count:
            text = "{run} restarted {n:count} time(s). The time lost is not recorded."
        yield Note.of(text, run=job.name, n=job.restarts_count)
        return
    yield _lost_time_note(job)
    for restart in job.lost:
        rows = job.epochs.take(job.epochs["epoch"] == restart.epoch).rows()
        beyond = job.beyond_ns(restart.epoch)
        if not rows or not beyond > _MIN_REPORTED_EXTRA_RATIO * rows[0]["typical_ns"]:
            continue
        yield Note.of(
            "Epoch {epoch:number} took {took:ns}: {typical:ns} typical epoch time (epochs "
            "{typical_of}), {lost:ns} lost, and {beyond:ns} with unknown cause.",
            epoch=restart.epoch,
            took=float(rows[0]["duration_ns"]),
            lost=float(rows[0]["lost_ns"]),
            typical=float(rows[0]["typical_ns"]),
            typical_of=rows[0]["typical_of"],
            beyond=beyond,
        )


def _lost_time_note(job: ElasticJob) -> Note:
    explained = sum(restart.explained_ns for restart in job.lost)
    share = job.lost_ns / job.total_ns if isfinite(job.total_ns) else math.nan
    of_whole = " ({share:ratio} of the job time)" if isfinite(share) else ""
    return Note.of(
        f"{{n:count}} restart(s) lost {{lost:ns}}{of_whole}: {{explained:ns}} with known cause, "
        "{rest:ns} with unknown cause.",
        lost=job.lost_ns,
        n=len(job.lost),
        share=share,
        explained=explained,
        rest=job.lost_ns - explained,
    )


def _notes(jobs: Sequence[ElasticJob], runs: Sequence[Summary]) -> Iterator[Note]:
    for job, run in zip(jobs, runs, strict=True):
        yield from _total_notes(job, run.notes)
        yield from _accuracy_notes(job)
        if job.cut_count:
            how = "counts their time as lost" if job.lost else "reports the last attempt"
            text = "{run}: {n:count} epoch(s) started more than once. traceprof " + how + "."
            yield Note.of(text, run=job.name, n=job.cut_count)
        yield from run.notes


def _total_notes(job: ElasticJob, known_notes: Sequence[Note]) -> Iterator[Note]:
    """Yield a note if the parts do not add up to the total, unless ``known_notes`` reports it."""
    if not isfinite(job.total_ns):
        yield Note.of("{run}: The total time is not recorded.", run=job.name)
        return
    unaccounted_ns = parts_of_job(job)[_UNACCOUNTED]
    values = [value for note in known_notes for value in note.values.values()]
    is_known = any(isinstance(value, float) and isclose(value, unaccounted_ns) for value in values)
    if abs(unaccounted_ns) > 0.01 * job.total_ns and not is_known:
        yield Note.of(
            "{run}: Setup, epochs and lost time add up to {sum:ns} of {total:ns}. The other "
            "{left:ns} may be evaluation or activity that the program did not log.",
            run=job.name,
            sum=job.total_ns - unaccounted_ns,
            total=job.total_ns,
            left=unaccounted_ns,
        )


def _accuracy_notes(job: ElasticJob) -> Iterator[Note]:
    """Yield a note for each restart after which the accuracy was lower than before."""
    for restart in job.lost:
        after, before = job.accuracy_after(restart.epoch), job.accuracy_after(restart.epoch - 1)
        if after < before:
            yield Note.of(
                "{run}: {name} dropped from {before:number} to {now:number} in epoch "
                "{epoch:number}, at the restart.",
                run=job.name,
                name=job.accuracy_name,
                before=before,
                now=after,
                epoch=restart.epoch,
            )
