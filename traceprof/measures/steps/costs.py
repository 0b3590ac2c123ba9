"""What processes pay beside their steps, and when: loading, compiling, evaluation, saving.

What is paid once is told apart; what is done now and then makes single steps longer, which are
no slow steps: its cost is told apart, and the loop is judged without them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import numpy as np

from traceprof.measures.facts import fact, of_window
from traceprof.measures.rows import (
    Bools,
    Floats,
    Texts,
    are_named,
    bounds,
    covered_ns,
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
from traceprof.model.grouping import groups_of, rows_by_value
from traceprof.model.intervals import Intervals
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note
from traceprof.model.table import Names, Table
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

_MAX_STEPS_WITH_EVALUATION_RATIO: Final = 0.5
_FIRST_KERNELS_RATIO: Final = 0.01
"""Copies that come before more kernels than this are of the loop."""

_COMPILES: Final = re.compile(
    r"(?i)nvrtc|(inductor|triton|jit).{0,99}(compile[^d]|compile$|codegen|autotun)|dynamo_timed"
    r"|compile_fx|(^|[^a-z])(compile|compilation|autotune)([^a-z]|$)"
)
_COMPILING_CALLS: Final = re.compile(r"(nvrtc|hiprtc)(Compile|Add)\w*|cuLink\w+")
_LOADS_CODE: Final = re.compile(
    r"(cu|cuda|hip)(Module|Library)(Load|GetFunction|GetKernel|GetModule)\w*"
)
_LOADS: Final = re.compile(
    r"(?i)^(load|init|initiali[sz]e|setup|set_up|build|create|prepare)"
    r"[ _-]{0,3}(\w{0,60}[ _-])?(model|weights|checkpoint|state|engine|tokenizer|optimizer|dataset)"
)


@fact
def costs_of_processes(trace: Trace) -> dict[tuple[int, str], tuple[int, Intervals]]:
    """Return how often and when each process paid for each kind."""
    spans = Table.stacked([*_named_costs(trace), _warmup(trace), _copies(trace)])
    found: dict[tuple[int, str], tuple[int, Intervals]] = {}
    starts, ends = bounds(spans)
    for process, rows in rows_by(spans, "process").items():
        taken = Intervals.empty()
        for kind in ONE_OFF_KINDS:
            chosen = rows[spans["kind"][rows] == kind]
            if not len(chosen):
                continue
            time = Intervals.union_of(starts[chosen], ends[chosen])
            left = time - taken
            taken = taken | time
            if len(left):
                is_each = kind == WARMUP
                found[process, kind] = (len(chosen) if is_each else len(time), left)
    return found


def _cost_spans(kind: str, rows: Table) -> Table:
    """Return when ``rows`` were, as costs of a kind."""
    spans = rows.select("process", "start_ns", "end_ns")
    return spans.assign(kind=Names.repeated(kind, len(rows)))


def _named_costs(trace: Trace) -> Iterator[Table]:
    """Yield the ranges and calls that are some kind of cost by their names."""
    yield _cost_spans(COMPILING, compiling_ranges(trace))
    ranges = trace.ranges
    yield _cost_spans(
        GARBAGE, ranges.take((ranges["domain"] == OWN_DOMAIN) & (ranges["name"] == "gc"))
    )
    for name, pattern, kind in (
        ("ranges", _LOADS, LOADING),
        ("api_calls", _COMPILING_CALLS, COMPILING),
        ("api_calls", _LOADS_CODE, LOADING_KERNELS),
    ):
        yield _cost_spans(kind, _matching(trace.table(name), pattern))
    for (process, cause), time in activity_of_ranges(trace).items():
        if cause in (EVALUATION, CHECKPOINT):
            outside = (
                _evaluation_outside_steps(trace, process, time) if cause == EVALUATION else time
            )
            spans = {"process": process, "start_ns": outside.starts, "end_ns": outside.ends}
            yield _cost_spans(cause, Table(spans))


def _evaluation_outside_steps(trace: Trace, process: int, time: Intervals) -> Intervals:
    """Return the evaluations of a process that are not a part of its every step.

    Most steps hold one where a teacher or a frozen encoder is asked in each: that is no evaluation.
    """
    steps = find_steps(trace).table
    process_steps = steps.take(steps["process"] == process)
    if process_steps.empty:
        return time
    starts, ends = bounds(process_steps)
    held = time.covered_ns(starts, np.maximum(starts, ends)) > 0
    return (
        time - Intervals.union_of(starts, ends)
        if held.mean() > _MAX_STEPS_WITH_EVALUATION_RATIO
        else time
    )


def compiling_ranges(trace: Trace) -> Table:
    """Return the ranges of the window that compile code for devices, by their names."""
    return _matching(trace.ranges, _COMPILES)


def _matching(table: Table, pattern: re.Pattern[str]) -> Table:
    return table.take(are_named(table["name"], pattern))


def _warmup(trace: Trace) -> Table:
    steps = find_steps(trace)
    warmup = steps.table.take(steps.warmup())
    # What the host did before any work of the first step is a part of it.
    starts = np.minimum(warmup["start_ns"], warmup["device_start_ns"])
    return _cost_spans(WARMUP, warmup.assign(start_ns=starts, end_ns=warmup["device_end_ns"]))


def _copies(trace: Trace) -> Table:
    """Return the copies to devices before the first step, or before most of the kernels.

    Without those of a size that as many have later: the first batches are no model that is loaded.
    """
    steps, kernels = find_steps(trace).table, trace.kernels
    limits = {
        p: steps["device_start_ns"][process_rows].min()
        for p, process_rows in rows_by(steps, "process").items()
    }
    if not limits:
        for process, process_rows in rows_by(kernels, "process").items():
            limits[process] = np.quantile(kernels["start_ns"][process_rows], _FIRST_KERNELS_RATIO)
    copies = trace.copies.take(trace.copies["direction"] == "h2d")
    before = np.zeros(len(copies), np.bool_)
    for process, rows in rows_by(copies, "process").items():
        before[rows] = copies["start_ns"][rows] < limits.get(process, -np.inf)
    sizes = groups_of(copies["n_bytes"])
    first = sizes.reduced(np.add, before.astype(np.int64))
    before &= (2 * first > sizes.counts)[sizes.number] if len(copies) else False
    return _cost_spans(LOADING, copies.take(before))


_MIN_COST_RATIO: Final = 0.001
"""What takes a smaller share of the recording is no cost that anybody would mend."""
_COLUMNS: Final = ("kind", "count", "total_ns", "outside_ns", "start_ns", "end_ns", "process")


@of_window
def one_off_costs(ranks: Ranks) -> Table:
    """Return what each process paid once, in the whole recording.

    Columns: kind (of `traceprof.measures.steps.costs.ONE_OFF_KINDS`), count (how often), total_ns
    (how long: no time counts for two kinds), outside_ns (how much of that lies before the start or
    after the end of the window: its gaps are steps that the table of steps names), start_ns and
    end_ns (of the first and the last of it, on the clock of the run) and process. The longest come
    first.
    What takes less than a thousandth of the recording is left out.
    """
    rows = []
    for part in ranks:
        for (process, kind), (count, time) in costs_of_processes(part).items():
            inside_ns = (time & ranks.span.hull.times).total_ns
            if time.total_ns >= _MIN_COST_RATIO * ranks.whole.span.duration_ns:
                sums = (kind, count, time.total_ns, time.total_ns - inside_ns)
                row = (*sums, int(time.starts[0]), int(time.ends[-1]), process)
                rows.append(dict(zip(_COLUMNS, row, strict=True)))
    return Table.of_rows(rows, _COLUMNS).in_order("-total_ns", "process", "kind")


OCCASIONS: Final = (EVALUATION, CHECKPOINT, COMPILING, LOADING_KERNELS, GARBAGE)
"""What is done now and then, beside the steps."""

_MIN_EXCESS_RATIO: Final = 0.05
_MIN_EXPLAINED_RATIO: Final = 0.5
_MAX_STEPS_WITH_OCCASION_RATIO: Final = 0.5
"""What is done in more of the steps than this belongs to the loop."""


def occasions_in(trace: Trace, spans: Table) -> Mapping[str, Floats]:
    """Return how long each of `OCCASIONS` took in each of ``spans`` (process, start_ns, end_ns)."""
    between = between_steps(trace)
    times: dict[str, dict[int, Intervals]] = {kind: {} for kind in OCCASIONS}
    for kind in OCCASIONS:
        # A forward pass between two steps is evaluation whatever it is called.
        times[kind].update(unions_by(between.take(between["cause"] == kind)))
    for (process, kind), (_, time) in costs_of_processes(trace).items():
        if kind in times:
            known = times[kind].get(process, Intervals.empty())
            times[kind][process] = known | time
    return {
        kind: np.nan_to_num(covered_ns(spans, by_process)) for kind, by_process in times.items()
    }


def explained_by(steps: Table, took: Mapping[str, Floats], is_judged: Bools) -> Texts:
    """Return what of `OCCASIONS` made each step longer; "" for the others.

    ``took`` is what `occasions_in` says of ``steps`` (process, step, duration_ns). A step is
    explained that takes at least 5 % longer than those of its process without, and at least half
    of that is known. Ranks wait for one another: what one did in a step explains the others', too.
    """
    names = np.array(list(took), object)
    groups = groups_of(steps["step"])
    each = groups.reduced(np.fmax, np.stack(list(took.values()), axis=1))[groups.number]
    whole = each.sum(axis=1)
    durations = steps["duration_ns"]
    found = np.full(len(steps), "", object)
    judged = np.flatnonzero(is_judged)
    for process_rows in rows_by_value(steps["process"][judged]).values():
        rows = judged[process_rows]
        has = whole[rows] > _MIN_EXCESS_RATIO * float(np.median(durations[rows]))
        if not has.any() or has.mean() > _MAX_STEPS_WITH_OCCASION_RATIO:
            continue
        typical = float(np.median(durations[rows[~has]]))
        excess = durations[rows] - typical
        is_known = (
            has
            & (excess > _MIN_EXCESS_RATIO * typical)
            & (whole[rows] >= _MIN_EXPLAINED_RATIO * excess)
        )
        found[rows[is_known]] = names[each[rows[is_known]].argmax(axis=1)]
    return found


def notes_on_occasions(steps: Table) -> Iterable[Note]:
    """Say what each of `OCCASIONS` costs, of the process that pays the most.

    ``steps`` is the table of the measured steps.
    """
    steady = steps.take(~steps["is_warmup"])
    for kind in sorted({*steady["excess_cause"].tolist()} - {""}):
        rows = steady.take(steady["excess_cause"] == kind)
        groups = groups_of(rows["process"])
        most = int(groups.reduced(np.add, rows["excess_ns"]).argmax())
        process_rows = rows.take(groups.number == most)
        of_process = steady["duration_ns"][steady["process"] == groups.keys[most][0]]
        yield Note.of(
            f"{_how_often(process_rows)} ({{share:ratio}} of loop time).",
            kind=kind,
            n=len(process_rows),
            step=int(process_rows["step"][0]),
            every=_steps_between(process_rows),
            each=float(process_rows["excess_ns"].mean()),
            share=float(process_rows["excess_ns"].sum() / of_process.sum()),
        )


def _how_often(rows: Table) -> str:
    if len(rows) == 1:
        return "Step {step}: {kind}, {each:ns}"
    if _steps_between(rows):
        return "Every {every:count} steps: {kind}, {each:ns} each"
    return "In {n:count} steps: {kind}, {each:ns} each"


def _steps_between(rows: Table) -> int:
    """Return how many steps lie between each and the next; 0 where that differs."""
    distances = np.unique(np.diff(np.sort(rows["step"])))
    return int(distances[0]) if len(distances) == 1 else 0
