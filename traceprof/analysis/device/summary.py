"""Work of the devices and calls of CUDA by name, as ``nvprof`` and ``nsys stats`` sum them up."""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.analysis.statistics import DURATIONS, finish_durations, summarise
from traceprof.model.results import Result, ResultSpec, Samples, TableSpec, Unit, derived, key
from traceprof.model.trace import Trace
from traceprof.names.kernels import copy_titles

__all__ = ["ANALYSIS"]

_GPU: Final = "GPU activities"
_CALLS: Final = "API calls"
_OF_DURATIONS: Final = {column.name: column for column in DURATIONS}
SPEC: Final = ResultSpec(
    tables=(
        TableSpec(
            "summary",
            "one row per kernel, direction of copies and call of CUDA; shares are of the kind",
            (
                key("kind", "GPU activities, or API calls of the host"),
                key("name", "the name of the kernel or the call, or [CUDA memcpy HtoD] …"),
                derived("share_ratio", Unit.RATIO, "total_ns of the sum over the rows of the kind"),
                _OF_DURATIONS["total_ns"],
                _OF_DURATIONS["count"],
                *(_OF_DURATIONS[f"{of}_ns"] for of in ("mean", "median", "min", "max")),
                derived(
                    "deviation_ns",
                    Unit.NS,
                    "the standard deviation of the durations (of a sample: n − 1)",
                ),
            ),
        ),
    )
)
_TABLES: Final = ("kernels", "copies", "api_calls")


def measure_summary(trace: Trace) -> Result:
    """Return kernels, copies and calls by name; of what the window cuts its part inside."""
    if not trace.recorded & set(_TABLES):
        trace.require("kernels")
    tables, rows, values = [], [], []
    n_rows = 0
    for name in _TABLES:
        table, samples = summarise(_named(trace.table(name), name), ["name"])
        tables.append(table.assign(kind=_CALLS if name == "api_calls" else _GPU))
        rows.append(samples.rows + n_rows)
        values.append(samples.values)
        n_rows += len(table)
    every = Samples(np.concatenate(rows), np.concatenate(values))
    table = pd.concat(tables, ignore_index=True)
    return Result("summary", SPEC, {"summary": table}, samples={"summary": every})


def _named(frame: pd.DataFrame, table: str) -> pd.DataFrame:
    if table != "copies":
        return frame
    return frame.assign(name=copy_titles(frame))


def _finish(result: Result) -> Result:
    deviation = _deviations(result.table, result.samples["summary"])
    finished = finish_durations(result.with_table(result.table.assign(deviation_ns=deviation)))
    table = finished.table
    of_kind = table.groupby("kind")["total_ns"].transform("sum")
    table = table.assign(share_ratio=table["total_ns"] / of_kind.where(of_kind > 0))
    order = ["kind", "total_ns", "name"]
    return finished.with_table(
        table.sort_values(order, ascending=[False, False, True], ignore_index=True)
    )


def _deviations(table: pd.DataFrame, samples: Samples) -> np.ndarray:
    """Return the standard deviation of each row's durations; 0 of a single one, as others print."""
    values = samples.values.astype(np.float64)
    weights = np.ones(len(values)) if samples.counts is None else samples.counts
    counts = np.bincount(samples.rows, weights, len(table))
    means = np.bincount(samples.rows, values * weights, len(table)) / np.maximum(counts, 1)
    deviations = (values - means[samples.rows]) ** 2
    squares = np.bincount(samples.rows, deviations * weights, len(table))
    return np.sqrt(squares / np.maximum(counts - 1, 1))


ANALYSIS = Analysis(
    name="summary",
    spec=SPEC,
    uses=_TABLES,
    of_rank=measure_summary,
    finish=_finish,
)
