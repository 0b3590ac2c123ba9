"""Kernels by name, duration, class, and phase, and together with copies and calls as in nvprof."""

from __future__ import annotations

from typing import Final

import numpy as np

from traceprof.measures.analyses import Analysis
from traceprof.measures.durations import DURATIONS, finish_durations, summarize
from traceprof.measures.host.launches import launches_of
from traceprof.measures.host.phases import phases_of_work
from traceprof.measures.rows import grouped, lengths_of, ratio_of, where_known
from traceprof.model.combining import medians_of
from traceprof.model.grouping import codes_of, groups_of
from traceprof.model.intervals import sorted_distinct
from traceprof.model.results import Note, Result, ResultSpec, Samples
from traceprof.model.table import Names, Table, is_known
from traceprof.model.trace import Trace
from traceprof.names.kernels import MATRIX_WORK, SHORT_NS, MatrixUnits, copy_titles, matrix_units
from traceprof.names.ranges import PHASES, UNCLAIMED

KERNELS_SPEC: Final = ResultSpec.of(
    """
    table kernels: one row per kernel name, by total time (summed over streams and GPUs)
    key name: kernel name
    key activity: kernel class
    """,
    *DURATIONS,
)


def measure_kernels(trace: Trace) -> Result:
    """Return the kernels by name; a kernel that the window cuts counts with its part inside."""
    table, samples = summarize(trace.kernels, ["name", "activity"])
    return Result("kernels", KERNELS_SPEC, {"kernels": table}, samples={"kernels": samples})


KERNELS = Analysis(
    "kernels", KERNELS_SPEC, needs=("kernels",), of_rank=measure_kernels, finish=finish_durations
)


HISTOGRAM_SPEC: Final = ResultSpec.of("""
    table durations: one row per kernel name and duration range (9% wide), by the total time of the
        kernel
    key name: kernel name
    key lower_bound_ns: shortest duration in the row
    same upper_bound_ns: upper bound of the duration (exclusive)
    total count: number of kernels
    total total_ns: total duration of the kernels
    """)
_BINS_PER_DOUBLING: Final = 8
_EDGES_NS: Final = sorted_distinct(
    np.ceil(2.0 ** (np.arange(62 * _BINS_PER_DOUBLING) / _BINS_PER_DOUBLING)).astype(np.int64)
)


def measure_histogram(trace: Trace) -> Result:
    """Return the number of launches of each kernel by duration."""
    durations = np.maximum(lengths_of(trace.kernels), 0)
    place = np.maximum(np.searchsorted(_EDGES_NS, durations, side="right") - 1, 0)
    groups, keys = grouped({"name": trace.kernels["name"], "place": place})
    table = Table(
        {
            "name": keys["name"],
            "lower_bound_ns": _EDGES_NS[keys["place"]],
            "upper_bound_ns": _EDGES_NS[keys["place"] + 1],
            "count": groups.counts,
            "total_ns": groups.reduced(np.add, durations),
        }
    )
    return Result("durations", HISTOGRAM_SPEC, {"durations": table})


def _finish_histogram(result: Result) -> Result:
    """Return the rows sorted by the total time of their kernel name, then by duration."""
    table = result.table
    names = groups_of(codes_of(table["name"]))
    table = table.assign(whole=names.reduced(np.add, table["total_ns"])[names.number])
    return result.with_table(table.in_order("-whole", "name", "lower_bound_ns").without("whole"))


HISTOGRAM = Analysis(
    "durations",
    HISTOGRAM_SPEC,
    needs=("kernels",),
    of_rank=measure_histogram,
    finish=_finish_histogram,
)


_GPU: Final = "GPU activities"
_CALLS: Final = "API calls"
_DURATION_COLUMNS: Final = {column.name: column for column in DURATIONS}
SUMMARY_SPEC: Final = ResultSpec.of(
    """
    table summary: one row per kernel, copy direction, and CUDA API call
    key kind: GPU activities, or API calls on the CPU
    key name: name of the kernel or call, or a copy direction such as [CUDA memcpy HtoD]
    derived share_ratio: total_ns as a share of all rows of the same kind
    """,
    _DURATION_COLUMNS["total_ns"],
    _DURATION_COLUMNS["count"],
    *(_DURATION_COLUMNS[f"{of}_ns"] for of in ("mean", "median", "min", "max")),
    "derived deviation_ns: standard deviation of the durations (sample standard deviation, n − 1)",
)
_TABLES: Final = ("kernels", "copies", "api_calls")


def measure_summary(trace: Trace) -> Result:
    """Return kernels, copies, and calls by name; an event that the window cuts counts in part.

    Raises:
        NotRecordedError: None of the three tables was recorded.
    """
    if not trace.recorded & set(_TABLES):
        trace.require("kernels")
    tables, rows, values = [], [], []
    n_rows = 0
    for name in _TABLES:
        events = trace.table(name)
        named = events.assign(name=copy_titles(events)) if name == "copies" else events
        table, samples = summarize(named, ["name"])
        tables.append(table.assign(kind=_CALLS if name == "api_calls" else _GPU))
        rows.append(samples.rows + n_rows)
        values.append(samples.values)
        n_rows += len(table)
    all_samples = Samples(np.concatenate(rows), np.concatenate(values))
    table = Table.stacked(tables)
    return Result("summary", SUMMARY_SPEC, {"summary": table}, samples={"summary": all_samples})


def _finish_summary(result: Result) -> Result:
    """Return the rows with derived columns, GPU activities first, sorted by total time."""
    deviation_ns = _deviations(result.table, result.samples["summary"])
    finished = finish_durations(result.with_table(result.table.assign(deviation_ns=deviation_ns)))
    kinds, total_ns = groups_of(codes_of(finished.table["kind"])), finished.table["total_ns"]
    kind_total_ns = kinds.reduced(np.add, total_ns)[kinds.number]
    table = finished.table.assign(share_ratio=ratio_of(total_ns, kind_total_ns))
    return finished.with_table(table.in_order("-kind", "-total_ns", "name"))


def _deviations(table: Table, samples: Samples) -> np.ndarray:
    """Return the standard deviation of each row's durations; 0 for a single one, as in nvprof."""
    weights = 1 if samples.counts is None else samples.counts
    counts = np.bincount(samples.rows, samples.counts, len(table))
    means = np.bincount(samples.rows, samples.values * weights, len(table)) / np.maximum(counts, 1)
    deviations = samples.values - means[samples.rows]
    deviations *= deviations
    squares = np.bincount(samples.rows, deviations * weights, len(table))
    return np.sqrt(squares / np.maximum(counts - 1, 1))


SUMMARY = Analysis(
    "summary",
    SUMMARY_SPEC,
    uses=_TABLES,
    of_rank=measure_summary,
    finish=_finish_summary,
    sums_up=True,
)


CLASSES_SPEC: Final = ResultSpec.of("""
    table classes: one row per kernel class and phase, by total time
    key activity: kernel class
    key phase: phase that launched the kernels; "" if the trace contains no phases
    total count: number of kernels
    total total_ns: total duration of the kernels, summed over streams and GPUs
    derived share_ratio: total_ns as a share of the sum over all rows
    median median_ns: median duration
    total short_count: number of kernels shorter than 10 µs
    derived short_ratio: share of the kernels shorter than 10 µs
    total tensor_core_ns: total duration of the kernels whose names indicate tensor cores (AMD:
        matrix cores); empty for kernel classes that do not use them
    derived tensor_core_ratio: tensor_core_ns as a share of total_ns without tensor_core_unknown_ns
    total launch_ns: CPU time in the calls that launched the kernels
    total tensor_core_unknown_ns: total duration of GEMM, convolution, and attention kernels whose
        names do not indicate whether they use tensor cores
    """)
_MATRIX_UNIT_COLUMNS: Final = ("tensor_core_ns", "tensor_core_unknown_ns")


def measure_classes(trace: Trace) -> Result:
    """Return the kernels by class and phase."""
    launches = launches_of(trace, "kernels")
    units, durations = matrix_units(trace.kernels), lengths_of(trace.kernels)
    phases = phases_of_work(trace, "kernels")
    groups, keys = grouped({"activity": trace.kernels["activity"], "phase": phases})
    sums = {
        "total_ns": durations,
        "short_count": (durations < SHORT_NS).astype(np.int64),
        "tensor_core_ns": durations * (units == MatrixUnits.YES.value),
        "tensor_core_unknown_ns": durations * (units == MatrixUnits.UNKNOWN.value),
        "launch_ns": np.where(launches.is_known, launches.end_ns - launches.start_ns, 0),
    }
    added = {name: groups.reduced(np.add, values) for name, values in sums.items()}
    can_use = Names.of(keys["activity"]).isin(MATRIX_WORK)
    added |= {name: where_known(added[name], can_use) for name in _MATRIX_UNIT_COLUMNS}
    keys["phase"] = np.array([*PHASES, UNCLAIMED], object)[keys["phase"]]
    table = Table(keys | {"count": groups.counts} | added)
    samples = {"classes": Samples(groups.number, durations)}
    return Result("classes", CLASSES_SPEC, {"classes": table}, samples=samples)


def _finish_classes(result: Result) -> Result:
    """Return the classes with derived columns, sorted by total time, and with notes."""
    table = result.table
    known_ns = table["total_ns"] - table["tensor_core_unknown_ns"]
    whole_ns = int(table["total_ns"].sum()) or 1
    table = table.assign(
        share_ratio=table["total_ns"] / whole_ns,
        median_ns=medians_of(table, result.samples["classes"]),
        short_ratio=table["short_count"] / table["count"],
        tensor_core_ratio=ratio_of(table["tensor_core_ns"], known_ns),
    )
    if set(table["phase"]) == {UNCLAIMED}:
        table = table.assign(phase="")
    table = table.in_order("-total_ns", "activity", "phase")
    return result.with_table(table).with_notes(*_notes(table))


def _notes(table: Table) -> list[Note]:
    """Return the share of short kernels, and the share of matrix work on tensor cores."""
    if table.empty:
        return []
    notes = [
        Note.of(
            "{share:ratio} of the kernels are shorter than {short:ns}. Launching all kernels took "
            "{launch:ns} of CPU time.",
            share=int(table["short_count"].sum()) / int(table["count"].sum()),
            short=SHORT_NS,
            launch=int(table["launch_ns"].sum()),
        )
    ]
    matrix = table.take(is_known(table["tensor_core_ns"]))
    known_ns = int((matrix["total_ns"] - matrix["tensor_core_unknown_ns"]).sum())
    if known_ns:
        notes.append(
            Note.of(
                "GEMM, convolution, and attention kernels spend {share:ratio} of their time on "
                "tensor cores (AMD: matrix cores), according to the kernel names.",
                share=float(matrix["tensor_core_ns"].sum()) / known_ns,
            )
        )
    return notes


CLASSES = Analysis(
    "classes",
    CLASSES_SPEC,
    needs=("kernels",),
    uses=("api_calls", "ranges", "host_ops"),
    whole=("ranges",),
    of_rank=measure_classes,
    finish=_finish_classes,
)
