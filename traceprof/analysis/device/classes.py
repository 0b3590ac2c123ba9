"""Kernels by class and phase: what kind of work, how short, on matrix units or not."""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.facts.launches import launches_of, phases_of_work
from traceprof.model.combining import medians_of
from traceprof.model.grouping import groups_of
from traceprof.model.results import (
    Note,
    Result,
    ResultSpec,
    Samples,
    TableSpec,
    Unit,
    derived,
    key,
    median,
    total,
)
from traceprof.model.trace import Trace
from traceprof.names.kernels import MATRIX_WORK, SHORT_NS, MatrixUnits, matrix_units
from traceprof.names.ranges import PHASES, UNCLAIMED

__all__ = ["ANALYSIS"]

SPEC: Final = ResultSpec(
    tables=(
        TableSpec(
            "classes",
            "one row per activity and phase, by total time",
            (
                key("activity", "what kind of work it is"),
                key("phase", 'the phase that launched it; "" where none are named'),
                total("count", Unit.COUNT, "how many kernels"),
                total("total_ns", Unit.NS, "their durations added up over streams and devices"),
                derived("share_ratio", Unit.RATIO, "total_ns of the sum over all rows"),
                median("median_ns", Unit.NS, "the median duration"),
                total("short_count", Unit.COUNT, "how many are shorter than 10 µs"),
                derived("short_ratio", Unit.RATIO, "the share of the kernels that are that short"),
                total(
                    "tensor_core_ns",
                    Unit.NS,
                    "total_ns in kernels named after tensor cores (AMD: matrix cores); not known "
                    "of work that has no use for them",
                ),
                derived(
                    "tensor_core_ratio",
                    Unit.RATIO,
                    "tensor_core_ns of what is told: total_ns without tensor_core_unknown_ns",
                ),
                total("launch_ns", Unit.NS, "host time in the calls that launched them"),
                total(
                    "tensor_core_unknown_ns",
                    Unit.NS,
                    "total_ns in kernels of matrix work whose names do not tell",
                ),
            ),
        ),
    )
)
_OF_MATRIX_UNITS: Final = ("tensor_core_ns", "tensor_core_unknown_ns")


def measure_classes(trace: Trace) -> Result:
    """Return the kernels by activity and phase."""
    kernels = trace.kernels
    launches = launches_of(trace, "kernels")
    activity = kernels["activity"].cat
    units = matrix_units(kernels)
    durations = np.asarray(kernels["end_ns"] - kernels["start_ns"], np.int64)
    groups = groups_of(activity.codes, phases_of_work(trace, "kernels"))
    sums = {
        "total_ns": durations,
        "short_count": (durations < SHORT_NS).astype(np.int64),
        "tensor_core_ns": durations * (units == MatrixUnits.YES.value),
        "tensor_core_unknown_ns": durations * (units == MatrixUnits.UNKNOWN.value),
        "launch_ns": np.where(launches.is_known, launches.end_ns - launches.start_ns, 0),
    }
    table = pd.DataFrame(
        np.array(groups.keys, np.int64).reshape(-1, 2), columns=["activity", "phase"]
    ).assign(
        count=groups.counts,
        **{name: groups.reduced(np.add, values) for name, values in sums.items()},
    )
    names = np.array([*PHASES, UNCLAIMED], object)
    table["activity"] = activity.categories.to_numpy(object)[table["activity"].to_numpy()]
    table["phase"] = names[table["phase"].to_numpy()]
    can_use = table["activity"].isin([activity.value for activity in MATRIX_WORK])
    for name in _OF_MATRIX_UNITS:
        table[name] = table[name].where(can_use)
    samples = Samples(groups.number.astype(np.int64), durations)
    return Result("classes", SPEC, {"classes": table}, samples={"classes": samples})


def _finish(result: Result) -> Result:
    table = result.table
    told_ns = table["total_ns"] - table["tensor_core_unknown_ns"]
    whole_ns = int(table["total_ns"].sum()) or 1
    table = table.assign(
        share_ratio=table["total_ns"] / whole_ns,
        median_ns=medians_of(table, result.samples["classes"]),
        short_ratio=table["short_count"] / table["count"],
        tensor_core_ratio=table["tensor_core_ns"] / told_ns.where(told_ns > 0),
    )
    if set(table["phase"]) == {UNCLAIMED}:
        table["phase"] = ""
    order = ["total_ns", "activity", "phase"]
    table = table.sort_values(order, ascending=[False, True, True], ignore_index=True)
    return result.with_table(table).with_notes(*_notes(table))


def _notes(table: pd.DataFrame) -> list[Note]:
    if table.empty:
        return []
    notes = [
        Note.of(
            "{share:ratio} of the kernels are shorter than {short:ns}; the calls that launched "
            "them all took {launch:ns} of host time",
            share=int(table["short_count"].sum()) / int(table["count"].sum()),
            short=SHORT_NS,
            launch=int(table["launch_ns"].sum()),
        )
    ]
    matrix = table[table["tensor_core_ns"].notna()]
    told_ns = int((matrix["total_ns"] - matrix["tensor_core_unknown_ns"]).sum())
    if told_ns:
        notes.append(
            Note.of(
                "{share:ratio} of the matrix work (GEMM, convolution, attention) whose kernels' "
                "names tell ran on tensor cores (AMD: matrix cores)",
                share=float(matrix["tensor_core_ns"].sum()) / told_ns,
            )
        )
    return notes


ANALYSIS = Analysis(
    name="classes",
    spec=SPEC,
    needs=("kernels",),
    uses=("api_calls", "ranges", "host_ops"),
    whole=("ranges",),
    of_rank=measure_classes,
    finish=_finish,
)
