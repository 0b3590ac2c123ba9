"""Copies and memsets by device, direction and kind of memory, with bytes and bandwidth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.analysis.statistics import summarise
from traceprof.model.intervals import Intervals
from traceprof.model.trace import Trace

__all__ = ["ANALYSIS", "Copies", "measure_copies"]

_KEYS = ("device", "direction", "src_kind", "dst_kind")


@dataclass(frozen=True, slots=True, eq=False)
class Copies:
    """One row per device, direction and kind of memory at both ends, by total time.

    ``table``: those keys, count, total_ns, busy_ns (their union: copies may run side by side),
    n_bytes, rate_bytes_per_s (bytes over total time, that is, of one copy at a time), and the
    statistics of the durations. The rate is NaN where no time passed.
    """

    table: pd.DataFrame
    notes: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return the table."""
        return self.table


def measure_copies(trace: Trace) -> Copies:
    """Return the copies by direction; one that the window cuts counts with its part inside."""
    copies = trace.copies
    table = summarise(copies, _KEYS)
    grouped = copies.groupby(list(_KEYS), observed=True)
    n_bytes = grouped["n_bytes"].sum()
    busy_ns = {
        key: Intervals.union_of(rows["start_ns"], rows["end_ns"]).total_ns for key, rows in grouped
    }
    keys = list(table[list(_KEYS)].itertuples(index=False, name=None))
    table.insert(6, "busy_ns", np.array([busy_ns[key] for key in keys], np.int64))
    table.insert(7, "size_bytes", np.array([n_bytes[key] for key in keys], np.int64))
    seconds = table["total_ns"].where(table["total_ns"] > 0) / 1e9
    table.insert(8, "rate_bytes_per_s", table["size_bytes"] / seconds)
    return Copies(table)


ANALYSIS = Analysis(
    name="copies",
    needs=("copies",),
    run=measure_copies,
)
