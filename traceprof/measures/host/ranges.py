"""NVTX and other host ranges, and host operators, by name, with their self time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pandas as pd

from traceprof.measures.analyses import Analysis
from traceprof.measures.durations import DURATIONS, finish_durations, summarise
from traceprof.model.grouping import parents_of, rows_by_values
from traceprof.model.intervals import nesting_depth
from traceprof.model.results import Result, ResultSpec, TableSpec, Unit, derived, key, total
from traceprof.model.trace import Trace
from traceprof.names.ranges import plain_names


def self_time_ns(frame: pd.DataFrame, lane: Sequence[str]) -> pd.Series:
    """Return the self time of each row of ``frame`` (sorted as tables are).

    ``lane`` names the columns within whose values rows nest (the thread, say). Where rows of a
    lane overlap without nesting, the later one counts with its part inside the earlier.
    """
    own = (frame["end_ns"] - frame["start_ns"]).to_numpy().copy()
    starts, ends = frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy()
    for rows in rows_by_values(*(_numbers(frame[name]) for name in lane)).values():
        parents = parents_of(nesting_depth(starts[rows], ends[rows]))
        children = parents >= 0
        outer = rows[parents[children]]
        inside = np.minimum(ends[rows[children]], ends[outer]) - starts[rows[children]]
        np.subtract.at(own, outer, np.maximum(inside, 0))
    return pd.Series(np.maximum(own, 0), index=frame.index)


def _numbers(column: pd.Series) -> pd.Series:
    return column.cat.codes if isinstance(column.dtype, pd.CategoricalDtype) else column


RANGES_SPEC: Final = ResultSpec(
    tables=(
        TableSpec(
            "ranges",
            "one row per name, domain and kind of range, by total host time; ranges nest and run "
            "on many threads, so that totals add up to more than the window",
            (
                key("name", "the name, without the numbers that PyTorch's emit_nvtx adds"),
                key("domain", 'the NVTX domain; "" for the default one'),
                key("kind", "push_pop (they nest on a thread) or start_end"),
                *DURATIONS[:2],
                total(
                    "self_ns",
                    Unit.NS,
                    "the time in no other range of the same kind inside, on the same thread",
                ),
                *DURATIONS[2:],
            ),
        ),
    )
)
_RANGE_KEYS: Final = RANGES_SPEC.tables[0].keys


def measure_ranges(trace: Trace) -> Result:
    """Return the ranges by name; one that the window cuts counts with its part inside."""
    ranges = trace.ranges.assign(name=plain_names(trace.ranges["name"]))
    table, samples = summarise(ranges, _RANGE_KEYS)
    self_ns = np.zeros(len(table), np.int64)
    own = self_time_ns(ranges, ("process", "thread", "kind")).to_numpy(np.int64)
    np.add.at(self_ns, samples.rows, own)
    table = table.assign(self_ns=self_ns)
    return Result("ranges", RANGES_SPEC, {"ranges": table}, samples={"ranges": samples})


RANGES = Analysis(
    name="ranges",
    spec=RANGES_SPEC,
    needs=("ranges",),
    of_rank=measure_ranges,
    finish=finish_durations,
)


OPERATORS_SPEC: Final = ResultSpec(
    tables=(
        TableSpec(
            "operators",
            "one row per operator, by self time",
            (
                key("name", "the name of the operator or of the call"),
                key("source", "who recorded it: cpu_op (PyTorch's operators), osrt …"),
                total("count", Unit.COUNT, "how often it ran"),
                total("self_ns", Unit.NS, "the time in it, and in no operator that it called"),
                derived("self_ratio", Unit.RATIO, "self_ns of the sum over all rows"),
                *(column for column in DURATIONS if column.name not in ("count", "share_ratio")),
            ),
        ),
    )
)
_OPERATOR_KEYS: Final = OPERATORS_SPEC.tables[0].keys


def measure_operators(trace: Trace) -> Result:
    """Return the host operators by name."""
    operators = trace.host_ops
    table, samples = summarise(operators, _OPERATOR_KEYS)
    self_ns = np.zeros(len(table), np.int64)
    own = self_time_ns(operators, ("process", "thread", "source")).to_numpy(np.int64)
    np.add.at(self_ns, samples.rows, own)
    return Result(
        "operators",
        OPERATORS_SPEC,
        {"operators": table.assign(self_ns=self_ns)},
        samples={"operators": samples},
    )


def _finish_operators(result: Result) -> Result:
    finished = finish_durations(result)
    table = finished.table
    table["self_ratio"] = table["self_ns"] / (int(table["self_ns"].sum()) or float("nan"))
    order = ["self_ns", *_OPERATOR_KEYS]
    return finished.with_table(
        table.sort_values(order, ascending=[False, True, True], ignore_index=True)
    )


OPERATORS = Analysis(
    name="operators",
    spec=OPERATORS_SPEC,
    needs=("host_ops",),
    of_rank=measure_operators,
    finish=_finish_operators,
)
