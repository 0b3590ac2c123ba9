"""How long runs take until they are good enough: time, steps, epochs and samples to a target."""

from traceprof.comparison.accuracy.compared import accuracy as accuracy
