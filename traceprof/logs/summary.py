"""From what was gathered of a run to what is kept of it: single numbers, metrics, events."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from traceprof.logs.checks import check
from traceprof.logs.gathered import CUMULATIVE, INTERVALS, Gathered, Key, Series, When, unit_of
from traceprof.model.results import Unit
from traceprof.model.summary import SUMMARY, SourceFile, Summary, better_of
from traceprof.model.table import Table, array_of, is_unknown, objects

_EVALUATED: Final = re.compile(
    r"(?:val|eval|test)_|top\d|accuracy|[\w.]+/AP|word_error_rate|dice$|fid$|clip_score|bleu$"
)
_TYPICAL: Final = ("_per_s", "_ns", "mfu_ratio")
_TELLING: Final = ("step_period_ns", "samples_per_s", "tokens_per_s", "frames_per_s", "step_ns")
_ALIKE: Final = 0.02
_WORK: Final = ("samples", "tokens")
_PREFERRED: Final = (("interval",), ("step",), ("epoch",), CUMULATIVE)
_INTS: Final = ("attempt",)
_LARGEST: Final = 1 << 53


def derive_measures(run: Gathered) -> None:
    """Add what follows from the metrics and facts of ``run`` to its measures.

    A typical value is the median over the intervals that were printed, without the first of the
    run; where only running means are printed, the last of these.
    """
    _of_facts(run)
    by_metric: dict[str, dict[Key, Series]] = defaultdict(dict)
    for key, series in run.series.items():
        by_metric[key.metric][key] = series
    for name, found in by_metric.items():
        if any(word in name for word in _TYPICAL):
            _typical(run, name, found)
        elif name.endswith("_bytes"):
            largest = max((max(s.values, default=math.nan) for s in found.values()), default=None)
            run.measure(f"peak_{name}", largest, scope="rank", better="lower")
        else:
            _of_quality(run, name, found.items())
    _say_what_was_left_out(run, by_metric)
    for what in _WORK:
        _multiplied(run, what)
    _computed(run)


def _of_facts(run: Gathered) -> None:
    facts = run.facts
    for name, value, scope in (
        ("world_size", facts.world_size, "run"),
        ("devices_count", facts.devices, "run"),
        ("nodes_count", facts.nodes, "run"),
        ("global_batch_count", facts.batch, "run"),
        ("batch_per_device_count", facts.batch_per_device, "device"),
        ("accumulation_count", facts.accumulation, "run"),
        ("train_samples_count", facts.train_samples, "run"),
    ):
        source = "recorded" if value != facts.batch or facts.global_batch else "computed"
        run.measure(name, value, unit=Unit.COUNT, scope=scope, source=source)


def steady_value(
    run: Gathered, found: dict[Key, Series], scope: str
) -> tuple[float, str, int] | None:
    """Return the typical value of a metric in a scope, what it is of, and how many it is of."""
    for overs in _PREFERRED:
        rows = [(k, s) for k, s in found.items() if k.scope == scope and k.over in overs]
        if not rows:
            continue
        if overs is CUMULATIVE:
            last = max(key.attempt for key, _ in rows)
            values = [s.values[-1] for k, s in rows if k.attempt == last and len(s.values)]
            known = [value for value in values if math.isfinite(value)]
            if known:
                return float(np.mean(known)), overs[0], len(known)
            continue
        has_warmup = run.facts.has_warmup
        per_rank: dict[int, list[float]] = defaultdict(list)
        for key, series in rows:
            per_rank[key.rank] += series.steady(has_warmup=has_warmup).tolist()
        medians = [float(np.median(values)) for values in per_rank.values() if values]
        if medians:
            return float(np.mean(medians)), overs[0], sum(map(len, per_rank.values()))
    return None


def _typical(run: Gathered, name: str, found: dict[Key, Series]) -> None:
    for scope, suffix in (("run", ""), ("device", "_per_device"), ("rank", "_per_rank")):
        value = steady_value(run, found, scope)
        if value is None:
            continue
        own = name if name.endswith("_ns") or suffix == "" else name + suffix
        if own in run.measures:
            own = f"printed_{own}"
        better = "higher" if name.endswith(("_per_s", "_ratio")) else "lower"
        source = "computed" if name in run.computed else "printed"
        run.measure(own, value[0], scope=scope, better=better, source=source, over=value[1])


def _say_what_was_left_out(run: Gathered, by_metric: dict[str, dict[Key, Series]]) -> None:
    """Say by how much the first steps differ from later ones, of the metric that tells it best."""
    if not run.facts.has_warmup:
        return
    for name in _TELLING:
        for key, series in by_metric.get(name, {}).items():
            values = series.steady()
            is_left_out = series.begins and len(series.values) >= 3 and len(values)
            if key.over not in INTERVALS or key.attempt or not is_left_out:
                continue
            first, later = float(series.values[0]), float(np.median(values))
            if abs(first - later) > _ALIKE * later:
                unit = unit_of(name)
                text = f"{{name}} excludes the first steps: {{first:{unit}}} at the start, "
                run.say(text + f"{{later:{unit}}} later", name=name, first=first, later=later)
            return


def _of_quality(run: Gathered, name: str, found: Iterable[tuple[Key, Series]]) -> None:
    rows = sorted((key.attempt, i, key, series) for i, (key, series) in enumerate(found))
    _, _, key, series = rows[-1]
    finite = [value for _, _, _, own in rows for value in own.values if math.isfinite(value)]
    better = better_of(name)
    run.measure(f"last_{name}", series.values[-1], scope=key.scope, better=better)
    if finite and _EVALUATED.match(name) and better:
        best = max(finite) if better == "higher" else min(finite)
        run.measure(f"best_{name}", best, scope=key.scope, better=better)


def _multiplied(run: Gathered, what: str) -> None:
    """Add the rate of the run where only that of one device or process is printed."""
    name = f"{what}_per_s"
    if name in run.measures:
        return
    for suffix, count in (("_per_device", run.facts.size), ("_per_rank", run.facts.world_size)):
        each = run.measures.get(name + suffix)
        if each is not None and count:
            run.measure(name, each["value"] * count, source="computed")
            return


def _computed(run: Gathered) -> None:
    """Add rates that follow from lengths of steps, and the other way about."""
    period = run.measures.get("step_period_ns")
    for name, amount in (("samples_per_s", run.facts.batch), ("tokens_per_s", run.facts.tokens)):
        rate = run.measures.get(name)
        if rate is None and period is not None and amount and period["value"]:
            run.measure(name, 1e9 * amount / period["value"], source="computed")
        elif rate is not None and period is None and amount and rate["value"]:
            run.measure("step_period_ns", 1e9 * amount / rate["value"], source="computed")
            period = run.measures["step_period_ns"]
    steps = run.measures.get("steps_per_s")
    if period is None and steps is not None and steps["value"]:
        run.measure("step_period_ns", 1e9 / steps["value"], source="computed")
    _of_devices(run)
    _total(run)


def _total(run: Gathered) -> None:
    """Add how long the run took, from its start to its end, where its events alone say it."""
    if any(name in run.measures for name in ("total_ns", "time_to_train_ns", "run_ns")):
        return
    stamped = [event for event in run.events if math.isfinite(event["when"].seconds)]
    times = {
        kind: [e["when"].seconds for e in stamped if e["kind"] == kind and not e["when"].is_elapsed]
        for kind in ("start", "end")
    }
    if times["start"] and times["end"] and max(times["end"]) > min(times["start"]):
        seconds = max(times["end"]) - min(times["start"])
        run.measure("total_ns", round(seconds * 1e9), source="computed")


def _of_devices(run: Gathered) -> None:
    for what in _WORK:
        rate = run.measures.get(f"{what}_per_s")
        name, size = f"{what}_per_s_per_device", run.facts.size
        if rate is not None and name not in run.measures and size:
            run.measure(name, rate["value"] / size, scope="device", source="computed")


def is_of_evaluation(metric: str) -> bool:
    """Return whether a metric is one of evaluations, by its name."""
    return _EVALUATED.match(metric) is not None


class _Zero(NamedTuple):
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
        text = "omitted {n:count} value(s) of metrics, epochs or events because there are too many"
        run.say(text, n=run.left_out)
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
        tables={name: kept_rows(name, rows) for name, rows in tables.items() if rows},
        notes=tuple(run.notes),
    )


def kept_rows(name: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of what is kept of a run; what is not in ``rows`` is not known."""
    columns: dict[str, Any] = {}
    for column in SUMMARY.table(name):
        values = [row.get(column.name) for row in rows]
        if column.unit == "text":
            columns[column.name] = objects("" if is_unknown(own) else str(own) for own in values)
        else:
            is_whole = column.name in _INTS and None not in values
            columns[column.name] = array_of(values) if is_whole else np.array(values, np.float64)
    return Table(columns, len(rows))


def _zero_of(run: Gathered) -> _Zero:
    """Return where times of the run begin: at the first line that says when it was written."""
    stamps = [e["when"].seconds for e in run.events if not e["when"].is_elapsed]
    epochs = [own for own in run.epochs.values() if not own.get("is_elapsed")]
    stamps += [own.get("at_s", math.nan) for own in epochs]
    for series in run.series.values():
        stamps += () if series.is_elapsed else series.at_s
    known = [stamp for stamp in stamps if math.isfinite(stamp)]
    if run.training_from_s is not None:
        known.append(run.training_from_s)
    start = min(known, default=math.nan)
    training = start if run.training_from_s is None else run.training_from_s
    return _Zero(start, training)


def _metrics(run: Gathered, zero: _Zero) -> Iterator[dict[str, Any]]:
    for key, series in run.series.items():
        columns = (series.steps, series.epochs, series.at_s, series.samples, series.values)
        for step, epoch, at_s, samples, value in zip(*columns, strict=True):
            yield {
                "metric": key.metric,
                "attempt": key.attempt,
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
    for (attempt, epoch), own in sorted(run.epochs.items()):
        seconds = own.get("seconds", math.nan)
        is_elapsed = bool(own.get("is_elapsed"))
        yield {
            "attempt": attempt,
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
                "attempt": event["attempt"],
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
