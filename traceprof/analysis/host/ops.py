"""Host operators by name: what the CPU computed or called."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.analysis.statistics import summarise
from traceprof.facts.host.self_time import self_time_ns
from traceprof.model.trace import Trace

__all__ = ["ANALYSIS", "Operators", "measure_operators"]

_KEYS = ("name", "source")


@dataclass(frozen=True, slots=True, eq=False)
class Operators:
    """One row per operator, by self time.

    ``table``: name, source, count, self_ns (without the operators that it called), self_ratio
    (of the self time of all), total_ns, and the statistics of the durations.
    """

    table: pd.DataFrame
    notes: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return the table."""
        return self.table


def measure_operators(trace: Trace) -> Operators:
    """Return the host operators by name."""
    operators = trace.host_ops
    table = summarise(operators, _KEYS).drop(columns="share_ratio")
    own = self_time_ns(operators, ("process", "thread", "source"))
    sums = own.groupby([operators[key] for key in _KEYS], observed=True).sum()
    keys = list(table[list(_KEYS)].itertuples(index=False, name=None))
    self_ns = pd.Series([int(sums[key]) for key in keys], dtype="int64")
    table.insert(3, "self_ns", self_ns)
    table.insert(4, "self_ratio", self_ns / (int(self_ns.sum()) or float("nan")))
    return Operators(table.sort_values("self_ns", ascending=False, ignore_index=True))


ANALYSIS = Analysis(
    name="ops",
    needs=("host_ops",),
    run=measure_operators,
)
