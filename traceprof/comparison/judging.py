"""Test the measures of two sides, and check limits on their regression."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from traceprof.comparison.sides import ITERATION, Side, series_of
from traceprof.comparison.specs import JUDGED, LIMITS, STEPS
from traceprof.comparison.statistics import (
    MIN_STEPS,
    Difference,
    compare_runs,
    compare_steps,
    with_displayed_values,
)
from traceprof.errors import UsageError
from traceprof.measures.rows import Floats
from traceprof.model.results import Note, Result, find_column_name
from traceprof.model.table import Table

MAIN: Final = ("samples_per_s", "step_period_ns", "turn_ns")
"""Main measures: a comparison is about the first one that both sides have."""

_STEP_MEASURES: Final = (
    ("samples_per_s", "samples_per_s", "1/s", "higher"),
    ("step_period_ns", "period_ns", "ns", "lower"),
    ("step_without_waits_ns", "step_without_waits_ns", "ns", "lower"),
)
_ITERATION_MEASURES: Final = (("turn_ns", "period_ns", "ns", "lower"),)
_LOG_MEASURES: Final = _STEP_MEASURES[:2]
"""Measures of runs without step series, such as logs."""
_MAX_SHOWN_STEPS: Final = 400
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

    @property
    def worse_ratio(self) -> float:
        """The regression as a ratio of the base; below 0: improvement."""
        change = self.difference.change_ratio
        return -change if self.better == "higher" else change

    @property
    def verdict(self) -> str:
        """The result of the test in up to three words."""
        if math.isnan(self.difference.change_ratio) or not self.difference.is_known:
            return "not judged"
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
    found: dict[str, EvaluatedMeasure] = {}
    for name, measure, unit, better in (
        _ITERATION_MEASURES if base.unit == ITERATION else _STEP_MEASURES
    ):
        series = [[series_of(run, measure, base.unit) for run in side.runs] for side in (base, new)]
        if any(not len(series_values) for side in series for series_values in side):
            continue
        if len(series[0]) == len(series[1]) == 1:
            both = base.measure(name), new.measure(name)
            difference = _of_series(series[0][0], series[1][0], both, are_rates=better == "higher")
        else:
            medians = [
                [float(np.median(series_values)) for series_values in side] for side in series
            ]
            difference = compare_runs(*medians)
        found[name] = EvaluatedMeasure(name, unit, better, difference)
    for name, _, unit, better in _LOG_MEASURES:
        values = [[run.measure(name) for run in side.runs] for side in (base, new)]
        known = [[value for value in side if value is not None and value > 0] for side in values]
        if name not in found and all(map(len, known)) and known == values:
            found[name] = EvaluatedMeasure(name, unit, better, compare_runs(*known))
    if is_same:
        return {
            name: replace(result, difference=result.difference.as_unchanged())
            for name, result in found.items()
        }
    return found


def _of_series(
    base: Floats, new: Floats, values: tuple[float | None, float | None], *, are_rates: bool
) -> Difference:
    """Test the difference of two series, with the displayed ``values`` of the two runs.

    The means are compared if the interval from pairs of steps excludes the change of the means, for
    example if few steps take most of the time.
    """
    found = compare_steps(base, new, are_rates=are_rates)
    if (
        values[0]
        and values[1]
        and not found.low_ratio <= values[1] / values[0] - 1 <= found.high_ratio
    ):
        found = compare_steps(base, new, are_rates=are_rates, of_means=True)
    return with_displayed_values(found, *values)


def steps_result(base: Side, new: Side) -> Result:
    """Return the compared step times, thinned out to at most `_MAX_SHOWN_STEPS` per run."""
    tables = []
    for side, name in ((base, "base"), (new, "new")):
        for run in side.runs:
            values = series_of(run, "period_ns", side.unit)
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
    of_means = Note.of(
        "There are two kinds of {what} in irregular order. traceprof compares their means, with "
        "intervals from Welch's t-test.",
        what=what,
    )
    if all(difference.of_means for difference in known):
        return *in_turns, of_means, _ONE_OF_EACH
    of_steps = Note.of(
        "traceprof compares all pairs of {what} (Mann–Whitney test). The 95% interval accounts "
        "for the correlation of neighboring {what} (up to {alike:ratio}).",
        alike=max(difference.autocorrelation for difference in known),
        what=what,
    )
    of_kinds = (of_means,) if any(difference.of_means for difference in known) else ()
    return *in_turns, of_steps, *of_kinds, _ONE_OF_EACH


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

    A tested measure exceeds its limit if the change is above the limit and significant. Measures
    without a test, or with too few steps for it, are compared by value alone, and the result says
    so.

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
        name = next((candidate for candidate in MAIN if candidate in measures), "")
        if not name:
            raise UsageError(
                "throughput and step times are not recorded on both sides; name a measure, for "
                f"example --max-regression idle_ratio=5%; available: {_known(better)}"
            )
    if name in measures:
        worse, (is_exceeded, why) = measures[name].worse_ratio, _check_limit(limit, measures[name])
    else:
        worse = _worse_ratio(name, sides, better)
        is_exceeded, why = worse > limit.ratio, _NUMBERS_ALONE
    return {
        "measure": name,
        "limit_ratio": limit.ratio,
        "worse_ratio": worse,
        "is_exceeded": is_exceeded,
        "why": why,
    }


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


def _check_limit(limit: Limit, measure: EvaluatedMeasure) -> tuple[bool, Note]:
    """Return whether the limit of a tested measure is exceeded, and the reason."""
    found, is_beyond = measure.difference, measure.worse_ratio > limit.ratio
    if not found.is_known:
        return is_beyond, Note.of("no statistical test: {why}", why=found.why)
    if not is_beyond:
        return False, Note("within the limit")
    if found.is_shown:
        return True, Note("above the limit, and the difference is significant")
    return False, Note("above the limit, but the difference is not significant")


def _known(better: Mapping[str, str]) -> str:
    return ", ".join(sorted(name for name, direction in better.items() if direction)) or "none"
