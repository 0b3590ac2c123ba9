"""What a trace is: tables, windows, intervals, activities, steps. No input or output here."""

import pandas as pd

from traceprof.model.intervals import Intervals
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace, TraceInfo, make_trace
from traceprof.processes import is_own

if is_own():
    # Names of columns, and there are thousands of small tables: Arrow takes longer to begin than to
    # work (a tenth of `analyze` of 30 000 events).
    pd.set_option("mode.string_storage", "python")

__all__ = ["Intervals", "TimeWindow", "Trace", "TraceInfo", "make_trace"]
