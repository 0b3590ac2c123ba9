"""Write the verdict of a comparison: faster or slower, by what factor, and why."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np

from traceprof.comparison.judging import EvaluatedMeasure, main_measures
from traceprof.comparison.sides import ITERATION, STEP, Side
from traceprof.measures.rows import Ints
from traceprof.model.results import Note, Result
from traceprof.model.table import Table
from traceprof.names.kernels import short_name

_MIN_PART_RATIO: Final = 0.05
_MOST_CAUSES: Final = 3
_MAX_EQUAL_RATIO: Final = 0.0005
_MIN_OVERALL_RATIO: Final = 0.01
_MIN_SHOWN_RATIO: Final = 0.001
"""Minimum detectable change that is shown; smaller values would be printed as 0.0%."""
_PARTS: Final = {
    "compute": "compute",
    "exposed_communication": "exposed communication",
    "exposed_transfer": "exposed transfers",
    "device_memory": "device-to-device copies",
    "idle": "idle time",
}


def verdict_of(
    measures: Mapping[str, EvaluatedMeasure], difference: Result | None, sides: tuple[Side, Side]
) -> tuple[Note, ...]:
    """Return the verdict: the change of the main measure, then its causes."""
    main = next((measures[name] for name in main_measures(measures)), None)
    found = [] if main is None else list(_main_notes(main, measures, sides))
    if difference is not None and len(difference.tables["parts"]):
        is_shown = main is None or main.difference.is_shown
        found += _cause_notes(difference, is_shown=is_shown)
    elif difference is not None:
        found += _phase_notes(difference)
    if not measures and not found:
        return (Note("No verdict: throughput and steps are not recorded on both sides."),)
    return tuple(found)


def _main_notes(
    main: EvaluatedMeasure, measures: Mapping[str, EvaluatedMeasure], sides: tuple[Side, Side]
) -> Iterator[Note]:
    """Yield the change of the main measure, then the step times of both sides."""
    found = main.difference
    ends = (found.low_ratio, found.high_ratio)
    yield Note.of(
        _sentence(main),
        base=sides[0].name,
        new=sides[1].name,
        size=abs(found.change_ratio),
        times=1 + found.change_ratio,
        from_times=1 + found.low_ratio,
        to_times=1 + found.high_ratio,
        low=min(map(abs, ends)),
        high=max(map(abs, ends)),
        **{"from": found.low_ratio, "to": found.high_ratio},
        change=found.change_ratio,
        smallest=max(found.smallest_ratio, _MIN_SHOWN_RATIO),
        n_base=found.base_count,
        n_new=found.new_count,
        of=_unit_of(main, sides),
    )
    # Throughput shows the direction; readers think in step times.
    time = main if main.unit == "ns" else measures.get("step_period_ns", main)
    if time.unit == "ns":
        counts = (time.difference.new_count, time.difference.base_count)
        middle = "medians" if time.difference.of_runs else "means"
        if time.difference.together > 1:  # periodic steps: no single step is typical
            middle += " of groups of {together:count} steps,"
        medians = f" ({middle} of {{n_new:count}} and {{n_base:count}} {{of}}(s))"
        yield Note.of(
            ("An" if main.name == "iteration_ns" else "A")
            + " {unit} takes {new:ns}, compared with {base:ns} in the base"
            + medians * (max(counts) > 1)
            + ".",
            unit=ITERATION if main.name == "iteration_ns" else STEP,
            new=time.difference.new,
            base=time.difference.base,
            n_new=counts[0],
            n_base=counts[1],
            together=time.difference.together,
            of=_unit_of(time, sides),
        )
    yield from _overall_notes(main, sides)


def _unit_of(measure: EvaluatedMeasure, sides: tuple[Side, Side]) -> str:
    """Return what the values of a measure are: run, step, iteration, or interval of a log."""
    if measure.difference.of_runs:
        return "run"
    return "interval" if measure.of_intervals else sides[0].unit


def _overall_notes(main: EvaluatedMeasure, sides: tuple[Side, Side]) -> Iterator[Note]:
    """Yield the change of the overall rate, if it differs from the usual rate on a side."""
    usual = [side.measure(main.name) or 0.0 for side in sides]
    recorded = [side.measure(f"overall_{main.name}") for side in sides]
    if not all(usual) or not any(recorded):
        return
    overall = [whole or rate for whole, rate in zip(recorded, usual, strict=True)]
    if all(
        abs(whole / rate - 1) < _MIN_OVERALL_RATIO
        for whole, rate in zip(overall, usual, strict=True)
    ):
        return
    base, new = overall
    yield Note.of(
        f"With pauses such as checkpoints, {{what}}: {{new:{main.unit}}}, compared with "
        f"{{base:{main.unit}}} in the base ({'+' if new > base else '−'}{{change:ratio}}).",
        what=_MEASURE_WORDS.get(main.name) or _rate_words(main.name),
        new=new,
        base=base,
        change=abs(new / base - 1),
    )


def _sentence(main: EvaluatedMeasure) -> str:
    """Return the verdict on the main measure, or the reason why there is none."""
    found, what = main.difference, _MEASURE_WORDS.get(main.name) or _rate_words(main.name)
    direction, change = _change_words(main)
    if not found.is_known and abs(main.worse_ratio) < _MAX_EQUAL_RATIO:
        return (
            f"{{new}} and {{base}} have the same {what}. {{n_base:count}} and "
            "{n_new:count} {of}(s) are not enough to test the difference."
        )
    if not found.is_known:
        return (
            f"{{new}} may be {direction} than {{base}}: {change}. {{n_base:count}} and "
            "{n_new:count} {of}(s) are not enough to test the difference."
        )
    if found.is_shown:
        ends = "{low:ratio} to {high:ratio}"
        if found.change_ratio >= 1:
            ends = "{from_times:factor} to {to_times:factor}"
        return f"{{new}} is {direction} than {{base}}: {change} (95% interval {ends})."
    sensitivity = "This comparison can detect changes of {smallest:ratio} or more (80% power)."
    if math.isnan(found.smallest_ratio):
        sensitivity = (
            "This comparison cannot detect a change of any size: {of} times vary too much."
        )
    has_ends = not math.isnan(found.low_ratio + found.high_ratio)
    interval = "{from:ratio} to {to:ratio}" if has_ends else "without limits"
    sign = "+" if found.change_ratio > 0 else ""
    opening = "The difference between {base} and {new} is not significant"
    if found.is_inconclusive:
        opening = "It is not clear whether {new} is faster or slower than {base}"
    return f"{opening}: {what} {sign}{{change:ratio}} (95% interval {interval}). {sensitivity}"


def _change_words(main: EvaluatedMeasure) -> tuple[str, str]:
    """Return "slower" or "faster", and the change of the main measure in words.

    The measure is named, because "70% faster" could mean 70% less time or 70% more samples per
    second.
    """
    is_more = main.difference.change_ratio > 0
    direction = "slower" if main.worse_ratio > 0 else "faster"
    more, fewer, times = _CHANGES.get(main.name) or _rate_changes(_rate_words(main.name))
    if main.difference.change_ratio >= 1:
        return direction, times
    return direction, more if is_more else fewer


def _rate_words(name: str) -> str:
    """Return a rate in words, such as "tokens per second and GPU"."""
    total = name.removesuffix("_per_device")
    of_device = " and GPU" if total != name else ""
    return f"{total.removesuffix('_per_s').replace('_', ' ')} per second{of_device}"


def _rate_changes(what: str) -> tuple[str, str, str]:
    return (
        f"{{size:ratio}} more {what}",
        f"{{size:ratio}} fewer {what}",
        f"{{times:factor}} the {what}",
    )


_CHANGES: Final = {
    name: (
        f"{what} takes {{size:ratio}} longer",
        f"{what} takes {{size:ratio}} less time",
        f"{what} takes {{times:factor}} as long",
    )
    for name, what in (("step_period_ns", "a step"), ("iteration_ns", "an iteration"))
}
_MEASURE_WORDS: Final = {
    "step_period_ns": "step time",
    "iteration_ns": "iteration time",
}


def _cause_notes(difference: Result, *, is_shown: bool) -> Iterator[Note]:
    """Yield the parts with the largest difference of the mean step, then the largest causes.

    With ``is_shown`` false, the difference can be chance.
    """
    scalars, parts = difference.scalars, difference.tables["parts"]
    sizes = np.abs(parts["difference_ns"])
    size = float(sizes.max())
    if not size:
        return
    order = np.argsort(sizes, kind="stable")[::-1]
    main_parts = parts.take(order[sizes[order] >= _MIN_PART_RATIO * size])
    words, values = _listed(main_parts, lambda row: _PARTS[str(row["part"])])
    yield Note.of(
        ("The" if is_shown else "Observed, but not significant: the")
        + " mean {per} on the GPU ({new:ns}, base {base:ns}) is {whole:ns} "
        f"{_direction(scalars)}: {words}.",
        per=scalars["per"],
        new=scalars["new_ns"],
        base=scalars["base_ns"],
        whole=abs(scalars["difference_ns"]),
        **values,
    )
    causes = difference.tables["causes"]
    large = causes.take(np.abs(causes["difference_ns"]) >= _MIN_PART_RATIO * size).head(
        _MOST_CAUSES
    )
    if len(large):
        words, values = _listed(large, _cause_words)
        opening = _causes_opening(large["difference_ns"], scalars["difference_ns"])
        yield Note.of(f"{opening}: {words}.", **values)


def _direction(scalars: Mapping[str, Any]) -> str:
    return "longer" if scalars["difference_ns"] > 0 else "shorter"


def _causes_opening(causes: Ints, whole: int) -> str:
    """Return "Most of the difference" if the causes have its sign and at least half of it."""
    is_most = bool((causes * whole > 0).all()) and abs(int(causes.sum())) * 2 >= abs(whole)
    return "Most of the difference" if is_most else "Largest causes"


def _phase_notes(difference: Result) -> Iterator[Note]:
    """Yield the host phases with the largest difference."""
    scalars, phases = difference.scalars, difference.tables["phases"]
    main_phases = phases.head(_MOST_CAUSES)
    main_phases = main_phases.take(main_phases["difference_ns"] != 0)
    if main_phases.empty:
        return
    words, values = _listed(main_phases, lambda row: str(row["phase"]))
    whole = abs(scalars["difference_ns"])
    text = f"The mean {{per}} on the host is {{whole:ns}} {_direction(scalars)}: {words}."
    yield Note.of(text, per=scalars["per"], whole=whole, **values)


def _listed(rows: Table, name_of: Callable[[dict[str, Any]], str]) -> tuple[str, dict[str, Any]]:
    """Return a template that lists rows with their differences, and its values."""
    words: list[str] = []
    values: dict[str, Any] = {}
    for place, row in enumerate(rows.rows()):
        ns = row["difference_ns"]
        words.append(f"{{name{place}}} {'+' if ns > 0 else '-'}{{ns{place}:ns}}")
        values |= {f"name{place}": name_of(row), f"ns{place}": abs(int(ns))}
    return ", ".join(words), values


def _cause_words(row: dict[str, Any]) -> str:
    """Return a cause in words, with its change."""
    name, kind, state = str(row["name"]), str(row["kind"]), str(row["state"])
    if kind == "kernel":
        name = short_name(name)
    words = {
        "waiting": f"waiting for {name.strip('()')}",
        "rest": f"{_PARTS[str(row['part'])]}, cause not recorded",
        "kernel": f"kernel {name}",
    }.get(kind)
    words = words or (f"{kind} {name}" if kind in ("copy", "collective") else f"{kind}: {name}")
    return f"{words} ({_state_words(row, state)})"


def _state_words(row: dict[str, Any], state: str) -> str:
    """Return the change of a cause: its state, or whether it has more calls or longer ones."""
    if state in ("new", "gone"):
        return state
    count_ns, length_ns = (
        float(row.get(name, math.nan)) for name in ("from_count_ns", "from_duration_ns")
    )
    if math.isnan(count_ns + length_ns):
        return "longer" if row["difference_ns"] > 0 else "shorter"
    if abs(count_ns) > abs(length_ns):
        why = "more of them" if count_ns > 0 else "fewer of them"
    else:
        why = "each longer" if length_ns > 0 else "each shorter"
    return f"renamed, {why}" if state == "renamed" else why
