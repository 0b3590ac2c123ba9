"""Sentences of the page on steps: step time, steps per second, and two kinds of steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from traceprof.measures.rows import mean_of
from traceprof.measures.steps.base import ITERATION, STEP
from traceprof.measures.steps.ledger import USUAL
from traceprof.measures.steps.steadiness import FEWEST_FOR_PERCENTILES, are_long, long_step_period
from traceprof.model.results import Note, Result
from traceprof.model.table import Bools, Table, is_known

MAX_STEADY_RATIO: Final = 0.1
"""The maximum spread of steady steps, relative to their median."""
_MIN_OVERHEAD_RATIO: Final = 0.02
_MIN_RANGE_RATIO: Final = 0.0005


def on_pace(steps: Result | None) -> Iterator[Note]:
    """Yield notes on the step time, the steps per second, and the kinds of steps."""
    if steps is None or not steps.scalars.get("steady_count") or not steps.scalars["step_ns"]:
        return  # without usual steps, or all their times are damaged, so there is no rate
    if steps.scalars["is_pattern"] and steps.scalars["base"] != ITERATION:
        return
    yield _on_step_time(steps)
    yield from _on_generation(steps.scalars)
    yield from _on_kinds(steps)


def _on_step_time(steps: Result) -> Note:
    """Return the note on step time with its rate and range."""
    scalars = steps.scalars
    is_pattern, n = scalars["is_pattern"], int(scalars["steady_count"])
    usual = steps.table.take(steps.table["kind"] == USUAL)
    n_ranks = len(np.unique(usual["process"]))
    values: dict[str, Any] = {"step": scalars["step_ns"], "n": n, "ranks": n_ranks}
    text = f"{'Iteration' if is_pattern else 'Step'} time {{step:ns}}"
    if not is_pattern:
        text += " ({per_s:count} steps/s"
        values["per_s"] = scalars["steps_per_s"]
        if (rate := scalars.get("samples_per_s")) is not None:
            text += ", {rate:count} samples/s"
            values["rate"] = rate
        if (tokens := scalars.get("processed_tokens_per_s")) is not None:
            text += ", {tokens:count} tokens/s"
            values["tokens"] = tokens
        text += ")"
    unit = "unprofiled step" if "unprofiled_count" in scalars else scalars["base"]
    unit = ITERATION if is_pattern else STEP if unit == "window" else unit
    text += f": mean of {{n:count}} {unit}s" if n > 1 else ""
    noun = "of {ranks:count} independent processes"
    noun = noun if scalars.get("independent_count") else "on {ranks:count} ranks"
    text += f" {noun}" if n_ranks > 1 else ""
    ends = ("min", "max") if n < FEWEST_FOR_PERCENTILES else ("p10", "p90")
    low, high = (scalars[f"{end}_ns"] for end in ends)
    if high - low >= _MIN_RANGE_RATIO * high:
        text += (", " if n < FEWEST_FOR_PERCENTILES else ", 80% of them ") + "{low:ns}–{high:ns}"
        values |= {"low": low, "high": high}
    return Note.of(f"{text}.{_on_profiling(scalars, values)}", **values)


def _on_generation(scalars: Mapping[str, Any]) -> Iterator[Note]:
    """Yield a note on the rate of generated tokens, if the program generates."""
    for least, words in (("", ""), ("least_", "at least ")):
        rate, of_phase = (scalars.get(f"{least}{of}tokens_per_s") for of in ("", "generation_"))
        if rate is not None and of_phase is not None:
            text = f"Generated {words}{{rate:count}} tokens/s ({words}{{phase:count}} tokens/s "
            text += "during generation)."
            if least:
                text += " Not all tokens that speculative decoding accepted are known."
            yield Note.of(text, rate=rate, phase=of_phase)


def _on_profiling(scalars: Mapping[str, Any], values: dict[str, Any]) -> str:
    """Return the words on the overhead of profiling, or "" if it is unknown; add to ``values``."""
    ratio = scalars.get("profiler_overhead_ratio")
    if ratio is None:
        return ""
    if ratio < _MIN_OVERHEAD_RATIO:
        return f" Profiling adds less than {_MIN_OVERHEAD_RATIO:.0%}."
    values |= {"factor": 1 + ratio, "each": scalars.get("profiler_overhead_per_launch_ns")}
    each = " ({each:ns} more per launch)" if values["each"] is not None else ""
    return f" A profiled step takes {{factor:number}}× as long{each}; the overhead is subtracted."


def _on_kinds(steps: Result) -> Iterator[Note]:
    """Yield a note if there are two kinds of steps, and on what grows in the longer ones."""
    if (found := _kinds(steps)) is None:
        return
    first, is_long = found
    lengths = first["duration_ns"].astype(np.float64)
    what = ITERATION if steps.scalars["is_pattern"] else STEP
    period = long_step_period(is_long)
    values: dict[str, Any] = {
        "long": float(np.median(lengths[is_long])),
        "short": float(np.median(lengths[~is_long])),
        "n_long": int(is_long.sum()),
        "n_short": int((~is_long).sum()),
        "every": period,
    }
    if period == 1:
        text = f"There are two kinds of {what}s: {{n_long:count}} take {{long:ns}} and "
        text += "{n_short:count} take {short:ns} (medians)"
    else:
        which = f"Every other {what}" if period == 2 else f"One in {{every:count}} {what}s"
        text = f"{which} takes {{long:ns}}, and the others take {{short:ns}} (medians)"
    grown = {
        name: float(np.median(first[name][is_long]) - np.median(first[name][~is_long]))
        for name in first
        if name in _GROWS and is_known(first[name]).all()
    }
    part = max(grown, key=lambda name: grown[name], default="")
    if part and grown[part] > (values["long"] - values["short"]) / 2:
        text += "; the longer ones have {more:ns} more {part}"
        values |= {"more": grown[part], "part": _GROWS[part]}
    waits = first["cpu_wait_ns"] if "cpu_wait_ns" in first else np.full(len(first), np.nan)
    more_ns = float(mean_of(waits[is_long]) - mean_of(waits[~is_long]))
    if more_ns > (values["long"] - values["short"]) / 2:
        text += "; the longer ones wait {waited:ns} more for a CPU core"
        values["waited"] = more_ns
    yield Note.of(f"{text}.", **values)


def _kinds(steps: Result) -> tuple[Table, Bools] | None:
    """Return the usual steps of the first process, and which are of the longer kind, or None."""
    table = steps.table.take(steps.table["kind"] == USUAL)
    first = table.take(table["process"] == table["process"][:1])
    is_long = are_long(first["duration_ns"].astype(np.float64)) if len(first) else None
    return None if is_long is None else (first, is_long)


_GROWS: Final = {
    "compute_ns": "compute",
    "exposed_communication_ns": "exposed communication",
    "exposed_transfer_ns": "exposed transfers",
    "device_memory_ns": "copies inside the device",
    "idle_ns": "idle time",
}
