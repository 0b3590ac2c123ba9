"""Device time by kernel name."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.analysis.statistics import summarise
from traceprof.model.trace import Trace

__all__ = ["ANALYSIS", "Kernels", "measure_kernels"]


@dataclass(frozen=True, slots=True, eq=False)
class Kernels:
    """One row per kernel name, by total time.

    ``table``: name, activity, count, total_ns, share_ratio (of the time of all kernels, added up
    over streams and devices), mean_ns, median_ns, min_ns, max_ns.
    """

    table: pd.DataFrame
    notes: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return the table."""
        return self.table


def measure_kernels(trace: Trace) -> Kernels:
    """Return the kernels by name; one that the window cuts counts with its part inside."""
    return Kernels(summarise(trace.kernels, ["name", "activity"]))


ANALYSIS = Analysis(
    name="kernels",
    needs=("kernels",),
    run=measure_kernels,
)
