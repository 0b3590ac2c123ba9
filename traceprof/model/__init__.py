"""What a trace is: tables, windows, intervals, activities, steps. No input or output here."""

from traceprof.model.intervals import Intervals
from traceprof.model.trace import Trace, TraceInfo, make_trace
from traceprof.model.window import TimeWindow

__all__ = ["Intervals", "TimeWindow", "Trace", "TraceInfo", "make_trace"]
