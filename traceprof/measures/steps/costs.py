"""What processes pay beside their steps, and when: loading, compiling, evaluation, saving.

What is paid once is told apart; what is done now and then makes single steps longer, which are
no slow steps: its cost is told apart, and the loop is judged without them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
import pandas as pd

from traceprof.measures.facts import fact, of_window
from traceprof.measures.rows import (
    Bools,
    Floats,
    Ints,
    Texts,
    are_named,
    bounds,
    covered_ns,
    in_order,
    rows_by,
    unions_by,
)
from traceprof.measures.steps.between import (
    CHECKPOINT,
    EVALUATION,
    activity_of_ranges,
    between_steps,
)
from traceprof.measures.steps.find import find_steps
from traceprof.model.intervals import Intervals
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note
from traceprof.model.timing import OWN_DOMAIN
from traceprof.model.trace import Trace

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
_FEW_KERNELS: Final = 0.01
"""Copies that come before more kernels than this are of the loop."""

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
    ranges = trace.ranges.to_frame()
    collections = ranges[(ranges["domain"] == OWN_DOMAIN) & (ranges["name"] == "gc")]
    tables.append(collections[columns].assign(kind=GARBAGE))
    for name, pattern, kind in (
        ("ranges", _LOADS, LOADING),
        ("api_calls", _COMPILING_CALLS, COMPILING),
        ("api_calls", _LOADS_CODE, LOADING_KERNELS),
    ):
        tables.append(_matching(trace.table(name).to_frame(), pattern)[columns].assign(kind=kind))
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
    steps = find_steps(trace).table.to_frame()
    own = steps[steps["process"].to_numpy() == process]
    if own.empty:
        return time
    starts, ends = bounds(own)
    held = time.covered_ns(starts, np.maximum(starts, ends)) > 0
    return time - Intervals.union_of(starts, ends) if held.mean() > _MOST else time


def compiling_ranges(trace: Trace) -> pd.DataFrame:
    """Return the ranges of the window that compile code for devices, by their names."""
    return _matching(trace.ranges.to_frame(), _COMPILES)


def _matching(frame: pd.DataFrame, pattern: re.Pattern[str]) -> pd.DataFrame:
    return frame[are_named(frame["name"], pattern)]


def _warmup(trace: Trace) -> pd.DataFrame:
    steps = find_steps(trace)
    own = steps.table.to_frame().loc[
        steps.warmup(), ["process", "device_start_ns", "device_end_ns"]
    ]
    return own.set_axis(["process", "start_ns", "end_ns"], axis=1).assign(kind=WARMUP)


def _copies(trace: Trace) -> pd.DataFrame:
    """Return the copies to devices before the first step, or before most of the kernels."""
    copies, table = trace.copies.to_frame(), find_steps(trace).table.to_frame()
    own = copies.loc[copies["direction"] == "h2d", ["process", "start_ns", "end_ns"]]
    limits = table.groupby("process")["device_start_ns"].min()
    if limits.empty:
        limits = trace.kernels.to_frame().groupby("process")["start_ns"].quantile(_FEW_KERNELS)
    before = own["start_ns"] < own["process"].map(limits)
    return own[before].assign(kind=LOADING)


_LEAST: Final = 0.001
"""What takes a smaller share of the recording is no cost that anybody would mend."""
_COLUMNS: Final = ("kind", "count", "total_ns", "outside_ns", "start_ns", "end_ns", "process")


@of_window
def one_off_costs(ranks: Ranks) -> pd.DataFrame:
    """Return what each process paid once, in the whole recording.

    Columns: kind (of `traceprof.measures.steps.costs.ONE_OFF_KINDS`), count (how often), total_ns
    (how long: no time counts for two kinds), outside_ns (how much of that lies outside the window),
    start_ns and end_ns (of the first and the last of it, on the clock of the run) and process. The
    longest come first.
    What takes less than a thousandth of the recording is left out.
    """
    rows = []
    for part in ranks:
        for (process, kind), (count, time) in costs_of_processes(part).items():
            inside_ns = time.clip(ranks.span.start_ns, ranks.span.end_ns).total_ns
            if time.total_ns >= _LEAST * ranks.whole.span.duration_ns:
                sums = (kind, count, time.total_ns, time.total_ns - inside_ns)
                rows.append((*sums, int(time.starts[0]), int(time.ends[-1]), process))
    table = pd.DataFrame(rows, columns=list(_COLUMNS))
    return in_order(table, "-total_ns", "process", "kind")


OCCASIONS: Final = (EVALUATION, CHECKPOINT, COMPILING, LOADING_KERNELS, GARBAGE)
"""What is done now and then, beside the steps."""

_FLOOR: Final = 0.05
_EXPLAINS: Final = 0.5
_MOST_OF_STEPS: Final = 0.5
"""What is done in more of the steps than this belongs to the loop."""


def occasions_in(trace: Trace, spans: pd.DataFrame) -> Mapping[str, Floats]:
    """Return how long each of `OCCASIONS` took in each of ``spans`` (process, start_ns, end_ns)."""
    between = between_steps(trace)
    times: dict[str, dict[int, Intervals]] = {kind: {} for kind in OCCASIONS}
    for kind in OCCASIONS:
        # A forward pass between two steps is evaluation whatever it is called.
        times[kind].update(unions_by(between[between["cause"] == kind]))
    for (process, kind), (_, time) in costs_of_processes(trace).items():
        if kind in times:
            known = times[kind].get(process, Intervals.empty())
            times[kind][process] = known | time
    return {kind: np.nan_to_num(covered_ns(spans, own)) for kind, own in times.items()}


def explained_by(steps: pd.DataFrame, took: Mapping[str, Floats], is_judged: Bools) -> Texts:
    """Return what of `OCCASIONS` made each step longer; "" for the others.

    ``took`` is what `occasions_in` says of ``steps`` (process, step, duration_ns). A step is
    explained that takes at least 5 % longer than those of its process without, and at least half
    of that is known. Ranks wait for one another: what one did in a step explains the others', too.
    """
    names = np.array(list(took), object)
    own_ns = pd.DataFrame(dict(took), steps.index)
    each = own_ns.groupby(steps["step"]).transform("max").to_numpy(np.float64)
    whole = each.sum(axis=1)
    durations = steps["duration_ns"].to_numpy(np.float64)
    found = np.full(len(steps), "", object)
    judged = np.flatnonzero(is_judged)
    by_process: Mapping[int, Ints] = rows_by(steps.iloc[judged], "process")
    for own in by_process.values():
        rows = judged[own]
        has = whole[rows] > _FLOOR * float(np.median(durations[rows]))
        if not has.any() or has.mean() > _MOST_OF_STEPS:
            continue
        typical = float(np.median(durations[rows[~has]]))
        excess = durations[rows] - typical
        is_known = has & (excess > _FLOOR * typical) & (whole[rows] >= _EXPLAINS * excess)
        found[rows[is_known]] = names[each[rows[is_known]].argmax(axis=1)]
    return found


def notes_on_occasions(steps: pd.DataFrame) -> Iterable[Note]:
    """Say what each of `OCCASIONS` costs, of the process that pays the most.

    ``steps`` is the table of the measured steps.
    """
    steady = steps[~steps["is_warmup"].to_numpy(np.bool_)]
    chosen = steady[(steady["excess_cause"] != "").to_numpy(np.bool_)]
    for kind, rows in chosen.groupby("excess_cause", sort=True):
        sums = rows.groupby("process")["excess_ns"].sum()
        own = rows[rows["process"] == sums.idxmax()]
        of_process = steady.loc[steady["process"] == sums.idxmax(), "duration_ns"]
        yield Note.of(
            f"{{kind}} {_how_often(own)}, {{share:ratio}} of the loop",
            kind=str(kind),
            n=len(own),
            step=int(own["step"].iloc[0]),
            every=_distance(own),
            each=float(own["excess_ns"].mean()),
            share=float(own["excess_ns"].sum() / of_process.sum()),
        )


def _how_often(rows: pd.DataFrame) -> str:
    if len(rows) == 1:
        return "in step {step}: {each:ns}"
    if _distance(rows):
        return "every {every:count} steps: {each:ns} each"
    return "in {n:count} steps: {each:ns} each"


def _distance(rows: pd.DataFrame) -> int:
    """Return how many steps lie between each and the next; 0 where that differs."""
    apart = np.unique(np.diff(np.sort(rows["step"].to_numpy(np.int64))))
    return int(apart[0]) if len(apart) == 1 else 0
