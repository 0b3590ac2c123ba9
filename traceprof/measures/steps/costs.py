"""Measures the costs of processes outside normal steps: loading, compiling, evaluation, saving.

One-time costs are reported separately. Periodic costs make single steps longer. These steps do not
count as slow: their cost is reported separately, and the training loop is analyzed without them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import numpy as np

from traceprof.measures.facts import fact, of_window
from traceprof.measures.host.launches import launches_of
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
    ROLLOUT,
    activity_of_ranges,
    between_steps,
)
from traceprof.measures.steps.find import find_steps
from traceprof.measures.steps.from_passes import FORWARD_PASSES
from traceprof.measures.workload import TRAINING, workload
from traceprof.model.grouping import groups_of, rows_by_value
from traceprof.model.intervals import Intervals
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note
from traceprof.model.table import Names, Table
from traceprof.model.timing import TRACEPROF_DOMAIN
from traceprof.model.trace import DEVICE_TABLES, Trace
from traceprof.names.kernels import MATRIX_WORK

LOADING, COMPILING, WARMUP = "loading", "compiling", "warm-up"
LOADING_KERNELS = "loading kernels"
GARBAGE = "garbage collection"
ONE_OFF_KINDS: Final = (
    *(COMPILING, LOADING_KERNELS, GARBAGE, CHECKPOINT, EVALUATION, WARMUP, LOADING),
)
"""Kinds of one-time costs, in the order in which they claim time.

compiling: ranges and calls that compile code for devices. loading kernels: calls that load device
code. garbage collection: full collections of Python, which stop all threads. checkpoint and
evaluation: ranges with such names. warm-up: the warm-up steps, without compilation. loading: ranges
at the beginning that load or build the model, and copies to a device before the first step.
"""

_MAX_STEPS_WITH_EVALUATION_RATIO: Final = 0.5
_FIRST_KERNELS_RATIO: Final = 0.01
"""If there are no steps, copies after this share of the kernels belong to the loop."""

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
    """Return, by process and kind of cost, how often and when the process paid it."""
    spans = Table.stacked([*_named_costs(trace), _warmup(trace), _copies(trace)])
    found: dict[tuple[int, str], tuple[int, Intervals]] = {}
    starts, ends = bounds(spans)
    for process, rows in rows_by(spans, "process").items():
        claimed = Intervals.empty()
        for kind in ONE_OFF_KINDS:
            chosen = rows[spans["kind"][rows] == kind]
            if not len(chosen):
                continue
            time = Intervals.union_of(starts[chosen], ends[chosen])
            unclaimed = time - claimed
            claimed = claimed | time
            if len(unclaimed):
                found[process, kind] = (len(chosen) if kind == WARMUP else len(time), unclaimed)
    return found


def _cost_spans(kind: str, rows: Table) -> Table:
    """Return the times of ``rows`` as costs of a kind."""
    return rows.select("process", "start_ns", "end_ns").assign(kind=Names.repeated(kind, len(rows)))


def _named_costs(trace: Trace) -> Iterator[Table]:
    """Yield the ranges and calls whose names indicate a kind of cost."""
    yield _cost_spans(COMPILING, compiling_ranges(trace))
    ranges, steps = trace.ranges, find_steps(trace).table
    garbage = ranges.take((ranges["domain"] == TRACEPROF_DOMAIN) & (ranges["name"] == "gc"))
    # Imports and the construction of a model collect before the first step; training does not.
    first = {p: steps["start_ns"][rows].min() for p, rows in rows_by(steps, "process").items()}
    begins = [first.get(process, -np.inf) for process in garbage["process"].tolist()]
    yield _cost_spans(GARBAGE, garbage.take(garbage["end_ns"] > np.array(begins)))
    saved = trace.copies["n_bytes"][trace.copies["direction"] == "d2h"]
    if len(saved) >= _MIN_SAVED_COPIES and saved.sum() >= _MIN_SAVED_BYTES:
        yield _cost_spans(CHECKPOINT, unnamed_checkpoints(trace))
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
            yield _cost_spans(
                cause,
                Table({"process": process, "start_ns": outside.starts, "end_ns": outside.ends}),
            )


_MIN_SAVED_COPIES: Final = 8
_MIN_SAVED_BYTES: Final = 20_000_000
"""Minimum number and bytes of the copies of a checkpoint: parameters and optimizer states."""
_MAX_RETURNED_RATIO: Final = 0.5
"""An optimizer on the CPU copies gradients to the CPU and parameters back to the GPU."""


@fact
def unnamed_checkpoints(trace: Trace) -> Table:
    """Return process, start_ns, and end_ns of checkpoints that no range names.

    A checkpoint copies many tensors to the CPU. Between these copies, the process launches no
    matrix products, and it copies less than half of the bytes back to the GPU. The checkpoint lasts
    from the first of these copies until the process launches other work, because it writes the
    file in between. Kernels run in less than half of this time. In training steps only, and if at
    most every second step copies so much.
    """
    steps, found = find_steps(trace), []
    copies, kernels = trace.copies, trace.kernels
    if not len(steps) or workload(Ranks.of(trace)).kind != TRAINING:
        return steps.table.head(0)
    of_copies, of_kernels = launches_of(trace, "copies"), launches_of(trace, "kernels")
    is_saved, is_sent = (
        of_copies.is_known & (copies["direction"] == way) for way in ("d2h", "h2d")
    )
    is_matrix = kernels["activity"].isin(tuple(activity.value for activity in MATRIX_WORK))
    sizes = np.maximum(copies["n_bytes"], 0)
    for process in rows_by(steps.table, "process"):
        is_of_process = copies["process"] == process
        matrix = np.sort(of_kernels.start_ns[is_matrix & (kernels["process"] == process)])
        place = np.searchsorted(matrix, of_copies.start_ns)
        saved, sent = (
            np.bincount(place[rows], sizes[rows], len(matrix) + 1)
            for rows in (is_saved & is_of_process, is_sent & is_of_process)
        )
        counts = np.bincount(place[is_saved & is_of_process], minlength=len(matrix) + 1)
        is_long = (counts >= _MIN_SAVED_COPIES) & (saved >= _MIN_SAVED_BYTES)
        is_long &= sent < _MAX_RETURNED_RATIO * saved
        rows = np.flatnonzero(is_saved & is_of_process & is_long[place])
        # The first and the last of an odd number of steps may both have one.
        if not len(rows) or 2 * is_long.sum() > len(steps) + 1:
            continue
        groups = groups_of(place[rows])
        starts = groups.reduced(np.minimum, of_copies.start_ns[rows])
        ends = groups.reduced(np.maximum, of_copies.end_ns[rows])
        others = is_of_process & ~is_saved & of_copies.is_known
        launched = of_kernels.start_ns[of_kernels.is_known & (kernels["process"] == process)]
        following = np.sort(np.concatenate((launched, of_copies.start_ns[others])))
        following = np.append(following, max(trace.span.end_ns, int(ends.max())))
        ends = following[np.searchsorted(following, ends)]
        # Asynchronous copies during kernels do not stall the loop.
        running = Intervals.union_of(*bounds(kernels.take(kernels["process"] == process)))
        stalls = 2 * running.covered_ns(starts, ends) < ends - starts
        starts, ends = starts[stalls], ends[stalls]
        found.append(Table({"process": process, "start_ns": starts, "end_ns": ends}))
    return Table.stacked(found) if found else steps.table.head(0)


def _evaluation_outside_steps(trace: Trace, process: int, time: Intervals) -> Intervals:
    """Return the evaluation time of a process without evaluations that are part of every step.

    If most steps contain an evaluation, it is a teacher model or a frozen encoder that each step
    runs, not an evaluation. Repeated forward passes of a process that never trains are its work: it
    serves, or rolls out for a trainer.
    """
    steps = find_steps(trace)
    process_steps = steps.table.take(steps.table["process"] == process)
    if process_steps.empty or steps.source == FORWARD_PASSES:
        activity = activity_of_ranges(trace)
        trains = any(len(activity.get((process, phase), ())) for phase in ("forward", "backward"))
        if not trains and len(time) > 1:
            return Intervals.empty()
        return time - activity.get((process, ROLLOUT), Intervals.empty())
    starts, ends = bounds(process_steps)
    has_evaluation = time.covered_ns(starts, np.maximum(starts, ends)) > 0
    return (
        time - Intervals.union_of(starts, ends)
        if has_evaluation.mean() > _MAX_STEPS_WITH_EVALUATION_RATIO
        else time
    )


def compiling_ranges(trace: Trace) -> Table:
    """Return the ranges of the window whose names indicate compilation for devices."""
    return _matching(trace.ranges, _COMPILES)


def _matching(table: Table, pattern: re.Pattern[str]) -> Table:
    """Return the rows whose name matches ``pattern``."""
    return table.take(are_named(table["name"], pattern))


def _warmup(trace: Trace) -> Table:
    """Return the warm-up steps as costs, including host work before the first GPU work."""
    steps = find_steps(trace)
    warmup = steps.table.take(steps.warmup())
    # Host work before the first GPU work is part of the first step.
    starts = np.minimum(warmup["start_ns"], warmup["device_start_ns"])
    return _cost_spans(WARMUP, warmup.assign(start_ns=starts, end_ns=warmup["device_end_ns"]))


def _copies(trace: Trace) -> Table:
    """Return the copies to devices before the first step; without steps, before most kernels.

    Copies of a size that is as frequent later are excluded: the first batches are not a loaded
    model.
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
"""Costs below this share of the recording are too small to be worth fixing."""
_COLUMNS: Final = ("kind", "count", "total_ns", "outside_ns", "start_ns", "end_ns", "process")


@of_window
def one_off_costs(ranks: Ranks) -> Table:
    """Return the one-time costs of each process in the whole recording, longest first.

    Columns: kind (of `traceprof.measures.steps.costs.ONE_OFF_KINDS`), count (occurrences), total_ns
    (no time counts for two kinds), outside_ns (part of total_ns before the start or after the end
    of the window; the gaps of the window are steps that the table of steps lists), start_ns and
    end_ns (of the first and the last occurrence, on the clock of the run), and process. Costs below
    a thousandth of the recording are omitted.
    """
    rows = []
    for part in ranks:
        for (process, kind), (count, time) in costs_of_processes(part).items():
            inside_ns = (time & ranks.span.hull.times).total_ns
            if time.total_ns >= _MIN_COST_RATIO * ranks.whole.span.duration_ns:
                lengths = time.total_ns, time.total_ns - inside_ns
                row = (kind, count, *lengths, int(time.starts[0]), int(time.ends[-1]), process)
                rows.append(dict(zip(_COLUMNS, row, strict=True)))
    return Table.of_rows(rows, _COLUMNS).in_order("-total_ns", "process", "kind")


OCCASIONS: Final = (EVALUATION, CHECKPOINT, COMPILING, LOADING_KERNELS, GARBAGE)
"""Kinds of periodic costs."""

_MIN_EXCESS_RATIO: Final = 0.05
_MIN_EXPLAINED_RATIO: Final = 0.5
_MAX_STEPS_WITH_OCCASION_RATIO: Final = 0.5
"""A cost in a larger share of the steps is part of the loop."""
_MAX_STEPS_OF_COST: Final = 2


def occasions_in(trace: Trace, spans: Table) -> Mapping[str, Floats]:
    """Return the time of each of `OCCASIONS` in each of ``spans``, which are `launching_spans`.

    If the work that a cost launches takes longer on the devices in a step, that time counts.
    """
    between = between_steps(trace, has_waits=False)
    on_device = spans.assign(start_ns=spans["device_start_ns"], end_ns=spans["device_end_ns"])
    times: dict[str, dict[int, Intervals]] = {kind: {} for kind in OCCASIONS}
    for kind in OCCASIONS:
        # A forward pass between two steps is an evaluation, regardless of its name.
        times[kind].update(unions_by(between.take(between["cause"] == kind)))
    for (process, kind), (_, time) in costs_of_processes(trace).items():
        if kind in times:
            times[kind][process] = times[kind].get(process, Intervals.empty()) | time
    found = {}
    for kind, by_process in times.items():
        is_launched = by_process and kind in (CHECKPOINT, EVALUATION)
        launched = _launched_within(trace, by_process) if is_launched else {}
        on_host, of_work = covered_ns(spans, by_process), covered_ns(on_device, launched)
        found[kind] = np.maximum(np.nan_to_num(on_host), np.nan_to_num(of_work))
    return found


def _launched_within(trace: Trace, times: Mapping[int, Intervals]) -> dict[int, Intervals]:
    """Return the device time of the work that each process launched within its ``times``."""
    found: dict[int, Intervals] = {}
    for name in DEVICE_TABLES:
        launches, table = launches_of(trace, name), trace.table(name)
        for process, time in times.items():
            rows = np.flatnonzero((launches.process == process) & launches.is_known)
            starts = launches.start_ns[rows]
            inside = table.take(rows[time.covered_ns(starts, starts + 1) > 0])
            found[process] = found.get(process, Intervals.empty()) | Intervals.union_of(
                *bounds(inside)
            )
    return found


def explained_by(steps: Table, times: Mapping[str, Floats], is_included: Bools) -> Texts:
    """Return the periodic cost (of `OCCASIONS`) that made each step longer; "" for other steps.

    ``times`` is the result of `occasions_in` for ``steps`` (process, step, duration_ns). A cost
    explains a step if the step takes at least 5% longer than the steps of its process without
    costs, and the cost is at least half of the excess. Ranks wait for each other, so a cost of one
    rank in a step also explains the same step of the other ranks.
    """
    names = np.array(list(times), object)
    groups = groups_of(steps["step"])
    each = groups.reduced(np.fmax, np.stack(list(times.values()), axis=1))[groups.number]
    whole = each.sum(axis=1)
    durations = steps["duration_ns"]
    found = np.full(len(steps), "", object)
    included = np.flatnonzero(is_included)
    for process_rows in rows_by_value(steps["process"][included]).values():
        rows = included[process_rows]
        has = whole[rows] > _MIN_EXCESS_RATIO * float(np.median(durations[rows]))
        if not has.any() or _count_costs(has) > _MAX_STEPS_WITH_OCCASION_RATIO * len(has):
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


def _count_costs(has: Bools) -> int:
    """Return the number of costs, of which each makes one step or two consecutive steps longer.

    A cost between two steps makes both longer. If more steps follow each other, each has its own.
    """
    first, last = np.flatnonzero(np.diff(has, prepend=False, append=False)).reshape(-1, 2).T
    return len(first) if (last - first).max(initial=0) <= _MAX_STEPS_OF_COST else int(has.sum())


def notes_on_occasions(steps: Table) -> Iterable[Note]:
    """Yield a note on the cost of each of `OCCASIONS`, for the process that pays the most.

    ``steps`` is the table of the measured steps.
    """
    steady = steps.take(~steps["is_warmup"])
    for kind in sorted({*steady["excess_cause"].tolist()} - {""}):
        rows = steady.take(steady["excess_cause"] == kind)
        groups = groups_of(rows["process"])
        place_of_most = int(groups.reduced(np.add, rows["excess_ns"]).argmax())
        process_rows = joined_over_borders(rows.take(groups.number == place_of_most), kind)
        of_process = steady["duration_ns"][steady["process"] == groups.keys[place_of_most][0]]
        yield Note.of(
            f"{_how_often(process_rows)} ({{share:ratio}} of loop time).",
            kind=kind,
            n=len(process_rows),
            step=int(process_rows["step"][0]),
            every=steps_between(process_rows),
            each=float(process_rows["excess_ns"].mean()),
            share=float(process_rows["excess_ns"].sum() / of_process.sum()),
        )


def joined_over_borders(rows: Table, kind: str) -> Table:
    """Return the step and excess_ns of each occurrence of a cost in the steps of one process.

    A checkpoint or an evaluation at the end of a step makes this step and the next one longer.
    """
    step, excess = rows["step"], rows["excess_ns"]
    is_first = np.append(True, np.diff(step) != 1) | (kind not in (CHECKPOINT, EVALUATION))
    first = np.flatnonzero(is_first)
    return Table({"step": step[first], "excess_ns": np.add.reduceat(excess, first)})


def _how_often(rows: Table) -> str:
    """Return a sentence template on the frequency of a periodic cost."""
    if len(rows) == 1:
        return "Step {step}: {kind}, {each:ns}"
    if steps_between(rows):
        return "Every {every:count} steps: {kind}, {each:ns} each"
    return "In {n:count} steps: {kind}, {each:ns} each"


def steps_between(rows: Table) -> int:
    """Return the constant number of steps between occurrences; 0 if it varies."""
    distances = np.unique(np.diff(np.sort(rows["step"])))
    return int(distances[0]) if len(distances) == 1 else 0
