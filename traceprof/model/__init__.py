"""The data model of a trace: tables, windows, intervals, activities, steps. No input or output."""

from traceprof.model.intervals import Intervals
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace, TraceInfo, make_trace

__all__ = ["Intervals", "TimeWindow", "Trace", "TraceInfo", "make_trace"]
