"""Test the measures of two sides, and check limits on their regression."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from traceprof.comparison.matched import MIN_ROWS, compare_rows, pairs_of
from traceprof.comparison.sides import ITERATION, Side, metric_series, series_of
from traceprof.comparison.specs import JUDGED, LIMITS, STEPS
from traceprof.comparison.statistics import (
    MIN_CHANGE_RATIO,
    MIN_STEPS,
    Difference,
    compare_runs,
    compare_steps,
    with_displayed_values,
)
from traceprof.errors import UsageError
from traceprof.logs.pace import usual_value
from traceprof.measures.rows import Floats
from traceprof.model.results import Note, Result, find_column_name
from traceprof.model.summary import Summary
from traceprof.model.table import Table

MAIN: Final = ("samples_per_s", "step_period_ns", "iteration_ns")
"""Main measures: a comparison is about the first one that both sides have."""

_STEP_MEASURES: Final = (
    ("samples_per_s", "samples_per_s", "1/s", "higher"),
    ("step_period_ns", "period_ns", "ns", "lower"),
    ("step_without_waits_ns", "step_without_waits_ns", "ns", "lower"),
)
_ITERATION_MEASURES: Final = (("iteration_ns", "period_ns", "ns", "lower"),)
_RATE_SUFFIX: Final = "_per_s"
_PER_DEVICE: Final = "_per_device"
_NOT_COMPARED: Final = ("overall_", "expected_", "printed_", "tflop")
"""Measures with these beginnings are no rates of the steps, or have the same changes as rates."""
_MAX_SHOWN_STEPS: Final = 400
_ROUNDING: Final = 1e-9
_RATES: Final = ("samples_per_s", "tokens_per_s", "frames_per_s", "steps_per_s")
_DIFFERENCE_FIELDS: Final = (
    *("base", "new", "change_ratio", "low_ratio", "high_ratio", "smallest_ratio", "larger_ratio"),
    *("base_count", "new_count", "autocorrelation"),
)


@dataclass(frozen=True, slots=True)
class EvaluatedMeasure:
    """A measure of both sides and the result of its test."""

    name: str
    unit: str
    better: str
    difference: Difference
    of_intervals: bool = False
    """Whether the values are the printed intervals of logs, not steps."""

    @property
    def worse_ratio(self) -> float:
        """The regression as a ratio of the base; below 0: improvement."""
        change = self.difference.change_ratio
        return -change if self.better == "higher" else change

    @property
    def verdict(self) -> str:
        """The result of the test in up to three words."""
        if math.isnan(self.difference.change_ratio) or not self.difference.is_known:
            return "not enough data"
        if self.difference.is_inconclusive:
            return "not clear"
        if not self.difference.is_shown:
            return "no difference shown"
        return "worse" if self.worse_ratio > 0 else "better"


def evaluate_measures(
    base: Side, new: Side, *, is_same: bool = False
) -> dict[str, EvaluatedMeasure]:
    """Test the measures of both sides, by name; with several runs per side, the run is the unit.

    ``is_same``: both sides are one recording.
    """
    if base.groups:
        return {
            name: EvaluatedMeasure(name, unit, better, compare_rows(*pairs))
            for name, unit, better in _log_measures(base, has_steps=False)
            if (pairs := pairs_of(base, new, name))[0]
        }
    found: dict[str, EvaluatedMeasure] = {}
    for name, measure, unit, better in (
        _ITERATION_MEASURES if base.unit == ITERATION else _STEP_MEASURES
    ):
        series = [[series_of(run, measure, base.unit) for run in side.runs] for side in (base, new)]
        if any(not len(series_values) for side in series for series_values in side):
            continue
        if len(series[0]) == len(series[1]) == 1:
            both = base.measure(name), new.measure(name)
            difference = compare_series(
                series[0][0], series[1][0], both, are_rates=better == "higher"
            )
        else:
            medians = [
                [float(np.median(series_values)) for series_values in side] for side in series
            ]
            difference = compare_runs(*medians)
        found[name] = EvaluatedMeasure(name, unit, better, difference)
    for name, unit, better in _log_measures(base, has_steps=bool(found)):
        values = [[run.measure(name) for run in side.runs] for side in (base, new)]
        known = [[value for value in side if value is not None and value > 0] for side in values]
        if name not in found and all(map(len, known)) and known == values:
            tested = _of_logs(name, base, new)
            difference = tested or compare_runs(*known)
            found[name] = EvaluatedMeasure(name, unit, better, difference, tested is not None)
    if is_same:
        return {
            name: replace(result, difference=result.difference.as_unchanged())
            for name, result in found.items()
        }
    return found


def _log_measures(base: Side, *, has_steps: bool) -> Iterator[tuple[str, str, str]]:
    """Yield name, unit and direction of the step time, and of all rates of runs without steps."""
    yield from ((name, unit, better) for name, _, unit, better in _STEP_MEASURES[:2])
    if has_steps:
        return
    names = [str(name) for name in base.runs[0].table("measures")["measure"]]
    for name in names:
        total = name.removesuffix(_PER_DEVICE)
        is_alone = total == name or total not in names
        if total.endswith(_RATE_SUFFIX) and is_alone and not name.startswith(_NOT_COMPARED):
            yield name, "1/s", "higher"


def _of_logs(name: str, base: Side, new: Side) -> Difference | None:
    """Test the values of two logs, one per printed interval; None if a log does not print them.

    With a constant batch, a rate is the work of a step divided by its time.
    """
    if len(base.runs) != 1 or len(new.runs) != 1:
        return None
    runs, are_rates = (base.runs[0], new.runs[0]), name != "step_period_ns"
    if are_rates:
        series = [metric_series(run, name.removesuffix(_PER_DEVICE)) for run in runs]
        if not all(map(len, series)) and name == "samples_per_s":
            series = [1e9 / metric_series(run, "step_period_ns") for run in runs]
        values = base.measure(name), new.measure(name)
        series = [
            row * (value / usual_value(row, is_rate=True)) if value and len(row) else row
            for row, value in zip(series, values, strict=True)
        ]
    else:
        series = [_step_times_of_log(run) for run in runs]
        values = base.measure(name), new.measure(name)
    if not all(map(len, series)):
        return None
    return compare_series(series[0], series[1], values, are_rates=are_rates)


def _step_times_of_log(run: Summary) -> Floats:
    """Return the step time of each printed interval in ns; from a rate if only rates are printed.

    With a constant batch, a step time is the work of a step divided by the rate.
    """
    printed = metric_series(run, "step_period_ns")
    usual_ns = run.measure("step_period_ns")
    if len(printed) or not usual_ns:
        return printed
    rates = next(filter(len, (metric_series(run, rate) for rate in _RATES)), np.empty(0))
    if not len(rates):
        return rates
    return np.asarray(usual_ns / (rates * usual_value(1 / rates, is_rate=False)), np.float64)


def compare_series(
    base: Floats, new: Floats, values: tuple[float | None, float | None], *, are_rates: bool
) -> Difference:
    """Test the difference of two series, with the displayed ``values`` of the two runs.

    The means are compared if the interval from pairs of steps excludes the change of the means, for
    example if few steps take most of the time.
    """
    found = compare_steps(base, new, are_rates=are_rates)
    change = values[1] / values[0] - 1 if values[0] and values[1] else math.nan
    if change < found.low_ratio - _ROUNDING or change > found.high_ratio + _ROUNDING:
        found = compare_steps(base, new, are_rates=are_rates, of_means=True)
    return with_displayed_values(found, *values)


def main_measures(measures: Mapping[str, EvaluatedMeasure]) -> list[str]:
    """Return the names of the measures that a comparison may be about, the first one preferred.

    A measure with a test comes before measures without one.
    """
    rates = (name for name in measures if name.removesuffix(_PER_DEVICE).endswith(_RATE_SUFFIX))
    unique = [name for name in dict.fromkeys((MAIN[0], *rates, *MAIN)) if name in measures]
    return sorted(unique, key=lambda name: not measures[name].difference.is_known)


def steps_result(base: Side, new: Side) -> Result:
    """Return the compared step times, thinned out to at most `_MAX_SHOWN_STEPS` per run."""
    tables = []
    for side, name in ((base, "base"), (new, "new")):
        for run in side.runs:
            values = series_of(run, "period_ns", side.unit)
            if not len(values):
                values = _step_times_of_log(run)
            stride = max(1, -(-len(values) // _MAX_SHOWN_STEPS))
            places = np.arange(0, len(values), stride)
            tables.append(
                Table({"side": name, "run": run.name, "place": places, "period_ns": values[places]})
            )
    return Result("steps", STEPS, {"steps": STEPS.tables[0].of_rows(Table.stacked(tables))})


def judged_result(measures: Mapping[str, EvaluatedMeasure], base: Side, new: Side) -> Result:
    """Return the tested measures as a table, with notes about the method."""
    rows = [
        {
            "measure": measure.name,
            "unit": measure.unit,
            "verdict": measure.verdict,
            "better": measure.better,
            **{name: getattr(measure.difference, name) for name in _DIFFERENCE_FIELDS},
        }
        for measure in measures.values()
    ]
    of_runs = any(measure.difference.of_runs for measure in measures.values())
    table = JUDGED.tables[0].of_rows(rows)
    return Result(
        "judged",
        JUDGED,
        {"judged": table},
        {"per": base.unit, "of_runs": of_runs},
        _method(measures, base, new),
    )


def _method(measures: Mapping[str, EvaluatedMeasure], base: Side, new: Side) -> tuple[Note, ...]:
    """Return notes about the method of the test."""
    differences = [measure.difference for measure in measures.values()]
    known = [difference for difference in differences if difference.is_known]
    if not differences:
        return ()
    what = "iterations" if base.unit == ITERATION else "steps"
    if any(measure.of_intervals for measure in measures.values()):
        what = "intervals between log lines"
    if base.groups:
        text = "traceprof compares {n:count} pairs of rows, with intervals from a paired t-test"
        text += "." if known else ", which needs {fewest:count} pairs."
        n = max(difference.base_count for difference in differences)
        return (Note.of(text, n=n, fewest=MIN_ROWS),)
    if not known:
        first = differences[0]
        return (
            Note.of(
                "{base:count} and {new:count} {what} are not enough for a statistical test. "
                "Record at least {fewest:count} {what} per side.",
                base=first.base_count,
                new=first.new_count,
                what="runs" if first.of_runs else f"{base.unit}s",
                fewest=2 if first.of_runs else MIN_STEPS,
            ),
        )
    if known[0].of_runs:
        of_runs = Note.of(
            "traceprof compares runs: geometric means of the medians of {base:count} and "
            "{new:count} runs, with intervals from Welch's t-test.",
            base=len(base.runs),
            new=len(new.runs),
        )
        return (of_runs, _SINGLE_RUN) if 1 in (len(base.runs), len(new.runs)) else (of_runs,)
    together = max(difference.together for difference in known)
    text = "Durations repeat every {n:count} {what}. traceprof averages each group of {n:count}."
    in_turns = (Note.of(text, what=what, n=together),) if together > 1 else ()
    drifting = (
        Note.of(
            "The {what} of a run get longer or shorter. traceprof compares their means. The "
            "interval uses the deviations from a line or from two levels.",
            what=what,
        ),
    ) * any(difference.is_drifting for difference in known)
    apart = (
        Note.of(
            "All {what} of one run are longer than all {what} of the other run. The interval "
            "contains the changes of all pairs of {what}.",
            what=what,
        ),
    ) * any(difference.is_apart for difference in known)
    of_means = Note.of(
        "A few long {what}, or {what} of two kinds, dominate the time. traceprof compares means, "
        "with intervals from Welch's t-test.",
        what=what,
    )
    of_kinds = (of_means,) * any(
        difference.of_means and not difference.is_drifting for difference in known
    )
    if all(difference.of_means for difference in known):
        return *in_turns, *of_kinds, *drifting, *apart, _ONE_OF_EACH
    of_steps = Note.of(
        "traceprof compares all pairs of {what} (Mann–Whitney test). The 95% interval accounts "
        "for the correlation of neighboring {what} (up to {alike:ratio}).",
        alike=max(difference.autocorrelation for difference in known),
        what=what,
    )
    return *in_turns, of_steps, *of_kinds, *drifting, *apart, _ONE_OF_EACH


_SINGLE_RUN: Final = Note(
    "One side has a single run. traceprof assumes that both sides vary equally."
)
_ONE_OF_EACH: Final = Note(
    "Each side has one run, so the variation between runs is not known. traceprof ignores "
    "differences below 1%. Pass several runs per side to measure the variation."
)


_LIMIT_PATTERN: Final = re.compile(
    r"(?:(?P<name>\w[\w.-]*(?: +[\w.-]+)*)\s*=\s*)?"
    r"(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?P<percent>%)?"
)


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit on the regression of a measure; "" stands for the main measure."""

    measure: str
    ratio: float


def parse_limit(text: str) -> Limit:
    """Parse a limit: "5%", "0.05" or "step_without_waits_ns=5%".

    Raises:
        UsageError: ``text`` is not a limit.
    """
    match = _LIMIT_PATTERN.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"invalid limit {text!r}: expected 5% or MEASURE=5%")
    ratio = float(match["number"]) / (100 if match["percent"] else 1)
    if not match["percent"] and ratio > 1:
        raise UsageError(f"invalid limit {text!r}: above 100%; did you mean {match['number']}%?")
    return Limit(match["name"] or "", ratio)


def limits_of(
    limits: Sequence[Limit],
    measures: Mapping[str, EvaluatedMeasure],
    sides: tuple[Side, Side],
    better: Mapping[str, str],
) -> Result:
    """Check which limits are exceeded.

    A tested measure exceeds its limit if the change is above the limit and significant (see
    `check_limit`). Measures without a test are compared by value alone, and the result says so.

    Raises:
        UsageError: a measure is not recorded on both sides, or has no direction that is better.
    """
    rows = [_limit_row(limit, measures, sides, better) for limit in limits]
    return Result("limits", LIMITS, {"limits": LIMITS.tables[0].of_rows(rows)})


def _limit_row(
    limit: Limit,
    measures: Mapping[str, EvaluatedMeasure],
    sides: tuple[Side, Side],
    better: Mapping[str, str],
) -> dict[str, Any]:
    """Return the row of one limit: its measure, its regression, and whether it is exceeded."""
    name = find_column_name(limit.measure, (*measures, *better))
    if name in ("", "throughput", "time"):
        name = next(iter(main_measures(measures)), "")
        if not name:
            raise UsageError(
                "throughput and step times are not recorded on both sides; name a measure, for "
                f"example --max-regression idle_ratio=5%; available: {_known(better)}"
            )
    if name in measures:
        worse, (state, why) = measures[name].worse_ratio, check_limit(limit, measures[name])
    else:
        worse = _worse_ratio(name, sides, better)
        state, why = _EXCEEDED if worse > limit.ratio else _WITHIN, _NUMBERS_ALONE
    return {
        "measure": name,
        "limit_ratio": limit.ratio,
        "worse_ratio": worse,
        "is_exceeded": state == _EXCEEDED,
        "is_undecided": state == _UNDECIDED,
        "why": why,
    }


_WITHIN, _EXCEEDED, _UNDECIDED = "within", "exceeded", "undecided"
_NUMBERS_ALONE: Final = Note("no statistical test: the variation of this measure is not known")


def _worse_ratio(name: str, sides: tuple[Side, Side], better: Mapping[str, str]) -> float:
    """Return the regression of a measure that is not tested."""
    direction = better.get(name)
    base, new = (side.measure(name) for side in sides)
    if direction is None or base is None or new is None:
        raise UsageError(f"{name} is not recorded on both sides; available: {_known(better)}")
    if not direction:
        raise UsageError(f"{name} cannot have a limit: no direction of {name} is better or worse")
    change = new / base - 1 if base else (math.inf if new else 0.0)
    return -change if direction == "higher" else change


def check_limit(limit: Limit, measure: EvaluatedMeasure) -> tuple[str, Note]:
    """Return whether the limit of a tested measure is exceeded, and the reason.

    A change within the limit is accepted if the interval ends within the limit, or if the test
    would detect a change of the size of the limit. Otherwise, the test cannot check the limit.
    """
    found = measure.difference
    if not found.is_known:
        return _UNDECIDED, Note.of("no statistical test: {why}", why=found.why)
    if measure.worse_ratio > limit.ratio:
        if found.is_shown:
            return _EXCEEDED, Note("above the limit, and the difference is significant")
        if found.excludes_zero:
            return _WITHIN, Note("above the limit, but below 1%: single runs differ by up to 1%")
        return _UNDECIDED, Note("above the limit, but the difference is not significant")
    worst = -found.low_ratio if measure.better == "higher" else found.high_ratio
    accepted = max(limit.ratio, MIN_CHANGE_RATIO)
    if worst <= accepted or found.smallest_ratio <= accepted:
        return _WITHIN, Note("within the limit")
    if not math.isfinite(worst + found.smallest_ratio):
        return _UNDECIDED, Note("within the limit, but the test cannot detect a change of any size")
    return _UNDECIDED, Note.of(
        "within the limit, but the interval reaches {worst:ratio} worse, and the test detects only "
        "changes of {smallest:ratio} or more",
        worst=worst,
        smallest=found.smallest_ratio,
    )


def _known(better: Mapping[str, str]) -> str:
    return ", ".join(sorted(name for name, direction in better.items() if direction)) or "none"
