"""What to make of a comparison, in a few sentences: faster or slower, by how much, and why."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pandas as pd

from traceprof.comparison.judging import MAIN, JudgedMeasure
from traceprof.comparison.sides import STEP, TURN, Side
from traceprof.model.results import Note, Result
from traceprof.names.kernels import short_name

__all__ = ["verdict_of"]

_LEAST: Final = 0.05
_MOST_CAUSES: Final = 3
_NOTHING: Final = 0.0005
_PARTS: Final = {
    "compute": "compute",
    "exposed_communication": "exposed communication",
    "exposed_transfer": "exposed transfers",
    "device_memory": "copies inside the device",
    "idle": "idle time",
}


def verdict_of(
    judged: Mapping[str, JudgedMeasure], difference: Result | None, sides: tuple[Side, Side]
) -> tuple[Note, ...]:
    """Return the answer: what is shown of the main measure, then where the difference is."""
    main = next((judged[name] for name in MAIN if name in judged), None)
    found = [] if main is None else list(_on_main(main, judged, sides))
    if difference is not None and len(difference.tables["parts"]):
        found += _on_causes(difference)
    elif difference is not None:
        found += _on_phases(difference)
    if not judged and not found:
        return (Note("Nothing is judged: neither throughput nor steps are known of both."),)
    return tuple(found)


def _on_main(
    main: JudgedMeasure, judged: Mapping[str, JudgedMeasure], sides: tuple[Side, Side]
) -> Iterator[Note]:
    found = main.difference
    # Throughput tells the direction, the time of a step how one thinks of it.
    time = judged.get("step_period_ns", main)
    worse = main.worse_ratio
    values: dict[str, Any] = {
        "base": sides[0].name,
        "new": sides[1].name,
        "size": abs(found.change_ratio),
        "times": 1 + found.change_ratio,
        "from_times": 1 + found.low_ratio,
        "to_times": 1 + found.high_ratio,
        "low": min(abs(found.low_ratio), abs(found.high_ratio)),
        "high": max(abs(found.low_ratio), abs(found.high_ratio)),
        "from": found.low_ratio,
        "to": found.high_ratio,
        "change": found.change_ratio,
        "smallest": found.smallest_ratio,
        "n_base": found.base_count,
        "n_new": found.new_count,
        "of": sides[0].unit if not found.of_runs else "run",
    }
    what = _MEASURE_WORDS[main.name]
    way, by = _in_words(main)
    if not found.is_known and abs(worse) < _NOTHING:
        yield Note.of(
            f"{{new}} is as fast as {{base}} in numbers ({what}); {{n_base:count}} and "
            "{n_new:count} {of}(s) are too few to tell more.",
            **values,
        )
    elif not found.is_known:
        yield Note.of(
            f"{{new}} is {way} than {{base}} in numbers: {by}, but "
            "{n_base:count} and {n_new:count} {of}(s) are too few to tell that from chance.",
            **values,
        )
    elif found.is_shown:
        ends = "{from_times:factor} to {to_times:factor}"
        ends = ends if found.change_ratio >= 1 else "{low:ratio} to {high:ratio}"
        yield Note.of(f"{{new}} is {way} than {{base}}: {by} (95 % interval {ends}).", **values)
    else:
        seen = (
            "No change, however large, would have been seen: they differ too much among themselves."
            if math.isnan(found.smallest_ratio)
            else "A change of {smallest:ratio} would most likely have been seen."
        )
        has_ends = not math.isnan(found.low_ratio + found.high_ratio)
        interval = "{from:ratio} to {to:ratio}" if has_ends else "without an end"
        yield Note.of(
            f"No difference is shown between {{base}} and {{new}}: {what} {{change:ratio}}, 95 % "
            f"interval {interval}. {seen}",
            **values,
        )
    if time.unit == "ns":
        counts = (time.difference.new_count, time.difference.base_count)
        medians = (
            " (medians of {n_new:count} and {n_base:count} {of}(s))" if max(counts) > 1 else ""
        )
        yield Note.of(
            f"A {{unit}} takes {{new:ns}} instead of {{base:ns}}{medians}.",
            unit=TURN if main.name == "turn_ns" else STEP,
            new=time.difference.new,
            base=time.difference.base,
            n_new=time.difference.new_count,
            n_base=time.difference.base_count,
            of="run" if time.difference.of_runs else sides[0].unit,
        )


def _in_words(main: JudgedMeasure) -> tuple[str, str]:
    """Return whether it is slower or faster, and what there is more or less of, and how much.

    "70 % faster" could be said of a time that is 70 % less and of a rate that is 70 % more.
    """
    is_more = main.difference.change_ratio > 0
    way = "slower" if main.worse_ratio > 0 else "faster"
    more, fewer, times = _CHANGES[main.name]
    if main.difference.change_ratio >= 1:
        return way, times
    return way, more if is_more else fewer


_CHANGES: Final = {
    "samples_per_s": (
        "{size:ratio} more samples per second",
        "{size:ratio} fewer samples per second",
        "{times:factor} the samples per second",
    ),
    **{
        name: (
            f"{what} takes {{size:ratio}} longer{where}",
            f"{what} takes {{size:ratio}} less time{where}",
            f"{what} takes {{times:factor}} as long{where}",
        )
        for name, what, where in (
            ("step_period_ns", "a step", ""),
            ("turn_ns", "a turn", ""),
            ("step_device_ns", "a step", " on the devices"),
        )
    },
}
_MEASURE_WORDS: Final = {
    "samples_per_s": "samples per second",
    "step_period_ns": "time of a step",
    "turn_ns": "time of a turn",
    "step_device_ns": "time of a step on the devices",
}


def _on_causes(difference: Result) -> Iterator[Note]:
    """Yield where the difference of the mean step is: the parts, then the largest causes."""
    scalars = difference.scalars
    whole = scalars["difference_ns"]
    parts = difference.tables["parts"]
    ranked = parts.iloc[parts["difference_ns"].abs().argsort()[::-1].to_numpy()]
    size = float(parts["difference_ns"].abs().max())
    worth = ranked[(ranked["difference_ns"].abs() >= _LEAST * size).to_numpy()]
    if not size:
        return
    words, values = _listed(
        [(_PARTS[str(row["part"])], row["difference_ns"]) for row in worth.to_dict("records")]
    )
    way = "longer" if whole > 0 else "shorter"
    yield Note.of(
        f"The mean {{per}} on a device ({{new:ns}}, base {{base:ns}}) is {{whole:ns}} {way}: "
        f"{words}.",
        per=scalars["per"],
        new=scalars["new_ns"],
        base=scalars["base_ns"],
        whole=abs(whole),
        **values,
    )
    causes = difference.tables["causes"]
    large = causes[(causes["difference_ns"].abs() >= _LEAST * size).to_numpy()].head(_MOST_CAUSES)
    if len(large):
        words, values = _listed(
            [(_cause_words(row), row["difference_ns"]) for row in large.to_dict("records")]
        )
        yield Note.of(f"{_how_much(large['difference_ns'], whole)}: {words}.", **values)


def _how_much(causes: pd.Series, whole: int) -> str:
    """Return what causes are of a difference: what works against it makes none of it."""
    is_most = bool((causes * whole > 0).all()) and abs(int(causes.sum())) * 2 >= abs(whole)
    return "Most of it" if is_most else "The largest causes"


def _on_phases(difference: Result) -> Iterator[Note]:
    scalars, phases = difference.scalars, difference.tables["phases"]
    worth = phases.head(_MOST_CAUSES)
    worth = worth[(worth["difference_ns"] != 0).to_numpy()]
    if worth.empty:
        return
    words, values = _listed(
        [(str(row["phase"]), row["difference_ns"]) for row in worth.to_dict("records")]
    )
    way = "longer" if scalars["difference_ns"] > 0 else "shorter"
    yield Note.of(
        f"On the host the mean {{per}} is {{whole:ns}} {way}: {words}.",
        per=scalars["per"],
        whole=abs(scalars["difference_ns"]),
        **values,
    )


def _listed(pairs: list[tuple[str, int]]) -> tuple[str, dict[str, Any]]:
    """Return a list of names with by how much each is longer or shorter, and its values."""
    words: list[str] = []
    values: dict[str, Any] = {}
    for place, (name, ns) in enumerate(pairs):
        sign = "+" if ns > 0 else "−"
        words.append(f"{{name{place}}} {sign}{{ns{place}:ns}}")
        values |= {f"name{place}": name, f"ns{place}": abs(int(ns))}
    return ", ".join(words), values


def _cause_words(row: dict[Any, Any]) -> str:
    """Return what a cause is in words, with what became of it."""
    name, kind, state = str(row["name"]), str(row["kind"]), str(row["state"])
    if kind == "kernel":
        name = short_name(name)
    told = {
        "waiting": f"waiting for {name.strip('()')}",
        "rest": f"{_PARTS[str(row['part'])]} of which nothing is known",
        "kernel": f"kernel {name}",
    }.get(kind)
    told = told or (f"{kind} {name}" if kind in ("copy", "collective") else f"{kind}: {name}")
    return f"{told} ({_why(row, state)})"


def _why(row: dict[Any, Any], state: str) -> str:
    if state in ("new", "gone"):
        return state
    more, longer = row.get("more_ns"), row.get("longer_ns")
    if pd.isna(more) or pd.isna(longer):
        return "longer" if row["difference_ns"] > 0 else "shorter"
    if abs(float(more)) > abs(float(longer)):
        why = "more of them" if more > 0 else "fewer of them"
    else:
        why = "each longer" if longer > 0 else "each shorter"
    return f"renamed, {why}" if state == "renamed" else why
