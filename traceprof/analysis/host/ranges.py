"""NVTX and other host ranges by name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.analysis.statistics import summarise
from traceprof.facts.host.self_time import self_time_ns
from traceprof.model.trace import Trace

__all__ = ["ANALYSIS", "Ranges", "measure_ranges", "plain_name"]

_DECORATIONS: Final = re.compile(r"(, (seq|op_id) = \d+|, sizes = \[.*\]|, input_op_ids = .*)+$")
_KEYS = ("name", "domain", "kind")


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """One row per name, domain and kind of range, by total host time.

    ``table``: those keys, count, total_ns, share_ratio, self_ns (not inside another range of the
    same kind on the same thread), and the statistics of the durations. Ranges nest and run on
    many threads, so that totals add up to more than the window.
    """

    table: pd.DataFrame
    notes: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return the table."""
        return self.table


def measure_ranges(trace: Trace) -> Ranges:
    """Return the ranges by name; one that the window cuts counts with its part inside."""
    ranges = trace.ranges.assign(name=_undecorated(trace.ranges["name"].array))
    table = summarise(ranges, _KEYS)
    own = self_time_ns(ranges, ("process", "thread", "kind"))
    sums = own.groupby([ranges[key] for key in _KEYS], observed=True).sum()
    keys = table[list(_KEYS)].itertuples(index=False, name=None)
    table.insert(5, "self_ns", [int(sums[key]) for key in keys])
    return Ranges(table)


def _undecorated(names: pd.Categorical) -> pd.Categorical:
    """Return the names without what PyTorch's emit_nvtx makes unique in each."""
    plain = pd.Series([plain_name(str(name)) for name in names.categories], dtype=object)
    return pd.Categorical(plain.to_numpy()[names.codes])


def plain_name(name: str) -> str:
    """Return a range's name without sequence and operator numbers and shapes."""
    return _DECORATIONS.sub("", name)


ANALYSIS = Analysis(
    name="ranges",
    needs=("ranges",),
    run=measure_ranges,
)
