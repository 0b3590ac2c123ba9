"""From what was gathered of a run to what is kept of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pandas as pd

from traceprof.logs.checks import check
from traceprof.logs.derive import derive_measures
from traceprof.logs.gathered import Gathered, When
from traceprof.model.summary import SUMMARY, SourceFile, Summary
from traceprof.values import dataclass

__all__ = ["summary_of"]

_INTS: Final = ("life",)
_LARGEST: Final = 1 << 53


@dataclass(frozen=True, slots=True)
class _Zero:
    """Where the time of a run begins, and where training does, in s of the log's clock."""

    start_s: float
    training_s: float

    def ns(self, seconds: float, *, is_elapsed: bool) -> float:
        """Return a time in ns after the start of the run, NaN where that is not known."""
        if math.isnan(seconds):
            return math.nan
        if is_elapsed:
            base = 0.0 if math.isnan(self.start_s) else self.training_s - self.start_s
            return round((base + seconds) * 1e9)
        return round((seconds - self.start_s) * 1e9)


def summary_of(run: Gathered, name: str, origin: str, source: SourceFile) -> Summary:
    """Return what is kept of ``run``."""
    for series in run.series.values():
        series.end()
    derive_measures(run)
    check(run)
    if run.left_out:
        run.say(
            "{n:count} value(s) of metrics, epochs or events are left out: there are too many",
            n=run.left_out,
        )
    zero = _zero_of(run)
    tables = {
        "measures": list(run.measures.values()),
        "metrics": list(_metrics(run, zero)),
        "epochs": list(_epochs(run, zero)),
        "events": _events(run, zero),
    }
    start_ns = None
    if run.utc_of_zero_s is not None and math.isfinite(zero.start_s):
        start_ns = run.utc_of_zero_s * 1_000_000_000 + round(zero.start_s * 1e9)
    return Summary(
        name,
        origin=origin,
        command=run.command,
        workload=run.workload,
        started_utc_ns=start_ns,
        environment=dict(run.environment),
        labels=dict(run.labels),
        sources=(source,),
        tables={name: _frame(name, rows) for name, rows in tables.items() if rows},
        notes=tuple(run.notes),
    )


def _frame(name: str, rows: list[dict[str, Any]]) -> pd.DataFrame:
    spec = SUMMARY.table(name)
    frame = pd.DataFrame(rows)
    for column in spec:
        if column.name not in frame:
            frame[column.name] = "" if column.unit == "text" else np.nan
        elif column.unit == "text":
            frame[column.name] = frame[column.name].fillna("").astype(str)
        elif column.name not in _INTS:
            frame[column.name] = frame[column.name].astype(np.float64)
    return spec.frame(frame)


def _zero_of(run: Gathered) -> _Zero:
    """Return where times of the run begin: at the first line that says when it was written."""
    stamps = [e["when"].seconds for e in run.events if not e["when"].is_elapsed]
    stamps += [
        own.get("at_s", math.nan) for own in run.epochs.values() if not own.get("is_elapsed")
    ]
    for series in run.series.values():
        if not series.is_elapsed and len(series.at_s):
            stamps.append(float(np.nanmin(series.at_s)) if _any(series.at_s) else math.nan)
    known = [stamp for stamp in stamps if math.isfinite(stamp)]
    if run.training_from_s is not None:
        known.append(run.training_from_s)
    start = min(known, default=math.nan)
    training = start if run.training_from_s is None else run.training_from_s
    return _Zero(start, training)


def _any(values: Any) -> bool:
    return bool(np.isfinite(np.asarray(values)).any())


def _metrics(run: Gathered, zero: _Zero) -> Iterator[dict[str, Any]]:
    for key, series in run.series.items():
        columns = (series.steps, series.epochs, series.at_s, series.samples, series.values)
        for step, epoch, at_s, samples, value in zip(*columns, strict=True):
            yield {
                "metric": key.metric,
                "life": key.life,
                "rank": math.nan if key.rank < 0 else key.rank,
                "step": step,
                "epoch": epoch,
                "at_ns": zero.ns(at_s, is_elapsed=series.is_elapsed),
                "samples_count": samples,
                "value": value,
                "scope": key.scope,
                "over": key.over,
            }


def _epochs(run: Gathered, zero: _Zero) -> Iterator[dict[str, Any]]:
    for (life, epoch), own in sorted(run.epochs.items()):
        seconds = own.get("seconds", math.nan)
        is_elapsed = bool(own.get("is_elapsed"))
        yield {
            "life": life,
            "epoch": epoch,
            "at_ns": zero.ns(own.get("at_s", math.nan), is_elapsed=is_elapsed),
            "duration_ns": round(seconds * 1e9) if math.isfinite(seconds) else math.nan,
            "steps_count": own.get("steps", math.nan),
            "samples_count": own.get("samples", math.nan),
            "ranks_count": own.get("ranks", math.nan),
        }


def _events(run: Gathered, zero: _Zero) -> list[dict[str, Any]]:
    """Return the events in their order: by time where all have one, else as they were printed."""
    rows = []
    for event in run.events:
        when: When = event["when"]
        seconds = event["seconds"]
        rows.append(
            {
                "kind": event["kind"],
                "at_ns": zero.ns(when.seconds, is_elapsed=when.is_elapsed),
                "duration_ns": math.nan if seconds is None else round(seconds * 1e9),
                "life": event["life"],
                "rank": event.get("rank"),
                "node": event.get("node", ""),
                "epoch": event.get("epoch"),
                "value": None if abs(event.get("value") or 0) > _LARGEST else event.get("value"),
                "text": event.get("text", ""),
            }
        )
    if all(math.isfinite(row["at_ns"]) for row in rows):
        rows.sort(key=lambda row: row["at_ns"])
    return [{"event": i, **row} for i, row in enumerate(rows)]
