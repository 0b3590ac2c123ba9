"""What processes pay beside their steps, and when: loading, compiling, evaluation, saving."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import pandas as pd

from traceprof.facts.cache import fact
from traceprof.facts.steps.between import CHECKPOINT, EVALUATION, activity_of_ranges
from traceprof.facts.steps.find import find_steps
from traceprof.facts.steps.spans import rows_by
from traceprof.model.intervals import Intervals
from traceprof.model.timing import OWN_DOMAIN
from traceprof.model.trace import Trace
from traceprof.names.ranges import are_matched

__all__ = [
    "COMPILING",
    "GARBAGE",
    "LOADING_KERNELS",
    "ONE_OFF_KINDS",
    "compiling_ranges",
    "costs_of_processes",
]

LOADING, COMPILING, WARMUP = "loading", "compiling", "warm-up"
LOADING_KERNELS = "loading kernels"
GARBAGE = "garbage collection"
ONE_OFF_KINDS: Final = (
    *(COMPILING, LOADING_KERNELS, GARBAGE, CHECKPOINT, EVALUATION, WARMUP, LOADING),
)
"""What is paid once, in the order in which it claims time.

compiling: ranges and calls that compile code for devices; loading kernels: calls that load it;
garbage collection: full collections of Python's, which stop all threads;
checkpoint and evaluation: ranges named so; warm-up: the steps that are called so, without what they
compile; loading: ranges at the beginning that load or build the model, and copies to a device
before the first step.
"""

_MOST: Final = 0.5

_COMPILES: Final = re.compile(
    r"(?i)nvrtc|(inductor|triton|jit).*(compile[^d]|compile$|codegen|autotun)|dynamo_timed"
    r"|compile_fx|(^|[^a-z])(compile|compilation|autotune)([^a-z]|$)"
)
_COMPILING_CALLS: Final = re.compile(r"(nvrtc|hiprtc)(Compile|Add)\w*|cuLink\w+")
_LOADS_CODE: Final = re.compile(
    r"(cu|cuda|hip)(Module|Library)(Load|GetFunction|GetKernel|GetModule)\w*"
)
_LOADS: Final = re.compile(
    r"(?i)^(load|init|initiali[sz]e|setup|set_up|build|create|prepare)"
    r"[ _-]*(\w*[ _-])?(model|weights|checkpoint|state|engine|tokenizer|optimizer|dataset)"
)


@fact
def costs_of_processes(trace: Trace) -> dict[tuple[int, str], tuple[int, Intervals]]:
    """Return how often and when each process paid for each kind."""
    spans = pd.concat([_named(trace), _warmup(trace), _copies(trace)], ignore_index=True)
    found: dict[tuple[int, str], tuple[int, Intervals]] = {}
    starts, ends, kinds = (spans[name].to_numpy() for name in ("start_ns", "end_ns", "kind"))
    for process, rows in rows_by(spans, "process").items():
        taken = Intervals.empty()
        for kind in ONE_OFF_KINDS:
            chosen = rows[kinds[rows] == kind]
            if not len(chosen):
                continue
            time = Intervals.union_of(starts[chosen], ends[chosen])
            left = time - taken
            taken = taken | time
            if len(left):
                is_each = kind == WARMUP
                found[process, kind] = (len(chosen) if is_each else len(time), left)
    return found


def _named(trace: Trace) -> pd.DataFrame:
    """Return the ranges and calls that are some kind of cost by their names."""
    columns = ["process", "start_ns", "end_ns"]
    tables = [compiling_ranges(trace)[columns].assign(kind=COMPILING)]
    ranges = trace.ranges
    collections = ranges[(ranges["domain"] == OWN_DOMAIN) & (ranges["name"] == "gc")]
    tables.append(collections[columns].assign(kind=GARBAGE))
    for name, pattern, kind in (
        ("ranges", _LOADS, LOADING),
        ("api_calls", _COMPILING_CALLS, COMPILING),
        ("api_calls", _LOADS_CODE, LOADING_KERNELS),
    ):
        tables.append(_matching(trace.table(name), pattern)[columns].assign(kind=kind))
    for (process, cause), time in activity_of_ranges(trace).items():
        if cause in (EVALUATION, CHECKPOINT):
            own = _beside_steps(trace, process, time) if cause == EVALUATION else time
            spans = {"process": process, "start_ns": own.starts, "end_ns": own.ends}
            tables.append(pd.DataFrame(spans).assign(kind=cause))
    return pd.concat(tables, ignore_index=True)


def _beside_steps(trace: Trace, process: int, time: Intervals) -> Intervals:
    """Return the evaluations of a process that are not a part of its every step.

    Most steps hold one where a teacher or a frozen encoder is asked in each: that is no evaluation.
    """
    steps = find_steps(trace).table
    own = steps[steps["process"].to_numpy() == process]
    if own.empty:
        return time
    starts, ends = (own[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    held = time.covered_ns(starts, np.maximum(starts, ends)) > 0
    return time - Intervals.union_of(starts, ends) if held.mean() > _MOST else time


def compiling_ranges(trace: Trace) -> pd.DataFrame:
    """Return the ranges of the window that compile code for devices, by their names."""
    return _matching(trace.ranges, _COMPILES)


def _matching(frame: pd.DataFrame, pattern: re.Pattern[str]) -> pd.DataFrame:
    names = frame["name"].cat
    chosen = np.append(are_matched(names.categories, pattern), False)[names.codes.to_numpy()]
    return frame[chosen]


def _warmup(trace: Trace) -> pd.DataFrame:
    steps = find_steps(trace)
    own = steps.table[steps.warmup()]
    return pd.DataFrame(
        {
            "process": own["process"].to_numpy(np.int64),
            "start_ns": own["device_start_ns"].to_numpy(np.int64),
            "end_ns": own["device_end_ns"].to_numpy(np.int64),
            "kind": WARMUP,
        }
    )


def _copies(trace: Trace) -> pd.DataFrame:
    """Return the copies to devices before the first step, or before most of the kernels."""
    copies, table = trace.copies, find_steps(trace).table
    own = copies.loc[copies["direction"] == "h2d", ["process", "start_ns", "end_ns"]]
    limits = table.groupby("process")["device_start_ns"].min()
    if limits.empty:
        limits = trace.kernels.groupby("process")["start_ns"].quantile(_FEW_KERNELS)
    before = own["start_ns"] < own["process"].map(limits)
    return own[before].assign(kind=LOADING)


_FEW_KERNELS: Final = 0.01
"""Copies that come before more kernels than this are of the loop."""
