"""Device time by kernel name."""

from __future__ import annotations

from typing import Final

from traceprof.analysis.base import Analysis
from traceprof.analysis.statistics import DURATIONS, finish_durations, summarise
from traceprof.model.results import Result, ResultSpec, TableSpec, key
from traceprof.model.trace import Trace

__all__ = ["ANALYSIS"]

SPEC: Final = ResultSpec(
    tables=(
        TableSpec(
            "kernels",
            "one row per kernel name, by total time (added up over streams and devices)",
            (
                key("name", "the name of the kernel"),
                key("activity", "what kind of work it does"),
                *DURATIONS,
            ),
        ),
    )
)


def measure_kernels(trace: Trace) -> Result:
    """Return the kernels by name; one that the window cuts counts with its part inside."""
    table, samples = summarise(trace.kernels, ["name", "activity"])
    return Result("kernels", SPEC, {"kernels": table}, samples={"kernels": samples})


ANALYSIS = Analysis(
    name="kernels",
    spec=SPEC,
    needs=("kernels",),
    of_rank=measure_kernels,
    finish=finish_durations,
)
