"""Find when each run reached a target metric, and the speedup from more devices."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Final

import numpy as np

from traceprof.comparison import CURVE_NAME, Comparison
from traceprof.comparison.sides import Curve, Target, curve_of, devices_of, metric_names
from traceprof.comparison.specs_of_many import ACCURACY, ACCURACY_ABOUT, CURVE, SPEEDUP
from traceprof.errors import NotRecordedError, UsageError
from traceprof.measures.rows import floats
from traceprof.model.results import Note, Result
from traceprof.model.summary import (
    CONTRADICTS,
    Summary,
    better_of,
    find_quality_metric,
    is_accuracy,
)
from traceprof.model.table import Table, is_unknown, objects
from traceprof.session.caveats import refused

_MIN_SHORTENED_LENGTH: Final = 24
_WORD_OR_SEPARATOR: Final = re.compile(r"[^-_./ ]+|[-_./ ]")
_SEPARATORS: Final = "-_./ "


def short_names(names: Sequence[str]) -> list[str]:
    """Return ``names`` without common leading and trailing words, if a name is long.

    Each name keeps at least one word. Names that would become equal are unchanged.
    """
    if len(names) < 2 or max(map(len, names)) <= _MIN_SHORTENED_LENGTH:
        return list(names)
    words = [_WORD_OR_SEPARATOR.findall(name) for name in names]
    shortest = min(map(len, words))
    end = _count_common([name_words[::-1] for name_words in words], shortest - 1)
    start = _count_common(words, shortest - end - 1)
    found = [
        "".join(name_words[start : len(name_words) - end]).strip(_SEPARATORS)
        for name_words in words
    ]
    return found if all(found) and len(set(found)) == len(names) else list(names)


def _count_common(words: Sequence[Sequence[str]], most: int) -> int:
    """Return the number of leading words that all names share, at most ``most``."""
    return next((n for n in range(most) if len({name_words[n] for name_words in words}) > 1), most)


def ordered(runs: Sequence[Summary], base: str | None = None) -> list[Summary]:
    """Return ``runs`` by number of devices, runs with an unknown number last in the given order.

    Args:
        runs: the runs, in any order; the order of a shell pattern has no meaning.
        base: the run to put first, by name or number of devices.

    Raises:
        UsageError: no run matches ``base``.
    """
    sizes = {id(run): devices_of(run) for run in runs}
    found = sorted(runs, key=lambda run: (math.isnan(sizes[id(run)]), sizes[id(run)]))
    if base is None:
        return found
    first = [run for run in found if run.name == base]
    first = first or [run for run in found if f"{sizes[id(run)]:g}" == base.strip()]
    if not first:
        listed = ", ".join(
            f"{run.name} ({sizes[id(run)]:g} devices)" if sizes[id(run)] > 0 else run.name
            for run in found
        )
        raise UsageError(
            f"--base {base}: no run has this name or number of devices; runs: {listed}"
        )
    return [*first, *(run for run in found if run not in first)]


def verdict_of(results: Mapping[str, Result], goal: Target) -> Iterator[Note]:
    """Yield the runs that missed the target, the first run that reached it, and the speedup."""
    table = results["accuracy"].tables["reached"]
    reached = table.take(table["is_reached"])
    values: dict[str, Any] = {"metric": goal.metric, "target": goal.value}
    if len(reached) < len(table):
        never = table.take(~table["is_reached"])
        yield Note.of(
            "{n:count} of {all:count} run(s) did not reach {metric} {target:number} (best value "
            "{best:number}): {names}.",
            n=len(never),
            all=len(table),
            names=", ".join(never["run"]),
            best=goal.best(never["best"]),
            **values,
        )
    timed = reached.known("time_ns").in_order("time_ns")
    if len(timed):
        fastest = timed.row(0)
        yield Note.of(
            "{name} reached {metric} {target:number} first, after {time:ns}.",
            time=float(fastest["time_ns"]),
            name=fastest["run"],
            **values,
        )
    elif len(whole := reached.known("time_to_train_ns").in_order("time_to_train_ns")):
        yield Note.of(
            "{name} has the shortest time to train: {time:ns}. The logs contain no other times.",
            name=whole.row(0)["run"],
            time=float(whole.row(0)["time_to_train_ns"]),
        )
    elif len(reached):
        yield Note.of("No times are recorded: the runs contain only epochs, steps or samples.")
    if "speedup" in results:
        yield from _speedup_notes(results["speedup"].table)


def _speedup_notes(table: Table) -> Iterator[Note]:
    """Yield the largest speedup, with the devices, throughput and samples that it needed."""
    base, *others = table.rows()
    known = [row for row in others if not is_unknown(row["time_speedup"])]
    if not known:
        return
    row = sorted(known, key=lambda row: row["time_speedup"])[-1]
    values: dict[str, Any] = {
        "name": row["group"],
        "base": base["group"],
        "time": float(row["time_speedup"]),
        "rate": float(row["rate_speedup"]),
        "work": float(row["work_factor"]),
        "devices": float(row["devices_count"]),
        "few": float(base["devices_count"]),
    }
    text = "{name} reached the target {time:number} times as fast as {base}"
    if math.isfinite(values["devices"] + values["few"]):
        text += ", on {devices:count} instead of {few:count} devices"
    if math.isfinite(values["rate"]):
        text += ", with {rate:number} times the throughput"
    if math.isfinite(values["work"]) and abs(values["work"] - 1) > 0.01:
        text += ". It needed {work:number} times the samples"
    yield Note.of(f"{text}.", **values)


def notes_of(curves: Sequence[Curve], goal: Target) -> Iterator[Note]:
    """Yield notes that are needed to read the numbers, and the notes of the runs."""
    yield Note.of(
        "Times run from the start of training to the end of the evaluation that first reached the "
        "target. The time to train reported by the benchmark is in a separate column."
        if any(curve.run.measure("time_to_train_ns") is not None for curve in curves)
        else "Times run from the start of training to the first value that reached the target."
    )
    if any(curve.is_smoothed for curve in curves):
        yield Note.of(
            "{metric} is recorded per step. traceprof uses the median of five steps.",
            metric=goal.metric,
        )
    if any(len(set(curve.rows["attempt"].tolist())) > 1 for curve in curves):
        yield Note.of("Times include the time lost in restarts.")
    yield from _run_notes(curves)


def _run_notes(curves: Sequence[Curve]) -> Iterator[Note]:
    """Yield the notes of the runs; if several runs have the same text, only the first one.

    Contradictions are always listed.
    """
    repeats = Counter(note.text for curve in curves for note in curve.run.notes)
    for curve in curves:
        for note in curve.run.notes:
            count, values = repeats[note.text], {"run": curve.run.name, "note": note}
            if note.text.startswith(CONTRADICTS) or count == 1:
                yield Note.of("{run}: {note}", **values)
            elif count:
                yield Note.of(
                    "{run}: {note} (the same for {n:count} other run(s))", **values, n=count - 1
                )
                repeats[note.text] = 0


_MAX_PRINTED_FACTOR: Final = 1.3
_ALIASES: Final = {"accuracy": "top1", "acc": "top1", "top-1": "top1", "acc@1": "top1"}


@dataclass(frozen=True, slots=True, eq=False)
class _RunAtTarget:
    """A run, and the row of its curve that first reached the target; None if no row did."""

    curve: Curve
    row: Mapping[str, Any] | None

    @property
    def run(self) -> Summary:
        return self.curve.run

    def at(self, name: str) -> float:
        """Return a column of the row that reached the target; NaN if no row did."""
        return math.nan if self.row is None else float(self.row[name])


def accuracy(
    runs: Sequence[Summary],
    *,
    target: float | None = None,
    metric: str | None = None,
    is_lower: bool | None = None,
    base: str | None = None,
) -> Comparison:
    """Return when each of ``runs`` first reached ``target``, and the speedup from more devices.

    Args:
        runs: the runs, in any order; they are sorted by number of devices.
        target: the value to reach; None: the target printed by the runs, otherwise the best value
            that all of them reach.
        metric: the metric; None: an accuracy that all runs have, otherwise a loss.
        is_lower: whether lower is better; None: by the name of the metric, otherwise by its curve.
        base: the base of speedups, by name or number of devices; None: the first run with the
            fewest devices.

    Raises:
        UsageError: no run has the metric, the target is outside its range, or no run matches
            ``base``.
        NotRecordedError: no run has an accuracy or a loss.
    """
    if not runs:
        raise UsageError("no runs given: pass logs, traces, or names of runs in the database")
    runs = ordered(runs, base)
    names = short_names([run.name for run in runs])
    runs = [replace(run, name=short) for run, short in zip(runs, names, strict=True)]
    name = _metric(runs, metric)
    curves = [curve_of(run, name) for run in runs]
    known = [curve for curve in curves if len(curve.rows)]
    goal = _target(name, known, target, is_lower)
    outcomes = [_RunAtTarget(curve, curve.first(goal)) for curve in known]
    groups = _groups(outcomes)
    results = {"accuracy": _reached(outcomes, groups, goal)}
    if len(groups) > 1:
        results["speedup"] = _speedups(groups)
    results[CURVE_NAME] = _curves(known, goal)
    lacking = [curve.run.name for curve in curves if not len(curve.rows)]
    return Comparison(
        f"{goal.metric} {'≤' if goal.is_lower else '≥'} {goal.value:g}",
        results,
        verdict=tuple(verdict_of(results, goal)),
        notes=tuple(notes_of(known, goal)),
        missing=dict.fromkeys(lacking, f"does not contain metric {name}"),
        about=ACCURACY_ABOUT,
    )


def _metric(runs: Sequence[Summary], requested: str | None) -> str:
    """Return the requested metric, or by default the best quality metric that all runs have."""
    names = [metric_names(run) for run in runs]
    metrics = list(dict.fromkeys(name for run_names in names for name in run_names))
    if requested is not None:
        for name in (requested, _ALIASES.get(requested.lower(), requested)):
            if name in metrics:
                return name
        raise UsageError(f"no run has metric {requested!r}; {_listed(metrics)}")
    common = [
        name for name in metrics if all(name in run_names for run_names in names if run_names)
    ]
    found = find_quality_metric(common) or find_quality_metric(metrics)
    if found is None:
        error = NotRecordedError(f"no run has an accuracy or a loss; {_listed(metrics)}")
        raise refused(error, (note for run in runs for note in run.notes))
    return found


def _listed(names: Sequence[str]) -> str:
    return f"available metrics: {', '.join(names)}" if names else "the runs have no metrics"


def _target(
    metric: str, curves: Sequence[Curve], requested: float | None, is_lower: bool | None
) -> Target:
    """Return the target: the requested value, the printed one, or a value that all runs reach."""
    better = better_of(metric)
    if is_lower is None and not better:
        values = curves[0].rows["value"]
        is_lower = bool(values[-1] < values[0])
    lower = better == "lower" if is_lower is None else is_lower
    if requested is None:
        printed = {curve.run.measure(f"target_{metric}") for curve in curves}
        if len(printed) == 1 and (only := printed.pop()) is not None:
            requested = only
    if requested is None:
        open_target = Target(metric, math.nan, lower)
        bests = [open_target.best(curve.rows["value"]) for curve in curves]
        requested = max(bests) if lower else min(bests)
    most = max(curve.rows["value"].max() for curve in curves)
    if is_accuracy(metric) and 1 < requested <= 100 and most <= 1:
        raise UsageError(
            f"{metric} is at most 1: use --to {requested / 100:g} or --to {requested:g}%"
        )
    return Target(metric, requested, lower)


def _groups(outcomes: Sequence[_RunAtTarget]) -> dict[str, list[_RunAtTarget]]:
    """Group runs with equal labels, devices and batch; each other run is a group by its name."""
    found: dict[tuple[Any, ...], list[_RunAtTarget]] = {}
    for outcome in outcomes:
        labels = tuple(sorted(outcome.run.labels.items()))
        size, batch = devices_of(outcome.run), outcome.run.measure("global_batch_count")
        # Without labels, two logs are repeats only if their size and batch are known and equal.
        is_known = bool(labels) or (math.isfinite(size) and batch is not None)
        group_key = (labels, size, batch) if is_known else (id(outcome),)
        found.setdefault(group_key, []).append(outcome)
    named: dict[str, list[_RunAtTarget]] = {}
    for members in found.values():
        first, size = members[0].run, devices_of(members[0].run)
        name = first.name
        if len(members) > 1:
            words = [f"{key} {value}" for key, value in first.labels.items()]
            name = ", ".join([*words, *([f"{size:g} devices"] if math.isfinite(size) else [])])
        while name in named:
            name += "′"
        named[name] = members
    return named


def _reached(
    outcomes: Sequence[_RunAtTarget], groups: dict[str, list[_RunAtTarget]], goal: Target
) -> Result:
    rows = [
        {
            "run": outcome.run.name,
            "devices_count": devices_of(outcome.run),
            "is_reached": outcome.row is not None,
            "time_ns": outcome.at("time_ns"),
            "epochs": outcome.at("epoch"),
            "steps_count": np.round(outcome.at("step")),
            "samples_count": np.round(outcome.at("samples_count")),
            "value": outcome.at("value"),
            "best": goal.best(outcome.curve.rows["value"]),
            "time_to_train_ns": outcome.run.measure("time_to_train_ns"),
            "evaluations_count": len(outcome.curve.rows),
        }
        for outcome in outcomes
    ]
    tables = {"reached": ACCURACY.table("reached").of_rows(rows)}
    repeats = {name: group for name, group in groups.items() if len(group) > 1}
    if repeats:
        tables["spread"] = ACCURACY.table("spread").of_rows(
            [{"group": name, **_spread(group)} for name, group in repeats.items()]
        )
    return Result("accuracy", ACCURACY, tables)


def _spread(group: Sequence[_RunAtTarget]) -> dict[str, Any]:
    """Return the median, least and most time and epochs of repeated runs."""
    counts = {
        "runs_count": len(group),
        "reached_count": sum(outcome.row is not None for outcome in group),
    }
    columns = {
        "ns": [outcome.at("time_ns") for outcome in group],
        "epochs": [outcome.at("epoch") for outcome in group],
    }
    return counts | {
        f"{name}_{unit}": _reduce_known(of, values)
        for unit, values in columns.items()
        for name, of in (("median", median), ("least", min), ("most", max))
    }


def _reduce_known(reduce: Callable[[list[float]], float], values: Iterable[float]) -> float:
    """Apply ``reduce`` to the finite values; return NaN if there are none."""
    known = [value for value in values if math.isfinite(value)]
    return reduce(known) if known else math.nan


def _speedups(groups: dict[str, list[_RunAtTarget]]) -> Result:
    rows = [
        {
            "group": name,
            "devices_count": devices_of(group[0].run),
            "global_batch_count": group[0].run.measure("global_batch_count"),
            "time_ns": _reduce_known(median, (outcome.at("time_ns") for outcome in group)),
            "samples_per_s": _median_measure(group, "samples_per_s"),
            "printed_per_s": _median_measure(group, "printed_samples_per_s"),
            "samples": _reduce_known(median, (outcome.at("samples_count") for outcome in group)),
        }
        for name, group in groups.items()
    ]
    table = Table.of_rows(rows)
    names = ("devices_count", "time_ns", "samples_per_s", "samples", "printed_per_s")
    devices, times, rates, samples, printed = floats(table, *names)
    with np.errstate(divide="ignore", invalid="ignore"):
        more_devices, faster, more = devices / devices[0], times[0] / times, rates / rates[0]
        table = table.assign(
            time_speedup=faster,
            time_efficiency_ratio=faster / more_devices,
            rate_speedup=more,
            rate_efficiency_ratio=more / more_devices,
            work_factor=samples / samples[0],
            remark=objects(map(_remark, rates.tolist(), printed.tolist())),
        )
    return Result("speedup", SPEEDUP, {"speedup": SPEEDUP.table("speedup").of_rows(table)})


def _remark(computed: float, printed: float) -> Note | None:
    """Return a note if the printed throughput is too high; otherwise None."""
    if not (computed > 0 and printed > _MAX_PRINTED_FACTOR * computed):
        return None
    return Note.of("printed rate is {times:factor} the measured rate", times=printed / computed)


def _median_measure(group: Sequence[_RunAtTarget], name: str) -> float:
    return _reduce_known(
        median, [value for outcome in group if (value := outcome.run.measure(name)) is not None]
    )


def _curves(curves: Sequence[Curve], goal: Target) -> Result:
    rows = Table.stacked([curve.rows.assign(run=curve.run.name) for curve in curves])
    return Result(
        CURVE_NAME,
        CURVE,
        {"curve": CURVE.table("curve").of_rows(rows)},
        {"metric": goal.metric, "target": goal.value},
    )
