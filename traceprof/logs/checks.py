"""Check a log for contradictions wherever two of samples, time, and rate are known."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from traceprof.logs.gathered import INTERVALS, CollectedRun, Series
from traceprof.model.results import Unit
from traceprof.model.summary import CONTRADICTS

_MAX_STEP_DEVIATION_RATIO: Final = 0.1
"""Deviation of one step that rounding and medians can explain."""
_MAX_SPAN_DEVIATION_RATIO: Final = 0.3
"""Deviation of a longer span that evaluations and checkpoints in it can explain."""
_MIN_SPAN_S: Final = 10.0
_MAX_SIZE_DEVIATION_RATIO: Final = 0.03


class Evidence(NamedTuple):
    """A number of samples, and the time in which they were trained."""

    samples: float
    seconds: float

    @property
    def rate(self) -> float:
        """Samples per second."""
        return self.samples / self.seconds


def check(run: CollectedRun) -> None:
    """Add a note to ``run`` for each printed rate that contradicts its other numbers."""
    for name, amount in (("samples_per_s", run.facts.batch), ("tokens_per_s", run.facts.tokens)):
        printed = run.measures.get(f"printed_{name}") or run.measures.get(name)
        if printed is None or printed["source"] != "printed":
            continue
        word = name.removesuffix("_per_s")
        period = run.measures.get("step_period_ns")
        is_same_interval = period is not None and period["over"] == printed["over"]
        if amount and period is not None and is_same_interval and period["source"] == "printed":
            of_step = Evidence(amount, period["value"] / 1e9)
            note_contradiction(
                run, word, printed["value"], of_step, "a step", _MAX_STEP_DEVIATION_RATIO
            )
        whole = _measure_longest_span(run, name, amount)
        if whole is not None:
            note_contradiction(
                run, word, printed["value"], whole, "the lines", _MAX_SPAN_DEVIATION_RATIO
            )


def note_contradiction(
    run: CollectedRun,
    word: str,
    rate: float,
    evidence: Evidence,
    where: str,
    max_deviation: float = _MAX_SPAN_DEVIATION_RATIO,
) -> bool:
    """Add a note if a printed rate contradicts known samples and time; return whether it does.

    Args:
        run: the run that gets the note.
        word: what the rate counts, such as samples.
        rate: the printed rate per second.
        evidence: the samples and the time that the log reports elsewhere.
        where: the part of the log from which ``evidence`` comes, for the note.
        max_deviation: the largest relative deviation without a note.
    """
    if not (rate > 0 and evidence.seconds > 0 and evidence.samples > 0 and math.isfinite(rate)):
        return False
    factor = rate / evidence.rate
    if 1 / (1 + max_deviation) <= factor <= 1 + max_deviation:
        return False
    values = {
        "rate": rate,
        "samples": evidence.samples if evidence.samples < 1e4 else round(evidence.samples),
        "time": evidence.seconds * 1e9,
        "by": evidence.rate,
        "times": max(factor, 1 / factor),
    }
    text = (
        f"{CONTRADICTS}: it reports {{rate:{Unit.PER_S}}} ({word}), but its own times ({where}) "
        f"give {{samples:{Unit.COUNT}}} in {{time:{Unit.NS}}}, or {{by:{Unit.PER_S}}}; the "
        "reported rate is "
    )
    if factor > 1:
        why = f"{{times:{Unit.FACTOR}}} as high, which is impossible for a mean"
    else:
        why = f"too low by a factor of {{times:{Unit.FACTOR}}}"
    if _is_number_of_processes(run, values["times"]):
        why += " (one value may count one rank or node, the other all of them)"
    run.say(text + why, **values)
    return True


def _is_number_of_processes(run: CollectedRun, factor: float) -> bool:
    """Return whether ``factor`` is about the number of ranks, devices, nodes, or ranks per node."""
    facts = run.facts
    sizes = {facts.world_size, facts.devices, facts.nodes}
    if facts.size and facts.nodes:
        sizes.add(round(facts.size / facts.nodes))
    return any(
        size and size > 1 and abs(factor / size - 1) < _MAX_SIZE_DEVIATION_RATIO for size in sizes
    )


def _measure_longest_span(run: CollectedRun, name: str, amount: float | None) -> Evidence | None:
    """Return samples and time between the first and last timestamp of lines with a rate.

    Evaluation time is subtracted. None if the longest such span is below ``_MIN_SPAN_S``.
    """
    found = []
    for key, series in run.of(name):
        if key.scope == "run" and key.over in INTERVALS and len(series.at_s) >= 2:
            span = _measure_span(series, amount)
            if span is not None:
                seconds = span.seconds - sum(_evaluation_seconds(run, series))
                found.append(Evidence(span.samples, seconds))
    longest = max(found, key=lambda span: span.seconds, default=None)
    return None if longest is None or longest.seconds < _MIN_SPAN_S else longest


def _measure_span(series: Series, amount: float | None) -> Evidence | None:
    """Return samples and time between the first and last timestamp of a series; None if unknown."""
    at, samples = np.asarray(series.at_s), np.asarray(series.samples)
    steps = np.asarray(series.steps)
    known = np.flatnonzero(np.isfinite(at))
    if len(known) < 2 or series.is_elapsed:
        return None
    i, j = known[0], known[-1]
    seconds = float(at[j] - at[i])
    n_samples = float(samples[j] - samples[i])
    if not math.isfinite(n_samples) and amount:
        n_samples = float(steps[j] - steps[i]) * amount
    return (
        Evidence(n_samples, seconds)
        if math.isfinite(n_samples) and n_samples > 0 and seconds > 0
        else None
    )


def _evaluation_seconds(run: CollectedRun, series: Series) -> Iterator[float]:
    """Yield the duration of each evaluation within the time span of ``series``."""
    for event in run.events:
        when, seconds = event["when"], event["seconds"]
        is_evaluation = event["kind"] == "evaluation" and seconds
        if is_evaluation and series.at_s[0] <= when.seconds <= series.at_s[-1]:
            yield seconds
