"""NVTX and other host ranges by name."""

from __future__ import annotations

from typing import Final

import numpy as np

from traceprof.analysis.base import Analysis
from traceprof.analysis.statistics import DURATIONS, finish_durations, summarise
from traceprof.facts.host.self_time import self_time_ns
from traceprof.model.results import Result, ResultSpec, TableSpec, Unit, key, total
from traceprof.model.trace import Trace
from traceprof.names.ranges import plain_names

__all__ = ["ANALYSIS"]

SPEC: Final = ResultSpec(
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
_KEYS: Final = SPEC.tables[0].keys


def measure_ranges(trace: Trace) -> Result:
    """Return the ranges by name; one that the window cuts counts with its part inside."""
    ranges = trace.ranges.assign(name=plain_names(trace.ranges["name"]))
    table, samples = summarise(ranges, _KEYS)
    self_ns = np.zeros(len(table), np.int64)
    own = self_time_ns(ranges, ("process", "thread", "kind")).to_numpy(np.int64)
    np.add.at(self_ns, samples.rows, own)
    table = table.assign(self_ns=self_ns)
    return Result("ranges", SPEC, {"ranges": table}, samples={"ranges": samples})


ANALYSIS = Analysis(
    name="ranges",
    spec=SPEC,
    needs=("ranges",),
    of_rank=measure_ranges,
    finish=finish_durations,
)
