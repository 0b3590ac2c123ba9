"""Whether a log agrees with itself, wherever two of samples, time and rate are known."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from traceprof.logs.gathered import INTERVALS, Gathered, Series
from traceprof.model.results import Unit
from traceprof.model.summary import CONTRADICTS

_CLOSE: Final = 0.1
"""Of one step: rounding and medians explain less."""
_WHOLE: Final = 0.3
"""Of a span: evaluations and checkpoints in it may explain less."""
_SHORTEST_S: Final = 10.0
_NEARLY: Final = 0.03


class Evidence(NamedTuple):
    """So many samples in so much time."""

    samples: float
    seconds: float

    @property
    def rate(self) -> float:
        """Samples per second."""
        return self.samples / self.seconds


def check(run: Gathered) -> None:
    """Note where the numbers of ``run`` rule one another out."""
    for name, amount in (("samples_per_s", run.facts.batch), ("tokens_per_s", run.facts.tokens)):
        printed = run.measures.get(f"printed_{name}") or run.measures.get(name)
        if printed is None or printed["source"] != "printed":
            continue
        word = name.removesuffix("_per_s")
        period = run.measures.get("step_period_ns")
        is_alike = period is not None and period["over"] == printed["over"]
        if amount and period is not None and is_alike and period["source"] == "printed":
            of_step = Evidence(amount, period["value"] / 1e9)
            disagree(run, word, printed["value"], of_step, "a step", _CLOSE)
        whole = _of_span(run, name, amount)
        if whole is not None:
            disagree(run, word, printed["value"], whole, "the lines", _WHOLE)


def disagree(
    run: Gathered, word: str, rate: float, by: Evidence, where: str, close: float = _WHOLE
) -> bool:
    """Note that a printed rate and what is known of samples and time rule one another out."""
    if not (rate > 0 and by.seconds > 0 and by.samples > 0 and math.isfinite(rate)):
        return False
    times = rate / by.rate
    if 1 / (1 + close) <= times <= 1 + close:
        return False
    values = {
        "rate": rate,
        "samples": by.samples if by.samples < 1e4 else round(by.samples),
        "time": by.seconds * 1e9,
        "by": by.rate,
        "times": max(times, 1 / times),
    }
    text = (
        f"{CONTRADICTS}: it reports {{rate:{Unit.PER_S}}} ({word}), but its own times ({where}) "
        f"give {{samples:{Unit.COUNT}}} in {{time:{Unit.NS}}}, or {{by:{Unit.PER_S}}}; the "
        "reported rate is "
    )
    if times > 1:
        why = f"{{times:{Unit.FACTOR}}} as high, which is impossible for a mean"
    else:
        why = f"too low by a factor of {{times:{Unit.FACTOR}}}"
    if _is_of_one(run, values["times"]):
        why += " (one value may count one rank or node, the other all of them)"
    run.say(text + why, **values)
    return True


def _is_of_one(run: Gathered, times: float) -> bool:
    facts = run.facts
    sizes = {facts.world_size, facts.devices, facts.nodes}
    if facts.size and facts.nodes:
        sizes.add(round(facts.size / facts.nodes))
    return any(size and size > 1 and abs(times / size - 1) < _NEARLY for size in sizes)


def _of_span(run: Gathered, name: str, amount: float | None) -> Evidence | None:
    """Return the samples between the first and the last time stamp of the lines with a rate."""
    found = []
    for key, series in run.of(name):
        if key.scope == "run" and key.over in INTERVALS and len(series.at_s) >= 2:
            span = _between(series, amount)
            if span is not None:
                seconds = span.seconds - sum(_evaluations_s(run, series))
                found.append(Evidence(span.samples, seconds))
    longest = max(found, key=lambda span: span.seconds, default=None)
    return None if longest is None or longest.seconds < _SHORTEST_S else longest


def _between(series: Series, amount: float | None) -> Evidence | None:
    at, samples = np.asarray(series.at_s), np.asarray(series.samples)
    steps = np.asarray(series.steps)
    known = np.flatnonzero(np.isfinite(at))
    if len(known) < 2 or series.is_elapsed:
        return None
    i, j = known[0], known[-1]
    seconds = float(at[j] - at[i])
    done = float(samples[j] - samples[i])
    if not math.isfinite(done) and amount:
        done = float(steps[j] - steps[i]) * amount
    return Evidence(done, seconds) if math.isfinite(done) and done > 0 and seconds > 0 else None


def _evaluations_s(run: Gathered, series: Series) -> Iterator[float]:
    for event in run.events:
        when, seconds = event["when"], event["seconds"]
        is_evaluation = event["kind"] == "evaluation" and seconds
        if is_evaluation and series.at_s[0] <= when.seconds <= series.at_s[-1]:
            yield seconds
