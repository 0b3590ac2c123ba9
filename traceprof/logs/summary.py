"""Convert the collected values of a run into its stored summary.

The summary contains measures (single numbers), metrics, epochs, and events.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from traceprof.logs.checks import check
from traceprof.logs.gathered import CUMULATIVE, INTERVALS, CollectedRun, Key, Series, When, unit_of
from traceprof.logs.pace import add_pace, usual_value
from traceprof.model.results import Unit
from traceprof.model.summary import SUMMARY, SourceFile, Summary, better_of
from traceprof.model.table import Table, array_of, is_unknown, objects

_EVALUATED: Final = re.compile(
    r"(?:val|eval|test)_|top\d|accuracy|[\w.]+/AP|word_error_rate|dice$|fid$|clip_score|bleu$"
)
_TYPICAL: Final = ("_per_s", "_ns", "mfu_ratio")
_WARMUP_METRICS: Final = (
    "step_period_ns",
    "samples_per_s",
    "tokens_per_s",
    "frames_per_s",
    "step_ns",
)
_MIN_WARMUP_DEVIATION_RATIO: Final = 0.02
_EARLY_VALUES: Final = 10
"""Number of values after the first one that show whether the first steps are slower."""
_WORK_UNITS: Final = ("samples", "tokens")
_PREFERRED: Final = (("interval",), ("step",), ("epoch",), CUMULATIVE)
_INT_COLUMNS: Final = ("attempt",)
_MAX_EXACT_INT: Final = 1 << 53


def derive_measures(run: CollectedRun) -> None:
    """Add the measures that follow from the metrics and facts of ``run``.

    A typical value is the median of the printed intervals, without the first interval of the run,
    or their mean if they change for good. If only running means are printed, it is the last one.
    """
    _add_facts(run)
    by_metric: dict[str, dict[Key, Series]] = defaultdict(dict)
    for key, series in run.series.items():
        by_metric[key.metric][key] = series
    for name, found in by_metric.items():
        if any(word in name for word in _TYPICAL):
            _add_typical_values(run, name, found)
        elif name.endswith("_bytes"):
            largest = max((max(s.values, default=math.nan) for s in found.values()), default=None)
            run.measure(f"peak_{name}", largest, scope="rank", better="lower")
        else:
            _add_quality(run, name, found.items())
    _note_warmup_difference(run, by_metric)
    for what in _WORK_UNITS:
        _add_total_rate(run, what)
    _add_computed_rates(run)
    add_pace(run)


def _add_facts(run: CollectedRun) -> None:
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
    run: CollectedRun, found: dict[Key, Series], scope: str
) -> tuple[float, str, int] | None:
    """Return the typical value of a metric in a scope, or None.

    The result also contains the span of the values, and the number of values.
    """
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
        is_rate = rows[0][0].metric.endswith("_per_s")
        usual = [
            usual_value(np.array(values), is_rate=is_rate) for values in per_rank.values() if values
        ]
        if usual:
            return float(np.mean(usual)), overs[0], sum(map(len, per_rank.values()))
    return None


def _add_typical_values(run: CollectedRun, name: str, found: dict[Key, Series]) -> None:
    """Add the typical value of a metric in each scope."""
    for scope, suffix in (("run", ""), ("device", "_per_device"), ("rank", "_per_rank")):
        value = steady_value(run, found, scope)
        if value is None:
            continue
        measure_name = name if name.endswith("_ns") or suffix == "" else name + suffix
        if measure_name in run.measures:
            measure_name = f"printed_{measure_name}"
        better = "higher" if name.endswith(("_per_s", "_ratio")) else "lower"
        source = "computed" if name in run.computed else "printed"
        run.measure(
            measure_name, value[0], scope=scope, better=better, source=source, over=value[1]
        )


def _note_warmup_difference(run: CollectedRun, by_metric: dict[str, dict[Key, Series]]) -> None:
    """Note how much the first steps differ from the others, for the most suitable metric."""
    if not run.facts.has_warmup:
        return
    for name in _WARMUP_METRICS:
        for key, series in by_metric.get(name, {}).items():
            values = series.steady()
            is_left_out = series.begins and len(series.values) >= 3 and len(values)
            if key.over not in INTERVALS or key.attempt or not is_left_out:
                continue
            first, steady = float(series.values[0]), float(np.median(values))
            early = float(np.median(values[:_EARLY_VALUES]))
            if min(abs(first - other) / other for other in (steady, early)) > (
                _MIN_WARMUP_DEVIATION_RATIO
            ):
                unit = unit_of(name)
                text = f"{{name}} excludes the first steps: {{first:{unit}}} at the start, "
                run.say(text + f"{{later:{unit}}} later", name=name, first=first, later=steady)
            return


def _add_quality(run: CollectedRun, name: str, found: Iterable[tuple[Key, Series]]) -> None:
    """Add the last value and, for evaluations, the best value of a metric."""
    rows = sorted((key.attempt, i, key, series) for i, (key, series) in enumerate(found))
    _, _, key, series = rows[-1]
    finite = [
        value for _, _, _, any_series in rows for value in any_series.values if math.isfinite(value)
    ]
    better = better_of(name)
    run.measure(f"last_{name}", series.values[-1], scope=key.scope, better=better)
    if finite and _EVALUATED.match(name) and better:
        best = max(finite) if better == "higher" else min(finite)
        run.measure(f"best_{name}", best, scope=key.scope, better=better)


def _add_total_rate(run: CollectedRun, what: str) -> None:
    """Add the rate of the run if only the rate per device or process is printed."""
    name = f"{what}_per_s"
    if name in run.measures:
        return
    for suffix, count in (("_per_device", run.facts.size), ("_per_rank", run.facts.world_size)):
        each = run.measures.get(name + suffix)
        if each is not None and count:
            run.measure(name, each["value"] * count, source="computed")
            return


def _add_computed_rates(run: CollectedRun) -> None:
    """Compute rates from step times, and step times from rates."""
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
    _add_device_rates(run)
    _add_total_time(run)


def _add_total_time(run: CollectedRun) -> None:
    """Add the duration of the run from its start and end events, unless the log reports it."""
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


def _add_device_rates(run: CollectedRun) -> None:
    for what in _WORK_UNITS:
        rate = run.measures.get(f"{what}_per_s")
        name, size = f"{what}_per_s_per_device", run.facts.size
        if rate is not None and name not in run.measures and size:
            run.measure(name, rate["value"] / size, scope="device", source="computed")


def is_evaluation_metric(metric: str) -> bool:
    """Return whether a metric comes from evaluations, by its name."""
    return _EVALUATED.match(metric) is not None


class _Zero(NamedTuple):
    """The start of the run, and the start of training, in seconds of the log's clock."""

    start_s: float
    training_s: float

    def ns(self, seconds: float, *, is_elapsed: bool) -> float:
        """Return a time in ns after the start of the run; NaN if unknown."""
        if math.isnan(seconds):
            return math.nan
        if is_elapsed:
            base = 0.0 if math.isnan(self.start_s) else self.training_s - self.start_s
            return round((base + seconds) * 1e9)
        return round((seconds - self.start_s) * 1e9)


def summary_of(run: CollectedRun, name: str, origin: str, source: SourceFile) -> Summary:
    """Return the stored summary of ``run``."""
    for series in run.series.values():
        series.end()
    derive_measures(run)
    check(run)
    if run.left_out:
        text = "omitted {n:count} value(s) of metrics, epochs or events because there are too many"
        run.say(text, n=run.left_out)
    if run.impossible:
        run.say("ignored {n:count} negative value(s) of times or rates", n=run.impossible)
    zero = _find_zero(run)
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
        tables={name: summary_table(name, rows) for name, rows in tables.items() if rows},
        notes=tuple(run.notes),
    )


def summary_table(name: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of a stored summary; columns that are not in ``rows`` are unknown."""
    columns: dict[str, Any] = {}
    for column in SUMMARY.table(name):
        values = [row.get(column.name) for row in rows]
        if column.unit == "text":
            columns[column.name] = objects(
                "" if is_unknown(value) else str(value) for value in values
            )
        else:
            is_whole = column.name in _INT_COLUMNS and None not in values
            columns[column.name] = array_of(values) if is_whole else np.array(values, np.float64)
    return Table(columns, len(rows))


def _find_zero(run: CollectedRun) -> _Zero:
    """Return the start of the run: the time of the first line with a timestamp."""
    stamps = [e["when"].seconds for e in run.events if not e["when"].is_elapsed]
    epochs = [epoch for epoch in run.epochs.values() if not epoch.get("is_elapsed")]
    stamps += [epoch.get("at_s", math.nan) for epoch in epochs]
    for series in run.series.values():
        stamps += () if series.is_elapsed else series.at_s
    known = [stamp for stamp in stamps if math.isfinite(stamp)]
    if run.training_from_s is not None:
        known.append(run.training_from_s)
    start = min(known, default=math.nan)
    training = start if run.training_from_s is None else run.training_from_s
    return _Zero(start, training)


def _metrics(run: CollectedRun, zero: _Zero) -> Iterator[dict[str, Any]]:
    """Yield a row per value of every series."""
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


def _epochs(run: CollectedRun, zero: _Zero) -> Iterator[dict[str, Any]]:
    """Yield a row per epoch, ordered by attempt and epoch."""
    for (attempt, epoch), values in sorted(run.epochs.items()):
        seconds = values.get("seconds", math.nan)
        is_elapsed = bool(values.get("is_elapsed"))
        yield {
            "attempt": attempt,
            "epoch": epoch,
            "at_ns": zero.ns(values.get("at_s", math.nan), is_elapsed=is_elapsed),
            "duration_ns": round(seconds * 1e9) if math.isfinite(seconds) else math.nan,
            "steps_count": values.get("steps", math.nan),
            "samples_count": values.get("samples", math.nan),
            "ranks_count": values.get("ranks", math.nan),
        }


def _events(run: CollectedRun, zero: _Zero) -> list[dict[str, Any]]:
    """Return the events, by time if all times are known, otherwise in the order of the log."""
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
                "value": None
                if abs(event.get("value") or 0) > _MAX_EXACT_INT
                else event.get("value"),
                "text": event.get("text", ""),
            }
        )
    if all(math.isfinite(row["at_ns"]) for row in rows):
        rows.sort(key=lambda row: row["at_ns"])
    return [{"event": i, **row} for i, row in enumerate(rows)]
