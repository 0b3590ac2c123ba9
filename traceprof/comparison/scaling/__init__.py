"""How throughput grows with the number of devices, and where the rest was lost."""

from traceprof.comparison.scaling.compared import scaling as scaling
