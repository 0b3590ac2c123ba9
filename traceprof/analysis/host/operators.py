"""Host operators by name: what the CPU computed or called."""

from __future__ import annotations

from typing import Final

import numpy as np

from traceprof.analysis.base import Analysis
from traceprof.analysis.statistics import DURATIONS, finish_durations, summarise
from traceprof.facts.host.self_time import self_time_ns
from traceprof.model.results import Result, ResultSpec, TableSpec, Unit, derived, key, total
from traceprof.model.trace import Trace

__all__ = ["ANALYSIS"]

SPEC: Final = ResultSpec(
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
_KEYS: Final = SPEC.tables[0].keys


def measure_operators(trace: Trace) -> Result:
    """Return the host operators by name."""
    operators = trace.host_ops
    table, samples = summarise(operators, _KEYS)
    self_ns = np.zeros(len(table), np.int64)
    own = self_time_ns(operators, ("process", "thread", "source")).to_numpy(np.int64)
    np.add.at(self_ns, samples.rows, own)
    return Result(
        "operators",
        SPEC,
        {"operators": table.assign(self_ns=self_ns)},
        samples={"operators": samples},
    )


def _finish(result: Result) -> Result:
    finished = finish_durations(result)
    table = finished.table
    table["self_ratio"] = table["self_ns"] / (int(table["self_ns"].sum()) or float("nan"))
    order = ["self_ns", *_KEYS]
    return finished.with_table(
        table.sort_values(order, ascending=[False, True, True], ignore_index=True)
    )


ANALYSIS = Analysis(
    name="operators",
    spec=SPEC,
    needs=("host_ops",),
    of_rank=measure_operators,
    finish=_finish,
)
