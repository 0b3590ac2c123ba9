"""Which step the report shows as a timeline."""

from __future__ import annotations

from traceprof.analysis.base import Result
from traceprof.analysis.steps import StepTimes
from traceprof.model.selection import Selection
from traceprof.model.trace import Trace
from traceprof.model.window import TimeWindow

__all__ = ["typical_window"]

_MARGIN = 20


def typical_window(
    trace: Trace, selection: Selection, steps: Result | None
) -> tuple[TimeWindow, str]:
    """Return the steady step whose duration is nearest to the median, with a twentieth around it.

    Without steps it is the window of the report.
    """
    if not isinstance(steps, StepTimes) or steps.table.empty:
        return selection.window, f"the window {selection.label}"
    steady = steps.table[~steps.table["is_warmup"]]
    table = steady if len(steady) else steps.table
    distance = (table["duration_ns"] - table["duration_ns"].median()).abs()
    row = table.iloc[int(distance.to_numpy().argmin())]
    start = trace.span.start_ns + int(row["at_ns"])
    margin = int(row["duration_ns"]) // _MARGIN
    window = TimeWindow(start - margin, start + int(row["duration_ns"]) + margin) & trace.span
    return window, f"step {int(row['step'])}, a typical one"
