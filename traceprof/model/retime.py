"""Moving the times of processes to another clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.model.clocks import ClockCorrection
from traceprof.model.tables import TABLES, make_table
from traceprof.model.trace import Trace
from traceprof.model.window import TimeWindow

__all__ = ["retime"]

_Int64Array = npt.NDArray[np.int64]


def retime(trace: Trace, corrections: Mapping[int, ClockCorrection]) -> Trace:
    """Return the whole ``trace`` with the times of each process corrected.

    Rows of processes without a correction, and rows of no process, stay where they are.
    """
    tables: dict[str, Any] = {}
    for name, table in TABLES.items():
        frame = trace.table(name)
        if not table.has_times or "process" not in table.columns or frame.empty:
            continue
        processes = frame["process"].to_numpy()
        columns = {str(column): frame[column].array for column in frame}
        for time in ("start_ns", "end_ns"):
            if time in columns:
                columns[time] = _corrected(frame[time].to_numpy(), processes, corrections)
        tables[name] = make_table(name, columns)
    moved = replace(trace, **tables, uncut=None)
    return replace(moved, span=_span(trace.span, moved), recordings=_recordings(trace, corrections))


def _recordings(trace: Trace, corrections: Mapping[int, ClockCorrection]) -> dict[int, TimeWindow]:
    found = {}
    for process, window in trace.recordings.items():
        correction = corrections.get(process, ClockCorrection())
        edges = correction.apply(np.array([window.start_ns, window.end_ns], np.int64)).tolist()
        found[process] = TimeWindow(*edges)
    return found


def _corrected(
    instants: _Int64Array, processes: _Int64Array, corrections: Mapping[int, ClockCorrection]
) -> _Int64Array:
    corrected = instants.copy()
    # Of the processes of a whole run, few are in the table of one rank.
    for process in pd.unique(processes).tolist():
        if process in corrections:
            own = processes == process
            corrected[own] = corrections[process].apply(instants[own])
    return corrected


def _span(span: TimeWindow, moved: Trace) -> TimeWindow:
    """Return the span, widened to hold what was moved."""
    starts, ends = [span.start_ns], [span.end_ns]
    for name, table in TABLES.items():
        frame = moved.table(name)
        if table.has_times and len(frame):
            starts.append(int(frame["start_ns"].iloc[0]))
            ends.append(int(frame["end_ns" if table.has_spans else "start_ns"].max()))
    return TimeWindow(min(starts), max(ends))
