"""Splits the time of each step into parts and phases, and explains which of them grew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from traceprof.measures.device.times import device_time, devices_of_processes
from traceprof.measures.facts import fact
from traceprof.measures.host.states import find_host_phases
from traceprof.measures.rows import (
    Array,
    Floats,
    Ints,
    Texts,
    covered_ns,
    ints,
    owner_of,
    rows_by,
    unions_by,
)
from traceprof.measures.steps.epochs import are_of_training
from traceprof.measures.steps.find import find_steps
from traceprof.measures.steps.from_phases import ROLLOUT
from traceprof.measures.steps.from_ranges import batch_of_engine
from traceprof.model.activity import PARTS
from traceprof.model.combining import medians_of_groups
from traceprof.model.grouping import rows_by_values
from traceprof.model.intervals import Intervals
from traceprof.model.ranks import Ranks
from traceprof.model.table import Table
from traceprof.model.timing import TRACEPROF_DOMAIN
from traceprof.model.trace import Trace
from traceprof.names.ranges import PHASES, PROFILER, PROFILER_RANGES

DEVICE_PARTS: Final = tuple(f"{part}_ns" for part in PARTS)
_DIRECTIONS: Final = ("h2d", "d2h", "p2p")


def parts_of_devices(trace: Trace, steps: Table) -> Mapping[str, Floats]:
    """Return the five parts of each step, as means over the devices that its process uses.

    They add up to the duration of the step (see `traceprof.model.activity`). NaN if the process
    uses no device.
    """
    starts, ends = ints(steps, "device_start_ns", "device_end_ns")
    used = devices_of_processes(trace)
    parts = {name: np.full(len(steps), np.nan) for name in DEVICE_PARTS}
    for process, rows in rows_by(steps, "process").items():
        times = [
            device_time(trace, device).parts_within(starts[rows], ends[rows])
            for device in used.get(process, ())
        ]
        if times:
            for part in PARTS:
                parts[f"{part}_ns"][rows] = np.mean([time[part] for time in times], axis=0)
    return parts


def phases_of_host(trace: Trace, steps: Table) -> Mapping[str, Floats]:
    """Return the host time per phase of each step; NaN if its process has no named phases.

    Only the time between start and end of the step on the host counts, not the time between steps.
    """
    times: dict[str, dict[int, Intervals]] = {}
    processes = set(steps["process"].tolist())
    for host in find_host_phases(trace):
        for phase, time in host.times.items() if host.process in processes else ():
            times.setdefault(phase, {})[host.process] = time
    times.pop(PROFILER, None)  # its ranges are incomplete: see `profiler_in_steps`
    return {f"{phase}_ns": covered_ns(steps, by_process) for phase, by_process in times.items()}


def profiler_in_steps(trace: Trace, steps: Table) -> Mapping[str, Floats]:
    """Return the host time of each step that the profiler used; {} if it used none.

    It covers profiler overheads, and the start and stop of windows of the embedded recorder.
    """
    ranges, columns = trace.ranges, ("process", "start_ns", "end_ns")
    profiler_ranges = ranges.take(ranges["domain"] == TRACEPROF_DOMAIN)
    profiler_ranges = profiler_ranges.take(profiler_ranges["name"].isin(PROFILER_RANGES))
    spans = Table.stacked([table.select(*columns) for table in (profiler_ranges, trace.overheads)])
    busy = np.nan_to_num(covered_ns(steps, unions_by(spans)))
    return {"profiler_ns": busy} if busy.any() else {}


def bytes_in_steps(trace: Trace, steps: Table) -> Mapping[str, Floats]:
    """Return the bytes of the copies that start in each step, by recorded direction."""
    columns: dict[str, Floats] = {}
    copies = trace.copies
    on_device = _with_bounds(steps, "device_start_ns", "device_end_ns")
    for direction in _DIRECTIONS:
        chosen = copies.take(copies["direction"] == direction)
        if len(chosen):
            columns[f"{direction}_bytes"] = _sums(
                on_device, chosen, np.maximum(chosen["n_bytes"], 0)
            )
    return columns


def samples_in_steps(trace: Trace, steps: Table) -> Floats:
    """Return the samples of the batches of each step of a whole recording; NaN if unknown."""
    if len(find_steps(trace)):
        batches = batches_of_steps(trace)
        sums = np.bincount(batches["row"], batches["payload"], len(steps)).astype(np.float64)
    else:  # iterations of a pattern
        batches = _batches(trace)
        sums = _sums(_with_bounds(steps, "start_ns", "next_ns"), batches, batches["payload"])
    return np.where(sums > 0, sums, np.nan)


def _batches(trace: Trace) -> Table:
    """Return the marks of batches, without batches of evaluation loaders.

    In post-training, the samples are the generated sequences, because loaders provide only prompts.
    """
    marks = trace.marks.take(trace.marks["domain"] == TRACEPROF_DOMAIN)
    marks = marks.take(marks["payload"] > 0)
    sequences = marks.take(marks["name"] == "generated.sequences")
    if len(sequences) and ROLLOUT in find_steps(trace).source:
        return sequences
    batches = marks.take(marks["name"] == "batch")
    return batches.take(are_of_training(trace, batches)) if len(batches) else batches


def tokens_in_steps(trace: Trace, steps: Table) -> Mapping[str, Floats]:
    """Return the tokens generated in each step, and the lower bounds among them; {} if unknown."""
    marks = trace.marks
    is_least = (marks["domain"] == TRACEPROF_DOMAIN) & (marks["name"] == "generated.least")
    is_tokens = (marks["domain"] == TRACEPROF_DOMAIN) & (marks["name"] == "generated.tokens")
    is_tokens = (is_tokens | is_least) & (marks["payload"] > 0)
    marks, is_least = marks.take(is_tokens), is_least[is_tokens]
    if marks.empty:
        return {}
    # The mark may follow the end of the last step.
    spans = steps.assign(end_ns=steps["next_ns"])
    for rows in rows_by(spans, "process").values():
        spans["end_ns"][rows[-1]] = np.iinfo(np.int64).max
    found = {"generated_tokens_count": _sums(spans, marks, marks["payload"])}
    if is_least.any():
        found["least_tokens_count"] = _sums(spans, marks, marks["payload"] * is_least)
    return found


def work_of_engine(trace: Trace, steps: Table) -> Mapping[str, Floats]:
    """Return the tokens and sequences of each step of an inference server; {} if unknown."""
    names = trace.ranges["name"]
    batches = np.array([batch_of_engine(text) for text in names.texts]).reshape(-1, 2)
    if not batches.any():
        return {}
    owner = owner_of(steps, trace.ranges["process"], trace.ranges["start_ns"])
    columns = {}
    for name, numbers in zip(("processed_tokens_count", "sequences_count"), batches.T, strict=True):
        found = np.zeros(len(steps))
        # The ranges of an engine can be nested, so they are not added.
        np.maximum.at(found, owner[owner >= 0], names.by_text(numbers)[owner >= 0])
        columns[name] = np.where(found > 0, found, np.nan)
    return columns


@fact
def batches_of_steps(trace: Trace) -> Table:
    """Return the marks of training batches, and the ``row`` of their step.

    A batch fetched outside any step, for example by a prefetch thread, belongs to the next step.
    """
    batches, steps = _batches(trace), find_steps(trace).table
    ends, of_steps = steps["end_ns"], rows_by(steps, "process")
    owner = np.full(len(batches), -1, np.int64)
    for process, rows in rows_by(batches, "process").items():
        step_rows = of_steps.get(process, np.empty(0, np.int64))
        at = np.searchsorted(ends[step_rows], batches["start_ns"][rows], side="right")
        owner[rows] = np.append(step_rows, -1)[at]
    return batches.assign(row=owner).take(owner >= 0)


def _with_bounds(steps: Table, start: str, end: str) -> Table:
    """Return the steps with start_ns and end_ns taken from other columns, in the same order."""
    return steps.select("process").assign(start_ns=steps[start], end_ns=steps[end])


def _sums(steps: Table, rows: Table, values: Array) -> Floats:
    """Return the sum of ``values`` of the ``rows`` that start in each step."""
    owner = owner_of(steps, rows["process"], rows["start_ns"])
    inside = owner >= 0
    return np.bincount(owner[inside], values[inside], len(steps)).astype(np.float64)


BETWEEN_STEPS: Final = "between_steps"
"""Name used like a phase for the time between two steps."""
CPU_WAIT: Final = "cpu_wait"
"""Name used like a phase for the time in which the training thread waits for a CPU core."""

_PHASES: Final = tuple(f"{name}_ns" for name in (*PHASES, BETWEEN_STEPS))
MIN_EXPLAINED_RATIO: Final = 0.5
"""Minimum share of the excess of a step that its cause explains."""


def excess_of_steps(table: Table, outliers: Ints) -> Mapping[str, Array]:
    """Return, for each outlier step, its excess over typical steps and the causes.

    ``outliers`` is 1 for slow rows of ``table``, -1 for fast rows, else 0. Typical values are the
    medians over the other steady steps of the process. Columns: excess_ns (negative for fast steps;
    NaN for steps that are no outliers); grown_part and grown_phase (the device part and the host
    phase that explain most of the excess, at least half of it; "" if none does); grown_part_ns and
    grown_phase_ns (their growth). grown_phase is `CPU_WAIT` if waiting for a CPU core explains at
    least half of the excess: it makes all phases longer.
    """
    rows = np.flatnonzero(outliers)
    process, owner = np.unique(table["process"], return_inverse=True)
    typical = ~table["is_warmup"] & (outliers == 0)
    has_typical = np.bincount(owner[typical], minlength=len(process)) > 0
    chosen = typical | ~has_typical[owner]
    waiting = f"{CPU_WAIT}_ns"
    names = [name for name in ("duration_ns", *DEVICE_PARTS, *_PHASES, waiting) if name in table]
    measures = [np.asarray(table[name], np.float64) for name in names]
    medians = [
        medians_of_groups(owner[chosen], values[chosen], len(process)) for values in measures
    ]
    change = np.stack(
        [
            values[rows] - median[owner[rows]]
            for values, median in zip(measures, medians, strict=True)
        ],
        axis=1,
    )
    excess = np.full(len(table), np.nan)
    excess[rows] = change[:, 0]
    columns: dict[str, Array] = {"excess_ns": excess}
    for column, group in (("grown_part", DEVICE_PARTS), ("grown_phase", _PHASES)):
        places = [i for i, name in enumerate(names) if name in group]
        name, grown_ns = _find_grown([names[i] for i in places], change[:, places], change[:, 0])
        if group is _PHASES and waiting in names:
            wait, wait_ns = _find_grown([waiting], change[:, -1:], change[:, 0])
            is_wait = (wait != "") & (name != PROFILER)
            name, grown_ns = np.where(is_wait, wait, name), np.where(is_wait, wait_ns, grown_ns)
        columns[column] = np.full(len(table), "", object)
        columns[column][rows] = name
        columns[f"{column}_ns"] = np.full(len(table), np.nan)
        columns[f"{column}_ns"][rows] = grown_ns
    return columns


def _find_grown(names: Sequence[str], change: Floats, excess: Floats) -> tuple[Texts, Floats]:
    """Return the name that explains most of each excess ("" if none does), and its growth in ns."""
    found, grown = np.full(len(excess), "", object), np.full(len(excess), np.nan)
    if not names or not len(excess):
        return found, grown
    share = change / np.where(excess == 0, np.nan, excess)[:, None]
    share = np.where(np.isnan(share), -np.inf, share)
    place = share.argmax(axis=1)
    index = np.arange(len(excess))
    explains = share[index, place] >= MIN_EXPLAINED_RATIO
    labels = np.array([name.removesuffix("_ns") for name in names], object)
    found[explains] = labels[place[explains]]
    grown[explains] = change[index, place][explains]
    return found, grown


_CLOCK: Final = "sm_clock_mhz"
_THROTTLED: Final = ("throttled_by_power", "throttled_by_heat")
_COUNTERS: Final[Mapping[str, str]] = {
    "torch_alloc_retries": "alloc_retries_count",
    "torch_device_alloc": "device_alloc_count",
}
THREAD_TIMES: Final[Mapping[str, str]] = {
    "thread_cpu_ns": "cpu_ns",
    "thread_cpu_wait_ns": "cpu_wait_ns",
}
"""Times of the training thread that the hooks record at step boundaries, since its start."""
_OF_GPU: Final[Mapping[str, tuple[str, np.ufunc]]] = {
    _CLOCK: (_CLOCK, np.fmin),
    "power_watts": ("power_watts", np.fmin),
    "temperature_celsius": ("temperature_celsius", np.fmax),
    "throttled_by_power": ("power_limit_ratio", np.fmax),
    "throttled_by_heat": ("heat_limit_ratio", np.fmax),
}
"""Column of each metric of a GPU, and the function that chooses the worst GPU of a process."""
MACHINE: Final = (
    *(name for name, _ in _OF_GPU.values()),
    *("throttled_ratio", *_COUNTERS.values(), *THREAD_TIMES.values()),
)
_MAX_OVERRUN_NS: Final = 200_000_000
"""A thread can wait between the reading of its times and the time of their mark: a container with a
CPU limit stops it for up to 100 ms. The next step then lacks this time, so sums are right."""
_SAMPLE_PERIOD_NS: Final = 1_000_000_000
"""Clocks are sampled once per second, so most steps contain no sample."""

_BORDERS: Final = ("at_ns", "duration_ns", "host_at_ns", "period_ns")

_Series = tuple[Ints, Floats]


def machine_in_steps(ranks: Ranks, steps: Table) -> dict[str, Floats]:
    """Return the recorded metrics of `MACHINE`, one value per step; NaN if not recorded.

    ``steps`` is the table of `MeasuredSteps`. Clocks, power, temperature, and throttling are means
    of the samples from one second before the step to its end, of the worst device of its process.
    Counts are the allocator's counts in the period of the step on the host. Times of the training
    thread are in the same period.
    """
    series = _series(ranks.whole)
    if not series:
        return {}
    origin_ns = ranks.whole.span.start_ns
    devices = {
        p: numbers for part in ranks.whole for p, numbers in devices_of_processes(part).items()
    }
    found = {name: np.full(len(steps), np.nan) for name in MACHINE}
    for process, rows in rows_by(steps, "process").items():
        start, lasts, begin, period = ints(steps, *_BORDERS, rows=rows)
        start, begin = start + origin_ns, begin + origin_ns
        on_devices = [f"gpu:{device}" for device in devices.get(process, ())]
        for metric, (name, worst) in _OF_GPU.items() if on_devices else ():
            means = [_means(series.get((gpu, metric)), start, start + lasts) for gpu in on_devices]
            found[name][rows] = worst.reduce(means)
        reasons = [found[_OF_GPU[metric][0]][rows] for metric in _THROTTLED]
        found["throttled_ratio"][rows] = np.fmax.reduce(reasons)
        for metric, name in _COUNTERS.items():
            counted = series.get((f"process:{process}", metric))
            if counted is not None:
                found[name][rows] = _last_before(counted, begin + period) - _last_before(
                    counted, begin
                )
        times = [
            _grown(series.get((f"process:{process}", metric)), begin, begin + period)
            for metric in THREAD_TIMES
        ]
        # Times that exceed the time between the two readings are those of different threads.
        is_possible = sum(grown for grown, _ in times) <= times[0][1] + _MAX_OVERRUN_NS
        for name, (grown, _) in zip(THREAD_TIMES.values(), times, strict=True):
            found[name][rows] = np.where(is_possible, grown, np.nan)
    return {name: values for name, values in found.items() if not np.isnan(values).all()}


def _grown(series: _Series | None, begin: Ints, end: Ints) -> tuple[Floats, Floats]:
    """Return the growth of a counter from ``begin`` to ``end``, and the time between its readings.

    The recorder reads the counter between two steps, so the last readings before both are used. It
    does not read it after the last step if the recording ends there. NaN without both readings.
    """
    if series is None:
        return np.full(len(begin), np.nan), np.full(len(begin), np.nan)
    times, values = series
    first, last = (np.searchsorted(times, at, side="left") for at in (begin, end))
    grown, elapsed = (
        np.concatenate(([np.nan], column))[last] - np.concatenate(([np.nan], column))[first]
        for column in (values, times)
    )
    return np.where((last > first) & (grown >= 0), grown, np.nan), elapsed


def _series(ranks: Ranks) -> dict[tuple[str, str], _Series]:
    """Return times and values of each needed source and metric, sorted by time."""
    every = Table.stacked(ranks.each(_samples_of_machine)).in_order("start_ns")
    source, metric = every["source"], every["metric"]
    return {
        (source.texts[one], metric.texts[other]): (every["start_ns"][rows], every["value"][rows])
        for (one, other), rows in rows_by_values(source, metric).items()
    }


def _samples_of_machine(part: Trace) -> Table:
    return part.samples.take(part.samples["metric"].isin((*_OF_GPU, *_COUNTERS, *THREAD_TIMES)))


def _means(series: _Series | None, start: Ints, end: Ints) -> Floats:
    """Return the mean of the samples from one second before each span to its end; NaN if none."""
    if series is None:
        return np.full(len(start), np.nan)
    times, values = series
    sums = np.concatenate(([0.0], np.cumsum(values)))
    first = np.searchsorted(times, start - _SAMPLE_PERIOD_NS, side="left")
    last = np.searchsorted(times, end, side="left")
    n = np.maximum(last - first, 0)
    return np.where(n > 0, (sums[last] - sums[first]) / np.maximum(n, 1), np.nan)


def _last_before(series: _Series, instants: Ints) -> Floats:
    """Return the last value before each instant; 0 if there is none."""
    times, values = series
    return np.concatenate(([0.0], values))[np.searchsorted(times, instants, side="left")]
