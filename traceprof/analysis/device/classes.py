"""Kernels by class and phase: what kind of work, how short, on tensor cores or not."""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.facts.launches import launches_of, phases_of_work
from traceprof.facts.names.kernels import SHORT_NS, uses_tensor_cores
from traceprof.facts.names.phases import PHASES, UNCLAIMED
from traceprof.model.activity import Activity
from traceprof.model.combining import medians_of
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
                    "total_ns in kernels named after tensor-core instructions; not known of work "
                    "that has no use for them",
                ),
                derived("tensor_core_ratio", Unit.RATIO, "tensor_core_ns of total_ns"),
                total("launch_ns", Unit.NS, "host time in the calls that launched them"),
            ),
        ),
    )
)
_MATRIX_WORK: Final = (
    Activity.GEMM.value,
    Activity.CONVOLUTION.value,
    Activity.ATTENTION.value,
)


def measure_classes(trace: Trace) -> Result:
    """Return the kernels by activity and phase."""
    kernels = trace.kernels
    launches = launches_of(trace, "kernels")
    activity = kernels["activity"].cat
    durations = np.asarray(kernels["end_ns"] - kernels["start_ns"], np.int64)
    rows = pd.DataFrame(
        {
            "activity": activity.codes.to_numpy(),
            "phase": phases_of_work(trace, "kernels"),
            "count": 1,
            "total_ns": durations,
            "short_count": (durations < SHORT_NS).astype(np.int64),
            "tensor_core_ns": durations * uses_tensor_cores(kernels["name"]),
            "launch_ns": np.where(launches.is_known, launches.end_ns - launches.start_ns, 0),
        }
    )
    groups = rows.groupby(["activity", "phase"])
    table = groups.sum().reset_index()
    names = np.array([*PHASES, UNCLAIMED], object)
    table["activity"] = activity.categories.to_numpy(object)[table["activity"].to_numpy()]
    table["phase"] = names[table["phase"].to_numpy()]
    table["tensor_core_ns"] = table["tensor_core_ns"].where(table["activity"].isin(_MATRIX_WORK))
    samples = Samples(np.asarray(groups.ngroup(), np.int64), durations)
    return Result("classes", SPEC, {"classes": table}, samples={"classes": samples})


def _finish(result: Result) -> Result:
    table = result.table
    whole_ns = int(table["total_ns"].sum()) or 1
    table = table.assign(
        share_ratio=table["total_ns"] / whole_ns,
        median_ns=medians_of(table, result.samples["classes"]),
        short_ratio=table["short_count"] / table["count"],
        tensor_core_ratio=table["tensor_core_ns"] / table["total_ns"].where(table["total_ns"] > 0),
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
    matrix_ns = int(matrix["total_ns"].sum())
    if matrix_ns:
        notes.append(
            Note.of(
                "{share:ratio} of the matrix work (GEMM, convolution, attention) ran in kernels "
                "named after tensor cores",
                share=float(matrix["tensor_core_ns"].sum()) / matrix_ns,
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
